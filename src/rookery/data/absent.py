"""Rows that another party of a federation holds: their number and shape are known, and they take no memory.

Every party builds the same task. Its own rows are arrays; the rows of others are views of one row of zeros, marked as
`Absent`. `federate` keeps no rows of clients that are marked so. Imports numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Absent(np.ndarray):
    """A read-only view of one row of zeros, repeated: rows that are at another party."""


def absent(shape: tuple[int, ...], dtype: Any) -> Absent:
    """Absent rows of this shape."""
    return np.broadcast_to(np.zeros(shape[1:], dtype), shape).view(Absent)


class PartyRows:
    """The rows of all sites one after another, of which one site's are here.

    Rows are taken with an index, as from an array: an array if some of them are here, else `Absent`. As an argument of
    numpy it becomes an array with zeros in the place of absent rows.

    Args:
      own: Rows that are here, with the same shape as the others'.
      begin: Number of the first of them among all rows.
      total: Number of all rows.
    """

    def __init__(self, own: np.ndarray, begin: int, total: int):
        self.own, self.begin = own, begin
        self.shape, self.dtype, self.ndim = (total, *own.shape[1:]), own.dtype, own.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, tuple):
            return np.asarray(self)[index]
        places = np.arange(len(self))[index] - self.begin
        here = (places >= 0) & (places < len(self.own))
        if not np.any(here):
            return absent((*np.shape(places), *self.shape[1:]), self.dtype)
        if np.all(here):
            return self.own[places]
        rows = np.zeros((*np.shape(places), *self.shape[1:]), self.dtype)
        rows[here] = self.own[places[here]]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        rows = np.zeros(self.shape, self.dtype if dtype is None else dtype)
        rows[self.begin : self.begin + len(self.own)] = self.own
        return rows
