"""Local hypergradient estimators: how a client with its own lower problem finds its adjoint v. Imports contracts only.

Each gives the field of a client at z = {x, y, v}, a function of a key: the same key is the same samples.

    D.y = grad_y g_i,   D.x = grad_x f_i - (d2 g_i/dx dy) v,   v by series, by conjugate gradients, or tracked.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.method import struct
from rookery.federation.steps import check_count
from rookery.vectors import Sequences, Vector


def _field(client: Client, z: Sequences, v: Vector, sample: Any) -> Sequences:
    """D.y and D.x with a given v."""
    return Sequences(
        {
            "x": client.upper_grad_x(z.x, z.y, sample) - client.cross(z.x, z.y, v, sample),
            "y": client.lower_grad(z.x, z.y, sample),
        }
    )


@struct
class Neumann:
    """v = s sum_{k < terms} (I - s H_i)^k grad_y f_i, with a fresh Hessian sample for every factor.

    Args:
      terms: the number of terms, the paper's Q + 1.
      step: s, below 2 / the largest eigenvalue of H_i.
    """

    terms: int = 10
    step: float = 0.1

    @property
    def moves(self) -> tuple[str, ...]:
        return ("x", "y")

    def check(self) -> None:
        check_count("terms", self.terms)
        if not self.step > 0:
            raise InputError(f"step: {self.step} was given; a positive number is needed")

    def field(self, client: Client, z: Sequences, key: jax.Array) -> Sequences:
        sample = client.sample(key)

        def term(carry: tuple[Vector, Vector], k: Any, _: jax.Array) -> tuple[Vector, Vector]:
            p, total = carry
            p = p - self.step * client.hvp(z.x, z.y, p, client.sample(jax.random.fold_in(key, k + 1), only="lower"))
            return p, total + p

        b = client.upper_grad_y(z.x, z.y, sample)
        _, total = client.loop(self.terms - 1, term, (b, b))
        return _field(client, z, self.step * total, sample)


@struct
class ConjugateGradient:
    """v = H_i^-1 grad_y f_i by conjugate gradients, on one sample.

    Args:
      iterations: how many; as many as y has entries solve it exactly, up to rounding.
    """

    iterations: int = 10

    @property
    def moves(self) -> tuple[str, ...]:
        return ("x", "y")

    def check(self) -> None:
        check_count("iterations", self.iterations)

    def field(self, client: Client, z: Sequences, key: jax.Array) -> Sequences:
        sample = client.sample(key)

        def iterate(carry: tuple, k: Any, _: jax.Array) -> tuple:
            v, r, p, rr = carry
            Hp = client.hvp(z.x, z.y, p, sample)
            step = _ratio(rr, p.dot(Hp))
            v, r = v + step * p, r - step * Hp
            new = r.dot(r)
            return v, r, r + _ratio(new, rr) * p, new

        b = client.upper_grad_y(z.x, z.y, sample)
        v, _, _, _ = client.loop(self.iterations, iterate, (b.zeros(), b, b, b.dot(b)))
        return _field(client, z, v, sample)


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """a / b, and 0 where nothing is left to solve."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


@struct
class Tracked:
    """v is a sequence of its own, kept on the client: D.v = H_i v - grad_y f_i."""

    @property
    def moves(self) -> tuple[str, ...]:
        return ("x", "y", "v")

    def check(self) -> None:
        """It has nothing to set."""

    def field(self, client: Client, z: Sequences, key: jax.Array) -> Sequences:
        return client.direction(z, client.sample(key))


Estimator = Neumann | ConjugateGradient | Tracked


def moves_of(estimator: Any) -> tuple[str, ...]:
    """The sequences that an estimator's field moves; refuses what is not an estimator."""
    if not isinstance(estimator, Estimator):
        raise InputError(
            f"hypergradient: {estimator!r} was given; rk.Neumann(terms, step), rk.ConjugateGradient(iterations) or "
            "rk.Tracked() is needed"
        )
    return estimator.moves
