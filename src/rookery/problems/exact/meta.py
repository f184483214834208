"""E5, quadratic meta-learning with local lower levels; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Split, federate
from rookery.problems.exact import draws
from rookery.problems.exact.common import apply, bar, flat, means, product_means, solve, zeros
from rookery.problems.kinds import Bilevel


def lower(x, y, e):
    """g = 1/2 (y - t)'A(y - t) + lam/2 |y - x|^2."""
    x, y = flat(x), flat(y)
    return 0.5 * jnp.dot(y - e["t"], e["A"] @ (y - e["t"])) + 0.5 * e["lam"] * jnp.dot(y - x, y - x)


def upper(x, y, e):
    """f = 1/2 (y - s)'E(y - s)."""
    gap = flat(y) - e["s"]
    return 0.5 * jnp.dot(gap, e["E"] @ gap)


@dataclass(frozen=True, eq=False)
class QuadraticMeta:
    """E5: every client adapts a shared x to its own task and is judged on other data.

        g_i(x, y) = 1/2 (y - t_i)'A_i(y - t_i) + lam/2 |y - x|^2
        f_i(x, y) = 1/2 (y - s_i)'E_i(y - s_i)

    The lower level is local: with M_i = (A_i + lam I)^-1, y_i* = M_i(A_i t_i + lam x), v_i* = M_i E_i(y_i* -
    s_i),

        hypergradient = sum p_i lam v_i*
        x* = (sum p_i lam^2 M_iE_iM_i)^-1 sum p_i lam M_iE_i(s_i - M_iA_it_i).

    With several examples per client, A_i is the mean of A over them and A_i t_i the mean of A t; E_i s_i
    alike.

    Args:
      records: one dict per client with "lower" (A, t, lam) and "upper" (E, s), each with a leading axis of
        examples.
      weights: p_i, with sum 1.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(
        cls, clients=4, dims=3, heterogeneity=1.0, seed=0, examples=None, weights=None, lam=1.0
    ) -> QuadraticMeta:
        """A well-conditioned instance; dims is the dimension of x and of y."""
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        A, E = (draws.positive(rng, sizes, dims, heterogeneity) for _ in range(2))
        support = draws.zipped(A=A, t=draws.anchors(rng, A, heterogeneity), lam=draws.repeated(lam, sizes))
        query = draws.zipped(E=E, s=draws.anchors(rng, E, heterogeneity))
        return cls(draws.zipped(lower=support, upper=query), draws.weights_of(weights, clients, seed))

    @property
    def lam(self) -> float:
        """The weight of the pull of y to x."""
        return float(self.records[0]["lower"]["lam"][0])

    @property
    def problem(self):
        """The bilevel problem with local lower levels; every instance shares the same functions."""
        return Bilevel(upper=upper, lower=lower, upper_scope="shared", lower_scope="local")

    @property
    def clients(self):
        """The clients' examples with their weights."""
        return federate([Split(**record) for record in self.records], weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x, and zero y for every client."""
        dim = self.records[0]["lower"]["t"].shape[1]
        return zeros(leaves, x=dim, y=dim)

    def lower_solution(self, x) -> np.ndarray:
        """y_i*(x), one per row."""
        damped, At, _, _ = self._parts()
        return solve(damped, At + self.lam * np.asarray(x, dtype=np.float64))

    def adjoint(self, x) -> np.ndarray:
        """v_i*(x), one per row."""
        damped, _, E, Es = self._parts()
        return solve(damped, apply(E, self.lower_solution(x)) - Es)

    def hypergradient(self, x) -> np.ndarray:
        """sum p_i lam v_i*."""
        return self.lam * bar(self.weights, self.adjoint(x))

    def solution(self) -> np.ndarray:
        """x*, the root of the hypergradient."""
        damped, At, E, Es = self._parts()
        M, lam, p = np.linalg.inv(damped), self.lam, self.weights
        return solve(bar(p, lam**2 * M @ E @ M), bar(p, lam * apply(M, Es - apply(E @ M, At))))

    def optimum(self) -> dict:
        """x at the solution, with the clients' y_i and v_i in the rows of y and v."""
        x = self.solution()
        return {"x": x, "y": self.lower_solution(x), "v": self.adjoint(x)}

    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A_i + lam I, A_i t_i, E_i, E_i s_i, stacked over clients."""
        lowers, uppers = [r["lower"] for r in self.records], [r["upper"] for r in self.records]
        A = means(lowers, "A")
        damped = A + self.lam * np.eye(A.shape[-1])
        return damped, product_means(lowers, "A", "t"), means(uppers, "E"), product_means(uppers, "E", "s")
