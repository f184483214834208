"""Data of the task `trust`: which records are checked, and which labels are wrong. Imports data and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rookery.data.datasets import Dataset, standardising
from rookery.data.parts import check_fraction, hold_out
from rookery.errors import InputError, unknown


def checked_in(dataset: Dataset, column: str, own: str | None) -> tuple[Dataset, dict[str, np.ndarray]]:
    """The dataset without the column of checked records, and which training records are checked; nothing where the
    task draws them. `own` is the name of the user's own data."""
    if "checked" in dataset.train:  # the column of a table of one's own, or of its schema
        bare = lambda part: {name: array for name, array in part.items() if name != "checked"}
        flags = {"checked": dataset.train["checked"] > 0}
        return replace(dataset, train=bare(dataset.train), test=bare(dataset.test)), flags
    if not column:
        if own:
            raise InputError(
                f"task.checked: none was given, and {own!r} is own data; add a column that is 1 where a "
                "record's label was checked and 0 elsewhere, and name it: --task.checked COLUMN; or list these records "
                "in a file: --task.checked FILE.csv"
            )
        return dataset, {}
    if column not in dataset.columns:
        part = _as_number(column)
        if part is not None and not own:
            raise InputError(
                f"task.checked: {column!r} was given; it names a column. A part of built-in data is drawn as "
                f"checked by --task.checked-part {part:g}"
            )
        raise unknown("task.checked", column, dataset.columns)
    place = dataset.columns.index(column)
    if len(dataset.columns) == 1:
        raise InputError(f"task.checked: {column!r} is the only column; at least one input is needed")
    for part in (dataset.train, dataset.test):
        values = np.unique(part["input"][:, place])
        if not set(values.tolist()) <= {0.0, 1.0}:
            raise InputError(
                f"task.checked: column {column!r} holds {values[~np.isin(values, (0, 1))][0]:g}; it must be "
                "1 where a label was checked and 0 elsewhere"
            )
    return _without_column(dataset, place), {"checked": dataset.train["input"][:, place] > 0}


def dataset_of_sites(sites: Mapping[str, Mapping[str, Any]], test: float, seed: int) -> tuple[Dataset, np.ndarray]:
    """The dataset of sites' own arrays, a part of each site's records held out for its test examples; and which
    training records are checked."""
    check_fraction("test", test)
    data = {str(name): _arrays(str(name), own) for name, own in sites.items()}
    if len({own["input"].shape[1] for own in data.values()}) != 1:
        raise InputError("sites: their inputs have different numbers of columns; all must have the same")
    held = [hold_out("test", own["label"], test, (seed, i), rare=True) for i, own in enumerate(data.values())]
    for name, where in zip(data, held):
        if not where.any():
            raise InputError(f"test: {test} of site {name!r} is no record; more records, or a larger part, are needed")
    rows = {name: np.concatenate([own[name] for own in data.values()]) for name in ("input", "label", "checked")}
    owner, out = np.repeat(np.arange(len(data)), [where.size for where in held]), np.concatenate(held)
    part = lambda where: {name: rows[name][where] for name in ("input", "label")}
    dataset = Dataset(
        "sites",
        part(~out),
        part(out),
        int(rows["label"].max()) + 1,
        standardising(rows["input"][~out]),
        owner=owner[~out],
        owners=tuple(data),
        test_owner=owner[out],
    )
    return dataset, rows["checked"][~out]


def draw_checked(count: int, part: float, seed: tuple[int, ...]) -> np.ndarray:
    """Which of a site's records are checked, where these are drawn: a part of them, and at least one."""
    checked = np.zeros(count, bool)
    number = min(max(round(part * count), 1), max(count - 1, 1))
    checked[np.random.default_rng(seed).permutation(count)[:number]] = True
    return checked


def wrong_labels(
    own: Mapping[str, np.ndarray], part: float, kind: str, classes: int, seed: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """A site's records with a part of the unchecked labels replaced, and which labels are wrong."""
    rng, label = np.random.default_rng(seed), own["label"]
    replaced = (rng.random(label.size) < part) & ~own["checked"]
    other = (label + 1) % classes if kind == "next" else rng.integers(0, classes, label.size)
    found = np.where(replaced, other, label).astype(np.int32)
    return {**own, "label": found, "wrong": found != label}


def _without_column(dataset: Dataset, place: int) -> Dataset:
    """The dataset without one of its columns."""
    part = lambda examples: {**examples, "input": np.delete(examples["input"], place, axis=1)}
    scale = dataset.scale
    fewer = lambda value: tuple(np.delete(value, place).tolist()) if isinstance(value, tuple) else value
    return replace(
        dataset,
        train=part(dataset.train),
        test=part(dataset.test),
        columns=tuple(np.delete(dataset.columns, place).tolist()),
        scale=replace(scale, shape=(scale.shape[0] - 1,), mean=fewer(scale.mean), std=fewer(scale.std)),
    )


def _arrays(name: str, own: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A site's arrays, once they are what is needed."""
    missing = [key for key in ("input", "label", "checked") if key not in own]
    if missing:
        raise InputError(
            f"sites: site {name!r} has no {missing[0]!r}; each site needs input, label and checked (1 where the label "
            "was checked, 0 elsewhere)"
        )
    inputs, label, checked = (np.asarray(own[key]) for key in ("input", "label", "checked"))
    if inputs.ndim != 2 or label.shape != inputs.shape[:1] or checked.shape != label.shape:
        raise InputError(
            f"sites: site {name!r} has input {inputs.shape}, label {label.shape} and checked {checked.shape}; (n, "
            "features), (n,) and (n,) are needed"
        )
    if not np.isfinite(inputs.astype(np.float64)).all():
        raise InputError(f"sites: site {name!r} has an input that is not finite; fill or leave out such records")
    if label.dtype.kind not in "iu" or label.min(initial=0) < 0:
        raise InputError(f"sites: site {name!r} has labels {np.unique(label)[:5]}; whole numbers from 0 are needed")
    if not set(np.unique(checked).tolist()) <= {0, 1}:
        raise InputError(f"sites: site {name!r} has {np.unique(checked)[:5]} in checked; 0 and 1 are allowed")
    return {"input": inputs.astype(np.float32), "label": label.astype(np.int32), "checked": checked.astype(bool)}


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
