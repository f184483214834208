"""Semi-supervised learning: most labels are hidden, and each client finds pseudo-labels for its own examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.data.partitions import Partition, deal
from rookery.problems.kinds import Joint
from rookery.problems.sets import Simplex
from rookery.tasks.base import Assembly, OnData, augmentation, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, label_mix, on_test
from rookery.tasks.models import Initial, Network
from rookery.vectors import Values


@dataclass(frozen=True)
class PseudoLabelLoss:
    """Cross-entropy with the label of an example or, where it is hidden, with the client's pseudo-label for it.

    The pseudo-labels pay trust / 2 times |y|^2 (the quadratic entropy, with its sign turned), so that they stay soft:
    at its best y is the projection of log p / trust onto the simplex.
    """

    network: Network
    trust: float
    weight: float

    def __call__(self, x: Any, y: jax.Array, e: Any) -> jax.Array:
        log_p = jax.nn.log_softmax(self.network(x, e["input"]))
        own = y[e["row"]]
        soft = -jnp.dot(own, log_p) + 0.5 * self.trust * jnp.dot(own, own)
        return jnp.where(e["hidden"] > 0, self.weight * soft, -log_p[e["label"]])


@dataclass(frozen=True)
class SemiSupervised(OnData):
    """A network and pseudo-labels on the simplex, from clients most of whose labels are hidden.

    x is the network, y_i client i's pseudo-labels, a row for each of its examples; they never leave it. Which labels
    are hidden is drawn once, by the seed, and each client keeps at least one.
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist, cifar10 or another of the catalogue."""
    model: Literal["mlp", "lenet", "cnn"] = "mlp"
    """The network: mlp; lenet, two small convolutions; cnn, two of 64 channels, for images from 16 x 16 pixels on."""
    hidden: tuple[int, ...] = (64,)
    """Widths of the mlp's hidden layers."""
    unlabelled: float = 0.9
    """Part of each client's labels that is hidden."""
    trust: float = 1.0
    """How soft pseudo-labels are: the weight of |y|^2 / 2."""
    weight: float = 0.3
    """How much an example with a pseudo-label counts."""
    augment: bool = False
    """Whether images are cropped and flipped at random."""
    init: Initial = "fan_in"
    """How layers start: fan_in, normal of variance 1 / inputs; he, twice that; pytorch, as PyTorch's do."""

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 0.2, "y": 1.0}

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            unlabelled=(0 <= self.unlabelled < 1, "a number from 0 to below 1"),
            trust=(self.trust > 0, "a positive number"),
            weight=(self.weight >= 0, "a number that is not negative"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network(self.model, dataset, self.hidden, ("mlp", "lenet", "cnn"), self.init)
        parts = deal(partition, dataset.train["label"], clients, seed)
        records = [
            {
                "input": dataset.train["input"][own],
                "label": dataset.train["label"][own],
                "hidden": hide(own.size, self.unlabelled, (seed, 2, i)),
                "row": np.arange(own.size, dtype=np.int32),
            }
            for i, own in enumerate(parts)
        ]
        federation = federate(records, weights="size", augment=augmentation(dataset, self.augment))
        rows = max(own.size for own in parts)
        place = np.concatenate([i * rows + np.flatnonzero(record["hidden"]) for i, record in enumerate(records)])
        hidden_labels = np.concatenate([record["label"][record["hidden"] > 0] for record in records])
        return Assembly(
            problem=Joint(PseudoLabelLoss(network, self.trust, self.weight), client_set=Simplex()),
            clients=federation,
            x=network.init,
            y=jnp.full((rows, dataset.classes), 1.0 / dataset.classes),
            metrics=on_test(
                Guessed(Evaluation(network)),
                dataset,
                mix=label_mix(federation, dataset.classes),
                place=place.astype(np.int32),
                hidden_labels=hidden_labels,
            ),
        )


def hide(size: int, part: float, seed: tuple[int, ...]) -> np.ndarray:
    """1 for the examples whose labels are hidden, at most all but one."""
    hidden = np.zeros(size, np.int32)
    count = min(round(part * size), size - 1)
    hidden[np.random.default_rng(seed).permutation(size)[:count]] = 1
    return hidden


@dataclass(frozen=True)
class Guessed:
    """Test accuracy and test loss of the network, over clients too, and how many pseudo-labels are right."""

    model: Evaluation

    def __call__(
        self,
        z: Values,
        images: jax.Array,
        labels: jax.Array,
        mix: jax.Array,
        place: jax.Array,
        hidden_labels: jax.Array,
    ) -> dict[str, jax.Array]:
        found = self.model(z, images, labels, mix)
        if not hidden_labels.size:
            return found
        pseudo = jnp.argmax(z.y.reshape(-1, z.y.shape[-1])[place], axis=1)
        return found | {"pseudo_labels": jnp.mean(pseudo == hidden_labels)}
