"""Constraint sets: objects that project a sequence onto themselves. Imports errors and vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.vectors import Tree, Vector


@runtime_checkable
class ConstraintSet(Protocol):
    """A closed convex set; `project` gives the nearest point of it to a pytree."""

    def project(self, tree: Tree) -> Tree: ...


@dataclass(frozen=True)
class Simplex:
    """Probability vectors: the last axis of every leaf is not negative and sums to 1 (Duchi et al., 2008)."""

    def project(self, tree: Tree) -> Tree:
        return jax.tree.map(_simplex, tree)


def _simplex(a: jax.Array) -> jax.Array:
    descending = -jnp.sort(-a, axis=-1)
    excess = jnp.cumsum(descending, axis=-1) - 1
    rank = jnp.arange(1, a.shape[-1] + 1, dtype=a.dtype)
    support = jnp.sum(descending * rank > excess, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(excess, support - 1, axis=-1) / support.astype(a.dtype)
    return jnp.maximum(a - threshold, 0)


@dataclass(frozen=True)
class Box:
    """Every entry between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self):
        if not self.low <= self.high:
            raise InputError(f"Box: low = {self.low}, high = {self.high} were given; low <= high is needed")

    def project(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.low, self.high), tree)


@dataclass(frozen=True)
class Ball:
    """Vectors of Euclidean norm at most `radius`, over all leaves together."""

    radius: float

    def __post_init__(self):
        if not self.radius >= 0:
            raise InputError(f"Ball: radius = {self.radius} was given; it must not be negative")

    def project(self, tree: Tree) -> Tree:
        return ball(Vector(tree), self.radius).tree


def ball(v: Vector, radius: jax.Array | float) -> Vector:
    """v min(1, r/||v||), the projection onto the ball of radius r; the radius may be traced, v may be 0."""
    return v * jnp.minimum(1.0, radius / jnp.maximum(v.norm(), jnp.finfo(jnp.float32).tiny))


@dataclass(frozen=True)
class Projection:
    """A set given by the user's own projection, a pure function of the sequence's pytree."""

    function: Callable[[Tree], Tree]

    def project(self, tree: Tree) -> Tree:
        return self.function(tree)
