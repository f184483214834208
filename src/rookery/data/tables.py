"""Tables of people's own: frames with named columns, one per client or one for all, as the arrays that clients hold.

A frame is anything with columns by name: a pandas or polars DataFrame, or a mapping from names to columns. Columns are
matched by name, and every way to be wrong gets a sentence that names client, column and rows. Imports only errors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import InputError, nearest

MISSING = ("refuse", "drop")
_EMPTY = ("", "?", "na", "nan", "n/a", "null", "none")  # cells of a csv that hold nothing
_SHOWN = 5  # rows that a sentence names at most


class Records(NamedTuple):
    """What tables hold, ready to be federated: examples by client, and what names and columns mean."""

    data: list[dict[str, np.ndarray]]
    names: tuple[str, ...]
    columns: tuple[str, ...]
    classes: tuple[Any, ...]
    label: str = ""


@dataclass(frozen=True)
class Reading:
    """How tables are read.

    Args:
      label: the column that is to be learnt; None: there is none.
      columns: the columns that are inputs; None: all but the label and the one that says whose a row is.
      categories: columns of words or codes, each turned into one column per value, alike at all clients; True: every
        column that holds texts.
      classes: the values of the label, in their order; None: those that there are. Of a label of numbers that are not
        whole there are none: it is a number to be predicted.
        A mapping from columns to values fixes the values, so that they do not depend on what the clients hold.
      missing: "refuse" rows with empty cells, or "drop" them.
      checked: Column of 0 and 1 that says whose label was checked; it is no input.
    """

    label: str | None = None
    columns: Sequence[str] | None = None
    categories: Sequence[str] | Mapping[str, Sequence[Any]] | bool = ()
    classes: Sequence[Any] | None = None
    missing: str = "refuse"
    checked: str | None = None


def is_frame(value: Any) -> bool:
    """Whether a value has columns by name: a DataFrame, say."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and not isinstance(value, Mapping)


def is_grouped(value: Any) -> bool:
    """Whether a value is a frame that was grouped: pairs of a name and a frame."""
    return hasattr(value, "groups") and hasattr(value, "__iter__")


def columns_of(table: Any) -> list[Any]:
    """The names of a table's columns."""
    return list(getattr(table, "columns", table))


def records_of(
    data: Any, by: str | None, reading: Reading, check: Callable[[Mapping[str, Any], str], Any] | None = None
) -> Records:
    """The records of tables: a frame with a column that says whose a row is, frames by name, a list, or a groupby.

    `check` is called with every client's table and its name, and refuses what a schema does not allow.
    """
    frames = _frames(data, by, reading)
    for name, frame in frames.items() if check is not None else ():
        check(frame, name)  # type: ignore[misc]
    if reading.missing not in MISSING:
        raise InputError(f"missing: {reading.missing!r} was given; allowed are {' and '.join(MISSING)}")
    inputs = _inputs(frames, by, reading)
    needed = [*inputs, *(column for column in (reading.label, reading.checked) if column is not None)]
    tables = {name: {column: frame[column] for column in needed} for name, frame in frames.items()}
    tables = {name: _without_missing(name, table, reading.missing) for name, table in tables.items()}
    coded = _categories(tables, inputs, reading.categories)
    columns = tuple(
        f"{column}={value}" if value is not None else column for column in inputs for value in coded[column]
    )
    label: dict[str, np.ndarray] | None = None
    classes: tuple[Any, ...] = ()
    if reading.label is not None:
        apart = by is None and not is_grouped(data)
        label, classes = _labels(tables, reading.label, reading.classes, apart)
    examples = []
    for name, table in tables.items():
        parts = [_encoded(name, column, table[column], coded[column]) for column in inputs]
        own: dict[str, np.ndarray] = {"input": np.concatenate(parts, axis=1)}
        if label is not None:
            own["label"] = label[name]
        if reading.checked is not None:
            own["checked"] = _checked(name, reading.checked, table[reading.checked])
        examples.append(own)
    return Records(examples, tuple(tables), columns, classes, reading.label or "")


