"""What a site holds, and what all of a federation may know of it. Imports only errors and data.

A site has its own rows, the server has none, and both build the same federation. The `Outline` says which sites there
are, how many examples each has, and which columns and classes. Rows of other parties are `Absent`. So tasks, checks and
programs are the same everywhere, and no party allocates the rows of another.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from rookery.data.absent import PartyRows
from rookery.data.catalogue import DATASETS, HELD_OUT, TABLE, load_with
from rookery.data.checked_file import is_checked_file, with_checked_column
from rookery.data.datasets import Dataset
from rookery.data.inputs import Scale
from rookery.data.own_tables import TableOptions, choose_label, read_tables
from rookery.data.parts import hold_out
from rookery.data.scaling import Standardise, scaled_by_own
from rookery.data.tables import Records, columns_of, is_empty, is_frame, plain, read_csv, refuse_other_codes
from rookery.errors import InputError, failing, unknown

MOST = 10**9  # examples of a site at most
MOST_COLUMNS, MOST_CLASSES, LONGEST = 10**5, 10**4, 1000  # the last: characters of a column's or a class's name
LARGEST = float(np.finfo(np.float32).max)  # of an input
BYTES_A_ROW = 150  # for each example of another party: labels, owners, places and weights, while a task is built
APART = 1000.0  # standard deviations of the others' that a site's mean, or its own deviation, may be away from theirs


@dataclass(frozen=True)
class Holding:
    """One site's own examples: labels are numbers of its own classes, which others may have more of."""

    train: Mapping[str, np.ndarray]
    test: Mapping[str, np.ndarray]
    columns: tuple[str, ...]
    classes: tuple[Any, ...]
    label: str
    scaling: Standardise = "pooled"
    checked: str = ""

    def facts(self) -> dict[str, Any]:
        """What the server learns of it, as json: how many examples, and which columns, label and classes.

        Only where inputs are scaled by pooled statistics, also the mean of every column and the sum of squares around
        it.
        """
        facts = {
            "train": len(self.train["label"]),
            "test": len(self.test["label"]),
            "columns": list(self.columns),
            "classes": list(self.classes),
            "label": self.label,
            "scaling": self.scaling,
            "checked": self.checked,
        }
        if self.scaling != "pooled":
            return facts
        inputs = self.train["input"].astype(np.float64)
        mean = inputs.mean(axis=0)
        return facts | {"mean": mean.tolist(), "squares": ((inputs - mean) ** 2).sum(axis=0).tolist()}


def called_by(source: Any) -> str | None:
    """The `MODULE:FUNCTION` that a site's own source calls; None where it calls nothing."""
    if not isinstance(source, str) or source.startswith(TABLE) or ":" not in source:
        return None
    name, hash_, _ = source.partition("#")
    return None if hash_ and name in DATASETS else source


def read_holding(source: str, options: TableOptions | None = None) -> Holding:
    """What a site's own source holds: `csv:FILE`; `NAME#CLIENT`, a client of a dataset that has clients of its own; or
    `MODULE:FUNCTION`, a function that gives a table, or `{"input": ..., "label": ...}`. `options` say how a table is
    read."""
    options = options or TableOptions()
    if source.startswith(TABLE):
        path = Path(source.removeprefix(TABLE)).expanduser()
        if not path.is_file():
            raise InputError(f"data: {source!r} was given; the csv file of one site is needed")
        return _of_table(read_csv(path), str(path), options)
    name, hash_, client = source.partition("#")
    if hash_ and name in DATASETS:
        return _of_client(load_with(name, options), client, options)
    module, colon, function = source.rpartition(":")
    if not colon:
        raise InputError(
            f"data: {source!r} was given; a site's own data is csv:FILE, NAME#CLIENT of a dataset, or MODULE:FUNCTION"
        )
    with failing(f"data: {source!r}, when it is read,"):
        found = getattr(importlib.import_module(module), function)()
    if isinstance(found, Mapping) and set(found) == {"input", "label"} and np.ndim(found["input"]) == 2:
        inputs = np.asarray(found["input"])
        names = [f"input{place}" for place in range(inputs.shape[1])]
        found = {name: inputs[:, place] for place, name in enumerate(names)} | {"label": np.asarray(found["label"])}
    if not (is_frame(found) or isinstance(found, Mapping)):
        raise InputError(f"data: {source!r} gives {type(found).__name__}; a table with columns by name is needed")
    return _of_table(found, source, options)


