"""A schema of tables: what every site's file must hold. One site writes it, people review it, all check their own file.

A check reveals the name of a rule and of a column of the schema, and no value, row or count. Imports errors and tables.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rookery.data.tables import Reading, array_of, columns_of, is_empty, is_missing, plain
from rookery.errors import InputError, unknown

VERSION = 1
HEAD = """\
# What every site's table must hold. Review it before you share it: the ranges, values and classes come from one
# site's file, and the ranges are half as wide again on either side. Columns that are not named here are not used.
"""


class SchemaError(InputError):
    """A table breaks a rule of the schema. The sentence names the rule and the column, and nothing of the data."""

    def __init__(self, rule: str, column: str, who: str = ""):
        super().__init__(f"schema: {who}{': ' * bool(who)}rule {rule!r} fails for column {column!r}: {RULES[rule]}")
        self.rule, self.column = rule, column


RULES = {
    "column": "the table must have it",
    "missing": "it must have no empty cells",
    "number": "it must hold finite numbers",
    "whole": "it must hold whole numbers",
    "range": "its numbers must lie between low and high",
    "category": "its values must be among the listed ones",
    "class": "its values must be among the classes",
    "checked": "it must hold 0 and 1 only",
    "rows": "some row must have no empty cell",
}


@dataclass(frozen=True)
class Column:
    """An input: a number between `low` and `high`, or one of `values`, a category."""

    name: str
    low: float | None = None
    high: float | None = None
    whole: bool = False
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Schema:
    """What every site's table must hold.

    Args:
      label: Column to learn.
      classes: Its values, in the order of the class numbers.
      columns: The inputs, in their order.
      checked: Column of 0 and 1 that says whose label was checked; empty: there is none.
    """

    label: str
    classes: tuple[Any, ...]
    columns: tuple[Column, ...]
    checked: str = ""

    def __post_init__(self):
        names = [column.name for column in self.columns]
        for name in [*names, self.label]:
            if not isinstance(name, str) or not name:
                raise InputError(f"schema: the name of a column must be a text that is not empty; got {name!r}")
        taken = [*names, self.label, *([self.checked] if self.checked else [])]
        if twice := [name for name in taken if taken.count(name) > 1]:
            raise InputError(f"schema: column {twice[0]!r} must be one of: input, label, checked; it is two of them")
        if not names:
            raise InputError("schema: it must have at least one [[column]], an input")
        _check_values("classes", self.classes, least=2)
        for column in self.columns:
            if column.values:
                _check_values(f"values of column {column.name!r}", column.values, least=1)
                if column.low is not None or column.high is not None or column.whole:
                    raise InputError(f"schema: column {column.name!r} must have a range or values; it has both")
                continue
            for bound in (column.low, column.high):
                if bound is not None and (type(bound) not in (int, float) or not math.isfinite(bound)):
                    raise InputError(
                        f"schema: low and high of column {column.name!r} must be finite numbers; got {bound!r}"
                    )
            if column.low is not None and column.high is not None and column.low > column.high:
                raise InputError(f"schema: low of column {column.name!r} must be at most its high")

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """The values of every column of categories."""
        return {column.name: column.values for column in self.columns if column.values}

    def failures(self, table: Any, missing: str = "refuse") -> list[tuple[str, str]]:
        """The rules that a table breaks, each with its column; of every column the first one."""
        there = columns_of(table)
        rules = [(name, kind) for name, kind in self._kinds() if name in there]
        found = [("column", name) for name, _ in self._kinds() if name not in there]
        lost = {name: is_missing(array_of(table[name])) for name, _ in rules}
        for name, kind in rules:
            cells = _cells(table, name)
            if missing == "refuse" and lost[name].any():
                found.append(("missing", name))
            elif (rule := _broken(cells, kind)) is not None:
                found.append((rule, name))
        if not found and missing == "drop" and np.any(list(lost.values()), axis=0).all():
            found.append(("rows", self.label))
        return found

    def _kinds(self) -> list[tuple[str, Any]]:
        """Every column with its rule: a `Column`, or the values that it may have and the rule's name."""
        kinds: list[tuple[str, Any]] = [(column.name, column) for column in self.columns]
        kinds.append((self.label, ("class", self.classes)))
        return [*kinds, (self.checked, ("checked", (0, 1)))] if self.checked else kinds

    def check(self, table: Any, missing: str = "refuse", who: str = "") -> None:
        """Refuses a table that breaks a rule; `who` names its owner in the sentence."""
        if failures := self.failures(table, missing):
            raise SchemaError(*failures[0], who)