def _frames(data: Any, by: str | None, reading: Reading) -> dict[str, dict[str, np.ndarray]]:
    """Every client's columns, by its name."""
    if is_grouped(data):
        pairs = [(_client_name(name), frame) for name, frame in data]
    elif is_frame(data) or (isinstance(data, Mapping) and by is not None and not _holds_tables(data)):
        return _divided(_columns("data", data), by)
    elif isinstance(data, Mapping):
        pairs = [(_client_name(name), frame) for name, frame in data.items()]
    else:
        pairs = [(str(number), frame) for number, frame in enumerate(data)]
    if by is not None and not is_grouped(data):
        raise InputError(f"by: {by!r} was given with a table for each client; it is for one table of all")
    if not pairs:
        raise InputError("data: no client was given; at least one is needed")
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"data: client {twice[0]!r} was given twice; names are of one client each")
    return {name: _columns(f"client {name!r}", frame) for name, frame in pairs}


def _holds_tables(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping is from names to tables, and not from names to columns."""
    return any(is_frame(value) or isinstance(value, Mapping) for value in data.values())


def _client_name(name: Any) -> str:
    return str(name[0] if isinstance(name, tuple) and len(name) == 1 else name)


def _columns(who: str, frame: Any) -> dict[str, np.ndarray]:
    """A frame's columns as arrays, by name."""
    if not (is_frame(frame) or isinstance(frame, Mapping)):
        raise InputError(f"data: {who} is {type(frame).__name__}; a table with columns by name is needed")
    names = columns_of(frame)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"data: {who} has the column {name!r}; names of columns are texts")
        if names.count(name) > 1:
            raise InputError(f"data: {who} has the column {name!r} twice; names are of one column each")
    if not names:
        raise InputError(f"data: {who} has no columns; a table with columns by name is needed")
    columns = {name: array_of(frame[name]) for name in names}
    for name, column in columns.items():
        if column.ndim != 1:
            raise InputError(f"data: {who}, column {name!r} has shape {column.shape}; one value per row is needed")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in list(lengths.items())[:_SHOWN])
        raise InputError(f"data: {who} has columns of different lengths, {shown}; all must have one value per row")
    if not next(iter(lengths.values())):
        raise InputError(f"data: {who} has no rows; every client needs at least one")
    return columns


def array_of(values: Any) -> np.ndarray:
    """A column as an array; numbers beside texts in a list stay numbers."""
    if isinstance(values, (list, tuple)) and any(isinstance(value, str) for value in values):
        return np.array(values, object)
    return np.asarray(values)


def _divided(columns: dict[str, np.ndarray], by: str | None) -> dict[str, dict[str, np.ndarray]]:
    """One table, divided by the column that says whose a row is."""
    if by is None:
        raise InputError(
            'by: none was given; one table of all clients needs the column that says whose a row is, as by="site"'
        )
    if by not in columns:
        raise InputError(f"by: {_no_column(by, columns)}")
    whose = columns[by]
    if empty := _rows(is_missing(whose)):
        raise InputError(f"by: column {by!r} is empty in {empty}; every row must be somebody's")
    found: dict[str, dict[str, np.ndarray]] = {}
    for value in dict.fromkeys(whose.tolist()):
        mine = whose == value
        found[_number_text(value)] = {name: column[mine] for name, column in columns.items() if name != by}
    return found


