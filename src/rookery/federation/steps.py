"""How much a client works in a round: steps (fixed, per client, by round, random) or epochs. Imports keys, structs."""

from __future__ import annotations

import copy
import dataclasses
import numbers
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError, failing
from rookery.federation.keys import stream_key
from rookery.structs import static, struct

LARGEST = 2**31 - 1  # of a whole number inside a program


@struct
class FixedSteps:
    """Client i takes `steps[i]` local steps in every round it is part of."""

    steps: Any

    def draw(self, index: jax.Array, round: Any, key: jax.Array) -> jax.Array:
        return jnp.asarray(self.steps, jnp.int32)[index]

    def largest(self) -> int:
        return int(np.max(self.steps))

    def check(self, argument: str, population: int) -> None:
        steps = np.asarray(self.steps)
        if steps.shape != (population,):
            raise InputError(
                f"{argument}: {steps.size} numbers of steps were given for {population} clients; one each is needed"
            )
        wrong = steps[(steps < 1) | (steps > LARGEST)] if steps.dtype.kind in "iu" else steps
        if wrong.size:
            raise InputError(f"{argument}: {wrong[0]} was given; numbers of steps are whole, from 1 to {LARGEST}")


def _stream() -> Any:
    """Which of a method's random schedules it is: each draws by itself. It is not given but bound."""
    return dataclasses.field(default=0, init=False, repr=False, compare=False, metadata={"static": True})


@struct
class RandomSteps:
    """Every client draws its number of steps uniformly from low, ..., high, anew in every round."""

    low: Any
    high: Any
    stream: int = _stream()

    def draw(self, index: jax.Array, round: Any, key: jax.Array) -> jax.Array:
        low, high = jnp.asarray(self.low, jnp.int32), jnp.asarray(self.high, jnp.int32)
        return jax.random.randint(key, (), low, high + 1, dtype=jnp.int32)

    def largest(self) -> int:
        return int(self.high)

    def check(self, argument: str, population: int) -> None:
        if not _is_range(self.low, self.high):
            raise InputError(
                f"{argument}: RandomSteps({self.low}, {self.high}) was given; whole numbers with 1 <= low <= high <= "
                f"{LARGEST} are needed"
            )


@struct
class StepsBy:
    """Client i takes `of(i, t)` local steps in round t = 0, 1, ..., with both numbers traced: what it gives is taken to
    be at least 1 and at most `most`. A function cannot be written down: such a method runs from Python alone, and
    not in a folder that is to be resumed.

    Args:
      of: the function, written with jax.numpy.
      most: the largest number that it gives.
    """

    of: Callable[[Any, Any], Any] = static()
    most: int = static()

    def draw(self, index: jax.Array, round: Any, key: jax.Array) -> jax.Array:
        return jnp.clip(jnp.asarray(self.of(index, round)), 1, self.most).astype(jnp.int32)

    def largest(self) -> int:
        return int(self.most)

    def check(self, argument: str, population: int) -> None:
        if not (callable(self.of) and is_count(self.most)):
            raise InputError(
                f"{argument}: StepsBy({self.of!r}, {self.most!r}) was given; a function of the client's number and the "
                f"round's, and the most steps that it gives, a whole number from 1 to {LARGEST}, are needed"
            )
        with failing(f"{argument}: StepsBy's function of a traced (client, round)"):
            given = jax.eval_shape(lambda i, t: jnp.asarray(self.of(i, t)), jnp.int32(0), jnp.int32(0))
        if given.shape != () or given.dtype.kind not in "iu":
            raise InputError(f"{argument}: StepsBy's function gives {given}; one whole number is needed")


@struct
class Epochs:
    """Every client goes through its examples `low` times, or `low` to `high` times, drawn anew in every round.

    An epoch visits each example once, in a fresh order, in minibatches; the last one may be smaller, and its mean is
    over its own examples. So clients of different sizes take different numbers of steps. Where a problem has a lower
    and an upper set of examples, an epoch is one pass through the set with more minibatches, and the other is gone
    through as often as that takes.
    """

    low: Any
    high: Any = None
    stream: int = _stream()

    def draw(self, index: jax.Array, round: Any, key: jax.Array) -> jax.Array:
        """The number of epochs."""
        low = jnp.asarray(self.low, jnp.int32)
        return low if self.high is None else RandomSteps(self.low, self.high).draw(index, round, key)

    def check(self, argument: str, population: int) -> None:
        high = self.low if self.high is None else self.high
        if not _is_range(self.low, high):
            given = f"Epochs({self.low})" if self.high is None else f"Epochs({self.low}, {self.high})"
            raise InputError(
                f"{argument}: {given} was given; whole numbers with 1 <= low <= high <= {LARGEST} are needed"
            )


