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

from rookery.errors import InputError, failing
from rookery.federation.steps import LARGEST, is_count
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


def _different(key: jax.Array, m: int, population: int) -> jax.Array:
    """`m` different numbers below `population`, every set equally likely, at a cost that depends on m alone.

    Floyd's method: for k = 0, ..., m - 1 with j = population - m + k, draw t uniformly from 0..j and take it, or j
    where t is taken already. That is so where the same t was drawn before, or where t is the j of an earlier k that was
    taken for the same reason; so the reasons are chains, which are followed in log2(m) steps, all at once.
    """
    place = jnp.arange(m, dtype=jnp.int32)
    last = population - m + place
    drawn = jax.random.randint(key, (m,), 0, last + 1, dtype=jnp.int32)
    order = jnp.argsort(drawn, stable=True)
    again = jnp.diff(drawn[order], prepend=-1) == 0
    taken = jnp.zeros(m, bool).at[order].set(again)
    reason = jnp.where(drawn >= last[0], drawn - last[0], place)
    for _ in range((int(m) - 1).bit_length()):
        taken, reason = taken | taken[reason], reason[reason]
    return jnp.where(taken, last, drawn)


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

    def check_rounds(self, first: int, rounds: int, population: int) -> None:
        """Raises InputError when the scheme does not fit some round to come; most are the same in all."""
        return None

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
    if not is_count(m):
        raise InputError(f"sampling: a cohort of {m!r} was given; a whole number from 1 to {LARGEST} is needed")
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
        return _different(key, self.m, population), jnp.ones(self.m, jnp.int32)

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
        drawn = jnp.sort(jax.random.randint(key, (self.m,), 0, population, dtype=jnp.int32))
        slot = jnp.cumsum(jnp.diff(drawn, prepend=drawn[:1]) > 0)  # equal ones lie side by side and share one
        empty = jnp.zeros(self.slots(population), jnp.int32)
        return empty.at[slot].set(drawn), empty.at[slot].add(1)

    def check(self, population: int) -> None:
        _check_cohort(self.m, population, None)


@struct
class _Schedule:
    """A function of the round, part of the program."""

    function: Callable[[Any], Any] = static()


_FORESEEN = 10**6  # probabilities of rounds to come that are looked at in one go, a hundred times at most


