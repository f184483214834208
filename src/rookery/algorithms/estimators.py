"""Local hypergradient estimators: how a client with its own lower problem finds its adjoint v. Imports contracts only.

Each gives the field of a client at one or more points z = {x, y, v}, on the same samples at all of them:

    D.y = grad_y g_i,   D.x = grad_x f_i - (d2 g_i/dx dy) v,   v by series, by conjugate gradients, or tracked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.codec import part
from rookery.federation.fields import count, number
from rookery.federation.method import struct
from rookery.federation.protocols import Estimator, fulfils
from rookery.vectors import Sequences, Vector


def _field(client: Client, z: Sequences, v: Vector, sample: Any) -> Sequences:
    """D.y and D.x with a given v."""
    return Sequences(
        {
            "x": client.upper_grad_x(z.x, z.y, sample) - client.cross(z.x, z.y, v, sample),
            "y": client.lower_grad(z.x, z.y, sample),
        }
    )


@part
@struct
class Neumann:
    """v = s sum_{k < terms} (I - s H_i)^k grad_y f_i, with a fresh Hessian sample for every factor.

    Args:
      terms: the number of terms, the paper's Q + 1.
      step: s, below 2 / the largest eigenvalue of H_i.
    """

    terms: int = count(default=10)
    step: float = number(default=0.1, scale=True)

    @property
    def moves(self) -> tuple[str, ...]:
        return ("x", "y")

    def check(self) -> None:
        if not self.step > 0:
            raise InputError(f"step: {self.step} was given; a positive number is needed")

    def fields(
        self, client: Client, points: Sequence[Sequences], key: jax.Array, size: int | None = None
    ) -> list[Sequences]:
        sample = client.sample(key, size)
        adjoints = self.adjoints(client, points, sample, key, size)
        return [_field(client, z, v, sample) for z, v in zip(points, adjoints)]

    def adjoints(
        self, client: Client, points: Sequence[Sequences], sample: Any, key: jax.Array, size: int | None = None
    ) -> list[Vector]:
        """v at each point: the sum of all terms, from grad_y f_i on a given sample."""

        def term(carry: list, k: Any, _: jax.Array) -> list:
            fresh = client.sample(jax.random.fold_in(key, k + 1), size, only="lower")
            ps = [p - self.step * client.hvp(z.x, z.y, p, fresh) for z, (p, _) in zip(points, carry)]
            return [(p, total + p) for p, (_, total) in zip(ps, carry)]

        bs = [client.upper_grad_y(z.x, z.y, sample) for z in points]
        sums = client.loop(self.terms - 1, term, [(b, b) for b in bs])
        return [self.step * total for _, total in sums]


@part
@struct
class ConjugateGradient:
    """v = H_i^-1 grad_y f_i by conjugate gradients, on one sample.

    Where H_i is not positive definite there is nothing to find: v is not a number, and the run says so and stops.

    Args:
      iterations: how many; as many as y has entries solve it exactly, up to rounding.
    """

    iterations: int = count(default=10)

    @property
    def moves(self) -> tuple[str, ...]:
        return ("x", "y")

    def check(self) -> None:
        """What it is set to is checked when it is bound."""

    def fields(
        self, client: Client, points: Sequence[Sequences], key: jax.Array, size: int | None = None
    ) -> list[Sequences]:
        sample = client.sample(key, size)
        return [_field(client, z, self.solve(client, z, sample), sample) for z in points]

    def solve(self, client: Client, z: Sequences, sample: Any) -> Vector:
        b = client.upper_grad_y(z.x, z.y, sample)
        solved = jnp.finfo(client.dtype).eps ** 2 * b.dot(b)

        def iterate(carry: tuple, k: Any, _: jax.Array) -> tuple:
            v, r, p, rr = carry
            Hp = client.hvp(z.x, z.y, p, sample)
            curvature = p.dot(Hp)
            step = jnp.where(rr > solved, rr / jnp.where(curvature > 0, curvature, jnp.nan), 0)
            v, r = v + step * p, r - step * Hp
            new = r.dot(r)
            return v, r, r + jnp.where(rr > solved, new / rr, 0) * p, new

        v, _, _, _ = client.loop(self.iterations, iterate, (b.zeros(), b, b, b.dot(b)))
        return v


@part
@struct
class Tracked:
    """v is a sequence of its own, kept on the client: D.v = H_i v - grad_y f_i."""

    @property
    def moves(self) -> tuple[str, ...]:
        return ("x", "y", "v")

    def check(self) -> None:
        """It has nothing to set."""

    def fields(
        self, client: Client, points: Sequence[Sequences], key: jax.Array, size: int | None = None
    ) -> list[Sequences]:
        sample = client.sample(key, size)
        return [client.direction(z, sample) for z in points]


def moves_of(estimator: Any) -> tuple[str, ...]:
    """The sequences that an estimator's field moves; refuses what is not an estimator."""
    if not fulfils(estimator, Estimator):
        raise InputError(
            f"hypergradient: {estimator!r} was given; rk.Neumann(terms, step), rk.ConjugateGradient(iterations) or "
            "rk.Tracked() is needed"
        )
    return estimator.moves
