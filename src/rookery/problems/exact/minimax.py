"""E3, the quadratic saddle; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.problems.exact import draws
from rookery.problems.exact.common import bar, flat, means, zeros
from rookery.problems.kinds import Bilevel, Minimax


def loss(x, y, e):
    """F = 1/2 x'R x + x'B y - 1/2 y'A y + a'x + b'y."""
    x, y = flat(x), flat(y)
    quadratic = 0.5 * jnp.dot(x, e["R"] @ x) + jnp.dot(x, e["B"] @ y) - 0.5 * jnp.dot(y, e["A"] @ y)
    return quadratic + jnp.dot(e["a"], x) + jnp.dot(e["b"], y)


def negated(x, y, e):
    """-F, what the lower level of the bilevel form minimises."""
    return -loss(x, y, e)


@dataclass(frozen=True, eq=False)
class QuadraticMinimax:
    """E3: min over x, max over y of the average of

        F_i(x, y) = 1/2 x'R_i x + x'B_i y - 1/2 y'A_i y + a_i'x + b_i'y.

    The maximiser is y*(x) = bar(A)^-1 (bar(B)'x + bar(b)), the gradient of the maximum bar(R) x + bar(B) y* +
    bar(a), and

        x* = -(bar(R) + bar(B) bar(A)^-1 bar(B)')^-1 (bar(a) + bar(B) bar(A)^-1 bar(b)).

    As a bilevel problem with f = F and g = -F (`bilevel`) it has the same x* and y*, and v* = 0.

    Args:
      records: one dict per client with R, B, A, a, b, each with a leading axis of examples.
      weights: p_i, with sum 1.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(cls, clients=4, dims=(2, 3), heterogeneity=1.0, seed=0, examples=None, weights=None) -> QuadraticMinimax:
        """A well-conditioned instance; dims = (dimension of x, dimension of y)."""
        dx, dy = dims
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        records = draws.zipped(
            R=draws.positive(rng, sizes, dx, heterogeneity),
            B=draws.free(rng, sizes, (dx, dy), heterogeneity),
            A=draws.positive(rng, sizes, dy, heterogeneity),
            a=draws.free(rng, sizes, (dx,), heterogeneity),
            b=draws.free(rng, sizes, (dy,), heterogeneity),
        )
        return cls(records, draws.weights_of(weights, clients, seed))

    @property
    def problem(self):
        """The minimax problem; every instance shares the same loss."""
        return Minimax(loss)

    @property
    def bilevel(self):
        """The same problem as a bilevel one: upper F, lower -F."""
        return Bilevel(upper=loss, lower=negated, upper_scope="shared", lower_scope="shared")

    @property
    def clients(self):
        """The clients' examples with their weights."""
        return federate(list(self.records), weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x and y."""
        dx, dy = self.records[0]["B"].shape[1:]
        return zeros(leaves, x=dx, y=dy)

    def lower_solution(self, x) -> np.ndarray:
        """y*(x), the maximiser."""
        _, B, A, _, b = self._bars()
        return np.linalg.solve(A, B.T @ np.asarray(x, dtype=np.float64) + b)

    def hypergradient(self, x) -> np.ndarray:
        """The gradient of max_y F at x."""
        R, B, _, a, _ = self._bars()
        return R @ np.asarray(x, dtype=np.float64) + B @ self.lower_solution(x) + a

    def solution(self) -> np.ndarray:
        """x*, the root of the hypergradient."""
        R, B, A, a, b = self._bars()
        return -np.linalg.solve(R + B @ np.linalg.solve(A, B.T), a + B @ np.linalg.solve(A, b))

    def optimum(self) -> dict:
        """x and y at the saddle, and v = 0, the adjoint of the bilevel form."""
        x = self.solution()
        y = self.lower_solution(x)
        return {"x": x, "y": y, "v": np.zeros_like(y)}

    def _bars(self) -> tuple[np.ndarray, ...]:
        return tuple(bar(self.weights, means(self.records, key)) for key in "RBAab")
