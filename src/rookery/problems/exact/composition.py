"""E2, linear maps composed under a quadratic; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.errors import InputError
from rookery.problems.exact import draws
from rookery.problems.exact.common import (
    apply,
    bar,
    flat,
    means,
    product_means,
    require,
    solve,
    transpose,
    zeros,
)
from rookery.problems.kinds import Compositional


@dataclass(frozen=True)
class Affine:
    """The map of level n, (z, x) -> (H_n z + h_n, x), the pair joined in one flat vector; the first takes x.

    A class and not a closure: maps of one level are equal, so that all instances share a compiled program.
    """

    level: int

    def __call__(self, z, e):
        z, H = flat(z), e[f"H{self.level}"]
        # x is the tail, as long as the first map's input; before the first map z is x, both head and tail.
        return jnp.concatenate([H @ z[: H.shape[1]] + e[f"h{self.level}"], z[-e["H1"].shape[1] :]])


def terminal(z, e):
    """1/2 (z_N - t)'W(z_N - t) + rho/2 |x|^2."""
    z, split = flat(z), e["t"].shape[0]
    gap, x = z[:split] - e["t"], z[split:]
    return 0.5 * jnp.dot(gap, e["W"] @ gap) + 0.5 * e["rho"] * jnp.dot(x, x)


@dataclass(frozen=True, eq=False)
class LinearComposition:
    """E2: N affine maps, each averaged over clients, under a quadratic with a ridge on x.

    Every map carries x along, (z, x) -> (H_n z + h_n, x), starting from z_0 = x; the last is

        1/2 (z_N - t_i)'W_i(z_N - t_i) + rho/2 |x|^2.

    With J = bar(H_N) ... bar(H_1) and b = z_N at x = 0,

        x* = (J' bar(W) J + rho I)^-1 J'(bar(Wt) - bar(W) b).

    Wrong answer "local-jacobian", the mean of products of local Jacobians, J_i = H_{N,i} ... H_{1,i}:

        (bar(J_i'W_i) J + rho I)^-1 bar(J_i'W_i(t_i - b)).

    With several examples per client, H_{n,i} is the mean of H_n over them, and W_i t_i the mean of W t.

    Args:
      records: one dict per client with H1, h1, ..., HN, hN, W, t, rho, each with a leading axis of examples;
        rho is the same number everywhere.
      weights: p_i, with sum 1.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(
        cls, clients=4, dims=(2, 3, 2), heterogeneity=1.0, seed=0, examples=None, weights=None, rho=0.5
    ) -> LinearComposition:
        """A well-conditioned instance; dims = (dimension of x, of z_1, ..., of z_N), N at least 1."""
        if len(dims) < 2:
            raise InputError(f"dims: {dims!r} was given; it must have at least two entries, for x and z_1")
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        families = {}
        for n, (before, after) in enumerate(pairwise(dims), start=1):
            families[f"H{n}"] = draws.free(rng, sizes, (after, before), heterogeneity)
            families[f"h{n}"] = draws.free(rng, sizes, (after,), heterogeneity)
        families["W"] = draws.positive(rng, sizes, dims[-1], heterogeneity)
        families["t"] = draws.anchors(rng, families["W"], heterogeneity)
        families["rho"] = draws.repeated(rho, sizes)
        return cls(draws.zipped(**families), draws.weights_of(weights, clients, seed))

    @property
    def depth(self) -> int:
        """N, the number of affine maps."""
        return sum(key.startswith("H") for key in self.records[0])

    @property
    def rho(self) -> float:
        """The weight of the ridge on x."""
        return float(self.records[0]["rho"][0])

    @property
    def problem(self):
        """The compositional problem; instances of one depth have equal maps."""
        return Compositional((*(Affine(n) for n in self._levels()), terminal))

    @property
    def clients(self):
        """The clients' examples with their weights."""
        return federate(list(self.records), weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x; the inner sequences follow from the maps."""
        return zeros(leaves, x=self._dx)

    def inner(self, x) -> list[np.ndarray]:
        """z_1, ..., z_N of the averaged maps at x, without the x that they carry along."""
        points = [np.asarray(x, dtype=np.float64)]
        for n in self._levels():
            points.append(self._bar(f"H{n}") @ points[-1] + self._bar(f"h{n}"))
        return points[1:]

    def hypergradient(self, x) -> np.ndarray:
        """J'(bar(W) z_N - bar(Wt)) + rho x."""
        gap = self._bar("W") @ self.inner(x)[-1] - self._bar_Wt()
        return self._jacobian().T @ gap + self.rho * np.asarray(x, dtype=np.float64)

    def solution(self) -> np.ndarray:
        """x*, the root of the hypergradient."""
        return self._root(self._jacobian())

    def optimum(self) -> dict:
        """x, z1..zN (each with the x it carries) and the adjoints w1..wN at the solution."""
        x = self.solution()
        inner = self.inner(x)
        values = {"x": x} | {f"z{n}": np.concatenate([z, x]) for n, z in enumerate(inner, start=1)}
        adjoint = self._bar("W") @ inner[-1] - self._bar_Wt()
        for n in reversed(self._levels()):
            values[f"w{n}"] = np.concatenate([adjoint, self.rho * x])
            adjoint = self._bar(f"H{n}").T @ adjoint
        return values

    def biased_solution(self, kind) -> np.ndarray:
        """The wrong x* of kind "local-jacobian"; see the class for the formula."""
        require("kind", kind, ("local-jacobian",))
        return self._root(reduce(lambda J, H: H @ J, (means(self.records, f"H{n}") for n in self._levels())))

    @property
    def _dx(self) -> int:
        return self.records[0]["H1"].shape[2]

    def _levels(self) -> range:
        return range(1, self.depth + 1)

    def _bar(self, key) -> np.ndarray:
        return bar(self.weights, means(self.records, key))

    def _bar_Wt(self) -> np.ndarray:
        return bar(self.weights, product_means(self.records, "W", "t"))

    def _jacobian(self) -> np.ndarray:
        """J = bar(H_N) ... bar(H_1)."""
        return reduce(lambda J, H: H @ J, (self._bar(f"H{n}") for n in self._levels()))

    def _root(self, P: np.ndarray) -> np.ndarray:
        """The x with bar(P_i'(W_i(J x + b) - (Wt)_i)) + rho x = 0; P_i' carries the gradient back to x."""
        J, b = self._jacobian(), self.inner(np.zeros(self._dx))[-1]
        W, Wt, p = means(self.records, "W"), product_means(self.records, "W", "t"), self.weights
        matrix = bar(p, transpose(P) @ W) @ J + self.rho * np.eye(self._dx)
        return solve(matrix, bar(p, apply(transpose(P), Wt - apply(W, b))))
