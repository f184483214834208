"""Federated arrays on the host: every client's examples in flat arrays with offsets and sizes, and its weight.

`Clients` is what a user makes; `batches.py` has what a program sees of it. Imports only errors and vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import jax
import numpy as np

from rookery.data.absent import Absent, absent
from rookery.data.levels import ABSENT, BOTH, Level, Split, row_of
from rookery.data.parts import check_fraction, hold_out
from rookery.data.scaling import Standardise, check_standardise, mean_and_std, scaled_by_own
from rookery.data.schema import read_schema, reading_of
from rookery.data.sources import Numbered, Source, told_by
from rookery.data.tables import Reading, is_frame, is_grouped, records_of
from rookery.errors import InputError
from rookery.vectors import Tree

TRAINING = (BOTH, "lower")  # the levels whose minibatches are augmented

Augment = Callable[[jax.Array, Any], Any]  # of a key and one example


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a federation: their examples, and their weights p_i. Made by `federate`."""

    levels: Mapping[str, Level]
    weights: np.ndarray
    augment: Augment | None = None
    names: Sequence[str] = ()  # who they are
    columns: tuple[str, ...] = ()  # what the inputs are, where they came from a table
    classes: tuple[Any, ...] = ()  # what the labels stand for, likewise
    test: Level | None = None  # their own test examples, which no step sees
    source: Source | None = None  # where the examples are, if not in memory
    about: Mapping[str, Any] = field(default_factory=dict)  # label, classes and inputs, as results state them

    def __post_init__(self):
        if not self.names:
            numbers = Numbered(len(self.weights))
            object.__setattr__(self, "names", tuple(numbers) if self.source is None else numbers)

    @property
    def population(self) -> int:
        """The number n of clients."""
        return len(self.weights)

    @property
    def split(self) -> bool:
        """Whether the lower and the upper level see different data."""
        return BOTH not in self.levels

    @property
    def sizes(self) -> np.ndarray:
        """The number of examples of each client, both levels together where they differ."""
        return np.sum([level.size for level in self.levels.values()], axis=0)

    def level(self, name: str) -> Level:
        """The examples that a level sees."""
        return self.levels[name] if self.split else self.levels[BOTH]

    def client(self, index: int) -> Any:
        """One client's own data as it was given: a pytree, or a `Split` of two."""

        if self.source is not None:
            own = self.source.read(np.asarray([index]))
        else:
            own = {name: _own(level, index) for name, level in self.levels.items()}
        return Split(**own) if self.split else own[BOTH]

    @property
    def streamed(self) -> bool:
        """Whether only a cohort's examples can be on a device: they are not in memory, or too many for its indices."""
        examples = [len(jax.tree.leaves(level.rows)[0]) for level in self.levels.values() if self.source is None]
        return self.source is not None or max(examples) >= 2**31

    @property
    def absent(self) -> tuple[str, ...]:
        """The names of the clients whose rows are at another party of a federation."""
        gone = np.any([np.asarray(level.offset) == ABSENT for level in self.levels.values()], axis=0)
        return tuple(self.names[int(i)] for i in np.flatnonzero(gone))

    def check_here(self) -> None:
        """Refuse to compute with clients whose rows are at another party."""
        if self.absent:
            raise InputError(
                f"clients: the rows of {self.absent[0]!r} are at another party; only a federation can run "
                "these clients."
            )

    def own_test(self, index: int) -> Tree:
        """One client's own test examples."""
        if self.test is None:
            raise InputError("test: these clients have no test examples of their own; give rk.federate a test=")
        return _own(self.test, index)

    def subset(self, indices: Sequence[int]) -> Clients:
        """The federation of some of the clients, in the given order, their weights scaled to sum to 1."""
        weights = self.weights[list(indices)]
        test = None if self.test is None else [self.own_test(i) for i in indices]
        some = federate([self.client(i) for i in indices], weights / weights.sum(), self.augment, test=test)
        names = tuple(self.names[i] for i in indices)
        return replace(some, names=names, columns=self.columns, classes=self.classes, about=self.about)

    def __repr__(self) -> str:
        return f"Clients({self.described()})"

    @property
    def weighting(self) -> str:
        """How clients are weighted: "equal", "size" (by number of examples) or "given"."""
        if np.allclose(self.weights, 1 / self.population):
            return "equal"
        return "size" if np.allclose(self.weights, self.sizes / self.sizes.sum()) else "given"

    def stated(self) -> dict[str, Any]:
        """What results say of the data: label, classes, inputs and scaling where they are known, and the weighting."""
        return {**self.about, "weights": self.weighting}

    def described(self) -> str:
        """Who they are in a line: how many, of how many examples, and what they weigh."""
        sizes = self.sizes
        spread = f"{self.weights.min():.3g} to {self.weights.max():.3g}"
        kinds = {"equal": "equal weights", "size": f"weights by size, {spread}", "given": f"weights {spread}"}
        weights = kinds[self.weighting]
        each = f"{sizes.min()} to {sizes.max()} each"
        return f"{self.population} clients, {sizes.sum()} examples, {each}, {weights}"


