"""What the clients of a round have been sent already: a vector goes to a client once. Imports vectors.

The server tells vectors apart by their arrays as objects. A later message with the same vector names it instead, and
the client, which keeps what it is sent until the round ends, looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from rookery.vectors import Vector

Audience = tuple[int, ...]  # a cohort of a round: its own number last, after those of the cohorts that it is part of


class Dispatch(NamedTuple):
    """A vector on its way to a cohort, sent inside of a compiled loop that it is from outside of: which iterations it
    travels in is known when the whole body is."""

    audience: Audience
    number: int


class Loop(NamedTuple):
    """A compiled loop whose body is being traced: the number of its iteration, and how many audiences it found."""

    iteration: Any
    audiences: int

    def made(self, vector: Vector) -> bool:
        """Whether a vector is of the body's making: then it belongs to the trace of the body, as the number of the
        iteration does."""
        return any(getattr(leaf, "_trace", None) is self.iteration._trace for leaf in jax.tree.leaves(vector))


class Delivered:
    """The vectors that each cohort of one round has been sent.

    A compiled loop is written once and run many times, so a vector from outside of it, the same object in every
    iteration, travels in the first iteration alone.
    """

    def __init__(self) -> None:
        self._audiences = 0
        self._numbers: dict[tuple[int, ...], int] = {}
        self._vectors: list[Vector] = []  # by number; held, so that no other array gets their ids
        self._sent: set[tuple[int, int]] = set()  # cohort, and vector by its number
        self._loops: tuple[Loop, ...] = ()  # those around, outermost first

    def audience(self, within: Audience = ()) -> Audience:
        """A new cohort: of all clients of the round, or of some of another's."""
        self._audiences += 1
        return (*within, self._audiences)

    def number(self, vector: Vector) -> int:
        """What a vector is called in messages."""
        arrays = tuple(map(id, jax.tree.leaves(vector)))
        if arrays not in self._numbers:
            self._numbers[arrays] = len(self._vectors)
            self._vectors.append(vector)
        return self._numbers[arrays]

    def knows(self, audience: Audience, vector: Vector) -> bool:
        """Whether all clients of a cohort have a vector."""
        number = self.number(vector)
        return any((cohort, number) in self._sent for cohort in audience)

    def send(self, audience: Audience, message: Any) -> list[tuple[Any, Dispatch | None]]:
        """What of a message has to travel, part by part; with a dispatch where that depends on the iteration."""
        travels: list[tuple[Any, Dispatch | None]] = []
        for part in parts(message):
            if not isinstance(part, Vector):
                travels.append((part, None))
            elif not self.knows(audience, part):
                dispatch = Dispatch(audience, self.number(part))
                travels.append((part, dispatch if self._loops and not self._loops[-1].made(part) else None))
                self._sent.add((audience[-1], dispatch.number))
        return travels

    @contextmanager
    def loop(self, iteration: Any) -> Iterator[Callable[[Dispatch], tuple[Any, bool]]]:
        """Around the body of a compiled loop while it is traced. Gives what to ask at its end: whether a dispatch
        travels in this iteration (True: as it is), and whether a loop further out has a say in it, too."""
        before, around = set(self._sent), self._loops
        own = Loop(iteration, self._audiences)
        self._loops = (*around, own)

        def lasts(cohort: int, number: int) -> bool:
            """Whether the next iteration finds it delivered: neither the cohort nor the vector are of the body."""
            return cohort <= own.audiences and not own.made(self._vectors[number])

        def travels(dispatch: Dispatch) -> tuple[Any, bool]:
            audience, number = dispatch
            again = any((cohort, number) in self._sent and lasts(cohort, number) for cohort in audience)
            return iteration == 0 if again else True, bool(around) and not around[-1].made(self._vectors[number])

        yield travels
        self._sent = before | {place for place in self._sent if lasts(*place)}
        self._loops = around


def parts(message: Any) -> list[Any]:
    """The vectors and the other arrays of a message, in order."""
    return jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Vector))


def vectors(message: Any) -> list[Vector]:
    """The vectors of a message, in order."""
    return [part for part in parts(message) if isinstance(part, Vector)]
