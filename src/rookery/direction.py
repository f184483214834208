"""Whether a metric is better when it is lower: inferred from its name here, and nowhere else. Imports errors."""

from __future__ import annotations

import re

from rookery.errors import InputError

# Words of a name. A name with words of both kinds, or with one that may turn the meaning round, is left open.
LOWER = frozenset(
    (
        "loss", "distance", "objective", "error", "gap", "mse", "rmse", "mae", "nll", "perplexity", "cost",
        "regret", "risk", "residual", "logloss",
    )
)  # fmt: skip
HIGHER = frozenset(
    (
        "accuracy", "acc", "auc", "auroc", "auprc", "f1", "precision", "recall", "sensitivity", "specificity",
        "purity", "dice", "iou", "concordance", "r2",
    )
)  # fmt: skip
TURNING = frozenset(
    (
        "negative", "neg", "minus", "inverse", "free", "drop", "reduction", "improvement", "gain", "increase",
        "decrease",
    )
)  # fmt: skip

GIVEN, INFERRED = "given", "inferred from the name"  # where the direction of a metric comes from


def lower_is_better(name: str) -> bool | None:
    """Infer a metric's direction from its name: True, False, or None where the name does not say it.

    >>> lower_is_better("upper_loss"), lower_is_better("accuracy mean"), lower_is_better("size")
    (True, False, None)
    """
    words = set(re.split(r"[\W_]+", name.lower()))
    lower, higher = words & LOWER, words & HIGHER
    if words & TURNING or re.match(r"\s*[-\d]", name) or bool(lower) == bool(higher):
        return None
    return bool(lower)


def known_direction(metric: str, falling: bool | None) -> bool:
    """Return `falling` where it is given, otherwise the inferred direction; refuse a metric that has neither."""
    if falling is not None and not isinstance(falling, bool):
        raise InputError(f"falling must be True (lower is better), False (higher is better) or None; got {falling!r}.")
    found = lower_is_better(metric) if falling is None else falling
    if found is None:
        raise InputError(
            f"falling must be True or False for the metric {metric!r}, because its name does not say its direction; "
            "give falling=True if lower is better, falling=False if higher is better."
        )
    return found