def _own(level: Level, index: int) -> Tree:
    """One client's rows of a level."""
    start, size = int(level.offset[index]), int(level.size[index])
    if start == ABSENT:
        return jax.tree.map(lambda rows: absent((size, *rows.shape[1:]), rows.dtype), level.rows)
    return jax.tree.map(lambda rows: rows[start : start + size], level.rows)


def federate(
    data: Any,
    weights: Any = None,
    augment: Augment | None = None,
    *,
    by: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    categories: Sequence[str] | bool = (),
    classes: Sequence[Any] | None = None,
    missing: str = "refuse",
    checked: str | None = None,
    schema: str | None = None,
    standardise: bool | Standardise = False,
    validation: float | None = None,
    test: Any = None,
    seed: int = 0,
) -> Clients:
    """Makes a federation of what each client holds: a table, or a pytree of arrays.

    Args:
      data: one pytree per client, its leaves with a leading axis of examples, or one table; a list of them, or a
        mapping from clients' names. Or one table of all, with `by`, or a grouped one. Clients may differ in their
        number of examples and in nothing else; columns are matched by name. A `Split(lower=..., upper=...)` per client
        gives the levels their own data. A table is anything with columns by name, such as a DataFrame. Or a source of
        examples that are not in memory: `rk.data.Mapped`, `rk.data.ShardFolder`, `rk.data.Loaded`.
      weights: Weights p_i of the clients in every average: "size", by number of examples; "equal"; or one number per
        client, not negative, with sum 1. None: "size" for tables, as the command has it, and "equal" for pytrees.
      augment: what is done, inside the program, to every training example of a minibatch (the lower level's, where
        the levels differ): a function of a key and an example, such as `rk.data.CropFlip(shape)`.
      by: the column of one table that says whose a row is.
      label: the column of a table that is to be learnt. Examples are then `{"input": (n, d), "label": (n,)}`, the label
        a number of a class, or itself where it is not whole.
      columns: the columns that are inputs; None: all but the label.
      categories: columns of words or codes, each turned into one column per value, alike at all clients; True: every
        column that holds texts. A mapping from columns to lists of values fixes the values.
      classes: the values of the label, in their order; None: those that there are.
      missing: "refuse" rows of a table with empty cells, or "drop" them.
      checked: Column of 0 and 1 that says whose label was checked. It is no input; examples have it as "checked".
      schema: Path of a schema (`rookery schema` writes one). It gives label, columns, categories, classes and checked,
        and every table must keep its rules.
      standardise: How inputs are scaled: True or "pooled", by mean and standard deviation over all clients' training
        examples; "client", over each client's own; "robust", by each client's own median and interquartile range,
        clipped to 10 on either side; False or "none", not at all.
      validation: the part of each client's examples that goes to the upper level, as a `Split`; None: none.
      test: the part of each client's examples that no step sees, for `client_metrics`; or its test examples, one
        pytree per client; None: none.
      seed: what `validation` and `test` are drawn from; of every class the same part.

    >>> clients = federate([{"a": np.zeros((2, 3))}, {"a": np.ones((5, 3))}], weights="size")
    >>> clients.weights.round(3).tolist()
    [0.286, 0.714]
    >>> table = {"site": ["A", "A", "B", "B"], "age": [40, 50, 60, 70], "ill": [0, 1, 1, 0]}
    >>> federate(table, by="site", label="ill").names
    ('A', 'B')
    """
    reading = Reading(label, columns, categories, classes, missing, checked)
    check = None
    if schema is not None:
        rules = read_schema(schema)
        reading = reading_of(rules, reading)
        check = lambda table, name: rules.check(table, missing, f"client {name!r}")
    if isinstance(data, Source):
        given = {"by": by, "validation": validation, "test": test, "standardise": standardise or None, **vars(reading)}
        return _streamed(data, weights, augment, given)
    names, inputs, values, about = (), (), (), {}
    if isinstance(data, Sequence | Mapping) and not data:
        raise InputError("data: no client was given; at least one is needed")
    _refuse_one_dataset(data, by)
    if tables := _are_tables(data, by, reading):
        data, names, inputs, values, target = records_of(data, by, reading, check)
        about = {"label": target, "classes": [str(value) for value in values]} if target else {}
        about["inputs"] = list(inputs)
    else:
        for name, value in vars(reading).items():
            if value != getattr(Reading(), name):
                raise InputError(f"{name}: it was given, and the clients hold pytrees; it is for tables")
        if isinstance(data, Mapping):
            names, data = tuple(str(name) for name in data), list(data.values())
        data = list(data)
    if not data:
        raise InputError("data: no client was given; at least one is needed")
    data, tests = _with_test(data, names, test, seed)
    data = _with_validation(data, names, validation, seed)
    scaling = check_standardise(standardise)
    if scaling != "none":
        data, tests = _standardised(data, tests, scaling)
    if about or scaling != "none":
        about["scaling"] = scaling
    split = isinstance(data[0], Split)
    if any(isinstance(client, Split) != split for client in data):
        raise InputError("data: some clients are a Split and some are not; give all of them alike")
    if split:
        levels = {
            "lower": _flatten([client.lower for client in data], "lower data", names),
            "upper": _flatten([client.upper for client in data], "upper data", names),
        }
    else:
        levels = {BOTH: _flatten(data, "data", names)}
    sizes = np.sum([level.size for level in levels.values()], axis=0)
    held = None if tests is None else _flatten(tests, "test", names)
    if held is not None and held.offset.dtype != np.int32:
        raise InputError(f"test: {held.size.sum(dtype=np.int64)} examples were given, beyond what a device counts")
    shares = _weights("size" if weights is None and tables else weights, sizes)
    return Clients(levels, shares, _checked_augment(augment), names, inputs, values, held, about=about)


