"""Whole numbers up to 2**61 inside a program of 32 bits, as two limbs of 30 bits each. Imports nothing of rookery.

A count is an int32 array whose first axis holds (high, low), value = high 2**30 + low with 0 <= low < 2**30; the other
axes are counts of different things. 60,000 examples in each of 40,000 steps do not fit 32 bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BITS = 30
_HALF = BITS // 2
_LOW, _LOW_HALF = 2**BITS - 1, 2**_HALF - 1
_ROWS = 2**15  # this many halves of limbs add up in 31 bits


def count(number: Any) -> jax.Array:
    """A whole number, or an array of them, below 2**31 where it is traced and of any size where it is not."""
    if isinstance(number, int):
        return jnp.asarray([number >> BITS, number & _LOW], jnp.int32)
    number = jnp.asarray(number, jnp.int32)
    return jnp.stack([number >> BITS, number & _LOW])


def zeros(*shape: int) -> jax.Array:
    """Nothing counted yet."""
    return jnp.zeros((2, *shape), jnp.int32)


def plus(a: jax.Array, b: jax.Array) -> jax.Array:
    """a + b."""
    high, low = a[0] + b[0], a[1] + b[1]
    return jnp.stack([high + (low >> BITS), low & _LOW])


def times(a: jax.Array, number: Any) -> jax.Array:
    """a times a whole number from 0 to 2**31 - 1, by products of halves."""
    n = jnp.asarray(number, jnp.uint32)
    high, low = a.astype(jnp.uint32)
    upper, lower = low >> _HALF, low & _LOW_HALF
    n_upper, n_lower = n >> _HALF, n & _LOW_HALF
    middle = upper * n_lower + lower * n_upper
    rest = lower * n_lower + ((middle & _LOW_HALF) << _HALF)
    whole = high * n + upper * n_upper + (middle >> _HALF) + (rest >> BITS)
    return jnp.stack([whole, rest & _LOW]).astype(jnp.int32)


def total(counts: jax.Array) -> jax.Array:
    """The sum over the second axis: that of clients side by side."""
    while counts.shape[1] > _ROWS:
        missing = -counts.shape[1] % _ROWS
        padded = jnp.pad(counts, [(0, 0), (0, missing), *[(0, 0)] * (counts.ndim - 2)])
        blocks = padded.reshape(2, -1, _ROWS, *counts.shape[2:])
        counts = jax.vmap(total, in_axes=1, out_axes=1)(blocks)
    high, low = counts
    upper = jnp.sum(low >> _HALF, axis=0, dtype=jnp.int32)
    lower = jnp.sum(low & _LOW_HALF, axis=0, dtype=jnp.int32)
    upper = upper + (lower >> _HALF)
    rest = ((upper & _LOW_HALF) << _HALF) | (lower & _LOW_HALF)
    return jnp.stack([jnp.sum(high, axis=0, dtype=jnp.int32) + (upper >> _HALF), rest])


def whole(counts: Any) -> list[int]:
    """Counts of different things as Python integers."""
    high, low = np.asarray(counts).astype(object)
    return [int(h) * 2**BITS + int(l) for h, l in zip(high, low)]