def _number_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _inputs(frames: Mapping[str, Mapping[str, np.ndarray]], by: str | None, reading: Reading) -> list[str]:
    """The columns that are inputs, which every client must have."""
    first, table = next(iter(frames.items()))
    if reading.label is not None and reading.label not in table:
        raise InputError(f"label: {_no_column(reading.label, table, first)}")
    if reading.checked is not None and reading.checked not in table:
        raise InputError(f"checked: {_no_column(reading.checked, table, first)}")
    if reading.checked is not None and reading.checked == reading.label:
        raise InputError(f"checked: {reading.checked!r} is the label; another column must say whose label was checked")
    if reading.columns is None:
        inputs = [name for name in table if name not in (reading.label, reading.checked)]
    else:
        inputs = list(reading.columns)
        if twice := [name for name in inputs if inputs.count(name) > 1]:
            raise InputError(f"columns: {twice[0]!r} was given twice; name each once")
        for name in inputs:
            if name == reading.label:
                raise InputError(f"columns: {name!r} is the label; it cannot be an input as well")
            if name == reading.checked:
                raise InputError(f"columns: {name!r} says whose label was checked; it cannot be an input as well")
            if name not in table:
                raise InputError(f"columns: {_no_column(name, table, first)}")
    if not inputs:
        raise InputError("columns: there are none but the label; at least one input is needed")
    for name, other in frames.items():
        for column in [*inputs, *(needed for needed in (reading.label, reading.checked) if needed is not None)]:
            if column not in other:
                raise InputError(
                    f"data: client {name!r} has no column {column!r}, which client {first!r} has; give columns= with "
                    "those that all have, or add it"
                )
        extra = [column for column in other if column not in table]
        if extra and reading.columns is None:
            raise InputError(
                f"data: client {name!r} has the column {extra[0]!r}, which client {first!r} has not; give columns= "
                "with those that all have"
            )
    return inputs


def _no_column(name: str, columns: Iterable[str], client: str | None = None) -> str:
    whose = "the table" if client is None else f"client {client!r}"
    return f"{name!r} was given, and {whose} has no such column{nearest(str(name), list(columns))}"


def is_missing(column: np.ndarray) -> np.ndarray:
    """Where a column holds nothing: NaN, None, an empty text."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind in "OUS":
        return np.array([is_empty(value) for value in column.tolist()], bool)
    if column.dtype.kind in "mM":
        return np.isnat(column)
    return np.zeros(column.shape, bool)


def is_empty(value: Any) -> bool:
    """Whether a cell holds nothing."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return value.strip().lower() in _EMPTY
    return isinstance(value, float) and value != value


def _rows(where: np.ndarray) -> str:
    """The rows that are meant, counted from 0, the first few by number; an empty text: none."""
    found = np.flatnonzero(where)
    if not found.size:
        return ""
    shown = ", ".join(map(str, found[:_SHOWN]))
    return f"row {shown}" if found.size == 1 else f"{found.size} rows ({shown}{', ...' if found.size > _SHOWN else ''})"


def _without_missing(name: str, table: dict[str, np.ndarray], missing: str) -> dict[str, np.ndarray]:
    lost = {column: is_missing(values) for column, values in table.items()}
    any_lost = np.any(list(lost.values()), axis=0)
    if not any_lost.any():
        return table
    if missing == "refuse":
        column = next(column for column, where in lost.items() if where.any())
        raise InputError(
            f"data: client {name!r}, column {column!r} is empty in {_rows(lost[column])}; fill the cells, or give "
            'missing="drop" (--task.missing drop) to leave such rows out'
        )
    if any_lost.all():
        empty = [column for column, where in lost.items() if where.all()]
        why = f"column {empty[0]!r} is empty in all rows" if empty else "every row has an empty cell"
        raise InputError(f"data: client {name!r} has no row left: {why}; give columns= without it, or fill the cells")
    return {column: values[~any_lost] for column, values in table.items()}


def _categories(
    tables: Mapping[str, Mapping[str, np.ndarray]],
    inputs: list[str],
    asked: Sequence[str] | Mapping[str, Sequence[Any]] | bool,
) -> dict[str, tuple[Any, ...]]:
    """The values of every column that is one of categories, alike at all clients; (None,) of a column of numbers."""
    if isinstance(asked, str):
        raise InputError(f"categories: {asked!r} was given; a list of columns is needed, as categories=[{asked!r}]")
    texts = [column for column in inputs if any(_is_text(table[column]) for table in tables.values())]
    named = texts if asked is True else list(asked or ())
    for column in named:
        if column not in inputs:
            raise InputError(f"categories: {column!r} was given, which is no input{nearest(str(column), inputs)}")
    coded: dict[str, tuple[Any, ...]] = {}
    for column in inputs:
        if column not in named:
            coded[column] = (None,)
            continue
        if isinstance(asked, Mapping):
            coded[column] = tuple(plain(value) for value in asked[column])
            continue
        values = {plain(value) for table in tables.values() for value in table[column].tolist()}
        kinds = {isinstance(value, str) for value in values}
        coded[column] = tuple(sorted(values, key=str) if len(kinds) > 1 else sorted(values))
    return coded


