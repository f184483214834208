"""The adaptive server optimisers of Reddi et al., by their names, of the optax kind. Imports vectors.

With d the aggregated direction, which is minus the paper's Delta, all three keep m <- b1 m - (1 - b1) d and step by
learning_rate m / (sqrt(v) + eps); they differ in v, which starts at eps^2. Unlike optax's Adam and Yogi there is no
bias correction: the paper has none, and in a run of a few rounds it decides how far one gets.

Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.vectors import Sequences


class Moments(NamedTuple):
    """What an adaptive optimiser keeps between rounds."""

    m: Sequences
    v: Sequences


class Adaptive(NamedTuple):
    """An optimiser: how it starts, and what it makes of a direction."""

    learning_rate: Any
    b1: Any
    eps: Any
    second: Callable[[jax.Array, jax.Array], jax.Array]  # v and d^2 to the next v

    def init(self, z: Sequences) -> Moments:
        return Moments(jax.tree.map(jnp.zeros_like, z), jax.tree.map(lambda leaf: jnp.full_like(leaf, self.eps**2), z))

    def update(self, d: Sequences, kept: Moments, z: Sequences | None = None) -> tuple[Sequences, Moments]:
        m = jax.tree.map(lambda m, d: self.b1 * m - (1 - self.b1) * d, kept.m, d)
        v = jax.tree.map(lambda v, d: self.second(v, d * d), kept.v, d)
        step = jax.tree.map(lambda m, v: self.learning_rate * m / (jnp.sqrt(v) + self.eps), m, v)
        return step, Moments(m, v)


def fed_adam(learning_rate: Any, b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> Adaptive:
    """FedAdam: v <- b2 v + (1 - b2) d^2."""
    return Adaptive(learning_rate, b1, eps, lambda v, square: b2 * v + (1 - b2) * square)


def fed_yogi(learning_rate: Any, b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> Adaptive:
    """FedYogi: v <- v - (1 - b2) d^2 sign(v - d^2)."""
    return Adaptive(learning_rate, b1, eps, lambda v, square: v - (1 - b2) * square * jnp.sign(v - square))


def fed_adagrad(learning_rate: Any, b1: Any = 0.0, eps: Any = 1e-3) -> Adaptive:
    """FedAdagrad: v <- v + d^2."""
    return Adaptive(learning_rate, b1, eps, lambda v, square: v + square)


ADAPTIVE: dict[str, Callable[..., Adaptive]] = {make.__name__: make for make in (fed_adam, fed_yogi, fed_adagrad)}
