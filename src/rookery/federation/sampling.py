"""Which clients take part in a round, and the cohort they form. Imports errors and structs.

Each scheme draws a fixed number of slots inside the program; a slot that no client fills has count 0.
Slots that are filled come first, in the order of client indices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError
from rookery.federation.steps import is_whole
from rookery.structs import static, struct


class Members(NamedTuple):
    """The clients of a cohort, one slot each: who, how often drawn, and how often to be expected."""

    index: jax.Array  # client index; of an unfilled slot, any valid one
    count: jax.Array  # how often drawn: 0 for an unfilled slot, more than 1 only with replacement
    expected: jax.Array  # the expected count: the inclusion probability, where a client is drawn at most once

    @property
    def present(self) -> jax.Array:
        """The number of filled slots."""
        return jnp.sum(self.count > 0, dtype=jnp.int32)

    def take(self, slots: jax.Array) -> Members:
        """These slots, filled ones first, by client index."""
        chosen = Members(self.index[slots], self.count[slots], self.expected[slots])
        order = jnp.lexsort((chosen.index, chosen.count == 0))
        return Members(chosen.index[order], chosen.count[order], chosen.expected[order])

    def select(self, size: int, key: jax.Array) -> Members:
        """`size` of the filled slots, uniformly without replacement; all of them when there are fewer."""
        size = min(size, self.index.shape[0])
        probability = jnp.minimum(1.0, size / jnp.maximum(self.present, 1).astype(self.expected.dtype))
        slots = _lottery(key, self.index.shape[0], self.count > 0)[:size]
        return self._replace(expected=self.expected * probability).take(slots)

    def when(self, flag: Any) -> Members:
        """All of them or, when the flag is false, none."""
        return self._replace(count=jnp.where(flag, self.count, 0))


def _lottery(key: jax.Array, size: int, eligible: jax.Array | None = None) -> jax.Array:
    """A uniformly random order of 0..size-1, those that are not eligible last."""
    tickets = jax.random.bits(key, (size,), jnp.uint32)
    return jnp.argsort(tickets) if eligible is None else jnp.lexsort((tickets, ~eligible))


class Sampling(ABC):
    """A sampling scheme. Subclasses are frozen dataclasses and pytrees: numbers traced, sizes static."""

    may_be_empty: bool = False
    always_full: bool = True  # whether every slot is filled in every round

    @abstractmethod
    def slots(self, population: int) -> int:
        """The largest possible cohort."""

    @abstractmethod
    def expected(self, population: int) -> jax.Array:
        """The expected number of times each client is drawn: what an unbiased mean divides by."""

    @abstractmethod
    def check(self, population: int) -> None:
        """Raises InputError when the scheme does not fit the population."""

    @abstractmethod
    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        """Indices and counts of the slots of one round, in any order."""

    def inclusion(self, population: int) -> jax.Array:
        """The probability that each client takes part."""
        return self.expected(population)

    def at(self, round: Any) -> Sampling:
        """The scheme of a round; the same in all rounds, unless it says otherwise."""
        return self

    def members(self, key: jax.Array, population: int, dtype: Any) -> Members:
        """The cohort of one round."""
        index, count = self.draw(key, population)
        expected = self.expected(population).astype(dtype)[index]
        return Members(index, count, expected).take(jnp.arange(index.shape[0], dtype=jnp.int32))


def _check_cohort(m: Any, population: int, largest: int | None) -> None:
    if not is_whole(m) or m < 1:
        raise InputError(f"sampling: a cohort of {m!r} was given; a whole number of at least 1 is needed")
    if largest is not None and m > largest:
        raise InputError(
            f"sampling: a cohort of {m} was given; the population has {population} clients, so at most that many"
        )


@struct
class All(Sampling):
    """Every client, every round."""

    def slots(self, population: int) -> int:
        return population

    def expected(self, population: int) -> jax.Array:
        return jnp.ones(population)

    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        return jnp.arange(population, dtype=jnp.int32), jnp.ones(population, jnp.int32)

    def check(self, population: int) -> None:
        """Everybody is always there."""


@struct
class Uniform(Sampling):
    """`m` different clients, every set of m equally likely."""

    m: int = static()

    def slots(self, population: int) -> int:
        return self.m

    def expected(self, population: int) -> jax.Array:
        return jnp.full(population, self.m / population)

    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        return _lottery(key, population)[: self.m].astype(jnp.int32), jnp.ones(self.m, jnp.int32)

    def check(self, population: int) -> None:
        _check_cohort(self.m, population, population)


@struct
class WithReplacement(Sampling):
    """`m` independent uniform draws; a client that is drawn k times takes part once, with weight k."""

    m: int = static()

    always_full = False

    def slots(self, population: int) -> int:
        return min(self.m, population)

    def expected(self, population: int) -> jax.Array:
        return jnp.full(population, self.m / population)

    def inclusion(self, population: int) -> jax.Array:
        return jnp.full(population, 1 - (1 - 1 / population) ** self.m)

    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        drawn = jax.random.randint(key, (self.m,), 0, population, dtype=jnp.int32)
        counts = jnp.zeros(population, jnp.int32).at[drawn].add(1)
        index = jnp.argsort(-counts)[: self.slots(population)].astype(jnp.int32)
        return index, counts[index]

    def check(self, population: int) -> None:
        _check_cohort(self.m, population, None)


@struct
class _Schedule:
    """A function of the round, part of the program."""

    function: Callable[[Any], Any] = static()


@struct
class Bernoulli(Sampling):
    """Each client by itself with probability `p`; an empty cohort is a round without an exchange, in which nothing
    moves.

    Args:
      p: one number, one per client, or a function of the round that gives either.
    """

    p: Any

    may_be_empty = True
    always_full = False

    def __post_init__(self):
        if callable(self.p):
            object.__setattr__(self, "p", _Schedule(self.p))

    def at(self, round: Any) -> Bernoulli:
        return Bernoulli(self.p.function(round)) if isinstance(self.p, _Schedule) else self

    def slots(self, population: int) -> int:
        return population

    def expected(self, population: int) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.p), (population,))

    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        coins = jax.random.uniform(key, (population,), jnp.float32)
        return jnp.arange(population, dtype=jnp.int32), (coins < self.expected(population)).astype(jnp.int32)

    def check(self, population: int) -> None:
        p = np.asarray(self.at(0).p, np.float64)
        if p.shape not in ((), (population,)):
            raise InputError(f"sampling: p has shape {p.shape}; one number, or one for each of {population} clients")
        if not ((p > 0) & (p <= 1)).all():
            raise InputError(f"sampling: p = {p.min() if p.min() <= 0 else p.max()} was given; 0 < p <= 1 is needed")


@struct
class Weighted(Sampling):
    """Inclusion probabilities of one's own, with their sum m a whole number: exactly m different clients.

    Drawn systematically in random order: clients are laid in random order on a line, each as long as its probability,
    and the points u, u + 1, ..., u + m - 1 with u uniform in [0, 1) pick the clients they fall on (Madow, 1949).
    """

    probabilities: Any
    cohort: int | None = static(default=None)  # m; None: read from the probabilities

    def __post_init__(self):
        if self.cohort is None:  # before tracing: m must stay static when the probabilities are traced
            object.__setattr__(self, "cohort", round(float(np.sum(np.asarray(self.probabilities)))))

    def slots(self, population: int) -> int:
        assert self.cohort is not None
        return self.cohort

    def expected(self, population: int) -> jax.Array:
        return jnp.asarray(self.probabilities)

    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        order_key, start_key = jax.random.split(key)
        order = _lottery(order_key, population)
        ends = jnp.cumsum(jnp.asarray(self.probabilities)[order])
        start = jax.random.uniform(start_key, (), jnp.float32).astype(ends.dtype)
        points = start + jnp.arange(self.cohort, dtype=ends.dtype)
        # Rounding may leave the last end below m, never the point past the last client.
        picked = jnp.minimum(jnp.searchsorted(ends, points, side="right"), population - 1)
        return order[picked].astype(jnp.int32), jnp.ones(self.slots(population), jnp.int32)

    def check(self, population: int) -> None:
        p = np.asarray(self.probabilities, np.float64)
        if p.shape != (population,):
            raise InputError(
                f"sampling: {p.size} probabilities were given for {population} clients; one each is needed"
            )
        if not ((p > 0) & (p <= 1)).all():
            raise InputError(
                f"sampling: a probability of {p.min() if p.min() <= 0 else p.max()} was given; 0 < p <= 1 is needed"
            )
        if abs(p.sum() - round(p.sum())) > 1e-6:
            raise InputError(f"sampling: the probabilities sum to {p.sum():.6g}; they must sum to a whole cohort size")
