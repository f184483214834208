"""Tables of plain columns: histories and sweeps. Imports errors."""

from __future__ import annotations

import csv
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import IO, Any

import numpy as np

from rookery.errors import InputError

# What every history says of a run's cost; its other columns are metrics.
COST = (
    "round", "exchanges", "floats_up", "floats_down", "bytes_up", "bytes_down", "samples", "gradients", "seconds",
)  # fmt: skip


class Table(dict):
    """Named columns of equal length, grown row by row; `to_pandas()` makes a DataFrame of it.

    It is a dict in name alone, for `pandas.DataFrame(table)`, which takes columns of nothing else.

    A cell that a row does not give is NaN; columns keep the order in which they first came.
    """

    def __init__(self, rows: list[dict[str, Any]] | None = None):
        self.rows: list[dict[str, Any]] = []
        self.columns: list[str] = []
        for row in rows or []:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        self.columns.extend(name for name in row if name not in self.columns)
        self.rows.append(dict(row))

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise KeyError(f"there is no column {column!r}; there are {', '.join(self.columns)}")
        return np.asarray([row.get(column, float("nan")) for row in self.rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and (self.columns, self.rows) == (other.columns, other.rows)

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def get(self, column: str, default: Any = None) -> Any:
        return self[column] if column in self.columns else default

    def __len__(self) -> int:
        """The number of columns, as of any mapping; `len(table.rows)` is the number of rows."""
        return len(self.columns)

    @property
    def metrics(self) -> list[str]:
        """The columns of a history that are metrics."""
        return [name for name in self.columns if name not in COST]

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas: pandas is not installed; pip install pandas") from None
        return pandas.DataFrame({name: self[name] for name in self.columns})

    def to_csv(self, path: str | Path) -> None:
        """Writes the table; numbers with all their digits."""
        with open(path, "w", newline="") as file:
            self.write_into(file)

    def write_into(self, file: IO[str], header: bool = True) -> None:
        """Writes the table into a file that is open."""
        writer = csv.DictWriter(file, self.columns, restval=float("nan"))
        if header:
            writer.writeheader()
        writer.writerows(self.rows)

    @classmethod
    def from_csv(cls, path: str | Path) -> Table:
        """Reads what `to_csv` wrote; the columns of a table without rows are kept."""
        with open(path, newline="") as file:
            try:
                header, *rows = list(csv.reader(file)) or [[]]
            except (csv.Error, ValueError) as error:
                raise InputError(f"table: {str(path)!r} does not read as a table: {error}") from None
        for number, row in enumerate(rows):
            if len(row) != len(header):
                raise InputError(
                    f"table: row {number + 1} of {str(path)!r} has {len(row)} cells and its header {len(header)}; a "
                    "whole table is needed"
                )
        table = cls([dict(zip(header, map(_parse, row))) for row in rows])
        table.columns = header
        return table

    def __repr__(self) -> str:
        cells = [self.columns, *([_show(row.get(name, "")) for name in self.columns] for row in self.rows)]
        if len(cells) > 21:
            cells = [*cells[:11], ["..."] * len(self.columns), *cells[-10:]]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells)


def _parse(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _show(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
