"""The examples of all clients for one level, and what is given to two. Imports vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rookery.vectors import Tree

BOTH = "all"  # the name of the only level when the levels see the same data
ABSENT = -1  # the offset of a client whose rows are at another party


@dataclass(frozen=True)
class Split:
    """Something for the lower level and something for the upper: a client's data, or batch sizes."""

    lower: Any
    upper: Any


class Level(NamedTuple):
    """The examples of all clients for one level: client i owns rows offset[i] .. offset[i] + size[i] - 1.

    Of clients whose examples are not in memory, the rows are their shapes and types. A client whose rows are at another
    party of a federation has the offset `ABSENT`.
    """

    rows: Tree
    offset: Any
    size: Any


def row_of(level: Level, row: int) -> tuple[int, int]:
    """The client that owns a row of a level, and the number of the row among the client's own."""
    offset, size = np.asarray(level.offset), np.asarray(level.size)
    client = int(np.flatnonzero((offset != ABSENT) & (offset <= row) & (row < offset + size))[0])
    return client, row - int(offset[client])
