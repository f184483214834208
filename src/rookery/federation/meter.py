"""The cost of a client's work in a stretch of a phase. Imports counts, marks and the ledger's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from rookery.federation import counts
from rookery.federation.ledger import ORACLES
from rookery.federation.marks import Draw


@dataclass
class Meter:
    """The oracle calls of a stretch of a phase: of the phase itself, of one step of a loop, or of a branch. The cost of
    the loops and branches inside it is kept apart, as it may be known only when the program runs.
    """

    calls: Counter[str] = field(default_factory=Counter)  # of each of ORACLES; "samples" of minibatches of a known size
    full: Counter[str] = field(default_factory=Counter)  # level -> how often all of its examples were taken
    passes: Counter[str] = field(default_factory=Counter)  # draw -> minibatches of the epoch's step that were taken
    outside: dict[Draw, None] = field(default_factory=dict)  # draws used by the loops inside, and made before them

    def add(self, cost: Iterable[tuple[str, int]], times: int = 1) -> None:
        """Adds calls of oracles."""
        for name, amount in cost:
            self.calls[name] += amount * times

    def take(self, draw: Draw, times: int = 1) -> None:
        """Adds a minibatch."""
        counter = {"calls": self.calls, "full": self.full, "passes": self.passes}[draw.counter]
        counter[draw.name] += draw.amount * times

    def total(self, examples: Callable[[str], Any], minibatch: Callable[[str], Any] | None = None) -> jax.Array:
        """The counts in the order of ORACLES, from a level's number of examples, and the size of a draw's minibatch in
        this step of an epoch (None: minibatches of epochs are counted by the epoch)."""
        samples = counts.count(self.calls["samples"])
        for level, times in self.full.items():
            samples = counts.plus(samples, counts.times(counts.count(examples(level)), times))
        if minibatch is not None:
            for draw, times in self.passes.items():
                samples = counts.plus(samples, counts.times(counts.count(minibatch(draw)), times))
        others = [counts.count(self.calls[name]) for name in ORACLES if name != "samples"]
        return jnp.stack([samples, *others], axis=1)