def _streamed(source: Source, weights: Any, augment: Augment | None, given: Mapping[str, Any]) -> Clients:
    """The federation of a source; `given`: what was asked for that needs the examples in memory."""
    for name, value in given.items():
        if value != getattr(Reading(), name, None):
            raise InputError(f"{name}: it was given, and the examples are not in memory; prepare them in the source")
    levels, (sizes_of, example) = {}, told_by(source)
    for name, size in sizes_of.items():
        begins = np.cumsum(size, dtype=np.int64) - size
        total = int(begins[-1] + size[-1])
        rows = jax.tree.map(
            lambda leaf, total=total: jax.ShapeDtypeStruct((total, *leaf.shape), leaf.dtype), example[name]
        )
        levels[name] = Level(rows, begins, size)
    sizes = np.sum([level.size for level in levels.values()], axis=0)
    return Clients(levels, _weights(weights, sizes), _checked_augment(augment), source=source)


def _checked_augment(augment: Any) -> Augment | None:
    if augment is not None and not callable(augment):
        raise InputError(f"augment: {augment!r} was given; a function of a key and an example is needed")
    return augment


FIELDS = ("input", "inputs", "feature", "features", "x", "label", "labels", "target", "targets", "y")


def _refuse_one_dataset(data: Any, by: str | None) -> None:
    """Refuses a dict of arrays that is one dataset: its arrays would be taken for the data of one client each."""
    if by is not None or not isinstance(data, Mapping) or len(data) < 2:
        return
    if not all(isinstance(value, np.ndarray | jax.Array | list) for value in data.values()):
        return
    try:
        arrays = {str(name): np.asarray(value) for name, value in data.items()}
    except ValueError:  # a list of rows of different lengths is no column
        return
    if any(array.ndim == 0 for array in arrays.values()) or len({len(array) for array in arrays.values()}) > 1:
        return
    columns = any(isinstance(value, list) for value in data.values())
    named = any(name.lower() in FIELDS for name in arrays)
    if columns or named or len({(array.shape[1:], array.dtype.kind) for array in arrays.values()}) > 1:
        names = " and ".join(map(repr, list(arrays)[:5])) + " and more" * (len(arrays) > 5)
        raise InputError(
            f"data must have one entry per client; got one dataset, with {names} of {len(next(iter(arrays.values())))} "
            'examples each. Give a list with one such dict per client, or one table with by="COLUMN", the column that '
            "names the client"
        )


