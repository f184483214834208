"""Data cleaning: each client finds out which of its labels are wrong, by what they do to a model that all share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Split, federate
from rookery.data.partitions import Partition
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, auc, f1, on_test
from rookery.tasks.models import Network, OfClasses, cross_entropy, squared_norm
from rookery.vectors import Values


@dataclass(frozen=True)
class WeightedLoss(OfClasses):
    """sigmoid(x_k) CE + ridge / 2 |y|^2 of training example k of a client, with x the client's own logits."""

    network: Network
    ridge: float

    def __call__(self, x: jax.Array, y: Any, e: Any) -> jax.Array:
        loss = cross_entropy(self.network(y, e["input"]), e["label"])
        return jax.nn.sigmoid(x[e["row"]]) * loss + 0.5 * self.ridge * squared_norm(y)


@dataclass(frozen=True)
class CleanLoss(OfClasses):
    """CE of a validation example, whose label is right."""

    network: Network

    def __call__(self, x: jax.Array, y: Any, e: Any) -> jax.Array:
        return cross_entropy(self.network(y, e["input"]), e["label"])


@dataclass(frozen=True)
class Cleaning(Nested):
    """A weight for every training example, kept on its client, that finds the wrong labels.

    x_i holds a logit for each training example of client i and never leaves it; y is a linear softmax that all share,
    fitted to the weighted examples. The upper loss is that of validation examples, whose labels are right. Which labels
    are wrong is drawn once, by the seed. An example is found to be wrong where its weight is below one half.
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist, a9a or another of the catalogue."""
    noise: float = 0.3
    """The chance of a training label to be replaced by another, uniformly drawn one."""
    ridge: float = 0.01
    """Weight of |y|^2 / 2 in the lower loss."""
    validation: float = 0.5
    """Part of each client's examples that the upper level sees."""

    @property
    def rates(self) -> Mapping[str, float]:
        return self.nested_rates(x=20.0, y=0.3, v=0.3)

    @property
    def batch_size(self) -> int | None:
        return None

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            noise=(0 <= self.noise < 1, "a number from 0 to below 1"),
            ridge=(self.ridge > 0, "a positive number"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network("mlp", dataset, (), ("mlp",))
        clean = dataset.partition(partition, clients=clients, seed=seed, validation=self.validation)
        records = [clean.client(i) for i in range(clients)]
        noisy = [corrupt(record.lower, self.noise, dataset.classes, (seed, 3, i)) for i, record in enumerate(records)]
        rows = max(len(lower["row"]) for lower in noisy)
        place = np.concatenate([i * rows + lower["row"] for i, lower in enumerate(noisy)])
        return Assembly(
            problem=self.bilevel(
                upper=CleanLoss(network), lower=WeightedLoss(network, self.ridge), upper_scope="local"
            ),
            clients=federate(
                [Split(lower=lower, upper=record.upper) for lower, record in zip(noisy, records)], weights="size"
            ),
            x=np.zeros(rows, np.float32),
            y=network.init,
            metrics=on_test(
                Found(Evaluation(network, parts=("y",))),
                dataset,
                place=place.astype(np.int32),
                noisy=np.concatenate([lower["noisy"] for lower in noisy]),
            ),
        )


def corrupt(examples: Mapping[str, np.ndarray], noise: float, classes: int, seed: tuple[int, ...]) -> dict[str, Any]:
    """The examples with some labels replaced by another class's, which of them ("noisy"), and their rows in x."""
    rng, label = np.random.default_rng(seed), examples["label"]
    noisy = rng.random(label.size) < noise
    other = (label + 1 + rng.integers(0, max(classes - 1, 1), label.size)) % classes
    return {
        **examples,
        "label": np.where(noisy, other, label).astype(np.int32),
        "noisy": noisy.astype(np.int32),
        "row": np.arange(label.size, dtype=np.int32),
    }


@dataclass(frozen=True)
class Found:
    """Accuracy and loss of the shared model, and how well the clients' weights tell wrong labels from right ones.

    `place` says where in x, all clients' rows one after another, the examples are: rows past a client's own examples
    are not among them.
    """

    model: Evaluation

    def __call__(
        self, z: Values, images: jax.Array, labels: jax.Array, place: jax.Array, noisy: jax.Array
    ) -> dict[str, jax.Array]:
        logits = jnp.reshape(z.x, -1)[place]
        return self.model(z, images, labels) | {"f1": f1(logits < 0, noisy), "auc": auc(-logits, noisy)}
