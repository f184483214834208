"""A client's passes through its examples: each once, in a fresh order, in minibatches. Imports data and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.data.batches import Part
from rookery.federation import counts
from rookery.federation.keys import order_key


class Minibatches(NamedTuple):
    """Those of one draw in a pass: of how many examples, how many in each (None: all), and how many there are."""

    examples: jax.Array
    size: int | None
    number: jax.Array


@dataclass(frozen=True)
class Passes:
    """The passes of one client: the minibatches of each draw, of which the longest row makes an epoch."""

    draws: Mapping[str, Minibatches]
    capacity: Mapping[str, int]  # draw -> the largest client's number of examples

    @property
    def length(self) -> jax.Array:
        """The steps of an epoch."""
        return jnp.max(jnp.stack([draw.number for draw in self.draws.values()]))

    def run(self, key: jax.Array, steps: jax.Array, body: Callable[[Any, Any, Place], Any], carry: Any) -> Any:
        """`carry = body(k, carry, place)` for k = 0 .. steps - 1, epoch by epoch, each in its own order."""
        length = self.length

        def epoch(e: Any, carry: Any) -> Any:
            begin = self.begin(key, e)

            def step(j: Any, carry: Any) -> Any:
                return body(e * length + j, carry, begin._replace(step=jnp.asarray(j, jnp.int32)))

            return jax.lax.fori_loop(0, length, step, carry)

        return jax.lax.fori_loop(0, steps // length, epoch, carry)

    def begin(self, key: jax.Array, epoch: Any = 0) -> Place:
        """Where an epoch begins: its orders are drawn."""
        own = jax.random.fold_in(order_key(key), epoch)
        orders = {
            name: _shuffled(jax.random.fold_in(own, number), draw.examples, self.capacity[name])
            for number, (name, draw) in enumerate(self.draws.items())
            if draw.size is not None
        }
        return Place(orders, jnp.zeros((), jnp.int32))

    def part(self, name: str, place: Place) -> Part:
        """A draw's minibatch in a step."""
        examples, size, number = self.draws[name]
        assert size is not None
        first = (place.step % number) * size
        position = jnp.minimum(first + jnp.arange(size, dtype=jnp.int32), examples - 1)
        return Part(place.orders[name][position], jnp.minimum(examples - first, size))

    def samples(self, taken: Mapping[str, int]) -> jax.Array:
        """The examples that an epoch's steps take, shorter rows as often as they are gone through; `taken`: the
        minibatches of each draw in a step."""
        length, total = self.length, counts.zeros()
        for name, times in taken.items():
            examples, size, number = self.draws[name]
            whole, rest = length // number, length % number
            one = counts.plus(counts.times(counts.count(examples), whole), counts.times(counts.count(size), rest))
            total = counts.plus(total, counts.times(one, times))
        return total


class Place(NamedTuple):
    """Where a client is in an epoch: the order of each draw's examples, and the step."""

    orders: dict[str, jax.Array]
    step: jax.Array


def _shuffled(key: jax.Array, own: jax.Array, capacity: int) -> jax.Array:
    """The positions 0 .. own - 1 in a random order, then the others."""
    bits = jax.random.bits(key, (capacity,), jnp.uint32)
    last = jnp.uint32(2**32 - 1)
    return jnp.argsort(jnp.where(jnp.arange(capacity) < own, bits, last), stable=True).astype(jnp.int32)