def _are_tables(data: Any, by: str | None, reading: Reading) -> bool:
    """Whether clients hold tables: by what they are, or by what is asked of them."""
    if by is not None or is_frame(data) or is_grouped(data):
        return True
    one = next(iter(data.values() if isinstance(data, Mapping) else data), None)
    return is_frame(one) or (isinstance(one, Mapping) and reading.label is not None)


def _with_test(data: list[Any], names: tuple[str, ...], test: Any, seed: int) -> tuple[list[Any], list[Tree] | None]:
    """The clients' data without their test examples, and these."""
    if test is None:
        return data, None
    if not isinstance(test, Real):
        tests = list(test.values() if isinstance(test, Mapping) else test)
        if len(tests) != len(data):
            raise InputError(f"test: examples of {len(tests)} clients were given for {len(data)}; one each is needed")
        return data, tests
    parts = [_divided_part(client, "test", test, seed, i, names) for i, client in enumerate(data)]
    return [rest for rest, _ in parts], [part for _, part in parts]


def _with_validation(data: list[Any], names: tuple[str, ...], validation: float | None, seed: int) -> list[Any]:
    if validation is None:
        return data
    parts = [_divided_part(client, "validation", validation, seed + 1, i, names) for i, client in enumerate(data)]
    return [Split(lower=rest, upper=part) for rest, part in parts]


def _divided_part(client: Any, argument: str, fraction: Any, seed: int, index: int, names: tuple) -> tuple[Tree, Tree]:
    """A client's examples without a part, and that part: of every class the same, one example of each side at least."""
    check_fraction(argument, fraction)
    if isinstance(client, Split):
        raise InputError(f"{argument}: {fraction} was given, and clients are a Split already; give them whole")
    leaves = jax.tree.leaves(client)
    size = len(leaves[0]) if leaves and np.ndim(leaves[0]) else 0
    if size < 2:
        raise InputError(
            f"{argument}: {fraction} was given, and client {_name(names, index)} has {size} examples; two are needed"
        )
    labels = client.get("label") if isinstance(client, Mapping) else None
    kinds = np.zeros(size) if labels is None or np.asarray(labels).dtype.kind == "f" else np.asarray(labels)
    taken = hold_out(argument, kinds, fraction, (seed, index), rare=True)
    if not taken.any():  # too few of every class: one of all
        taken[np.random.default_rng((seed, index)).integers(size)] = True
    pick = lambda where: jax.tree.map(lambda leaf: np.asarray(leaf)[where], client)
    return pick(~taken), pick(taken)


