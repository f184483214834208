"""Federated arrays: every client's examples in flat arrays with offsets and sizes, sampled inside the program.

`Clients` is what a user makes (numpy, on the host); `Shard` is one client's view of the data inside a program;
`Batch` is some of its examples with the weights they count with. Imports only errors and vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError
from rookery.vectors import Tree

# A full batch is walked in chunks of at most this many examples, so that one huge client does not make every
# client pay for its padding.
FULL_BATCH_CHUNK = 1024

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


class Part(NamedTuple):
    """The first `count` of some positions: a minibatch that may be shorter than its array."""

    positions: jax.Array
    count: jax.Array


class Batch(NamedTuple):
    """Some examples of one client; `index` None means all of them. Means over it are exact for ragged clients."""

    rows: Tree
    offset: jax.Array
    size: jax.Array
    index: jax.Array | Part | None
    capacity: int  # the largest client's number of examples: a full batch is padded to it, in chunks
    dtype: Any
    augment: Augment | None = None
    key: jax.Array | None = None  # what the augmentation is drawn from; None: there is none

    def total(self, function: Callable[[Tree, jax.Array], Tree]) -> Tree:
        """The sum of `function(examples, weights)` over the batch's chunks; the weights sum to 1 over the batch.

        So an additive function of the examples, such as the gradient of their weighted mean loss, comes out as its
        mean over the batch.
        """
        if isinstance(self.index, Part):
            # Past the end stand some of the client's own examples, with weight 0.
            positions, count = self.index
            inside = jnp.arange(positions.shape[0], dtype=jnp.int32) < count
            return function(self._take(positions), inside.astype(self.dtype) / count.astype(self.dtype))
        if self.index is not None:
            count = self.index.shape[0]
            return function(self._take(self.index), jnp.full((count,), 1.0 / count, self.dtype))
        chunk = min(self.capacity, FULL_BATCH_CHUNK)

        def part(k: Any) -> Tree:
            position = k * chunk + jnp.arange(chunk, dtype=jnp.int32)
            weights = (position < self.size).astype(self.dtype) / self.size.astype(self.dtype)
            # Past the end stand the client's own examples again, with weight 0: zeros could be NaN times 0.
            return function(self._take(position % self.size), weights)

        if chunk == self.capacity:
            return part(0)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, jnp.int32(0)))
        chunks = (self.size + chunk - 1) // chunk
        return jax.lax.fori_loop(0, chunks, lambda k, total: jax.tree.map(jnp.add, total, part(k)), zeros)

    def mean(self, function: Callable[[Tree], Tree]) -> Tree:
        """The mean over the batch of a function of one example, evaluated example by example."""

        def part(examples: Tree, weights: jax.Array) -> Tree:
            return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), jax.vmap(function)(examples))

        return self.total(part)

    def _take(self, position: jax.Array) -> Tree:
        at = self.offset + position
        taken = jax.tree.map(lambda rows: jnp.asarray(rows).at[at].get(mode="promise_in_bounds"), self.rows)
        if self.augment is None or self.key is None:
            return taken
        return jax.vmap(self.augment)(jax.random.split(self.key, position.shape[0]), taken)


class Shard(NamedTuple):
    """What one client can reach of the data: each level's rows, where its own begin, and how many there are."""

    levels: Mapping[str, Level]

    @property
    def size(self) -> jax.Array:
        """The client's number of examples, both levels together where they differ."""
        return sum(jnp.asarray(level.size) for level in self.levels.values())  # type: ignore[return-value]

    def level(self, name: str) -> Level:
        return self.levels[BOTH] if BOTH in self.levels else self.levels[name]

    def batch(self, name: str, index: jax.Array | Part | None, capacity: int, dtype: Any) -> Batch:
        """The batch of these positions among the client's examples (None: all of them)."""
        rows, offset, size = self.level(name)
        return Batch(rows, offset, size, index, capacity, dtype)


def shard(levels: Mapping[str, Level], index: Any) -> Shard:
    """Client `index`'s shard of the flat arrays; the index may be traced."""
    return Shard(
        {
            name: Level(level.rows, jnp.asarray(level.offset)[index], jnp.asarray(level.size)[index])
            for name, level in levels.items()
        }
    )


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
