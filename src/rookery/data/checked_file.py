"""Checked records named by a file beside the tables, in place of a column inside them. Imports errors and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.data.tables import columns_of, read_csv
from rookery.errors import InputError

SUFFIX = ".csv"
SITE, ROW = "site", "row"
COLUMN = "checked by "  # before the name of the file: the column that stands for it


def is_checked_file(checked: str) -> bool:
    """Whether `checked` names a file, and not a column."""
    return checked.lower().endswith(SUFFIX)


def checked_path(checked: str) -> Path:
    """The path of a file of checked records; relative paths are looked up in the working directory."""
    path = Path(checked).expanduser().absolute()
    if not path.is_file():
        raise InputError(f"checked: no file {checked!r}; name a column, or a csv file with the column {ROW!r}.")
    return path


def checked_column(checked: str, columns: list[Any]) -> str:
    """The name of the column that stands for a file of checked records."""
    name = COLUMN + Path(checked).name
    while name in columns:
        name += "'"
    return name


def with_checked_column(
    tables: Mapping[str, Any], checked: str, own: str = ""
) -> tuple[dict[str, dict[str, np.ndarray]], str]:
    """Tables with a column of 0 and 1 that says which records a file names, and the name of this column.

    The file has a line for each checked record: its `row`, 1 for the first record below the header, and, where there
    are several tables, its `site`, the name of the table.

    Args:
      tables: Tables by name.
      checked: Path of the file.
      own: Name of the only table here if the file may name records of other sites as well; empty: it may not.
    """
    listed = read_csv(checked_path(checked))
    if unknown := sorted(set(listed) - {SITE, ROW}):
        raise InputError(f"checked: {checked!r} has a column {unknown[0]!r}; {ROW!r} and {SITE!r} are allowed.")
    if ROW not in listed:
        raise InputError(f"checked: {checked!r} has no column {ROW!r}; give the number of each checked record.")
    names = [str(name) for name in listed[SITE].tolist()] if SITE in listed else None
    if names is None and len(tables) > 1:
        raise InputError(f"checked: {checked!r} has no column {SITE!r}, and there are {len(tables)} tables; add it.")
    rows = {name: set() for name in tables}
    for line, row in enumerate(listed[ROW].tolist(), start=2):
        site = next(iter(tables)) if names is None else names[line - 2]
        if own and names is not None:
            if site != own:
                continue
            site = next(iter(tables))
        if site not in rows:
            raise InputError(f"checked: {checked!r}, line {line}: there is no site {site!r}; sites are {_list(rows)}.")
        size = len(next(iter(_columns(tables[site]).values())))
        if type(row) is not int or not 1 <= row <= size:
            raise InputError(f"checked: {checked!r}, line {line}: row must be a number from 1 to {size}; got {row}.")
        if row in rows[site]:
            raise InputError(f"checked: {checked!r}, line {line}: row {row} of {site!r} is named twice.")
        rows[site].add(row)
    found, column = {}, checked_column(checked, [name for table in tables.values() for name in columns_of(table)])
    for name, table in tables.items():
        columns = _columns(table)
        flags = np.zeros(len(next(iter(columns.values()))), np.int64)
        flags[[row - 1 for row in rows[name]]] = 1
        found[name] = columns | {column: flags}
    return found, column


def _columns(table: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(table[name]) for name in columns_of(table)}


def _list(names: Any) -> str:
    return ", ".join(map(repr, names))