def _standardised(data: list[Any], tests: list[Tree] | None, kind: Standardise) -> tuple[list[Any], list[Tree] | None]:
    """Inputs scaled by statistics of training examples, of all clients or of each client's own."""
    parts = [{"lower": own.lower, "upper": own.upper} if isinstance(own, Split) else {BOTH: own} for own in data]
    if not all(isinstance(part, Mapping) and "input" in part for own in parts for part in own.values()):
        raise InputError('standardise: it was given, and examples have no "input"; it is for tables')
    train = [np.asarray(next(iter(own.values()))["input"], np.float64) for own in parts]
    mean, std = mean_and_std(np.concatenate(train))

    def scaled(part: Mapping[str, Any], place: int) -> dict[str, Any]:
        inputs = np.asarray(part["input"])
        found = (inputs - mean) / std if kind == "pooled" else scaled_by_own(train[place], inputs, kind)
        return dict(part) | {"input": found}

    made = [{name: scaled(part, place) for name, part in own.items()} for place, own in enumerate(parts)]
    found = [Split(**own) if isinstance(given, Split) else own[BOTH] for own, given in zip(made, data)]
    return found, None if tests is None else [scaled(part, place) for place, part in enumerate(tests)]


def _name(names: tuple[str, ...], index: int) -> str:
    """How sentences call a client."""
    return repr(names[index]) if names else str(index)


def _flatten(clients: list[Tree], what: str, names: tuple[str, ...] = ()) -> Level:
    """Concatenate the clients' leaves, after checking that they are alike; rows at another party are left out."""
    structure = jax.tree.structure(clients[0])
    if structure.num_leaves == 0:
        raise InputError(f"{what}: client {_name(names, 0)} holds no arrays; give each client a pytree of arrays")
    columns: list[list[np.ndarray]] = [[] for _ in range(structure.num_leaves)]
    sizes, here = [], []
    for place, client in enumerate(clients):
        given, own = jax.tree.flatten(client)
        here.append(not any(isinstance(leaf, Absent) for leaf in given))
        leaves = [np.asarray(leaf) for leaf in given]
        if own != structure or not _alike(leaves, columns):
            raise InputError(f"{what}: client {_name(names, place)} {_fault(leaves, own, columns, structure, names)}")
        for column, leaf in zip(columns, leaves):
            column.append(leaf)
        sizes.append(len(leaves[0]))
    size = np.asarray(sizes, np.int32)
    held = np.where(here, size, 0)
    ends = np.cumsum(held, dtype=np.int64)
    offset = np.where(here, ends - held, ABSENT)
    if ends[-1] < 2**31:  # else no device has a place for them, see `Clients.streamed`
        offset = offset.astype(np.int32)
    # Without any rows here one row of zeros still shows their shape.
    rows = [_joined([own for own, there in zip(column, here) if there] or [column[0][:1]]) for column in columns]
    for leaf in rows:
        if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
            row, *rest = np.argwhere(~np.isfinite(leaf))[0]
            place, number = row_of(Level(rows, offset, size), int(row))
            where = f"row {number}" + (f", column {rest[0]}" if rest else "")
            raise InputError(
                f"{what}: client {_name(names, place)} has a value that is NaN or infinite, in {where}; all must be "
                "finite"
            )
    return Level(jax.tree.unflatten(structure, rows), offset, size)


def _alike(leaves: list[np.ndarray], columns: list[list[np.ndarray]]) -> bool:
    """Whether a client's leaves are numbers, of as many examples each, and shaped like the first client's."""
    size = leaves[0].shape[0] if leaves[0].ndim else 0
    return size > 0 and all(
        leaf.ndim > 0
        and leaf.shape[0] == size
        and leaf.dtype.kind in "biufc"
        and (not column or (leaf.shape[1:], leaf.dtype.kind) == (column[0].shape[1:], column[0].dtype.kind))
        for leaf, column in zip(leaves, columns, strict=True)
    )