def _of_table(table: Any, source: str, options: TableOptions) -> Holding:
    """The holding in a table; a fifth of each class is held out, as every site does with its own."""
    if is_checked_file(options.checked):
        options.refuse_checked_file_with_schema()
    if (schema := options.schema) is not None:
        schema.check(table, options.missing)
        return _held(read_tables({"0": table}, None, options), schema.classes, source, options)
    if is_checked_file(options.checked):
        named = Path(source).stem if source.lower().endswith(".csv") else ""
        tables, column = with_checked_column({named or "table": table}, options.checked, own=named)
        table, options = tables[named or "table"], dataclasses.replace(options, checked=column)
    label = choose_label([name for name in columns_of(table) if name != options.checked], options.label)
    cells = [plain(value) for value in np.asarray(table[label]).tolist()]
    values = sorted({value for value in cells if not is_empty(value)}, key=lambda v: (str(type(v)), v))
    if not values or not all(type(value) in (int, str) for value in values):
        raise InputError(f"data: the label {label!r} of {source!r} has no classes; the tasks here learn classes")
    padded = values if len(values) > 1 else [*values, _other(values[0])]  # a site may see one class alone
    return _held(read_tables({"0": table}, None, options, classes=padded), tuple(values), source, options)


def _held(records: Records, classes: tuple[Any, ...], source: str, options: TableOptions) -> Holding:
    """The holding of a site's records, with a part held out for the test, and scaled where that is the site's own."""
    own = records.data[0]
    held = hold_out(f"data: the held-out fraction of {source}", own["label"], HELD_OUT, seed=0, rare=True)
    scaled = scaled_by_own(own["input"][~held], own["input"], options.standardise)
    own = own | {"input": scaled.astype(np.float32)}
    train, test = ({name: array[where] for name, array in own.items()} for where in (~held, held))
    return Holding(train, test, records.columns, classes, records.label, options.standardise, options.checked_name)


