"""Channels: what is done to messages on their way, once, for every method on every engine. Imports steps and vectors.

A *stage* packs an array into other arrays, which are exactly what travels, and unpacks them; so the ledger counts the
bytes of packed arrays and knows no formula. Stages follow one another: the next one packs the floats that the one
before it left. A *feedback* around stages keeps something between messages: what was lost, or what was said so far.

Every array of floats that has more than one entry goes through; scalars, flags and whole numbers travel as they are.
A place is left for what bounds, noises or hides replies: a stage's `sensitivity` is the largest norm of what leaves it
(None: no bound), and how replies are added up is the engine's alone.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import takewhile
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey

from rookery.errors import InputError, unknown
from rookery.federation.steps import is_count
from rookery.vectors import Vector

Shape = tuple[int, ...]
Arrays = dict[str, Any]  # what a stage makes of an array, by name
PACKED = "packed "  # how the name of a packed array begins, which goes on with its shape


class Stage(ABC):
    """Packs one array and unpacks it. Subclasses are frozen dataclasses of plain values."""

    random: bool = False  # whether it draws
    unbiased: bool = False  # whether, over its draws, what is unpacked has the array as its mean
    contracts: bool = True  # whether what it loses is less than what it was given, which feedback lives on
    sensitivity: float | None = None

    @abstractmethod
    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        """What travels in the place of an array."""

    @abstractmethod
    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        """The array again, as far as it can be had."""

    def packs(self, shape: Shape) -> bool:
        """Whether arrays of a shape are packed; others travel as they are."""
        return True

    def variance(self, shape: Shape) -> float:
        """omega, where it is unbiased: the mean squared error is at most omega times the squared norm."""
        raise NotImplementedError

    def __str__(self) -> str:
        return _spelled(self)


def _check_switch(name: str, argument: str, given: Any) -> None:
    if not isinstance(given, bool | np.bool_):
        raise InputError(f"{name}: {argument}={given!r} was given; True or False is needed")


def _check_fraction(name: str, fraction: Any) -> None:
    if isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0 < float(fraction) <= 1:
        raise InputError(f"{name}: a fraction of {fraction!r} was given; a number above 0 and up to 1 is needed")


def _kept(fraction: float, size: int) -> int:
    """How many of `size` entries are kept: at least one."""
    return max(1, math.ceil(fraction * size - 1e-9))


def _places(size: int) -> Any:
    """The smallest type that holds places in an array."""
    return next(kind for kind in (jnp.uint8, jnp.uint16, jnp.uint32) if size - 1 <= jnp.iinfo(kind).max)


@dataclasses.dataclass(frozen=True)
class TopK(Stage):
    """The entries of largest size, ceil(fraction * size) of every array, with their places. Biased.

    Args:
      fraction: of the entries, those that travel.
    """

    fraction: float = 0.01

    def __post_init__(self):
        _check_fraction("TopK", self.fraction)

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        _, places = jax.lax.top_k(jnp.abs(flat), _kept(self.fraction, flat.size))
        return {"values": flat[places], "places": places.astype(_places(flat.size))}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        values = jnp.asarray(arrays["values"])
        flat = jnp.zeros(math.prod(shape), values.dtype)
        return flat.at[jnp.asarray(arrays["places"]).astype(jnp.int32)].set(values).reshape(shape)


@dataclasses.dataclass(frozen=True)
class RandK(Stage):
    """Entries drawn uniformly without replacement, ceil(fraction * size) of every array, scaled up so that their mean
    is the array. In the place of the places travels the key that they were drawn with.

    Args:
      fraction: of the entries, those that travel.
      scaled: False: they are not scaled up, which is biased, and what `ErrorFeedback` and `EF21` want.
    """

    fraction: float = 0.01
    scaled: bool = True

    random = True

    def __post_init__(self):
        _check_fraction("RandK", self.fraction)
        _check_switch("RandK", "scaled", self.scaled)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.scaled

    @property
    def contracts(self) -> bool:  # type: ignore[override]
        return not self.scaled or self.fraction > 0.5

    def _drawn(self, key: jax.Array, size: int) -> jax.Array:
        tickets = jax.random.bits(key, (size,), jnp.uint32)
        return jnp.argsort(tickets)[: _kept(self.fraction, size)]

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        places = self._drawn(key, flat.size)
        factor = flat.size / places.shape[0] if self.scaled else 1.0
        return {"values": flat[places] * jnp.asarray(factor, flat.dtype), "key": jax.random.key_data(key)}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        values = jnp.asarray(arrays["values"])
        places = self._drawn(_key_of(arrays), math.prod(shape))
        return jnp.zeros(math.prod(shape), values.dtype).at[places].set(values).reshape(shape)

    def variance(self, shape: Shape) -> float:
        size = math.prod(shape)
        return size / _kept(self.fraction, size) - 1


def _key_of(arrays: Arrays) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(arrays["key"]))


@dataclasses.dataclass(frozen=True)
class Quantise(Stage):
    """Every entry on a grid of 2^bits - 1 points from -s to s that has 0 (of one bit: -s and s), s the largest size in
    the array or in each block of it; `bits` of each entry travel, and s.

    Args:
      bits: from 1 to 8.
      stochastic: up or down at random, so that the mean is the array; False: to the nearest.
      block: entries that share one s; None: all of an array.
    """

    bits: int = 8
    stochastic: bool = False
    block: int | None = None

    def __post_init__(self):
        if not is_count(self.bits) or self.bits > 8:
            raise InputError(f"Quantise: {self.bits!r} bits were given; a whole number from 1 to 8 is needed")
        _check_switch("Quantise", "stochastic", self.stochastic)
        if self.block is not None and not is_count(self.block):
            raise InputError(
                f"Quantise: a block of {self.block!r} was given; a whole number from 1, or None, is needed"
            )

    @property
    def random(self) -> bool:  # type: ignore[override]
        return self.stochastic

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.stochastic

    @property
    def contracts(self) -> bool:  # type: ignore[override]
        return self.bits > 1  # of one bit, 0 becomes s or -s

    @property
    def _most(self) -> int:
        """The steps of the grid from 0 to s; of one bit, one step from -s to s."""
        return 2 ** (self.bits - 1) - 1 if self.bits > 1 else 1

    def _blocks(self, size: int) -> tuple[int, int]:
        """How many blocks, and of how many entries."""
        each = min(self.block or size, size)
        return -(-size // each), each

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        count, each = self._blocks(flat.size)
        blocks = jnp.pad(flat, (0, count * each - flat.size)).reshape(count, each)
        scale = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
        # Where 1 / s would be too small to be held, all entries would be 0, and a run that blows up would seem to rest.
        down = jnp.where(scale > 2.0**64, jnp.asarray(2.0**-64, blocks.dtype), 1)
        unit = (blocks * down) / jnp.where(scale > 0, scale * down, 1)
        steps = (unit + 1) / 2 if self.bits == 1 else unit * self._most
        above = jax.random.uniform(key, blocks.shape, blocks.dtype) if self.stochastic else 0.5
        codes = jnp.floor(steps + above)
        codes = jnp.clip(codes, 0, 1) if self.bits == 1 else jnp.clip(codes, -self._most, self._most) + self._most
        whole = codes.reshape(-1)[: flat.size].astype(jnp.uint8)
        bits = (whole[:, None] >> jnp.arange(self.bits, dtype=jnp.uint8)) & jnp.uint8(1)
        return {"bits": jnp.packbits(bits.reshape(-1)), "scale": scale[:, 0]}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        scale, size = jnp.asarray(arrays["scale"]), math.prod(shape)
        bits = jnp.unpackbits(jnp.asarray(arrays["bits"]))[: size * self.bits].reshape(size, self.bits)
        codes = jnp.sum(bits.astype(jnp.int32) << jnp.arange(self.bits, dtype=jnp.int32), axis=1)
        unit = codes * 2 - 1 if self.bits == 1 else codes - self._most
        count, each = self._blocks(size)
        blocks = jnp.pad(unit.astype(scale.dtype), (0, count * each - size)).reshape(count, each)
        return (blocks * (scale[:, None] / self._most)).reshape(-1)[:size].reshape(shape)

    def variance(self, shape: Shape) -> float:
        _, each = self._blocks(math.prod(shape))
        if self.bits == 1:
            return float(each)
        # With s at most the norm: the mean square of an entry's error is at most a quarter of a step's, and at most
        # the entry times a step, of which a block has at most sqrt(each) s times the norm.
        return min(each / (4 * self._most**2), math.sqrt(each) / self._most)


@dataclasses.dataclass(frozen=True)
class Sign(Stage):
    """The signs, one bit of each entry, and the mean size of an array. Biased."""

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        return {"bits": jnp.packbits((flat >= 0).astype(jnp.uint8)), "scale": jnp.mean(jnp.abs(flat))[None]}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        scale, size = jnp.asarray(arrays["scale"]), math.prod(shape)
        bits = jnp.unpackbits(jnp.asarray(arrays["bits"]))[:size]
        return ((bits.astype(scale.dtype) * 2 - 1) * scale[0]).reshape(shape)


@dataclasses.dataclass(frozen=True)
class LowRank(Stage):
    """A matrix as the product of two thin ones, by subspace iteration from a random start (PowerSGD's, without its warm
    start: nothing is kept). An array of more axes is a matrix of its first and the rest; vectors, and matrices that are
    no larger than their two factors, travel as they are. Biased.

    Args:
      rank: of the product.
      passes: over the matrix, there and back; more come nearer to the best product of that rank.
    """

    rank: int = 2
    passes: int = 2

    random = True

    def __post_init__(self):
        for name in ("rank", "passes"):
            if not is_count(getattr(self, name)):
                raise InputError(f"LowRank: {name} {getattr(self, name)!r} was given; a whole number from 1 is needed")

    def packs(self, shape: Shape) -> bool:
        return len(shape) > 1 and self.rank * (shape[0] + math.prod(shape[1:])) < math.prod(shape)

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        matrix = array.reshape(array.shape[0], -1)
        right = jax.random.normal(key, (matrix.shape[1], self.rank), matrix.dtype)
        left = _product(matrix, right)
        for again in range(self.passes):
            left, _ = jnp.linalg.qr(_product(matrix, right) if again else left)
            right = _product(matrix.T, left)
        return {"left": left, "right": right}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        return _product(jnp.asarray(arrays["left"]), jnp.asarray(arrays["right"]).T).reshape(shape)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a b to all the digits they have: both ends unpack, and must come to the same."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def hashed(key: jax.Array, shape: Shape, columns: int) -> tuple[jax.Array, jax.Array]:
    """A count sketch's draws for each entry of a shape: its cell among `columns`, and 1 where it is turned around."""
    drawn = jax.random.bits(key, shape, jnp.uint32)
    return ((drawn >> 1) % jnp.uint32(columns)).astype(jnp.int32), drawn & 1


