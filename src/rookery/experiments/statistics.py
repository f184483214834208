"""What several seeds say together: means, sample deviations, intervals and paired differences."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


class Summary(NamedTuple):
    """A mean over seeds, its sample standard deviation, and the interval for the mean; NaN where they are undefined."""

    mean: float
    spread: float
    low: float
    high: float


def summarise(values: np.ndarray, level: float = LEVEL) -> Summary:
    """Summarise one number per seed.

    The spread divides by n - 1, and the interval is Student's t with n - 1 degrees of freedom. One value has neither.
    """
    count = values.size
    mean = float(values.mean()) if count else math.nan
    if count < 2:
        return Summary(mean, math.nan, math.nan, math.nan)
    spread = float(values.std(ddof=1)) if np.ptp(values) else 0.0  # the mean of equal numbers may be off by a rounding
    half = float(stdtrit(count - 1, (1 + level) / 2)) * spread / math.sqrt(count)
    return Summary(mean, spread, mean - half, mean + half)


def paired(first: np.ndarray, second: np.ndarray, level: float = LEVEL) -> Summary:
    """Summarise `first - second`, seed by seed: variation that both methods share over seeds cancels."""
    return summarise(first - second, level)