@struct
class Bernoulli(Sampling):
    """Each client by itself with probability `p`; an empty cohort is a round without an exchange, in which nothing
    moves.

    Args:
      p: one number, one per client, or a function of the round that gives either; such a function may give 0 to clients
        that are away.
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
        if not isinstance(self.p, _Schedule):
            self._check_values(population)
            return
        with failing("sampling: p(t) of a traced round t"):
            shape = jax.eval_shape(lambda t: jnp.asarray(self.p.function(t)), jnp.int32(0)).shape
        self._check_shape(shape, population)
        self.check_rounds(0, 1, population)

    def check_rounds(self, first: int, rounds: int, population: int) -> None:
        if not isinstance(self.p, _Schedule):
            return
        function = jax.jit(jax.vmap(lambda t: jnp.asarray(self.p.function(t))))
        chunk = max(1, min(rounds, _FORESEEN // population))
        for begin in range(first, first + min(rounds, chunk * 100), chunk):
            values = np.asarray(function(begin + np.arange(chunk, dtype=np.int32)))
            for t, p in zip(range(begin, first + rounds), values):
                wrong = p[~((p >= 0) & (p <= 1))]
                if wrong.size:
                    raise InputError(f"sampling: p = {wrong.flat[0]} was given in round {t}; 0 <= p <= 1 is needed")

    def _check_values(self, population: int) -> None:
        try:
            p = np.asarray(self.p, np.float64)
        except (TypeError, ValueError):
            raise InputError(f"sampling: p = {self.p!r} was given; 0 < p <= 1 is needed") from None
        self._check_shape(p.shape, population)
        wrong = p[~((p > 0) & (p <= 1))]
        if wrong.size:
            raise InputError(f"sampling: p = {wrong.flat[0]} was given; 0 < p <= 1 is needed")

    def _check_shape(self, shape: tuple[int, ...], population: int) -> None:
        if shape not in ((), (population,)):
            raise InputError(f"sampling: p has shape {shape}; one number, or one for each of {population} clients")


@struct
class Weighted(Sampling):
    """Inclusion probabilities of one's own, with their sum m a whole number: exactly m different clients.

    Drawn systematically in random order: clients are laid in random order on a line, each as long as its probability,
    and the points u, u + 1, ..., u + m - 1 with u uniform in [0, 1) pick the clients they fall on (Madow, 1949).
    Lengths are whole numbers of units of 2**-30, since sums of floating-point numbers could give one client two points.
    """

    probabilities: Any
    cohort: int | None = static(default=None)  # m; None: read from the probabilities
    lengths: Any = None  # the probabilities in units, with sum m exactly; None: made from them

    def __post_init__(self):
        if self.cohort is None or self.lengths is None:  # before tracing, which must not round them again
            p = self._read()
            cohort = round(float(p.sum())) if np.isfinite(p).all() else 0
            object.__setattr__(self, "cohort", cohort)
            object.__setattr__(self, "lengths", _whole_lengths(p, cohort))

    def _read(self) -> np.ndarray:
        try:
            return np.asarray(self.probabilities, np.float64)
        except (TypeError, ValueError):
            given = self.probabilities
            raise InputError(f"sampling: {given!r} was given; one probability per client is needed") from None

    def slots(self, population: int) -> int:
        assert self.cohort is not None
        return self.cohort

    def expected(self, population: int) -> jax.Array:
        return jnp.asarray(self.probabilities)

    def draw(self, key: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
        order_key, start_key = jax.random.split(key)
        order = _lottery(order_key, population)
        lengths = jnp.asarray(self.lengths, jnp.uint32)[order]
        begins = jnp.cumsum(lengths) - lengths  # modulo 2**32, and so modulo a unit: that is all that matters
        start = jax.random.bits(start_key, (), jnp.uint32)
        to_next_point = (start - begins) % jnp.uint32(_UNIT)
        picked = jnp.flatnonzero(to_next_point < lengths, size=self.slots(population))
        return order[picked].astype(jnp.int32), jnp.ones(self.slots(population), jnp.int32)

    def check(self, population: int) -> None:
        p = self._read()
        if p.shape != (population,):
            raise InputError(
                f"sampling: {p.size} probabilities were given for {population} clients; one each is needed"
            )
        wrong = p[~((p > 0) & (p <= 1))]
        if wrong.size:
            raise InputError(f"sampling: a probability of {wrong[0]} was given; 0 < p <= 1 is needed")
        if abs(p.sum() - round(p.sum())) > TOLERANCE:
            raise InputError(f"sampling: the probabilities sum to {p.sum():.6g}; they must sum to a whole cohort size")


_UNIT = 2**30
TOLERANCE = 1e-6  # of the sum of probabilities


def _whole_lengths(p: np.ndarray, cohort: int) -> np.ndarray:
    """Probabilities in units of 2**-30, rounded so that their sum is the cohort's, none above 1."""
    lengths = np.rint(np.clip(np.nan_to_num(p), 0, 1) * _UNIT).astype(np.int64)
    left = cohort * _UNIT - int(lengths.sum())
    if abs(left) > 2 * TOLERANCE * _UNIT + p.size:  # no whole cohort, which `check` refuses
        return lengths.astype(np.int32)
    while left:  # what rounding leaves, and what the sum may be off: a unit each, where there is room
        room = np.flatnonzero(lengths < _UNIT if left > 0 else lengths > 1)[: abs(left)]
        if not room.size:
            break
        lengths[room] += np.sign(left)
        left -= np.sign(left) * room.size
    return lengths.astype(np.int32)
