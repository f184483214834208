"""E1 and E1b, the quadratic bilevel problem; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    normalised,
    product_means,
    require,
    solve,
    transpose,
    truncation,
    zeros,
)
from rookery.problems.kinds import Bilevel


def lower(x, y, e):
    """g = 1/2 y'A y - y'(B x + c)."""
    x, y = flat(x), flat(y)
    return 0.5 * jnp.dot(y, e["A"] @ y) - jnp.dot(y, e["B"] @ x + e["c"])


def upper(x, y, e):
    """f = 1/2 (y - d)'E(y - d) + 1/2 (x - e)'R(x - e)."""
    y_gap, x_gap = flat(y) - e["d"], flat(x) - e["e"]
    return 0.5 * jnp.dot(y_gap, e["E"] @ y_gap) + 0.5 * jnp.dot(x_gap, e["R"] @ x_gap)


@dataclass(frozen=True, eq=False)
class QuadraticBilevel:
    """E1: both levels quadratic, clients that disagree on everything.

    Client i holds the means over its examples of

        g_i(x, y) = 1/2 y'A_i y - y'(B_i x + c_i)
        f_i(x, y) = 1/2 (y - d_i)'E_i(y - d_i) + 1/2 (x - e_i)'R_i(x - e_i)

    and bar(M) = sum p_i M_i. With J = bar(A)^-1 bar(B):

        y*(x) = bar(A)^-1 (bar(B) x + bar(c))
        v*(x) = bar(A)^-1 (bar(E) y* - bar(Ed))
        hypergradient = bar(R) x - bar(Re) + bar(B)' v*
        x* = (bar(R) + J' bar(E) J)^-1 (bar(Re) + J'(bar(Ed) - bar(E) bar(A)^-1 bar(c)))

    Wrong answers, with J_i = A_i^-1 B_i, that methods which average too late reach (`biased_solution`):

        "local"          the mean of local hypergradients, each at its own y_i*:
                         (bar(R) + bar(J_i'E_iJ_i))^-1 (bar(Re) + bar(J_i'E_i(d_i - A_i^-1 c_i)))
        "local-hessian"  the shared y*, but every client's own inverse Hessian:
                         (bar(R) + bar(J_i'E_i) J)^-1 (bar(Re) + bar(J_i'E_i(d_i - bar(A)^-1 bar(c))))

    With `lower_scope="local"` every client has its own lower level, and "local" is the right answer.

    With the lower level as a penalty (`rk.Penalty`) the answer is `penalty_solution(lam)`, off x* by O(1/lam).

    With several examples per client, A_i is the mean of A over them, and a product such as E_i d_i the mean
    of E d.

    Args:
      records: one dict per client with A, B, c, d, E, e, R, each with a leading axis of examples.
      weights: p_i, with sum 1.
      lower_scope: "shared" (one y) or "local" (one y per client).

    >>> exact = QuadraticBilevel.tiny()
    >>> (3 * exact.solution()).round(6).tolist(), (91 * exact.biased_solution("local")).round(6).tolist()
    ([2.0], [30.0])
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray
    lower_scope: str = "shared"

    def __post_init__(self):
        require("lower_scope", self.lower_scope, ("shared", "local"))

    @classmethod
    def random(
        cls, clients=4, dims=(2, 3), heterogeneity=1.0, seed=0, examples=None, weights=None, local=False
    ) -> QuadraticBilevel:
        """A well-conditioned instance; dims = (dimension of x, of y), `local` makes the lower level local."""
        dx, dy = dims
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        A, E = draws.positive(rng, sizes, dy, heterogeneity), draws.positive(rng, sizes, dy, heterogeneity)
        R = draws.positive(rng, sizes, dx, heterogeneity)
        records = draws.zipped(
            A=A,
            B=draws.free(rng, sizes, (dy, dx), heterogeneity),
            c=draws.free(rng, sizes, (dy,), heterogeneity),
            d=draws.anchors(rng, E, heterogeneity),
            E=E,
            e=draws.anchors(rng, R, heterogeneity),
            R=R,
        )
        return cls(records, draws.weights_of(weights, clients, seed), "local" if local else "shared")

    @classmethod
    def tiny(cls, local=False) -> QuadraticBilevel:
        """Two clients in one dimension: x* = 2/3, "local" gives 30/91 and "local-hessian" 10/13."""
        matrices = {"A": (1.0, 3.0), "B": (3.0, 1.0), "E": (1.0, 1.0), "R": (0.5, 0.5)}
        vectors = {"c": (0.0, 0.0), "d": (1.0, 1.0), "e": (0.0, 0.0)}
        records = tuple(
            {name: np.full((1, 1, 1), pair[i]) for name, pair in matrices.items()}
            | {name: np.full((1, 1), pair[i]) for name, pair in vectors.items()}
            for i in range(2)
        )
        return cls(records, np.array([0.5, 0.5]), "local" if local else "shared")

    @property
    def dims(self) -> tuple[int, int]:
        """(dimension of x, dimension of y)."""
        dy, dx = self.records[0]["B"].shape[1:]
        return dx, dy

    @property
    def problem(self):
        """The bilevel problem; every instance of one scope shares the same functions."""
        return Bilevel(upper=upper, lower=lower, upper_scope="shared", lower_scope=self.lower_scope)

    @property
    def clients(self):
        """The clients' examples with their weights."""
        return federate(list(self.records), weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x and y."""
        dx, dy = self.dims
        return zeros(leaves, x=dx, y=dy)

    def reweighted(self, weights) -> QuadraticBilevel:
        """The same clients with other weights (scaled to sum to one): what unequal numbers of steps solve."""
        return replace(self, weights=normalised(weights, len(self.records)))

    def lower_solution(self, x) -> np.ndarray:
        """y*(x), or with local lower levels one y_i*(x) per row."""
        slope, offset = self._lower_map()
        return apply(slope, np.asarray(x, dtype=np.float64)) + offset

    def adjoint(self, x, y=None) -> np.ndarray:
        """v = bar(A)^-1 (bar(E) y - bar(Ed)) at y, by default y*(x); one v_i per row with local levels."""
        return solve(self._curvature(), self._right_hand_side(self.lower_solution(x) if y is None else y))

    def hypergradient(self, x) -> np.ndarray:
        """bar(R) x - bar(Re) + bar(B)' v*, or the mean of B_i' v_i* with local lower levels."""
        x = np.asarray(x, dtype=np.float64)
        R, Re = bar(self.weights, self._mean("R")), bar(self.weights, product_means(self.records, "R", "e"))
        return R @ x - Re + bar(self.weights, apply(transpose(self._mean("B")), self.adjoint(x)))

    def solution(self) -> np.ndarray:
        """x*, the root of the hypergradient."""
        slope, offset = self._lower_map()
        return self._root(slope, slope, offset)

    def optimum(self) -> dict:
        """x, y and v at the solution."""
        x = self.solution()
        return {"x": x, "y": self.lower_solution(x), "v": self.adjoint(x)}

    def biased_solution(self, kind) -> np.ndarray:
        """The wrong x* of kind "local" or "local-hessian"; see the class for the formulas."""
        require("kind", kind, ("local", "local-hessian"))
        own_slope, own_offset = self._local_lower_map()
        slope, offset = (own_slope, own_offset) if kind == "local" else self._shared_lower_map()
        return self._root(own_slope, slope, offset)

    def neumann(self, x, terms, step, y=None) -> np.ndarray:
        """The truncated series v_K = W bar(A)^-1 b with W = I - (I - s bar(A))^K, K = terms, s = step.

        Args:
          x: upper variable.
          terms: K, the number of terms of s sum_{k<K} (I - s bar(A))^k b.
          step: s.
          y: where b = bar(E) y - bar(Ed) is taken, by default at y*(x). A list of K points y^0, ..., y^{K-1}
            gives the sum along their path, s sum_t (I - s bar(A))^{K-1-t} b(y^t): the mean of AggITD's
            estimate with K = N + 1. Paths are for a shared lower level.
        """
        curvature = self._curvature()
        if y is None or np.ndim(y) < 2 or self.lower_scope == "local":
            return apply(truncation(curvature, step, terms), self.adjoint(x, y))
        if len(y) != terms:
            raise InputError(f"y: a path of {len(y)} points was given; it must have terms = {terms} points")
        total = np.zeros(curvature.shape[-1])
        for point in y:
            total = total - step * curvature @ total + step * self._right_hand_side(np.asarray(point))
        return total

    def neumann_solution(self, step, terms) -> np.ndarray:
        """The fixed point with a truncated inverse Hessian: W bar(A)^-1, or W_i A_i^-1 with local levels."""
        slope, offset = self._lower_map()
        return self._root(truncation(self._curvature(), step, terms) @ slope, slope, offset)

    def local_hessian_solution(self, step, terms) -> np.ndarray:
        """The fixed point with the shared y* and every client's truncated inverse W_i A_i^-1 (LFedNest).

        W_i = I - (I - step A_i)^terms; with many terms it tends to `biased_solution("local-hessian")`.
        """
        own_slope, _ = self._local_lower_map()
        slope, offset = self._shared_lower_map()
        return self._root(truncation(self._mean("A"), step, terms) @ own_slope, slope, offset)

    def penalty_solution(self, lam) -> np.ndarray:
        """The x at which the penalty form is at rest, with bar(A) + bar(E)/lam in the place of bar(A) in the adjoint.

        Where sum p_i D_i = 0, with bars left out,

            D.w = 0:   A w = B x + c, so that w = y*(x)
            D.y = 0:   (A + E/lam) y = B x + c + Ed/lam = A w + Ed/lam, so that lam (w - y) = (A + E/lam)^-1 (E w - Ed)
            D.x = 0:   R x - Re + B' lam (w - y) = 0,

        which is the hypergradient with v = (A + E/lam)^-1 (E y* - Ed). As (A + sE)^-1 = A^-1 - s A^-1 E A^-1 + O(s^2)
        with s = 1/lam, x is off by O(1/lam). Several lam are combined with the weights c that solve sum_k c_k = 1 and
        sum_k c_k s_k^m = 0 for m = 1 .. K-1, which leave the terms from s^K on: for two, O(1/lam^2). With local lower
        levels it is the same for every A_i and E_i.

        Args:
          lam: the penalty, a number, or several.
        """
        s = 1 / np.atleast_1d(np.asarray(lam, dtype=np.float64))
        first = np.arange(len(s)) == 0
        c = np.linalg.solve(np.vander(s, increasing=True).T, first.astype(np.float64))
        local = self.lower_scope == "local"
        A, B, E = (self._mean(key) if local else bar(self.weights, self._mean(key)) for key in "ABE")
        adjoint = sum(c_k * np.linalg.solve(A + s_k * E, B) for c_k, s_k in zip(c, s))
        return self._root(adjoint, *self._lower_map())

    def _mean(self, key) -> np.ndarray:
        return means(self.records, key)

    def _curvature(self) -> np.ndarray:
        """bar(A), or every A_i with local lower levels."""
        A = self._mean("A")
        return A if self.lower_scope == "local" else bar(self.weights, A)

    def _right_hand_side(self, y) -> np.ndarray:
        """bar(E) y - bar(Ed), or E_i y_i - (Ed)_i with local lower levels."""
        b = apply(self._mean("E"), y) - product_means(self.records, "E", "d")
        return b if self.lower_scope == "local" else bar(self.weights, b)

    def _shared_lower_map(self) -> tuple[np.ndarray, np.ndarray]:
        """y*(x) = J x + bar(A)^-1 bar(c), as (J, offset)."""
        A, B, c = (bar(self.weights, self._mean(key)) for key in "ABc")
        return np.linalg.solve(A, B), solve(A, c)

    def _local_lower_map(self) -> tuple[np.ndarray, np.ndarray]:
        """y_i*(x) = J_i x + A_i^-1 c_i, as stacks (J_i, offset_i)."""
        A, B, c = (self._mean(key) for key in "ABc")
        return np.linalg.solve(A, B), solve(A, c)

    def _lower_map(self) -> tuple[np.ndarray, np.ndarray]:
        return self._local_lower_map() if self.lower_scope == "local" else self._shared_lower_map()

    def _root(self, adjoint, slope, offset) -> np.ndarray:
        """The x with bar(R) x - bar(Re) + bar(P_i'(E_i(Y_i x + k_i) - (Ed)_i)) = 0.

        All right and wrong answers are this equation: Y_i x + k_i is the y the client looks at (slope,
        offset) and P_i' = B_i' A_i^-1 is how it carries the y-gradient back to x (adjoint), exact, local or
        truncated.
        """
        E, Ed, p = self._mean("E"), product_means(self.records, "E", "d"), self.weights
        R, Re = bar(p, self._mean("R")), bar(p, product_means(self.records, "R", "e"))
        back = transpose(adjoint)
        return np.linalg.solve(R + bar(p, back @ E @ slope), Re + bar(p, apply(back, Ed - apply(E, offset))))
