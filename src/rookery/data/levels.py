"""The examples of all clients for one level, and what is given to two. Imports vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rookery.vectors import Tree

BOTH = "all"  # the name of the only level when the levels see the same data


@dataclass(frozen=True)
class Split:
    """Something for the lower level and something for the upper: a client's data, or batch sizes."""

    lower: Any
    upper: Any


class Level(NamedTuple):
    """The examples of all clients for one level: client i owns rows offset[i] .. offset[i] + size[i] - 1.

    Of clients whose examples are not in memory, the rows are their shapes and types.
    """

    rows: Tree
    offset: Any
    size: Any