@jax.tree_util.register_static
class SingleStep(int):
    """The number 1, known while a program is traced: its loop is left out. Any other number is traced, so that
    changing it compiles nothing."""

    def __new__(cls) -> SingleStep:
        return super().__new__(cls, 1)


SCHEDULES = (FixedSteps, RandomSteps, StepsBy, Epochs)
Steps = int | FixedSteps | RandomSteps | StepsBy | Epochs
"""How much a client works in a round: a number of steps, or a schedule of them."""


def draw_steps(steps: Steps, index: jax.Array, round: Any, key: jax.Array) -> jax.Array:
    """A client's number of local steps or epochs in a round; a plain number stays unbatched, so that vmap needs no
    masks."""
    if not isinstance(steps, SCHEDULES):
        return jnp.asarray(steps, jnp.int32)
    return steps.draw(index, round, stream_key(key, getattr(steps, "stream", 0)))


def largest_steps(steps: Any) -> int:
    """The most local steps that any client can take."""
    return steps.largest() if isinstance(steps, (FixedSteps, RandomSteps, StepsBy)) else int(steps)


def check_steps(argument: str, steps: Any, population: int, epochs: bool = False) -> None:
    """Refuses what is not a number of steps or a schedule of them; or of epochs, where these are allowed."""
    allowed = SCHEDULES if epochs else SCHEDULES[:-1]
    if isinstance(steps, allowed):
        steps.check(argument, population)
    elif not is_count(steps):
        names = [f"rk.{each.__name__}" for each in allowed]
        others = f"{', '.join(names[:-1])} or {names[-1]}"
        raise InputError(f"{argument}: {steps!r} was given; {_count_for(steps)}, {others} is needed")


def is_random(steps: Any) -> bool:
    """Whether clients draw their number of steps."""
    return isinstance(steps, RandomSteps) or (isinstance(steps, Epochs) and steps.high is not None)


def bind_steps(steps: Any, stream: int = 0) -> Any:
    """Numbers of steps as programs take them: one array, whether they came as a list or as one; drawn from a stream of
    their own where they are random; a single step as what it is."""
    if is_whole(steps) and int(steps) == 1:
        return SingleStep()
    if isinstance(steps, FixedSteps):
        return FixedSteps(np.asarray(steps.steps))
    if not is_random(steps):
        return steps
    own = copy.copy(steps)
    object.__setattr__(own, "stream", stream)
    return own


def check_count(argument: str, value: Any) -> None:
    """Refuses what is not a whole number of at least 1 that a program can hold."""
    if not is_count(value):
        raise InputError(f"{argument}: {value!r} was given; {_count_for(value)} is needed")


def _count_for(value: Any) -> str:
    too_large = is_whole(value) and int(value) > LARGEST
    return f"a whole number of at {f'most {LARGEST}' if too_large else 'least 1'}"


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1 that a program can hold."""
    return is_whole(value) and 1 <= int(value) <= LARGEST


def _is_range(low: Any, high: Any) -> bool:
    return is_count(low) and is_count(high) and low <= high


def is_whole(value: Any) -> bool:
    """Whether a value is an integer (numpy's and JAX's scalars included)."""
    if isinstance(value, bool):
        return False
    if isinstance(value, numbers.Integral):
        return True
    return isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 0 and value.dtype.kind in "iu"


def parse_steps(argument: str, text: str, epochs: bool = False) -> Any:
    """`5`: five steps; `1..10`: random per client and round; `1,2,4`: one number per client; `2e`, `1..5e`: epochs."""
    if re.fullmatch(r"\d{1,20}", text):
        return int(text)
    if match := re.fullmatch(r"(\d{1,20})\.\.(\d{1,20})", text):
        return RandomSteps(int(match[1]), int(match[2]))
    if re.fullmatch(r"\d{1,20}(,\d{1,20})+", text):
        return FixedSteps([int(part) for part in text.split(",")])
    if epochs and (match := re.fullmatch(r"(\d{1,20})(?:\.\.(\d{1,20}))?e", text)):
        return Epochs(int(match[1]), None if match[2] is None else int(match[2]))
    allowed = "a number (5), a range (1..10) or a list (1,2,4)" + (", or epochs (2e, 1..5e)" if epochs else "")
    raise InputError(f"{argument}: {text!r} was given; allowed are {allowed}")
