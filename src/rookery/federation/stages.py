"""Stages of channels: what packs one array for its way, and unpacks it again. Imports steps only.

A *stage* packs an array into other arrays, which are exactly what travels; so the ledger counts the bytes of packed
arrays and knows no formula. Stages follow one another: the next one packs the floats that the one before it left.

Every array of floats that has more than one entry goes through; scalars, flags and whole numbers travel as they are.
A place is left for what bounds, noises or hides replies: a stage's `sensitivity` is the largest norm of what leaves it
(None: no bound), and how replies are added up is the engine's alone.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError, failing
from rookery.federation.steps import is_count

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
        """As a shell gives it, where it can."""
        return repr(self)


def _check_switch(name: str, argument: str, given: Any) -> None:
    if not isinstance(given, bool | np.bool_):
        raise InputError(f"{name}: {argument}={given!r} was given; True or False is needed")


def _check_fraction(name: str, fraction: Any) -> None:
    if isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0 < float(fraction) <= 1:
        raise InputError(f"{name}: a fraction of {fraction!r} was given; a number above 0 and up to 1 is needed")


def _kept(fraction: float, size: int) -> int:
    """How many of `size` entries are kept: at least one."""
    return max(1, math.ceil(fraction * size - 1e-9))


def _widened(array: jax.Array) -> jax.Array:
    """An array in a type of at least 32 bits, in which stages compute: bfloat16 has 8 digits."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


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

    def __str__(self) -> str:
        return f"topk:{float(self.fraction)!r}"

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

    def __str__(self) -> str:
        return f"randk:{float(self.fraction)!r}:{'scaled' if self.scaled else 'plain'}"

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
        # Of one bit, 0 becomes s or -s. A step of s up or down at random is more than what most entries are.
        return self.bits > (2 if self.stochastic else 1)

    @property
    def _most(self) -> int:
        """The steps of the grid from 0 to s; of one bit, one step from -s to s."""
        return 2 ** (self.bits - 1) - 1 if self.bits > 1 else 1

    def _blocks(self, size: int) -> tuple[int, int]:
        """How many blocks, and of how many entries."""
        each = min(self.block or size, size)
        return -(-size // each), each

    def __str__(self) -> str:
        block = "" if self.block is None else f":{self.block}"
        return f"{'stochastic' if self.stochastic else 'quantise'}:{self.bits}{block}"

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        count, each = self._blocks(flat.size)
        given = jnp.pad(flat, (0, count * each - flat.size)).reshape(count, each)
        blocks = _widened(given)
        scale = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
        # Where 1 / s would be too small to be held, all entries would be 0, and a run that blows up would seem to rest.
        down = jnp.where(scale > 2.0**64, jnp.asarray(2.0**-64, blocks.dtype), 1)
        unit = (blocks * down) / jnp.where(scale > 0, scale * down, 1)
        steps = (unit + 1) / 2 if self.bits == 1 else unit * self._most
        above = jax.random.uniform(key, blocks.shape, blocks.dtype) if self.stochastic else 0.5
        codes = jnp.floor(steps + above)
        if self.stochastic and self.bits > 1 and given.dtype != blocks.dtype:
            codes = self._between(blocks, scale, jnp.floor(steps), above, given.dtype)
        codes = jnp.clip(codes, 0, 1) if self.bits == 1 else jnp.clip(codes, -self._most, self._most) + self._most
        whole = codes.reshape(-1)[: flat.size].astype(jnp.uint8)
        bits = (whole[:, None] >> jnp.arange(self.bits, dtype=jnp.uint8)) & jnp.uint8(1)
        return {"bits": jnp.packbits(bits.reshape(-1)), "scale": scale[:, 0].astype(given.dtype)}

    def _between(self, blocks: jax.Array, scale: jax.Array, below: jax.Array, drawn: Any, dtype: Any) -> Any:
        """Codes at random between two points of the grid as a type of few digits rounds them: by the rounded points,
        so that their mean is the entry."""
        point = lambda code: (code * (scale / self._most)).astype(dtype).astype(blocks.dtype)
        code = jnp.clip(below, -self._most, self._most - 1)
        code = code - (blocks < point(code)) + (blocks > point(code + 1))
        code = jnp.clip(code, -self._most, self._most - 1)
        low, high = point(code), point(code + 1)
        return code + (drawn * (high - low) < blocks - low)

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        given, size = jnp.asarray(arrays["scale"]), math.prod(shape)
        scale = _widened(given)
        bits = jnp.unpackbits(jnp.asarray(arrays["bits"]))[: size * self.bits].reshape(size, self.bits)
        codes = jnp.sum(bits.astype(jnp.int32) << jnp.arange(self.bits, dtype=jnp.int32), axis=1)
        unit = codes * 2 - 1 if self.bits == 1 else codes - self._most
        count, each = self._blocks(size)
        blocks = jnp.pad(unit.astype(scale.dtype), (0, count * each - size)).reshape(count, each)
        return (blocks * (scale[:, None] / self._most)).astype(given.dtype).reshape(-1)[:size].reshape(shape)

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

    def __str__(self) -> str:
        return "sign"

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        flat = array.reshape(-1)
        # By a power of 2, which changes no digit: the sum of large entries is beyond the largest number.
        down = jnp.where(jnp.max(jnp.abs(flat)) > 2.0**64, jnp.asarray(2.0**-64, flat.dtype), 1)
        return {
            "bits": jnp.packbits((flat >= 0).astype(jnp.uint8)),
            "scale": (jnp.mean(jnp.abs(flat) * down) / down)[None],
        }

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

    def __str__(self) -> str:
        return f"lowrank:{self.rank}:{self.passes}"

    def pack(self, array: jax.Array, key: jax.Array) -> Arrays:
        matrix = _widened(array.reshape(array.shape[0], -1))
        right = jax.random.normal(key, (matrix.shape[1], self.rank), matrix.dtype)
        left = _product(matrix, right)
        for again in range(self.passes):
            left, _ = jnp.linalg.qr(_product(matrix, right) if again else left)
            right = _product(matrix.T, left)
        return {"left": left.astype(array.dtype), "right": right.astype(array.dtype)}

    def unpack(self, arrays: Arrays, shape: Shape) -> jax.Array:
        left, right = jnp.asarray(arrays["left"]), jnp.asarray(arrays["right"])
        return _product(_widened(left), _widened(right).T).astype(left.dtype).reshape(shape)


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

    def __str__(self) -> str:
        return f"sketch:{float(self.fraction)!r}:{self.rows}"

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


# Stages one after another.


def check_stages(argument: str, given: Any) -> tuple[Stage, ...]:
    """The stages of a channel, or a sentence on what is none."""
    for stage in given:
        if not isinstance(stage, Stage):
            raise InputError(f"{argument}: {stage!r} was given; a stage such as rk.TopK(0.01) is needed")
        try:
            hash(stage)
        except TypeError:
            raise InputError(
                f"{argument}: {stage!r} was given, which has no hash; a frozen dataclass of plain values is needed"
            ) from None
    return tuple(given)


def packable(leaf: Any) -> bool:
    """Whether an array is one that stages pack: of floats, and more than one of them."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and math.prod(np.shape(leaf)) > 1


def pack_through(stages: tuple[Stage, ...], array: jax.Array, key: jax.Array) -> Any:
    """An array through stages: each packs the floats that the one before it left."""
    if not stages:
        return array
    first, *others = stages
    if not _packs(first, array.shape):
        return pack_through(tuple(others), array, key)
    own, rest = jax.random.split(key)
    with failing(f"{first}: to pack an array of shape {array.shape}"):
        arrays = first.pack(array, own)
        if not isinstance(arrays, dict) or not all(isinstance(name, str) for name in arrays):
            raise InputError(f"{first}: it packs an array as {arrays!r}; a dict of arrays by name is needed")
        arrays = {name: jnp.asarray(made) for name, made in arrays.items()}
    if others:
        for number, name in enumerate(sorted(arrays)):
            if packable(arrays[name]):
                arrays[name] = pack_through(tuple(others), arrays[name], jax.random.fold_in(rest, number))
    # Whose stage it is, is said with the shape: one that was passed over has not packed it.
    return {f"{PACKED}{len(others)} {'x'.join(map(str, array.shape))}": arrays}


def is_packed(node: Any) -> bool:
    return type(node) is dict and len(node) == 1 and str(next(iter(node))).startswith(PACKED)


def _packs(stage: Stage, shape: Shape) -> bool:
    with failing(f"{stage}: to say whether it packs an array of shape {shape}"):
        return stage.packs(shape)


def unpack_through(stages: tuple[Stage, ...], packed: Any) -> Any:
    if not is_packed(packed):
        return packed
    ((name, arrays),) = packed.items()
    left, shape = name.removeprefix(PACKED).split(" ")
    inner = {key: unpack_through(stages, value) for key, value in arrays.items()}
    stage, shape = stages[len(stages) - 1 - int(left)], tuple(map(int, shape.split("x")))
    with failing(f"{stage}: to unpack an array of shape {shape}"):
        array = jnp.asarray(stage.unpack(inner, shape))
        if np.shape(array) != shape:
            raise InputError(f"{stage}: it unpacks an array of shape {shape} as one of shape {np.shape(array)}")
        return array


def variances(stages: tuple[Stage, ...], shape: Shape, dtype: Any) -> list[float]:
    """omega of every stage that an array of a shape goes through; of several arrays on the way, the largest."""
    if not stages:
        return []
    first, *others = stages
    if not _packs(first, shape):
        return variances(tuple(others), shape, dtype)
    arrays = jax.eval_shape(first.pack, jax.ShapeDtypeStruct(shape, dtype), jax.random.key(0))
    inner = [variances(tuple(others), leaf.shape, leaf.dtype) for leaf in arrays.values() if packable(leaf)]
    with failing(f"{first}: to say its variance for an array of shape {shape}"):
        own = first.variance(shape)
    return [own, *max(inner, key=lambda each: math.prod(1 + omega for omega in each), default=[])]
