"""Federated arrays on the host: every client's examples in flat arrays with offsets and sizes, and its weight.

`Clients` is what a user makes; `batches.py` has what a program sees of it. Imports only errors and vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.errors import InputError
from rookery.vectors import Tree

BOTH = "all"  # the name of the only level when the levels see the same data
TRAINING = (BOTH, "lower")  # the levels whose minibatches are augmented

Augment = Callable[[jax.Array, Any], Any]  # of a key and one example


@dataclass(frozen=True)
class Split:
    """Something for the lower level and something for the upper: a client's data, or batch sizes."""

    lower: Any
    upper: Any


class Level(NamedTuple):
    """The examples of all clients for one level: client i owns rows offset[i] .. offset[i] + size[i] - 1."""

    rows: Tree
    offset: Any
    size: Any


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a federation: their examples, and their weights p_i. Made by `federate`."""

    levels: Mapping[str, Level]
    weights: np.ndarray
    augment: Augment | None = None

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

        def own(level: Level) -> Tree:
            start = int(level.offset[index])
            return jax.tree.map(lambda rows: rows[start : start + int(level.size[index])], level.rows)

        if self.split:
            return Split(lower=own(self.levels["lower"]), upper=own(self.levels["upper"]))
        return own(self.levels[BOTH])

    def subset(self, indices: Sequence[int]) -> Clients:
        """The federation of some of the clients, in the given order, their weights scaled to sum to 1."""
        weights = self.weights[list(indices)]
        return federate([self.client(i) for i in indices], weights=weights / weights.sum(), augment=self.augment)

    def __repr__(self) -> str:
        sizes = self.sizes
        return f"Clients({self.population} clients, {sizes.sum()} examples, {sizes.min()} to {sizes.max()} each)"


def federate(data: Sequence[Any], weights: Any = None, augment: Augment | None = None) -> Clients:
    """Makes a federation from one pytree of arrays per client.

    Args:
      data: one pytree per client, its leaves with a leading axis of examples. Clients may differ in their number
        of examples and in nothing else. A `Split(lower=..., upper=...)` per client gives the levels their own data.
      weights: the weights p_i of the clients in every average: None, all equal; "size", by number of examples; or
        one number per client, not negative, with sum 1.
      augment: what is done, inside the program, to every training example of a minibatch (the lower level's, where
        the levels differ): a function of a key and an example, such as `rk.data.CropFlip(shape)`.

    >>> clients = federate([{"a": np.zeros((2, 3))}, {"a": np.ones((5, 3))}], weights="size")
    >>> clients.weights.round(3).tolist()
    [0.286, 0.714]
    """
    data = list(data)
    if not data:
        raise InputError("data: no client was given; at least one is needed")
    split = isinstance(data[0], Split)
    if any(isinstance(client, Split) != split for client in data):
        raise InputError("data: some clients are a Split and some are not; give all of them alike")
    if split:
        levels = {
            "lower": _flatten([client.lower for client in data], "lower data"),
            "upper": _flatten([client.upper for client in data], "upper data"),
        }
    else:
        levels = {BOTH: _flatten(data, "data")}
    sizes = np.sum([level.size for level in levels.values()], axis=0)
    if augment is not None and not callable(augment):
        raise InputError(f"augment: {augment!r} was given; a function of a key and an example is needed")
    return Clients(levels, _weights(weights, sizes), augment)


def _flatten(clients: list[Tree], what: str) -> Level:
    """Concatenates the clients' leaves, after checking that they are of one kind."""
    structure = jax.tree.structure(clients[0])
    if structure.num_leaves == 0:
        raise InputError(f"{what}: client 0 holds no arrays; give each client a pytree of arrays")
    columns: list[list[np.ndarray]] = [[] for _ in range(structure.num_leaves)]
    sizes = []
    for i, client in enumerate(clients):
        if jax.tree.structure(client) != structure:
            raise InputError(
                f"{what}: client {i} has structure {jax.tree.structure(client)}, client 0 has {structure}; "
                "all clients must be alike"
            )
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(client)]
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
        if None in lengths:
            raise InputError(f"{what}: client {i} has a leaf without an axis of examples; every leaf needs one")
        if len(lengths) > 1:
            raise InputError(
                f"{what}: client {i} has leaves of {' and '.join(sorted(map(str, lengths)))} examples; "
                "all leaves of a client must have the same number"
            )
        if lengths == {0}:
            raise InputError(f"{what}: client {i} has no examples; every client needs at least one")
        for column, leaf in zip(columns, leaves):
            if not (np.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool):
                raise InputError(f"{what}: client {i} has a leaf of type {leaf.dtype}; leaves must be numbers")
            if column and (leaf.shape[1:], leaf.dtype.kind) != (column[0].shape[1:], column[0].dtype.kind):
                raise InputError(
                    f"{what}: client {i} has examples of shape {leaf.shape[1:]} and type {leaf.dtype}, client 0 of "
                    f"shape {column[0].shape[1:]} and type {column[0].dtype}; all clients must be alike"
                )
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                raise InputError(f"{what}: client {i} has values that are NaN or infinite; all must be finite")
            column.append(leaf)
        sizes.append(lengths.pop())
    size = np.asarray(sizes, np.int32)
    offset = np.concatenate([[0], np.cumsum(size)[:-1]]).astype(np.int32)
    return Level(jax.tree.unflatten(structure, [np.concatenate(column) for column in columns]), offset, size)


def _weights(weights: Any, sizes: np.ndarray) -> np.ndarray:
    n = len(sizes)
    if weights is None:
        return np.full(n, 1.0 / n)
    if isinstance(weights, str):
        if weights != "size":
            raise InputError(f'weights: {weights!r} was given; allowed are None, "size" and one number per client')
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
    return jax.tree.map(
        lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], dtype if rows.dtype.kind == "f" else rows.dtype),
        clients.level(level).rows,
    )


def cast(levels: Mapping[str, Level], dtype: Any) -> dict[str, Level]:
    """The levels with floating-point leaves in the run's precision and wide integers in 32 bits; refuses numbers that
    these do not hold."""

    def leaf(rows: Any) -> np.ndarray:
        rows = np.asarray(rows)
        if rows.dtype.kind == "f":
            if rows.dtype.itemsize > np.dtype(dtype).itemsize:
                _refuse_beyond(rows, np.finfo(dtype).max, f'{np.dtype(dtype)}; precision="float64" holds more')
            return rows.astype(dtype, copy=False)
        if rows.dtype not in (np.int64, np.uint64):
            return rows
        _refuse_beyond(rows, np.iinfo(np.int32).max, "whole numbers are held in 32 bits; floats hold more")
        return rows.astype(np.int32)

    return {name: Level(jax.tree.map(leaf, level.rows), level.offset, level.size) for name, level in levels.items()}