def _fault(leaves: list[np.ndarray], own: Any, columns: list[list[np.ndarray]], structure: Any, names: tuple) -> str:
    """What is wrong with a client's leaves."""
    first = _name(names, 0)
    if own != structure:
        return f"has structure {own}, client {first} has {structure}; all clients must be alike"
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if None in lengths:
        return "has a leaf without an axis of examples; every leaf needs one"
    if len(lengths) > 1:
        return (
            f"has leaves of {' and '.join(sorted(map(str, lengths)))} examples; all leaves of a client must have the "
            "same number"
        )
    if lengths == {0}:
        return "has no examples; every client needs at least one"
    for column, leaf in zip(columns, leaves):
        if leaf.dtype.kind not in "biufc":
            return f"has a leaf of type {leaf.dtype}; leaves must be numbers"
        if column and (leaf.shape[1:], leaf.dtype.kind) != (column[0].shape[1:], column[0].dtype.kind):
            return (
                f"has examples of shape {leaf.shape[1:]} and type {leaf.dtype}, client {first} of shape "
                f"{column[0].shape[1:]} and type {column[0].dtype}; all clients must be alike"
            )
    raise AssertionError("nothing is wrong")


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """The arrays one after another."""
    shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=aligned(shape, np.result_type(*{array.dtype for array in arrays})))


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in memory that a program on this machine's CPU reads where it is: XLA copies what begins elsewhere."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _as(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array in another type."""
    made = aligned(array.shape, dtype)
    made[...] = array
    return made


_ALIGNMENT = 64  # bytes


def _weights(weights: Any, sizes: np.ndarray) -> np.ndarray:
    n = len(sizes)
    if weights is None or (isinstance(weights, str) and weights == "equal"):
        return np.full(n, 1.0 / n)
    if isinstance(weights, str):
        if weights != "size":
            raise InputError(f'weights must be "size", "equal", None or one number per client; got {weights!r}')
        return sizes / sizes.sum()
    weights = np.asarray(weights, np.float64)
    if weights.shape != (n,):
        raise InputError(f"weights: shape {weights.shape} was given for {n} clients; one number per client is needed")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError(f"weights: {weights.min()} was given; every weight must be finite and not negative")
    if abs(weights.sum() - 1) > 1e-6:
        raise InputError(f"weights: they sum to {weights.sum():.8g}; they must sum to 1")
    return weights / weights.sum()


def _refuse_beyond(rows: np.ndarray, most: Any, held: str) -> None:
    """Refuses numbers whose size is beyond what a program holds."""
    lowest, highest = rows.min(), rows.max()
    if highest > most or lowest < -most:
        raise InputError(f"data: it has the number {highest if highest > most else lowest}, beyond {most:.10g}; {held}")


def example_shape(clients: Clients, level: str, dtype: Any) -> Tree:
    """Shape and type of one example of a level, as a loss sees it."""
    return example_shape_of(clients.level(level), dtype)


def example_shape_of(level: Level, dtype: Any) -> Tree:
    """The same of a level that is at hand."""
    return jax.tree.map(
        lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], dtype if rows.dtype.kind == "f" else rows.dtype), level.rows
    )


def cast(levels: Mapping[str, Level], dtype: Any) -> dict[str, Level]:
    """The levels with floating-point leaves in the run's precision and wide integers in 32 bits; refuses numbers that
    these do not hold. What is not in memory gets its type alone."""

    def leaf(rows: Any) -> Any:
        if isinstance(rows, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(rows.shape, cast_type(rows.dtype, dtype))
        return cast_rows(np.asarray(rows), dtype)

    return {name: Level(jax.tree.map(leaf, level.rows), level.offset, level.size) for name, level in levels.items()}


def cast_type(own: np.dtype, dtype: Any) -> np.dtype:
    """The type in which a program holds numbers of a type."""
    if own.kind == "f":
        return np.dtype(dtype)
    return np.dtype(np.int32) if own in (np.int64, np.uint64) else own


def cast_rows(rows: np.ndarray, dtype: Any) -> np.ndarray:
    """Examples as a program holds them."""
    held = cast_type(rows.dtype, dtype)
    if held == rows.dtype:
        return rows
    if held.kind == "f":
        if rows.dtype.itemsize > held.itemsize:
            _refuse_beyond(rows, np.finfo(held).max, f'{held}; precision="float64" holds more')
    else:
        _refuse_beyond(rows, np.iinfo(np.int32).max, "whole numbers are held in 32 bits; floats hold more")
    return _as(rows, held)
