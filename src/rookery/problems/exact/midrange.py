"""E4, fair federated learning; imports problem kinds, constraint sets, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.problems.exact import draws
from rookery.problems.exact.common import bar, flat, leaves_of, means, require
from rookery.problems.kinds import Minimax
from rookery.problems.sets import Simplex


def loss(x, y, e):
    """lambda_i / p_i times 1/2 (x - c)^2, less the spread of the client's examples; y is lambda."""
    own_share = e["scale"] * jnp.dot(e["client"], flat(y))
    return own_share * (0.5 * (flat(x)[0] - e["c"]) ** 2 - e["spread"])


@dataclass(frozen=True, eq=False)
class Midrange:
    """E4: the loss of the worst-off client, as a game.

        min over x, max over lambda on the simplex, of sum_i lambda_i 1/2 (x - c_i)^2

    The answer is the midrange x* = (min c + max c)/2 and not the mean; lambda* puts one half on each extreme
    client. lambda is the sequence y. An average over clients counts client i with p_i, so that its loss is

        F_i(x, lambda) = lambda_i/p_i (1/2 (x - c)^2 - spread),

    n lambda_i 1/2 (x - c_i)^2 with equal weights; the example says which client it belongs to (one-hot). The
    spread 1/2 (c - c_i)^2 of an example around its client's mean c_i is taken off, as otherwise a client with
    noisy examples would count as badly off and the answer would not be the midrange.

    Args:
      records: one dict per client with c, spread, scale, client, each with a leading axis of examples.
      weights: p_i, with sum 1.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(cls, clients=4, heterogeneity=1.0, seed=0, examples=None, weights=None) -> Midrange:
        """An instance whose c_i lean to one side, so that midrange and mean are apart."""
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        centres = 1.0 + heterogeneity * rng.exponential(1.0, clients)
        c = draws.free_examples(rng, centres, sizes)
        weights = draws.weights_of(weights, clients, seed)
        records = draws.zipped(
            c=c,
            spread=[0.5 * (stack - stack.mean()) ** 2 for stack in c],
            scale=[np.full(size, 1.0 / p) for size, p in zip(sizes, weights, strict=True)],
            client=[np.tile(row, (size, 1)) for size, row in zip(sizes, np.eye(clients), strict=True)],
        )
        return cls(records, weights)

    @property
    def problem(self):
        """The minimax problem with y on the simplex; every instance shares the same loss."""
        return Minimax(loss, x_set=None, y_set=Simplex())

    @property
    def clients(self):
        """The clients' examples with their weights."""
        return federate(list(self.records), weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x and equal shares y; x has dimension 1, so that leaves must be 1."""
        count = len(self.records)
        return {"x": leaves_of(np.zeros(1), leaves), "y": leaves_of(np.full(count, 1.0 / count), leaves)}

    def value(self, x) -> float:
        """The loss of the worst-off client at x."""
        return float(np.max(0.5 * (np.asarray(x, dtype=np.float64).item() - means(self.records, "c")) ** 2))

    def solution(self) -> np.ndarray:
        """The midrange of c."""
        c = means(self.records, "c")
        return np.array([0.5 * (c.min() + c.max())])

    def optimum(self) -> dict:
        """x, and the shares y: one half on each extreme client (equal shares among ties)."""
        c = means(self.records, "c")
        lowest, highest = (np.isclose(c, end, rtol=0.0, atol=1e-12) for end in (c.min(), c.max()))
        return {"x": self.solution(), "y": 0.5 * lowest / lowest.sum() + 0.5 * highest / highest.sum()}

    def biased_solution(self, kind) -> np.ndarray:
        """The weighted mean of c, kind "mean", where plain averaging ends."""
        require("kind", kind, ("mean",))
        return np.array([bar(self.weights, means(self.records, "c"))])
