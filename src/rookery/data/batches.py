"""Examples inside a program: a client's shard of the flat arrays, and batches of it. Imports the host's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.data.federated import BOTH, Augment, Level
from rookery.vectors import Tree, zeros

# A full batch is walked in chunks of at most this many examples, so that one huge client does not make every
# client pay for its padding.
FULL_BATCH_CHUNK = 1024


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
        nothing = zeros(jax.eval_shape(part, jnp.int32(0)))
        chunks = (self.size + chunk - 1) // chunk
        return jax.lax.fori_loop(0, chunks, lambda k, total: jax.tree.map(jnp.add, total, part(k)), nothing)

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
