"""How a table of your own becomes a dataset: which column is the label, and how its cells are read.

Imports only errors, scaling, schema and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rookery.data.scaling import SHOWN, Standardise, check_standardise
from rookery.data.schema import Schema, reading_of
from rookery.data.tables import Reading, Records, columns_of, records_of
from rookery.errors import InputError, unknown

KNOWN_LABELS = ("label", "target", "class", "y", "outcome", "diagnosis", "num")


@dataclass(frozen=True)
class TableOptions:
    """How a csv file is read.

    Args:
      label: Column to learn; empty: the one column with a known name (`KNOWN_LABELS`, in any case).
      categories: Columns of words or codes, each turned into one column per value.
      missing: "refuse" rows with empty cells, or "drop" them.
      standardise: How inputs are scaled: "pooled" (mean and standard deviation of all training examples), "client" (of
        each client's own), "robust" (each client's own median and interquartile range, clipped) or "none".
      schema: What every table must hold. It gives label, inputs, categories, classes and checked.
      checked: Column of 0 and 1 that says which labels were checked, or a csv file that names these records (a path
        that ends in .csv); examples have it as "checked".
    """

    label: str = ""
    categories: tuple[str, ...] = ()
    missing: str = "refuse"
    standardise: Standardise = "pooled"
    schema: Schema | None = None
    checked: str = ""

    def __post_init__(self):
        check_standardise(self.standardise)

    @property
    def checked_name(self) -> str:
        """The column that says whose label was checked; empty: there is none."""
        return self.checked or (self.schema.checked if self.schema is not None else "")

    def refuse_checked_file_with_schema(self) -> None:
        """Refuses a file of checked records beside a schema, which says what every table holds."""
        if self.schema is not None:
            raise InputError(
                f"checked: {self.checked!r} was given with a schema; give the tables a column of 0 and 1 instead, and "
                "name it in the schema."
            )

    def refuse_for(self, name: str, allowed: Sequence[str] = ()) -> None:
        """Refuses options that were set for data that is no table of one's own, but for the allowed ones."""
        for field in fields(self):
            if field.name not in allowed and (value := getattr(self, field.name)) != field.default:
                text = " ".join(value) if isinstance(value, tuple) else value
                shown = repr(text) if isinstance(text, str) else "a schema"
                raise InputError(
                    f"{field.name}: {shown} was given with {name}; it is for tables of your own (csv:...); remove it"
                )


def choose_label(columns: Sequence[str], label: str = "") -> str:
    """The column to learn: the given one, or the only column with a known name."""
    if label:
        if label not in columns:
            raise unknown("label", label, columns)
        return label
    matches = [name for name in columns if name.lower() in KNOWN_LABELS]
    if len(matches) == 1:
        return matches[0]
    remedy = 'give --task.label NAME (--label NAME of "rookery data"; label="NAME" in Python)'
    if matches:
        raise InputError(f"label must be named: {' and '.join(matches)} could both be it; {remedy}")
    raise InputError(
        f"label must be named: no column of {', '.join(columns)} is called {', '.join(KNOWN_LABELS[:-1])} or "
        f"{KNOWN_LABELS[-1]}; {remedy}"
    )


def read_tables(tables: Any, by: str | None, options: TableOptions, classes: Sequence[Any] | None = None) -> Records:
    """The records of one table, or of a mapping from clients' names to tables, with classes as labels.

    `classes` are all values of the label where one party sees only some of them.
    """
    reading = Reading(options.label or None, None, options.categories, None, options.missing, options.checked or None)
    check = None
    if (schema := options.schema) is not None:
        reading = reading_of(schema, reading)
        several = by is not None or len(tables) > 1
        check = lambda table, name: schema.check(table, options.missing, f"client {name!r}" if several else "")
    else:
        first = tables if by is not None else next(iter(tables.values()))
        left = [name for name in columns_of(first) if name not in (by, options.checked)]
        reading = replace(reading, label=choose_label(left, options.label), classes=classes)
    records = records_of(tables, by, reading, check)
    if not records.classes:
        raise InputError(
            f"label: column {records.label!r} holds numbers that are not whole, and the tasks learn classes; name "
            "another column with --task.label NAME, or make classes of it"
        )
    return records


def shown_data(data: Mapping[str, Any], most: int = 20) -> str:
    """A sentence about what is learnt from which inputs, for the screen."""
    parts = []
    if "label" in data:
        classes = data["classes"]
        kinds = f", classes {_listed(classes, most)}" if classes else ", a number"
        parts.append(f"label {data['label']!r}{kinds}")
    if "inputs" in data:
        inputs = data["inputs"]
        shown = f"{len(inputs)} input{'s' * (len(inputs) != 1)}: {_listed(inputs, most)}"
        parts.append(shown if inputs else f"inputs of shape {data['shape']}")
    if "scaling" in data:
        parts.append(SHOWN.get(data["scaling"], data["scaling"]))
    return "; ".join(parts)


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
