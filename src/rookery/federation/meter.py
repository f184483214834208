"""What a client's work costs, counted while a phase is traced. Imports counts and the ledger's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from rookery.federation import counts
from rookery.federation.ledger import ORACLES


@dataclass
class Meter:
    """The oracle calls of a stretch of a phase: of the phase itself, of one step of a loop, or of a branch.

    Numbers that are known while the stretch is traced are whole numbers here; only what loops and branches inside of it
    cost is traced.
    """

    calls: Counter[str] = field(default_factory=Counter)  # of each of ORACLES; "samples" of minibatches of a known size
    full: Counter[str] = field(default_factory=Counter)  # level -> how often all of its examples were taken
    passes: Counter[str] = field(default_factory=Counter)  # draw -> minibatches of the epoch's step that were taken
    inside: jax.Array | None = None

    def add(self, total: jax.Array) -> None:
        """Adds what a loop or a branch inside of the stretch has cost."""
        self.inside = total if self.inside is None else counts.plus(self.inside, total)

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
        total = jnp.stack([samples, *others], axis=1)
        return total if self.inside is None else counts.plus(total, self.inside)
