"""E8, loss tuning that rediscovers logit adjustment; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Split, federate
from rookery.problems.exact import draws
from rookery.problems.exact.common import bar, flat, means, softmax, zeros
from rookery.problems.kinds import Bilevel


def lower(x, y, e):
    """g = -sum_c label_c log softmax(z + x)_c, cross-entropy with shifted logits; y is z."""
    return -jnp.dot(e["label"], jax.nn.log_softmax(flat(y) + flat(x)))


def upper(x, y, e):
    """f = -sum_c label_c log softmax(z)_c, on labels that are balanced over all examples; y is z."""
    return -jnp.dot(e["label"], jax.nn.log_softmax(flat(y)))


@dataclass(frozen=True, eq=False)
class LossTuning:
    """E8: class frequencies pi, logits z without features, a tuned shift x of the training logits.

        lower  -sum_c pi_c log softmax(z + x)_c,   pi = bar(pi_i)
        upper  -1/K sum_c log softmax(z)_c, over K classes

    The lower level gives softmax(z* + x) = pi, hence z* = log pi - x up to a constant, and

        hypergradient = 1/K - softmax(log pi - x),   x* = log pi - mean(log pi)

    which is logit adjustment. Shifting all logits changes nothing: the lower Hessian has the null vector 1,
    and x, z, v are determined up to a constant. All directions sum to zero, so that what starts centred stays
    centred; the closed forms are the centred ones.

    Args:
      records: one dict per client with "lower" (label) and "upper" (label), each with a leading axis of
        examples. A label is a probability vector: the class frequencies of a small batch, or one-hot.
      weights: p_i, with sum 1.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(cls, clients=4, dims=4, heterogeneity=1.0, seed=0, examples=None, weights=None) -> LossTuning:
        """An instance with unbalanced classes; dims is K. In the upper data a client has each class once."""
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        frequencies = [softmax(row) for row in draws.free_centres(rng, clients, (dims,), heterogeneity)]
        labels = []
        for own, size in zip(frequencies, sizes, strict=True):
            noise = rng.uniform(-1.0, 1.0, (size, dims))
            noise -= noise.mean(axis=0)
            noise -= noise.mean(axis=1, keepdims=True)
            # Centred twice, an entry is below 4, so that a label stays positive.
            labels.append(own + 0.2 * own.min() * noise)
        train, balanced = draws.zipped(label=labels), draws.zipped(label=[np.eye(dims)] * clients)
        records = draws.zipped(lower=train, upper=balanced)
        return cls(records, draws.weights_of(weights, clients, seed))

    @property
    def problem(self):
        """The bilevel problem; every instance shares the same functions."""
        return Bilevel(upper=upper, lower=lower, upper_scope="shared", lower_scope="shared")

    @property
    def clients(self):
        """The clients' labels with their weights."""
        return federate([Split(**record) for record in self.records], weights=self.weights)

    @property
    def frequencies(self) -> np.ndarray:
        """pi, the class frequencies over all clients."""
        return bar(self.weights, means([record["lower"] for record in self.records], "label"))

    def start(self, leaves=1) -> dict:
        """Zero x and y, which are centred."""
        dim = self.records[0]["lower"]["label"].shape[1]
        return zeros(leaves, x=dim, y=dim)

    def lower_solution(self, x) -> np.ndarray:
        """z*(x) = log pi - x, centred."""
        logits = np.log(self.frequencies) - np.asarray(x, dtype=np.float64)
        return logits - logits.mean()

    def hypergradient(self, x) -> np.ndarray:
        """1/K - softmax(log pi - x)."""
        logits = self.lower_solution(x)
        return 1.0 / logits.size - softmax(logits)

    def solution(self) -> np.ndarray:
        """x* = log pi, centred."""
        logits = np.log(self.frequencies)
        return logits - logits.mean()

    def optimum(self) -> dict:
        """x, y = 0 and v = 0 at the solution, all centred."""
        x = self.solution()
        return {"x": x, "y": np.zeros_like(x), "v": np.zeros_like(x)}