def _cells(table: Any, name: str) -> list[Any]:
    """The cells of a column that hold something, as they are compared."""
    return [plain(value) for value in array_of(table[name]).tolist() if not is_empty(value)]


def _broken(cells: list[Any], kind: Any) -> str | None:
    """The rule that some cells break."""
    if not isinstance(kind, Column):
        return None if set(cells) <= set(kind[1]) else kind[0]
    if kind.values:
        return None if set(cells) <= set(kind.values) else "category"
    if any(isinstance(cell, str) or not isinstance(cell, int | float) or not math.isfinite(cell) for cell in cells):
        return "number"
    if kind.whole and any(cell != int(cell) for cell in cells):
        return "whole"
    low, high = -math.inf if kind.low is None else kind.low, math.inf if kind.high is None else kind.high
    return None if all(low <= cell <= high for cell in cells) else "range"


def _check_values(what: str, values: Any, least: int) -> None:
    """Refuses values that are not different texts or whole numbers, all of one kind."""
    if any(type(value) not in (int, str) for value in values) or len({type(value) for value in values}) > 1:
        raise InputError(f"schema: {what} must be texts, or whole numbers; got {list(values)!r}")
    if len(set(values)) < len(values) or len(values) < least:
        raise InputError(f"schema: {what} must be {least} or more, each once; got {list(values)!r}")


def reading_of(schema: Schema, reading: Reading) -> Reading:
    """How a table is read by a schema, which says everything but what happens to rows with empty cells."""
    for name, own in (("label", schema.label), ("checked", schema.checked or None)):
        if (given := getattr(reading, name)) not in (None, own):
            raise InputError(
                f"{name}: {given!r} was given, and the schema has {own!r}; remove it, or change the schema"
            )
    for name in ("columns", "categories", "classes"):
        if getattr(reading, name):
            raise InputError(f"{name}: it was given with a schema, which has its own; remove it")
    return replace(
        reading,
        label=schema.label,
        columns=tuple(column.name for column in schema.columns),
        categories=schema.categories,
        classes=schema.classes,
        checked=schema.checked or None,
    )


# Writing one from a table.


def schema_of(table: Any, label: str, categories: tuple[str, ...] = (), checked: str = "") -> Schema:
    """The schema that one table suggests, for people to review: ranges are half as wide again on either side.

    Columns with texts are categories, as are the given ones.
    """
    for name in (*categories, *([checked] if checked else [])):
        if name not in columns_of(table):
            raise unknown("schema: column", name, columns_of(table))
    columns = []
    for name in columns_of(table):
        if name in (label, checked):
            continue
        cells = _cells(table, name)
        if not cells:
            raise InputError(f"schema: column {name!r} is empty in all rows; remove it from the file")
        texts = [cell for cell in cells if isinstance(cell, str)]
        if texts and len(texts) < len(cells) and name not in categories:
            raise InputError(f"schema: column {name!r} holds numbers and the text {texts[0]!r}; one kind is needed")
        if texts or name in categories:
            columns.append(Column(name, values=_in_order(cells)))
        elif not all(math.isfinite(cell) for cell in cells):
            raise InputError(f"schema: column {name!r} holds a number that is not finite; correct it first")
        else:
            columns.append(_range(name, cells))
    return Schema(label, _in_order(_cells(table, label)), tuple(columns), checked)


def _in_order(cells: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(cells), key=lambda value: (isinstance(value, str), value)))


