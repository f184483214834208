"""How many local steps a client takes: fixed, per client, or random. Imports errors and structs."""

from __future__ import annotations

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError
from rookery.structs import struct


@struct
class FixedSteps:
    """Client i takes `steps[i]` local steps in every round it is part of."""

    steps: Any

    def draw(self, index: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.asarray(self.steps, jnp.int32)[index]

    def largest(self) -> int:
        return int(np.max(self.steps))

    def check(self, argument: str, population: int) -> None:
        steps = np.asarray(self.steps)
        if steps.shape != (population,):
            raise InputError(
                f"{argument}: {steps.size} numbers of steps were given for {population} clients; one each is needed"
            )
        if steps.dtype.kind not in "iu" or (steps < 1).any():
            raise InputError(f"{argument}: {steps.min()} was given; numbers of steps are whole and at least 1")


@struct
class RandomSteps:
    """Every client draws its number of steps uniformly from low, ..., high, anew in every round."""

    low: Any
    high: Any

    def draw(self, index: jax.Array, key: jax.Array) -> jax.Array:
        low, high = jnp.asarray(self.low, jnp.int32), jnp.asarray(self.high, jnp.int32)
        return jax.random.randint(key, (), low, high + 1, dtype=jnp.int32)

    def largest(self) -> int:
        return int(self.high)

    def check(self, argument: str, population: int) -> None:
        if not (is_whole(self.low) and is_whole(self.high) and 1 <= self.low <= self.high):
            raise InputError(
                f"{argument}: RandomSteps({self.low}, {self.high}) was given; whole numbers with 1 <= low <= high "
                "are needed"
            )


Steps = int | FixedSteps | RandomSteps


def draw_steps(steps: Steps, index: jax.Array, key: jax.Array) -> jax.Array:
    """A client's number of local steps in a round; a plain number stays unbatched, so that vmap needs no masks."""
    if isinstance(steps, (FixedSteps, RandomSteps)):
        return steps.draw(index, key)
    return jnp.asarray(steps, jnp.int32)


def largest_steps(steps: Steps) -> int:
    """The most local steps that any client can take."""
    return steps.largest() if isinstance(steps, (FixedSteps, RandomSteps)) else int(steps)


def check_steps(argument: str, steps: Steps, population: int) -> None:
    """Refuses what is not a number of steps or a schedule of them."""
    if isinstance(steps, (FixedSteps, RandomSteps)):
        steps.check(argument, population)
    elif not is_whole(steps) or steps < 1:
        raise InputError(
            f"{argument}: {steps!r} was given; a whole number of at least 1, rk.FixedSteps or rk.RandomSteps is needed"
        )


def check_count(argument: str, value: Any) -> None:
    """Refuses what is not a whole number of at least 1."""
    if not is_whole(value) or value < 1:
        raise InputError(f"{argument}: {value!r} was given; a whole number of at least 1 is needed")


def is_whole(value: Any) -> bool:
    """Whether a value is an integer (numpy's and JAX's scalars included)."""
    if isinstance(value, bool):
        return False
    if isinstance(value, numbers.Integral):
        return True
    return isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 0 and value.dtype.kind in "iu"
