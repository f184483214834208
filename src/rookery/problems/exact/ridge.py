"""E6, one ridge penalty per coefficient; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Split, federate
from rookery.problems.exact import draws
from rookery.problems.exact.common import apply, bar, flat, solve, transpose, zeros
from rookery.problems.kinds import Bilevel


def lower(x, y, e):
    """g = 1/2 |X w - r|^2 + 1/2 sum_j e^{x_j} w_j^2 on training data; y is w."""
    w = flat(y)
    gap = e["features"] @ w - e["response"]
    return 0.5 * jnp.dot(gap, gap) + 0.5 * jnp.dot(jnp.exp(flat(x)), w * w)


def upper(x, y, e):
    """f = 1/2 |X w - r|^2 on validation data; y is w."""
    gap = e["features"] @ flat(y) - e["response"]
    return 0.5 * jnp.dot(gap, gap)


@dataclass(frozen=True, eq=False)
class RidgePenalties:
    """E6: a penalty 1/2 sum_j e^{x_j} w_j^2 on training data, tuned on validation data.

    An example is a small table, features X (rows by coefficients) and response r. Over all clients the
    training tables have Gram matrix I and coefficients b, though no client's own has:

        bar(X'X) = I,   bar(X'r) = b,   so that   w_j*(x) = b_j/(1 + e^{x_j}).

    The validation responses are exactly X beta with 0 < beta_j/b_j < 1. With V = bar(X'X) of the validation
    tables,

        v_j* = (V(w* - beta))_j/(1 + e^{x_j}),   hypergradient_j = -e^{x_j} w_j* v_j*,
        x_j* = log(b_j/beta_j - 1),   with value 0.

    Args:
      records: one dict per client with "lower" and "upper", each with features and response, both with a
        leading axis of examples.
      weights: p_i, with sum 1; the Gram matrix is I under these and no others.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(cls, clients=4, dims=3, heterogeneity=1.0, seed=0, examples=None, weights=None) -> RidgePenalties:
        """A well-conditioned instance with x* in [-1, 1]; dims is the number of coefficients."""
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        weights = draws.weights_of(weights, clients, seed)
        grams = draws.positive_centres(rng, clients, dims, heterogeneity)
        whiten = draws.function_of(bar(weights, grams), lambda values: values**-0.5)
        b = rng.uniform(1.0, 2.0, dims) * rng.choice([-1.0, 1.0], dims)
        own = heterogeneity * rng.standard_normal((clients, dims))
        coefficients = b + own - bar(weights, own)
        beta = b / (1.0 + np.exp(rng.uniform(-1.0, 1.0, dims)))
        train = _tables(
            draws.positive_examples(rng, whiten @ grams @ whiten, sizes),
            draws.free_examples(rng, coefficients, sizes),
        )
        validation_grams = draws.positive(rng, sizes, dims, heterogeneity)
        validation = _tables(validation_grams, [gram @ beta for gram in validation_grams])
        return cls(draws.zipped(lower=train, upper=validation), weights)

    @property
    def problem(self):
        """The bilevel problem; every instance shares the same functions."""
        return Bilevel(upper=upper, lower=lower, upper_scope="shared", lower_scope="shared")

    @property
    def clients(self):
        """The clients' tables with their weights."""
        return federate([Split(**record) for record in self.records], weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x, which is a penalty of one for every coefficient, and zero y."""
        dim = self.records[0]["lower"]["features"].shape[-1]
        return zeros(leaves, x=dim, y=dim)

    @property
    def coefficients(self) -> np.ndarray:
        """b, what the training data alone would give."""
        return self._moments("lower")[1]

    @property
    def target(self) -> np.ndarray:
        """beta, what the validation data would give."""
        return np.linalg.solve(*self._moments("upper"))

    def lower_solution(self, x) -> np.ndarray:
        """w*(x) = b/(1 + e^x)."""
        return self.coefficients / (1.0 + np.exp(np.asarray(x, dtype=np.float64)))

    def adjoint(self, x) -> np.ndarray:
        """v*(x) = V(w* - beta)/(1 + e^x)."""
        V, _ = self._moments("upper")
        gap = self.lower_solution(x) - self.target
        return V @ gap / (1.0 + np.exp(np.asarray(x, dtype=np.float64)))

    def hypergradient(self, x) -> np.ndarray:
        """-e^x w* v*."""
        return -np.exp(np.asarray(x, dtype=np.float64)) * self.lower_solution(x) * self.adjoint(x)

    def value(self, x) -> float:
        """The validation loss at w*(x)."""
        V, _ = self._moments("upper")
        gap = self.lower_solution(x) - self.target
        return float(0.5 * gap @ V @ gap)

    def solution(self) -> np.ndarray:
        """x* = log(b/beta - 1)."""
        return np.log(self.coefficients / self.target - 1.0)

    def optimum(self) -> dict:
        """x, y = beta and v = 0 at the solution."""
        target = self.target
        return {"x": self.solution(), "y": target, "v": np.zeros_like(target)}

    def _moments(self, level: str) -> tuple[np.ndarray, np.ndarray]:
        """bar(X'X) and bar(X'r) of one level."""
        tables = [record[level] for record in self.records]
        grams = [(transpose(t["features"]) @ t["features"]).mean(axis=0) for t in tables]
        products = [apply(transpose(t["features"]), t["response"]).mean(axis=0) for t in tables]
        return bar(self.weights, np.stack(grams)), bar(self.weights, np.stack(products))


def _tables(grams: list[np.ndarray], products: list[np.ndarray]) -> tuple[dict, ...]:
    """Tables with the given X'X and X'r: X is the symmetric root of the Gram matrix."""
    features = [np.stack([draws.function_of(gram, np.sqrt) for gram in stack]) for stack in grams]
    response = [solve(X, product) for X, product in zip(features, products, strict=True)]
    return draws.zipped(features=features, response=response)
