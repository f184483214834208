"""Constraint sets: objects that project a sequence onto themselves. Imports errors and vectors.

A projection of something that is not finite is not finite either: a run that blew up is not put back in silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
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
    # A common offset changes nothing but the rounding: with the largest entry at 0 the others that count are above -1.
    shifted = a - jnp.max(a, axis=-1, keepdims=True)
    descending = -jnp.sort(-shifted, axis=-1)
    excess = jnp.cumsum(descending, axis=-1) - 1
    rank = jnp.arange(1, a.shape[-1] + 1, dtype=a.dtype)
    support = jnp.sum(descending * rank > excess, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(excess, support - 1, axis=-1) / support.astype(a.dtype)
    # The running sum of many entries is rounded; what is missing from 1, shared by those that count, is not.
    projected = jnp.maximum(shifted - threshold, 0)
    counted = jnp.sum(projected > 0, axis=-1, keepdims=True).astype(a.dtype)
    missing = (jnp.sum(projected, axis=-1, keepdims=True) - 1) / counted
    return _unless_lost(a, jnp.maximum(shifted - threshold - missing, 0))


def _unless_lost(given: jax.Array, projected: jax.Array) -> jax.Array:
    """The projection, and not a number where something is given that is not finite."""
    return jnp.where(jnp.isfinite(given), projected, jnp.nan)


@dataclass(frozen=True)
class Box:
    """Every entry between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self):
        if not (_is_number(self.low) and _is_number(self.high) and self.low <= self.high):
            raise InputError(
                f"Box: low = {self.low!r}, high = {self.high!r} were given; numbers with low <= high are needed"
            )

    def project(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: _unless_lost(leaf, jnp.clip(leaf, self.low, self.high)), tree)


@dataclass(frozen=True)
class Ball:
    """Vectors of Euclidean norm at most `radius`, over all leaves together."""

    radius: float

    def __post_init__(self):
        if not (_is_number(self.radius) and 0 <= self.radius < math.inf):
            raise InputError(
                f"Ball: radius = {self.radius!r} was given; a finite number that is not negative is needed"
            )

    def project(self, tree: Tree) -> Tree:
        return ball(Vector(tree), self.radius).tree


def ball(v: Vector, radius: jax.Array | float) -> Vector:
    """v min(1, r/||v||), the projection onto the ball of radius r; the radius may be traced, v may be 0 or huge."""
    unit = v.unit()
    scaled = v / unit
    norm = jnp.sqrt(scaled.dot(scaled))
    inside = norm <= radius / unit
    onto = scaled * (radius / jnp.where(inside, 1, norm))
    return jax.tree.map(lambda near, far: jnp.where(inside, near, far), v, onto)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class Projection:
    """A set given by the user's own projection, a pure function of the sequence's pytree."""

    function: Callable[[Tree], Tree]

    def project(self, tree: Tree) -> Tree:
        return self.function(tree)