def _is_text(column: np.ndarray) -> bool:
    return column.dtype.kind in "US" or (column.dtype.kind == "O" and any(isinstance(v, str) for v in column.tolist()))


def plain(value: Any) -> Any:
    """A cell as it is compared: a text without what is around it, a whole number as one."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        return value.strip()
    return int(value) if isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer()) else value


def _encoded(client: str, column: str, values: np.ndarray, coded: tuple[Any, ...]) -> np.ndarray:
    """A column as numbers: itself, or one column per category."""
    if coded != (None,):
        cells = np.array([plain(value) for value in values.tolist()], object)
        outside = np.array([value not in coded for value in cells.tolist()], bool)
        if outside.any():
            raise InputError(
                f"data: client {client!r}, column {column!r} holds a value in {_rows(outside)} that is not among its "
                f"categories {', '.join(map(repr, coded[:10]))}"
            )
        return np.stack([(cells == value) for value in coded], axis=1).astype(np.float64)
    if values.dtype.kind in "mM":
        raise InputError(f"data: client {client!r}, column {column!r} holds dates; make numbers of them")
    numbers, wrong = _numbers(values)
    if wrong.any():
        where = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"data: client {client!r}, column {column!r} holds {values.tolist()[where]!r} in {_rows(wrong)}; make "
            f"numbers of it, or give categories=[{column!r}] (--task.categories {column}) to turn each value into a "
            "column, alike at all clients"
        )
    if (infinite := ~np.isfinite(numbers)).any():
        raise InputError(
            f"data: client {client!r}, column {column!r} is infinite in {_rows(infinite)}; all must be finite"
        )
    return numbers[:, None]


def _numbers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A column as floats, and where it is no number; texts that read as numbers are none of a frame's making."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64), np.zeros(values.shape, bool)
    found, wrong = np.zeros(values.shape), np.zeros(values.shape, bool)
    for row, value in enumerate(values.tolist()):
        if isinstance(value, (bool, int, float)) and not isinstance(value, str):
            found[row] = float(value)
        else:
            wrong[row] = True
    return found, wrong


def _labels(
    tables: Mapping[str, Mapping[str, np.ndarray]], label: str, given: Sequence[Any] | None, apart: bool
) -> tuple[dict[str, np.ndarray], tuple[Any, ...]]:
    """Every client's labels as numbers of classes, and the classes; of numbers that are not whole, themselves.

    Tables that were made `apart` may code their labels differently.
    """
    columns = {
        name: np.array([plain(value) for value in table[label].tolist()], object) for name, table in tables.items()
    }
    values = {value for column in columns.values() for value in column.tolist()}
    if given is None and any(isinstance(value, float) for value in values):
        if texts := sorted(value for value in values if isinstance(value, str)):
            raise InputError(f"label: column {label!r} holds numbers and the text {texts[0]!r}; one kind is needed")
        numbers = {name: column.astype(np.float64) for name, column in columns.items()}
        for name, column in numbers.items():
            if (infinite := ~np.isfinite(column)).any():
                raise InputError(f"label: client {name!r}, column {label!r} is infinite in {_rows(infinite)}")
        return numbers, ()
    if given is None:
        kinds = {isinstance(value, str) for value in values}
        if len(kinds) > 1:
            texts = sorted(value for value in values if isinstance(value, str))
            raise InputError(f"label: column {label!r} holds numbers and the text {texts[0]!r}; one kind is needed")
        if apart:
            refuse_other_codes(
                {name: set(column.tolist()) for name, column in columns.items()}, f"label: column {label!r}"
            )
        classes: tuple[Any, ...] = tuple(sorted(values))
    else:
        classes = tuple(plain(value) for value in given)
        if len(set(classes)) < len(classes):
            raise InputError(f"classes: {list(given)!r} was given; name each once")
    if len(classes) < 2:
        raise InputError(
            f"label: column {label!r} has one class only, {next(iter(classes), None)!r}; at least two are needed"
        )
    number = {value: place for place, value in enumerate(classes)}
    found = {}
    for name, column in columns.items():
        outside = np.array([value not in number for value in column.tolist()], bool)
        if outside.any():
            value = column.tolist()[int(np.flatnonzero(outside)[0])]
            allowed = ", ".join(map(repr, classes[:10]))
            raise InputError(
                f"label: client {name!r}, column {label!r} holds {value!r} in {_rows(outside)}; the classes are "
                f"{allowed}"
            )
        found[name] = np.array([number[value] for value in column.tolist()], np.int32)
    return found, classes


def refuse_other_codes(classes: Mapping[str, set[Any]], what: str) -> None:
    """Refuses two parties with two classes or more, each of which has a class that the other lacks: labels 0 and 1 at
    one and 1 and 2 at the other are more likely two codes of two classes than three classes."""
    largest = max(classes, key=lambda name: len(classes[name]))
    for name, own in classes.items():
        if len(own) > 1 and not own <= classes[largest]:
            shown = [", ".join(sorted(map(str, classes[which]))[:10]) for which in (largest, name)]
            raise InputError(
                f"{what} has the classes {shown[0]} at {largest!r} and {shown[1]} at {name!r}. If both mean the same, "
                "code them alike; if not, list all classes: a schema (--task.schema; schema= or classes= in Python)"
            )


def _checked(client: str, column: str, values: np.ndarray) -> np.ndarray:
    """Which of a client's records have a label that was checked."""
    cells = [plain(value) for value in values.tolist()]
    if wrong := _rows(np.array([type(cell) is not int or cell not in (0, 1) for cell in cells], bool)):
        raise InputError(
            f"checked: client {client!r}, column {column!r} must hold 0 and 1 only; it does not in {wrong}"
        )
    return np.array(cells, np.int32)


