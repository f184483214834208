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
    are several tables, its `site`, the name of the table. Row 0 says that no record of a site was checked.

    Args:
      tables: Tables by name.
      checked: Path of the file.
      own: Name of the only table here, if the file may name records of other sites too; empty: it may not.
    """
    listed = read_csv(checked_path(checked))
    if unknown := sorted(set(listed) - {SITE, ROW}):
        raise InputError(f"checked: {checked!r} has a column {unknown[0]!r}; {ROW!r} and {SITE!r} are allowed.")
    if ROW not in listed:
        raise InputError(f"checked: {checked!r} has no column {ROW!r}; give the number of each checked record.")
    names = [str(name) for name in listed[SITE].tolist()] if SITE in listed else None
    if names is None and len(tables) != 1:
        raise InputError(f"checked: {checked!r} has no column {SITE!r}, and there are {len(tables)} tables; add it.")
    if own and names is not None and own not in names:
        raise InputError(
            f"checked: {checked!r} does not name the site {own!r}; it names {_list(sorted(set(names)))}. Name the site "
            f"as its file is called. If none of its records were checked, give it a line with {ROW} 0."
        )
    columns = {
        name: {column: np.asarray(table[column]) for column in columns_of(table)} for name, table in tables.items()
    }
    sizes = {name: len(next(iter(own_columns.values()))) for name, own_columns in columns.items()}
    rows: dict[str, list[int]] = {name: [] for name in tables}
    for place, cell in enumerate(listed[ROW].tolist()):
        site = next(iter(tables)) if names is None else names[place]
        if own and site != own:
            continue  # a line of another site
        line = f"checked: {checked!r}, line {place + 2}"
        if site not in rows:
            raise InputError(f"{line}: there is no site {site!r}; sites are {_list(rows)}.")
        row = _whole(cell)
        if not 0 <= row <= sizes[site]:
            raise InputError(f"{line}: {ROW} must be a number from 1 to {sizes[site]}, or 0 for none; got {cell}.")
        if row in rows[site] or 0 in rows[site] or (row == 0 and rows[site]):
            raise InputError(f"{line}: {ROW} {row} of {site!r} is named twice, or beside {ROW} 0, which is for none.")
        rows[site].append(row)
    name = checked_column(checked, [column for table in columns.values() for column in table])
    for site, table in columns.items():
        table[name] = np.isin(np.arange(1, sizes[site] + 1), rows[site]).astype(np.int64)
    return columns, name


def _list(names: Any) -> str:
    return ", ".join(map(repr, names))


def _whole(cell: Any) -> int:
    """The whole number in a cell; -1 if it holds none."""
    try:
        number = float(cell)
    except ValueError:
        return -1
    return int(number) if number.is_integer() else -1
