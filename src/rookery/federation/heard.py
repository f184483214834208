"""What the clients of a round have been sent already: a vector goes to a client once. Imports vectors.

The server tells vectors apart by their arrays as objects. A later message with the same vector names it instead, and
the client, which keeps what it hears until the round ends, looks it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery.vectors import Vector

Audience = tuple[int, ...]  # a cohort of a round: its own number last, after those of the cohorts that it is part of
Place = tuple[int, tuple[int, ...]]  # who has it, and which arrays it is


class Heard:
    """The vectors that each cohort of one round has been sent.

    A compiled loop is written once and run many times, so a vector from outside of it, the same object in every
    iteration, travels in the first iteration alone; `loop` finds out which these are.
    """

    def __init__(self) -> None:
        self._audiences = 0
        self._numbers: dict[tuple[int, ...], int] = {}
        self._sent: dict[Place, Vector] = {}  # the vectors are held, so that no other array gets their ids
        self._first: dict[Place, Any] = {}  # what travels only when a flag holds

    def audience(self, within: Audience = ()) -> Audience:
        """A new cohort: of all clients of the round, or of some of another's."""
        self._audiences += 1
        return (*within, self._audiences)

    def number(self, vector: Vector) -> int:
        """What a vector is called in messages."""
        return self._numbers.setdefault(_arrays(vector), len(self._numbers))

    def knows(self, audience: Audience, vector: Vector) -> bool:
        """Whether all clients of a cohort have a vector."""
        arrays = _arrays(vector)
        return any((cohort, arrays) in self._sent for cohort in audience)

    def send(self, audience: Audience, message: Any) -> list[tuple[Any, Any]]:
        """What of a message has to travel, part by part, each with when: True, or a flag that is traced."""
        travels: list[tuple[Any, Any]] = []
        for part in parts(message):
            if not isinstance(part, Vector):
                travels.append((part, True))
            elif not self.knows(audience, part):
                arrays = _arrays(part)
                flags = [self._first[place] for cohort in audience if (place := (cohort, arrays)) in self._first]
                travels.append((part, flags[0] if flags else True))
                self._sent[audience[-1], arrays] = part
        return travels

    def loop(self, shape_of: Callable[[], Any]) -> tuple[Any, Callable[[Any], None], Callable[[], None]]:
        """Around a compiled loop. Gives the shape of its body, which is traced to see it; what to call at the
        beginning of the body, with the number of the iteration; and what to call after the loop."""
        before, flags = dict(self._sent), dict(self._first)
        shape = shape_of()
        # Those of them that the body sends again when it is traced anew are not of its own making.
        found = {place: vector for place, vector in self._sent.items() if place not in before}

        def begin(iteration: Any) -> None:
            self._sent = dict(before)
            self._first = flags | {place: jnp.logical_and(flags.get(place, True), iteration == 0) for place in found}

        def end() -> None:
            self._sent = before | {place: vector for place, vector in self._sent.items() if place in found}
            self._first = flags

        return shape, begin, end


def parts(message: Any) -> list[Any]:
    """The vectors and the other arrays of a message, in order."""
    return jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Vector))


def vectors(message: Any) -> list[Vector]:
    """The vectors of a message, in order."""
    return [part for part in parts(message) if isinstance(part, Vector)]


def _arrays(vector: Vector) -> tuple[int, ...]:
    return tuple(map(id, jax.tree.leaves(vector)))