def _range(name: str, cells: list[Any]) -> Column:
    """A column of numbers with its range, wider than what one site has and rounded, so that it shows no cell."""
    low, high, whole = min(cells), max(cells), all(isinstance(cell, int) for cell in cells)
    if whole and {low, high} <= {0, 1}:
        return Column(name, 0, 1, True)
    margin = (high - low) / 2 or abs(high) / 2 or 1.0
    margin = max(margin, 1e-6 * max(abs(low), abs(high)))  # so that rounding cannot take it back
    unit = 10.0 ** math.floor(math.log10(margin))
    bounds = (math.floor((low - margin) / unit) * unit, math.ceil((high + margin) / unit) * unit)
    below, above = (float(f"{bound:.12g}") for bound in bounds)
    below = max(below, 0.0) if low >= 0 else below
    return Column(name, math.floor(below), math.ceil(above), True) if whole else Column(name, below, above)


# Files.


def write_schema(schema: Schema) -> str:
    """A schema as toml. Names and texts are always quoted, so that nothing in them can be taken for more."""
    lines = [HEAD, f"version = {VERSION}", f"label = {_toml(schema.label)}", f"classes = {_toml(schema.classes)}"]
    lines += [f"checked = {_toml(schema.checked)}"] if schema.checked else []
    for column in schema.columns:
        lines += ["", "[[column]]", f"name = {_toml(column.name)}"]
        if column.values:
            lines.append(f"values = {_toml(column.values)}")
        lines += [f"low = {_toml(column.low)}"] if column.low is not None else []
        lines += [f"high = {_toml(column.high)}"] if column.high is not None else []
        lines += ["whole = true"] if column.whole else []
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A text, a number or a list of them as toml."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if not isinstance(value, str):
        return repr(value)
    shown = []
    for character in value:
        code = ord(character)
        if 0xD800 <= code <= 0xDFFF:
            raise InputError(f"schema: the text {value!r} holds half a character, which toml cannot have; rename it")
        if character in '"\\':
            shown.append(f"\\{character}")
        elif character.isprintable():
            shown.append(character)
        else:
            shown.append(f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}")
    return f'"{"".join(shown)}"'


def parse_schema(text: str) -> Schema:
    """The schema that a toml text describes; anything that it should not have is refused."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"schema: it must be toml, as `rookery schema` writes it: {error}") from None
    _check_keys("the schema", given, {"label": str, "classes": list, "column": list}, {"version": int, "checked": str})
    if given.get("version", VERSION) != VERSION:
        raise InputError(f"schema: version must be {VERSION}; got {given['version']!r}; write it again")
    columns = []
    for place, column in enumerate(given["column"]):
        if not isinstance(column, dict):
            raise InputError("schema: every input must be a [[column]] with a name")
        optional = {"low": (int, float), "high": (int, float), "whole": bool, "values": list}
        _check_keys(f"[[column]] number {place + 1}", column, {"name": str}, optional)
        if column.get("values") == []:
            raise InputError(f"schema: values of column {column['name']!r} must be one or more; got none")
        bounds = {name: column.get(name) for name in ("low", "high")}
        whole, values = column.get("whole", False), tuple(column.get("values", ()))
        columns.append(Column(column["name"], **bounds, whole=whole, values=values))
    return Schema(given["label"], tuple(given["classes"]), tuple(columns), given.get("checked", ""))


def _check_keys(what: str, given: Mapping[str, Any], needed: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    kinds = {**needed, **optional}
    for name in needed:
        if name not in given:
            raise InputError(f"schema: {what} must have {name!r}")
    for name, value in given.items():
        if name not in kinds:
            raise InputError(f"schema: {what} must have only {', '.join(kinds)}; got {name!r}")
        kind = kinds[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"schema: {name} of {what} has the wrong type; got {value!r}")


def schema_text(given: str) -> str:
    """The text of a schema: itself where it has several lines, else that of the file."""
    if "\n" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"schema: {given!r} must be a toml file; it cannot be read: {error}") from None


def read_schema(given: str) -> Schema:
    """The schema in a toml file, or in a text of several lines."""
    return parse_schema(schema_text(given))