# Files.


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """A csv file with a header as columns: numbers where all cells of a column are, otherwise texts; NaN, or an empty
    text, where a cell holds nothing."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise InputError(f"data: {str(path)!r} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"data: {str(path)!r} does not read as a csv file: {error}") from None
    if len(rows) < 2:
        raise InputError(f"data: {str(path)!r} has {len(rows)} lines; a header and at least one row are needed")
    header, *body = rows
    header = [name.strip() for name in header]
    if all(_number(name) is not None for name in header):
        raise InputError(f"data: {str(path)!r} begins with numbers; its first line must name the columns")
    for name in header:
        if not name:
            raise InputError(f"data: {str(path)!r} has a column without a name; its first line must name all")
        if header.count(name) > 1:
            raise InputError(f"data: {str(path)!r} has the column {name!r} twice; names are of one column each")
    for line, row in enumerate(body):
        if len(row) != len(header):
            raise InputError(
                f"data: row {line} of {str(path)!r} has {len(row)} cells and its header {len(header)}; all rows must "
                "have as many"
            )
    return {name: _column([row[place] for row in body]) for place, name in enumerate(header)}


def _column(cells: list[str]) -> np.ndarray:
    numbers = [float("nan") if cell.strip().lower() in _EMPTY else _number(cell) for cell in cells]
    if any(number is None for number in numbers):
        return np.array([cell.strip() for cell in cells], object)
    found = np.array(numbers, np.float64)
    whole = not np.isnan(found).any() and np.all(np.isfinite(found)) and np.all(found == np.round(found))
    return found.astype(np.int64) if whole and np.all(np.abs(found) < 2**53) else found


def _number(cell: str) -> float | None:
    if not re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+|inf|nan)([eE][+-]?\d+)?\s*", cell, re.IGNORECASE):
        return None
    return float(cell)


def read_folder(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """The csv files of a folder, one client each, by the files' names."""
    if not folder.is_dir():
        raise InputError(f"data: {str(folder)!r} was given; a folder with one csv file per client is needed")
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise InputError(f"data: {str(folder)!r} holds no csv file; one per client is needed")
    return {path.stem: read_csv(path) for path in files}