@dataclasses.dataclass(frozen=True)
class CountSketch(Stage):
    """Every entry with a random sign added into a random cell of each row of a small table, and read back as the median
    over rows; the key of the draws travels with it. Unbiased with one row; with more, large entries are told better.

    Args:
      fraction: cells of the whole table, of the entries.
      rows: of the table, an odd number.
    """

    fraction: float = 0.1
    rows: int = 1

    random = True
    contracts = False

    def __post_init__(self):
        _check_fraction("CountSketch", self.fraction)
        if not is_count(self.rows) or self.rows % 2 == 0:
            raise InputError(f"CountSketch: {self.rows!r} rows were given; an odd whole number is needed")

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.rows == 1

    def _columns(self, size: int) -> int:
        return max(1, _kept(self.fraction, size) // self.rows)

    def _hashed(self, key: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        """Of every row and entry the cell, and whether it is turned around."""
        return hashed(key, (self.rows, size), self._columns(size))

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        cells, turned = self._hashed(key, flat.size)
        signed = jnp.where(turned == 1, -flat, flat)
        table = jnp.zeros((self.rows, self._columns(flat.size)), flat.dtype)
        row = jnp.arange(self.rows)[:, None]
        return {"table": table.at[row, cells].add(signed), "key": jax.random.key_data(key)}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        table = jnp.asarray(arrays["table"])
        cells, turned = self._hashed(_key_of(arrays), math.prod(shape))
        read = jnp.take_along_axis(table, cells, axis=1)
        read = jnp.where(turned == 1, -read, read)
        return (read[0] if self.rows == 1 else jnp.median(read, axis=0)).reshape(shape)

    def variance(self, shape: Shape) -> float:
        size = math.prod(shape)
        return (size - 1) / self._columns(size)


# Feedback: what is kept between messages.


class Feedback(ABC):
    """Stages, and what their sender keeps of every array between messages; a *shift* is kept at both ends.

    Args:
      stages: what packs the difference or the corrected array.
    """

    stages: tuple[Stage, ...]
    shifts: bool = False  # whether the receiver needs what is kept, too

    def __init__(self, *stages: Any):
        object.__setattr__(self, "stages", _stages(type(self).__name__, stages))
        if not self.stages:
            raise InputError(f"{type(self).__name__}: no stage was given; one such as rk.TopK(0.01) is needed")

    @abstractmethod
    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        """What the stages are given of a value."""

    @abstractmethod
    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        """The value that the receiver has."""

    @abstractmethod
    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        """What is kept next."""

    def __str__(self) -> str:
        if getattr(self, "alpha", None) is not None:  # which no text says
            return repr(self)
        scaled = isinstance(self, Diana)  # as a text is read
        return f"{WORD_OF[type(self)]}:{'+'.join(_spelled(stage, scaled) for stage in self.stages)}"


def _check_contracts(feedback: Feedback) -> None:
    for stage in feedback.stages:
        if not stage.contracts:
            name = type(feedback).__name__
            remedy = "rk.RandK(..., scaled=False)" if isinstance(stage, RandK) else "rk.TopK(0.01) or rk.Quantise(8)"
            raise InputError(
                f"{name}: {stage!r} was given, which may lose more than it is given, so that what {name} keeps would "
                f"grow; one that does not, such as {remedy}, is needed"
            )


@dataclasses.dataclass(frozen=True, init=False)
class ErrorFeedback(Feedback):
    """Error feedback (EF, Seide et al. 2014): the stages are given r + e, and what they lose of it is the next e. They
    must lose less than they are given, or e grows without a bound."""

    stages: tuple[Stage, ...]

    def __init__(self, *stages: Any):
        super().__init__(*stages)
        _check_contracts(self)

    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        return value + kept

    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return unpacked

    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return offered - unpacked


@dataclasses.dataclass(frozen=True, init=False)
class EF21(Feedback):
    """Packed differences (Richtarik et al. 2021): both ends keep g, the stages C are given r - g, and
    g <- g + C(r - g) is the reply. Where replies come to rest, so does g, at the same point: fixed points stay exact,
    also with biased stages, as long as they lose less than they are given."""

    stages: tuple[Stage, ...]

    shifts = True

    def __init__(self, *stages: Any):
        super().__init__(*stages)
        _check_contracts(self)

    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        return value - kept

    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return kept + unpacked

    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return kept + unpacked


@dataclasses.dataclass(frozen=True, init=False)
class Diana(Feedback):
    """Packed differences with unbiased stages (Mishchenko et al. 2019): the reply is h + C(r - h), whose mean is r, and
    h <- h + alpha C(r - h) at both ends.

    Args:
      alpha: None: 1 / (1 + omega), omega the stages' variance.
    """

    stages: tuple[Stage, ...]
    alpha: float | None = None

    shifts = True

    def __init__(self, *stages: Any, alpha: float | None = None):
        super().__init__(*stages)
        object.__setattr__(self, "alpha", alpha)
        for stage in self.stages:
            if not stage.unbiased:
                raise InputError(
                    f"Diana: {stage} was given, which is biased; an unbiased one such as rk.RandK(0.01) is needed, or "
                    "rk.EF21"
                )
            if alpha is None and type(stage).variance is Stage.variance:
                raise InputError(f"Diana: {stage} was given, which does not say its variance; give alpha=, too")
        if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha <= 1):
            raise InputError(f"Diana: alpha {alpha!r} was given; a number above 0 and up to 1, or None, is needed")

    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        return value - kept

    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return kept + unpacked

    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        alpha = self.alpha
        if alpha is None:
            alpha = 1 / math.prod(1 + omega for omega in _variances(self.stages, offered.shape, offered.dtype))
        return kept + jnp.asarray(alpha, unpacked.dtype) * unpacked


@dataclasses.dataclass(frozen=True, init=False)
class Per:
    """A channel for each sequence, by its name; what is of none of them goes through `default`.

    Args:
      default: of the others, and of replies that are no named sequences; (): they travel as they are.
      channels: by sequence, as `up` and `down` take them.
    """

    default: tuple[Any, ...]
    channels: tuple[tuple[str, tuple[Any, ...]], ...]

    def __init__(self, default: Any = (), /, **channels: Any):
        default = channels.pop("default", default)
        object.__setattr__(self, "default", _chain("Per", default))
        made = tuple((name, _chain(f"Per: {name}", given)) for name, given in sorted(channels.items()))
        object.__setattr__(self, "channels", made)

    def __str__(self) -> str:
        named = [f"{name}={'+'.join(map(str, chain)) or 'none'}" for name, chain in self.channels]
        return ";".join([*named, *(["+".join(map(str, self.default))] if self.default else [])])


class Channel(NamedTuple):
    """A channel made ready: for every sequence, a feedback or None, and stages."""

    default: _Line
    named: tuple[tuple[str, _Line], ...] = ()

    def line(self, path: tuple) -> _Line:
        """What an array goes through, by its place in a message: the innermost sequence that has a channel."""
        lines = dict(self.named)
        found = [name for name in _names(path) if name in lines]
        return lines[found[-1]] if found else self.default

    @property
    def lines(self) -> list[_Line]:
        return [self.default, *(line for _, line in self.named)]

    @property
    def keeps(self) -> bool:
        """Whether anything is kept between messages."""
        return any(line.feedback is not None for line in self.lines)

    @property
    def feedback(self) -> str:
        """What is kept between messages, in words: of another feedback it means something else."""
        lines = [("default", self.default), *self.named]
        return ", ".join(f"{type(line.feedback).__name__} of {name}" for name, line in lines if line.feedback)

    @property
    def shifts(self) -> bool:
        """Whether the receiver needs what is kept, too."""
        return any(line.feedback is not None and line.feedback.shifts for line in self.lines)


def _names(path: tuple) -> list[str]:
    """The names on the way to an array, up to its vector: the keys inside of that are its user's."""
    around = takewhile(lambda key: key != GetAttrKey("tree"), path)
    return [key.key for key in around if isinstance(key, DictKey)]


def named_in(replies: Mapping[str, Any]) -> set[str]:
    """The sequences that some replies, by phase, have by their names."""
    paths = [path for reply in replies.values() for path, _ in jax.tree_util.tree_flatten_with_path(reply)[0]]
    return {name for path in paths for name in _names(path)}


class _Line(NamedTuple):
    feedback: Feedback | None
    stages: tuple[Stage, ...]

    def takes(self, leaf: Any) -> bool:
        """Whether an array goes through it."""
        shape, dtype = np.shape(leaf), leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
        return bool(self.stages) and jnp.issubdtype(dtype, jnp.floating) and math.prod(shape) > 1


def _stages(argument: str, given: Any) -> tuple[Stage, ...]:
    for stage in given:
        if not isinstance(stage, Stage):
            raise InputError(f"{argument}: {stage!r} was given; a stage such as rk.TopK(0.01) is needed")
    return tuple(given)


def _chain(argument: str, given: Any) -> tuple[Any, ...]:
    """What a user gave for one message: stages, or one feedback."""
    if given is None:
        return ()
    if isinstance(given, str):
        return _chain(argument, parse_channel(argument, given))
    parts = tuple(given) if isinstance(given, list | tuple) else (given,)
    feedback = [part for part in parts if isinstance(part, Feedback)]
    if feedback and len(parts) > 1:
        raise InputError(
            f"{argument}: {feedback[0]} was given beside other parts; a feedback holds all stages of a channel, as in "
            f"rk.{type(feedback[0]).__name__}(rk.TopK(0.01), rk.Quantise(8))"
        )
    return parts if feedback else _stages(argument, parts)


def make_channel(argument: str, given: Any, names: tuple[str, ...]) -> Channel | None:
    """A channel made ready for a problem with these sequences, from what a user gave; None: nothing is done."""
    if isinstance(given, str):
        given = parse_channel(argument, given)
    if isinstance(given, list | tuple) and len(given) == 1 and isinstance(given[0], Per):
        given = given[0]
    per = given if isinstance(given, Per) else Per(_chain(argument, given))
    for name, _ in per.channels:
        if name not in names:
            raise unknown(argument, name, names)
    channel = Channel(_line(per.default), tuple((name, _line(chain)) for name, chain in per.channels))
    if not any(line.stages for line in channel.lines):
        return None
    if argument == "down":
        if channel.named:
            raise InputError("down: rk.Per was given; a vector may be sent under several names, so all go one way")
        for line in channel.lines:
            if line.feedback is not None or any(stage.random for stage in line.stages):
                raise InputError(
                    "down: a feedback or a random stage was given; a vector goes to a client once a round and is named "
                    "after that, so what is done to it must be a function of it alone: rk.Quantise(8), rk.TopK, rk.Sign"
                )
    return channel


def _line(chain: tuple[Any, ...]) -> _Line:
    if chain and isinstance(chain[0], Feedback):
        return _Line(chain[0], chain[0].stages)
    return _Line(None, chain)


def _variances(stages: tuple[Stage, ...], shape: Shape, dtype: Any) -> list[float]:
    """omega of every stage that an array of a shape goes through; of several arrays on the way, the largest."""
    if not stages:
        return []
    first, *others = stages
    if not first.packs(shape):
        return _variances(tuple(others), shape, dtype)
    line = _Line(None, tuple(others))
    arrays = jax.eval_shape(first.pack, jax.ShapeDtypeStruct(shape, dtype), jax.random.key(0))
    inner = [_variances(line.stages, leaf.shape, leaf.dtype) for leaf in arrays.values() if line.takes(leaf)]
    return [first.variance(shape), *max(inner, key=lambda each: math.prod(1 + omega for omega in each), default=[])]


# Packing trees.


def _pack(stages: tuple[Stage, ...], array: jax.Array, key: jax.Array) -> Any:
    """An array through stages: each packs the floats that the one before it left."""
    if not stages:
        return array
    first, *others = stages
    if not first.packs(array.shape):
        return _pack(tuple(others), array, key)
    own, rest = jax.random.split(key)
    arrays = first.pack(array, own)
    if others:
        line = _Line(None, tuple(others))
        for number, name in enumerate(sorted(arrays)):
            if line.takes(arrays[name]):
                arrays[name] = _pack(tuple(others), arrays[name], jax.random.fold_in(rest, number))
    # Whose stage it is, is said with the shape: one that was passed over has not packed it.
    return {f"{PACKED}{len(others)} {'x'.join(map(str, array.shape))}": arrays}


def _is_packed(node: Any) -> bool:
    return type(node) is dict and len(node) == 1 and str(next(iter(node))).startswith(PACKED)


def _unpack(stages: tuple[Stage, ...], packed: Any) -> Any:
    if not _is_packed(packed):
        return packed
    ((name, arrays),) = packed.items()
    left, shape = name.removeprefix(PACKED).split(" ")
    inner = {key: _unpack(stages, value) for key, value in arrays.items()}
    return stages[len(stages) - 1 - int(left)].unpack(inner, tuple(map(int, shape.split("x"))))


def initial_kept(channel: Channel, template: Any) -> dict[str, Any]:
    """What is kept of a message before the first: zeros for every array that goes through a feedback, by number."""
    kept = {}
    for number, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(template)[0]):
        line = channel.line(path)
        if line.feedback is not None and line.takes(leaf):
            kept[str(number)] = np.zeros(leaf.shape, leaf.dtype)
    return kept


