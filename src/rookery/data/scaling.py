"""How the inputs of a table are scaled: by statistics of all clients, or of each client's own. Imports only errors."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from rookery.errors import InputError, unknown

Standardise = Literal["pooled", "client", "robust", "none"]
CLIP = 10.0  # robustly scaled inputs are clipped to this many standard deviations on either side
_QUANTILES = ((25, 1.349), (10, 2.5631), (5, 3.2897), (1, 4.6527), (0, 1.0))  # percent, width of a standard normal

SHOWN = {
    "pooled": "inputs scaled by mean and standard deviation over all clients",
    "client": "inputs scaled by each client's own mean and standard deviation",
    "robust": f"inputs scaled by each client's own median and interquartile range, clipped to {CLIP:g}",
    "fixed": "inputs scaled by constants of the dataset",
    "none": "inputs not scaled",
}


def check_standardise(value: bool | str, argument: str = "standardise") -> Standardise:
    """The kind of scaling; True stands for "pooled" and False for "none"."""
    if isinstance(value, bool):
        return "pooled" if value else "none"
    if value not in get_args(Standardise):
        raise unknown(argument, str(value), get_args(Standardise))
    return value  # type: ignore[return-value]


def mean_and_std(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation of every column; 1 for a constant column."""
    std = inputs.std(axis=0, dtype=np.float64)
    return inputs.mean(axis=0, dtype=np.float64), np.where(std > 0, std, 1.0)


def median_and_width(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The median of every column, and its interquartile range over that of a standard normal distribution.

    Where the middle half of a column is constant, a wider range takes its place, and 1 where all of it is constant.
    """
    inputs = np.asarray(inputs, np.float64)
    width = np.zeros(inputs.shape[1:])
    for percent, normal in _QUANTILES:
        low, high = np.percentile(inputs, [percent, 100 - percent], axis=0)
        width = np.where(width > 0, width, (high - low) / normal)
    return np.median(inputs, axis=0), np.where(width > 0, width, 1.0)


def scaled_by_own(train: np.ndarray, inputs: np.ndarray, kind: Standardise) -> np.ndarray:
    """A client's inputs scaled by its own training inputs, where the kind asks for that."""
    if kind in ("none", "pooled"):
        return inputs
    centre, width = (median_and_width if kind == "robust" else mean_and_std)(np.asarray(train, np.float64))
    scaled = (np.asarray(inputs, np.float64) - centre) / width
    return scaled.clip(-CLIP, CLIP) if kind == "robust" else scaled


def refuse_without_clients(kind: Standardise, name: str) -> None:
    """Refuses scaling by clients where a table has none of its own."""
    if kind == "client":
        raise InputError(
            f"standardise: 'client' was given with {name}, one table without clients of its own; give pooled or "
            "robust, or name the column of clients, as csv:FILE#COLUMN"
        )
