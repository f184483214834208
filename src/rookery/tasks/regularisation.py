"""Regularisation: a penalty for every feature, tuned on validation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.partitions import Partition
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, OnOwn, on_test
from rookery.tasks.models import Network, cross_entropy


@dataclass(frozen=True)
class PenalisedLoss:
    """CE + 1/2 sum_j exp(x_j) |w_j|^2 + bias / 2 |b|^2 of a training example; w_j are the weights of feature j."""

    network: Network
    bias: float

    def __call__(self, x: jax.Array, y: Any, e: Any) -> jax.Array:
        w, b = y["dense0"]["w"], y["dense0"]["b"]
        penalty = jnp.dot(jnp.exp(x), jnp.sum(w**2, axis=1)) + self.bias * jnp.dot(b, b)
        return cross_entropy(self.network(y, e["input"]), e["label"]) + 0.5 * penalty


@dataclass(frozen=True)
class ValidationLoss:
    """CE of a validation example."""

    network: Network

    def __call__(self, x: jax.Array, y: Any, e: Any) -> jax.Array:
        return cross_entropy(self.network(y, e["input"]), e["label"])


@dataclass(frozen=True)
class Regularisation(Nested):
    """A penalty exp(x_j) for every feature of a softmax regression, tuned on validation data.

    The lower level fits the regression y to training examples with these penalties, the upper judges it on validation
    examples. x starts at the logarithm of one penalty for all, which is also the bias's and stays so.
    """

    data: str = "breast_cancer"
    """Which data: breast_cancer, wine, digits, a9a, w8a, german, magic or another of the catalogue."""
    penalty: float = 0.1
    """The penalty of every feature at the start."""
    validation: float = 0.5
    """Part of each client's examples that the upper level sees."""

    @property
    def rates(self) -> Mapping[str, float]:
        return self.nested_rates(x=2.0, y=0.1, v=0.1)

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(self, penalty=(self.penalty > 0, "a positive number"))
        dataset = find_dataset(self.data, tuning, self.table)
        network, own = find_network("mlp", dataset, (), ("mlp",)), dataset.has_own_tests(partition)
        return Assembly(
            problem=self.bilevel(upper=ValidationLoss(network), lower=PenalisedLoss(network, self.penalty)),
            clients=dataset.partition(partition, clients, seed, validation=self.validation, own_test=own),
            x=np.full(prod(dataset.shape), log(self.penalty), np.float32),
            y=network.init,
            metrics=on_test(Evaluation(network, parts=("y",)), dataset),
            client_metrics=OnOwn(network, ("y",)) if own else None,
        )