def send(channel: Channel, tree: Any, kept: Mapping[str, Any], key: jax.Array) -> tuple[Any, dict[str, Any]]:
    """What travels of a message, and what its sender keeps next."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    sent, after = [], dict(kept)
    for number, (path, leaf) in enumerate(leaves):
        line = channel.line(path)
        if not line.takes(leaf):
            sent.append(leaf)
            continue
        own, value = str(number), jnp.asarray(leaf)
        offered = value if line.feedback is None else line.feedback.offered(value, kept[own])
        packed = _pack(line.stages, offered, jax.random.fold_in(key, number))
        if line.feedback is not None:
            after[own] = line.feedback.keeps(offered, _unpack(line.stages, packed), kept[own])
        sent.append(packed)
    return jax.tree.unflatten(structure, sent), after


def receive(channel: Channel, sent: Any, kept: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The message that its receiver has, from what was kept before it, and what the receiver keeps next."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(sent, is_leaf=_is_packed)
    values, after = [], dict(kept)
    for number, (path, leaf) in enumerate(leaves):
        line, own = channel.line(path), str(number)
        unpacked = _unpack(line.stages, leaf)
        if line.feedback is None or own not in kept:
            values.append(unpacked)
            continue
        values.append(line.feedback.read(unpacked, kept[own]))
        if line.feedback.shifts:
            after[own] = line.feedback.keeps(unpacked, unpacked, kept[own])
    return jax.tree.unflatten(structure, values), after


def pack_vector(channel: Channel | None, vector: Vector) -> Vector:
    """A vector that a server sends, packed; nothing is drawn and nothing kept."""
    if channel is None:
        return vector
    line, none = channel.default, jax.random.key(0)
    pack = lambda leaf: _pack(line.stages, jnp.asarray(leaf), none) if line.takes(leaf) else leaf
    return Vector(jax.tree.map(pack, vector.tree))


def unpack_vectors(channel: Channel | None, message: Any) -> Any:
    """What clients have of a message whose vectors are packed."""
    if channel is None:
        return message
    unpack = lambda leaf: _unpack(channel.default.stages, leaf)
    whole = lambda vector: Vector(jax.tree.map(unpack, vector.tree, is_leaf=_is_packed))
    return map_vectors(whole, message)


def map_vectors(function: Callable[[Vector], Vector], message: Any) -> Any:
    """A message with every vector sent through a function."""
    is_vector = lambda node: isinstance(node, Vector)
    return jax.tree.map(lambda node: function(node) if is_vector(node) else node, message, is_leaf=is_vector)


# As a shell gives them.

_FEEDBACKS: dict[str, type[Any]] = {"error-feedback": ErrorFeedback, "ef21": EF21, "diana": Diana}
_STAGES: dict[str, Callable[..., Stage]] = {
    "topk": lambda fraction="0.01": TopK(float(fraction)),
    "randk": lambda fraction="0.01": RandK(float(fraction)),
    "quantise": lambda bits="8", block=None: Quantise(int(bits), block=None if block is None else int(block)),
    "stochastic": lambda bits="8", block=None: Quantise(int(bits), True, None if block is None else int(block)),
    "sign": lambda: Sign(),
    "lowrank": lambda rank="2", passes="2": LowRank(int(rank), int(passes)),
    "sketch": lambda fraction="0.1", rows="1": CountSketch(float(fraction), int(rows)),
}
WORD_OF = {cls: word for word, cls in _FEEDBACKS.items()}
CHANNELS = (
    "topk:FRACTION, randk:FRACTION, quantise:BITS[:BLOCK], stochastic:BITS[:BLOCK], sign, lowrank:RANK[:PASSES], "
    "sketch:FRACTION[:ROWS], one after another with +; around them error-feedback:, ef21: or diana:; by sequence "
    "x=...;y=..."
)


def parse_channel(argument: str, text: str) -> Any:
    """A channel from a text: `topk:0.01`, `ef21:topk:0.01+quantise:8`, `x=topk:0.1;y=sign`."""
    if not text.strip() or text.strip() == "none":
        return ()
    if "=" in text:
        named: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(";"))):
            name, equals, own = part.rpartition("=")
            name = name.strip() if equals else "default"
            if not name or name in named or not own.strip():
                name, given = name or repr(part), "twice" if name in named else "without a channel or a name"
                raise InputError(f"{argument}: {text!r} has {name} {given}; one each is needed, or none")
            named[name] = parse_channel(argument, own)
        return Per(named.pop("default", ()), **named)
    word, _, rest = text.strip().partition(":")
    if word in _FEEDBACKS:
        stages = _parse_stages(argument, rest, text)
        if word != "diana":  # which alone wants them unbiased
            stages = tuple(RandK(each.fraction, scaled=False) if isinstance(each, RandK) else each for each in stages)
        try:
            return (_FEEDBACKS[word](*stages),)
        except InputError as error:
            raise InputError(f"{argument}: {error}") from None
    return _parse_stages(argument, text, text)


def _parse_stages(argument: str, text: str, whole: str) -> tuple[Stage, ...]:
    stages = []
    for part in text.split("+"):
        word, *given = part.strip().split(":")
        if word not in _STAGES:
            raise InputError(f"{argument}: {whole!r} was given; allowed are {CHANNELS}")
        try:
            stages.append(_STAGES[word](*given))
        except InputError as error:
            raise InputError(f"{argument}: {error}") from None
        except (ValueError, TypeError, OverflowError):
            raise InputError(f"{argument}: {part!r} was given; allowed are {CHANNELS}") from None
    return tuple(stages)


def _spelled(stage: Stage, scaled: bool = True) -> str:
    """A stage as a shell gives it, as far as it can; `scaled` is what RandK is there."""
    given: Any = stage
    if isinstance(stage, Quantise):
        block = "" if stage.block is None else f":{stage.block}"
        return f"{'stochastic' if stage.stochastic else 'quantise'}:{stage.bits}{block}"
    if isinstance(stage, LowRank):
        return f"lowrank:{stage.rank}:{stage.passes}"
    if isinstance(stage, CountSketch):
        return f"sketch:{float(stage.fraction)!r}:{stage.rows}"
    if isinstance(stage, TopK | RandK):
        if isinstance(stage, RandK) and stage.scaled != scaled:
            return repr(stage)  # which no text says
        return f"{type(stage).__name__.lower()}:{float(given.fraction)!r}"
    return "sign" if isinstance(stage, Sign) else repr(stage)