def _other(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else f"not {value}"


def _of_client(dataset: Dataset, client: str, options: TableOptions) -> Holding:
    """One of a dataset's own clients."""
    if client not in dataset.owners or dataset.owner is None or dataset.test_owner is None:
        raise unknown(f"data: a client of {dataset.name}", client, dataset.owners)
    number = dataset.owners.index(client)
    parts = ((dataset.train, dataset.owner), (dataset.test, dataset.test_owner))
    train, test = ({name: array[owner == number] for name, array in part.items()} for part, owner in parts)
    return Holding(train, test, dataset.columns, dataset.class_names, dataset.label, options.standardise)


@dataclass(frozen=True)
class Outline:
    """What all parties know of the sites' data: who there is, and how much; nothing of any row."""

    names: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    columns: tuple[str, ...]
    classes: tuple[Any, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: tuple[str, ...]  # the label's column at every site; all are the same
    scaling: tuple[Standardise, ...]  # of every site, likewise; mean and std are empty unless it is "pooled"
    checked: tuple[str, ...]  # the column that says whose label was checked, likewise; "": none

    @classmethod
    def of(cls, facts: Mapping[str, Mapping[str, Any]]) -> Outline:
        """What comes of the sites' own facts, by their names; sites that are not alike are refused."""
        names = tuple(sorted(facts))
        for name in names:
            _check_facts(name, facts[name])
        first = facts[names[0]]
        for name in names:
            if set(facts[name]["columns"]) != set(first["columns"]):
                differ = sorted(set(facts[name]["columns"]) ^ set(first["columns"]))
                raise InputError(
                    f"data: site {name!r} and site {names[0]!r} do not have the same columns: {differ[0]!r} is at one "
                    "of them alone"
                )
            for part, option in (("label", "label"), ("scaling", "standardise"), ("checked", "checked")):
                if facts[name][part] != first[part]:
                    raise InputError(
                        f"data: {part} is {facts[name][part]!r} at site {name!r} and {first[part]!r} at site "
                        f"{names[0]!r}; give all sites the same --task.{option}"
                    )
        refuse_other_codes({name: set(facts[name]["classes"]) for name in names}, "data: the label")
        classes = sorted({value for name in names for value in facts[name]["classes"]}, key=lambda v: (str(type(v)), v))
        if len({type(value) for value in classes}) > 1 or len(classes) < 2:
            raise InputError(f"data: the sites' labels are {classes}; two or more classes of one kind are needed")
        mean, std = (), ()
        if first["scaling"] == "pooled":
            parts = [_in_order(facts[name], first["columns"]) for name in names]
            _check_apart(names, first["columns"], parts)
            mean, std = _pooled(parts)
        train, test = (tuple(facts[name][part] for name in names) for part in ("train", "test"))
        same = lambda part: (first[part],) * len(names)
        columns = tuple(first["columns"])
        return cls(
            names, train, test, columns, tuple(classes), mean, std, same("label"), same("scaling"), same("checked")
        )

    @property
    def largest(self) -> str:
        """The site with the most examples."""
        return self.names[int(np.argmax(self.train))]

    @property
    def labels_bytes(self) -> int:
        """The bytes that a party needs for labels, owners and places of all sites' examples, whose rows are absent."""
        return (sum(self.train) + sum(self.test)) * BYTES_A_ROW

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def seen_by(self, site: str, known: Collection[str] = ()) -> Outline:
        """Returns the part of the outline that a site needs: other sites without their names, unless these are in
        `known`, and without their numbers of test examples."""
        labels = [name if name in (site, *known) else _unnamed(number, self) for number, name in enumerate(self.names)]
        test = tuple(size if name == site else 1 for name, size in zip(self.names, self.test))
        return dataclasses.replace(self, names=tuple(labels), test=test)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Outline:
        try:
            return cls(**{field.name: tuple(given[field.name]) for field in dataclasses.fields(cls)})
        except (KeyError, TypeError):
            raise InputError("outline: it does not say who there is and how much each has") from None

    def dataset(self, name: str, own: Mapping[str, Holding] | None = None) -> Dataset:
        """The dataset of all sites with the rows of one of them; `own` is None at the server, which holds no rows."""
        if own is not None and len(own) != 1:
            raise InputError(f"outline: a party holds the rows of one site; got {len(own)} sites")
        site = None if own is None else next(iter(own))
        parts = {}
        for part, sizes in (("train", self.train), ("test", self.test)):
            number = 0 if site is None else self.names.index(site)
            rows = self._no_rows() if own is None or site is None else self._rows(site, sizes[number], part, own[site])
            begin, total = sum(sizes[:number]), sum(sizes)
            all_rows = {key: PartyRows(array, begin, total) for key, array in rows.items()}
            # Labels take little memory, and tasks compute with them.
            parts[part] = {key: each if key == "input" else np.asarray(each) for key, each in all_rows.items()}
        owner = lambda sizes: np.repeat(np.arange(len(self.names)), sizes)
        return Dataset(
            name,
            parts["train"],
            parts["test"],
            len(self.classes),
            Scale((len(self.columns),), mean=self.mean, std=self.std) if self.mean else None,  # type: ignore[arg-type]
            tuple(map(str, self.classes)),
            owner(self.train),
            self.names,
            self.columns,
            owner(self.test),
            self.labels[0],
            self.scaling[0],
        )

    def _no_rows(self) -> dict[str, np.ndarray]:
        labels = {"label": np.zeros(0, np.int32)} | ({"checked": np.zeros(0, np.int32)} if self.checked[0] else {})
        return {"input": np.zeros((0, len(self.columns)), np.float32), **labels}

    def _rows(self, site: str, size: int, part: str, own: Holding) -> dict[str, np.ndarray]:
        rows = getattr(own, part)
        if (
            len(rows["label"]) != size
            or set(own.columns) != set(self.columns)
            or not set(own.classes) <= {*self.classes}
            or own.checked != self.checked[0]
        ):
            raise InputError(f"outline: it does not say of site {site!r} what that site has said of itself")
        order = [own.columns.index(column) for column in self.columns]
        numbers = np.array([self.classes.index(value) for value in own.classes], np.int32)
        found = {"input": rows["input"][:, order], "label": numbers[rows["label"]]}
        return found | {"checked": rows["checked"]} if self.checked[0] else found


def _unnamed(number: int, outline: Outline) -> str:
    label = f"site {number}"
    while label in outline.names:
        label += "'"
    return label


def _check_facts(name: str, facts: Mapping[str, Any]) -> None:
    """Refuses what no site can truly say of itself."""
    columns: Any = facts.get("columns")
    classes: Any = facts.get("classes")
    if not (_are_names(columns, MOST_COLUMNS) and all(isinstance(column, str) for column in columns)):
        raise InputError(f"data: site {name!r} does not say its columns; names are needed, each once, in plain text")
    if not all(type(facts.get(part)) is int and 0 < facts[part] <= MOST for part in ("train", "test")):
        raise InputError(
            f"data: site {name!r} does not say how many examples it has for training and for tests; from 1 to {MOST} "
            "are possible"
        )
    if not _are_names(classes, min(MOST_CLASSES, facts["train"] + facts["test"])):
        raise InputError(
            f"data: site {name!r} does not say its classes; texts or whole numbers are needed, each once, and no more "
            f"than it has examples, or {MOST_CLASSES}"
        )
    for part in ("label", "checked"):
        if not (facts.get(part) == "" or _are_names([facts.get(part)], 1)) or not isinstance(facts[part], str):
            raise InputError(f"data: site {name!r} must give its {part} as the name of a column, or as an empty text")
    if facts.get("scaling") not in get_args(Standardise):
        raise InputError(f"data: site {name!r} must give its scaling as one of {', '.join(get_args(Standardise))}")
    if facts["scaling"] != "pooled":
        if "mean" in facts or "squares" in facts:
            raise InputError(f"data: site {name!r} must not give means or squares with scaling {facts['scaling']!r}")
        return
    for part, lowest, largest in (("mean", -LARGEST, LARGEST), ("squares", 0.0, facts["train"] * (2 * LARGEST) ** 2)):
        given = facts.get(part)
        if not (isinstance(given, list) and len(given) == len(columns)):
            raise InputError(f"data: site {name!r} does not say its {part}; one number for each column is needed")
        for column, number in zip(columns, given):
            # In this order: no float is made of a number that has none.
            if type(number) not in (int, float) or not lowest <= number <= largest:
                raise InputError(
                    f"data: site {name!r}, column {column!r}: its {part} cannot be; a number from {lowest:.4g} to "
                    f"{largest:.4g} is needed"
                )
            if part == "squares" and facts["train"] == 1 and number > 0:
                raise InputError(f"data: site {name!r}, column {column!r}: one example has no deviation from its mean")


def _are_names(given: Any, most: int) -> bool:
    """Whether what a site says are names, or numbers of classes: each once, and fit to be shown."""
    if not isinstance(given, list) or not 0 < len(given) <= most:
        return False
    good = (
        (isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST)
        or (type(value) is int and abs(value) < 2**63)
        for value in given
    )
    return all(good) and len(set(given)) == len(given)


def _check_apart(names: tuple[str, ...], columns: list[str], parts: list[tuple[int, np.ndarray, np.ndarray]]) -> None:
    """Refuses a site one of whose columns is of another order than at all others: scaled by the mean and the deviation
    of all, the others' inputs would be lost in it. Where the column is the same number at all others, nothing is."""
    if len(names) < 2:
        return
    means = np.array([mean for _, mean, _ in parts])
    deviations = np.sqrt(np.array([squares / count for count, _, squares in parts]))
    ratios, others = np.zeros_like(means), []
    for site in range(len(names)):
        rest = np.delete(np.arange(len(names)), site)
        theirs, scale = np.median(means[rest], axis=0), np.max(deviations[rest], axis=0)
        away = np.maximum(np.abs(means[site] - theirs), deviations[site])
        ratios[site] = np.where(scale > 0, away / np.where(scale > 0, scale, 1.0), 0.0)
        others.append((theirs, scale))
    site, column = map(int, np.unravel_index(np.argmax(ratios), ratios.shape))
    if ratios[site, column] > APART:  # the site that is furthest away: a few others may seem so because of it
        theirs, scale = others[site]
        raise InputError(
            f"data: column {columns[column]!r} of site {names[site]!r} has mean {means[site, column]:.4g} and standard "
            f"deviation {deviations[site, column]:.4g}, and at the other sites about {theirs[column]:.4g} and "
            f"{scale[column]:.4g}; check the column's unit and its largest values at these sites"
        )


def _in_order(facts: Mapping[str, Any], columns: list[str]) -> tuple[int, np.ndarray, np.ndarray]:
    order = [facts["columns"].index(column) for column in columns]
    mean, squares = (np.asarray(facts[part], np.float64)[order] for part in ("mean", "squares"))
    return facts["train"], mean, squares


def _pooled(parts: list[tuple[int, np.ndarray, np.ndarray]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the standard deviation of all examples, from those of each site; of a constant column 1."""
    count, mean, squares = parts[0]
    for more, their_mean, their_squares in parts[1:]:
        total, apart = count + more, their_mean - mean
        squares = squares + their_squares + apart**2 * count * more / total
        mean, count = mean + apart * more / total, total
    std = np.sqrt(squares / count)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
