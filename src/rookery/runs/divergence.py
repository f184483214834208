"""Runs that end with finite numbers and have diverged all the same. Imports results and directions of metrics.

The engine ends a run at the first state that is not finite. A run may also explode and stay finite, since its rounds
end before the largest float is reached. Such a run is not ended early; its result has the status "diverged" if, at the
end of the run, one of these holds:

- some entry of a sequence is larger than GROWN, and than GROWN times the largest entry of the initial values;
- a metric that was finite at first is not finite any more;
- a metric with a known direction is worse than its first value by more than WORSE times that value (at least 1).

A metric that ends worse than it began, by any amount, is named by `Result.worse`; that is no divergence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rookery.runs.result import Divergence, Result, signed_change
from rookery.runs.table import Table
from rookery.vectors import Tree

GROWN = 1e10
WORSE = 1e3


def concluded(result: Result, initial: Mapping[str, float]) -> Result:
    """Return the result of a run that ended by itself, with the status "diverged" if it exploded.

    Args:
      initial: The largest entry of each sequence before the first round, from `sizes`.
    """
    if result.status != "done":
        return result
    reasons = _state(result, initial)
    for metric in result.history.metrics:
        if (said := exploded_metric(result.history, metric)) is not None:
            reasons[metric] = said
    if not reasons:
        return result
    return replace(
        result,
        status="diverged",
        divergence=Divergence(result.state.round, tuple(reasons), "; ".join(reasons.values())),
    )


def exploded_metric(history: Table, metric: str, falling: bool | None = None) -> str | None:
    """Say how a metric exploded, or return None; `falling` is its direction, by default inferred from its name."""
    if not history.rows:
        return None
    first, last = float(history[metric][0]), float(history[metric][-1])
    if math.isfinite(first) and not math.isfinite(last):
        return f"{metric} went from {first:.3g} to {last}"
    change = signed_change(metric, first, last, falling)
    if change is not None and change > WORSE * max(1.0, abs(first)):
        return f"{metric} went from {first:.3g} to {last:.3g}"
    return None


def _state(result: Result, initial: Mapping[str, float]) -> dict[str, str]:
    local = result.local[0] if result.local and result.state.store is not None else {}  # in a file: not read again
    final = sizes({name: tree for name, tree in result.sequences.items() if name not in local})
    grown = {name: size for name, size in final.items() if size > GROWN * max(1.0, initial.get(name, 0.0))}
    return {name: f"{name} grew to {size:.3g}" for name, size in grown.items()}


def sizes(values: Mapping[str, Tree]) -> dict[str, float]:
    """Return the largest absolute entry of every sequence."""
    return {name: max(map(_largest, jax.tree.leaves(tree)), default=0.0) for name, tree in values.items()}


def _largest(leaf: Any) -> float:
    array = np.asarray(leaf)
    if array.ndim and array.size and array.strides[0] == 0:  # one client's initial value, shown for all clients
        array = array[:1]
    return max(float(array.max()), -float(array.min())) if array.size and array.dtype.kind in "fiu" else 0.0
