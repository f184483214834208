"""Plain federated learning: one network for all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from rookery.data.partitions import Partition
from rookery.problems.kinds import Single
from rookery.tasks.base import Assembly, OnData, augmentation, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, OnOwn, label_mix, on_test
from rookery.tasks.models import Classification, Initial

Normalise = Literal["dataset", "image"]


@dataclass(frozen=True)
class Classify(OnData):
    """One network for all clients: plain federated learning, min_x sum_i p_i f_i(x).

    f_i is the mean cross-entropy of client i's examples, plus decay / 2 |x|^2; p_i is its part of all examples.
    Accuracies of clients are those of the test set, weighted to the client's own mix of labels.
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist, cifar10, a9a or another of the catalogue."""
    model: Literal["mlp", "lenet", "cnn"] = "mlp"
    """The network: mlp; lenet, two small convolutions; cnn, two of 64 channels, for images from 16 x 16 pixels on."""
    widths: tuple[int, ...] = (64,)
    """Widths of the mlp's hidden layers; none for a linear softmax."""
    decay: float = 0.0
    """Weight of |x|^2 / 2 in the loss."""
    augment: bool = False
    """Whether training images are cropped and flipped at random."""
    init: Initial = "fan_in"
    """How layers start: fan_in, normal of variance 1 / inputs; he, twice that; pytorch, as PyTorch's do."""
    normalise: Normalise = "dataset"
    """How inputs are standardised: dataset, by the training set's mean and deviation; image, each by its own."""

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 0.2 if self.model == "mlp" else 0.1}

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            decay=(self.decay >= 0, "a number that is not negative"),
            normalise=(self.normalise in get_args(Normalise), "dataset or image"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        if self.normalise == "image":
            dataset = replace(dataset, scale=replace(dataset.scale, per_image=True))
        network = find_network(self.model, dataset, self.widths, ("mlp", "lenet", "cnn"), self.init)
        own = dataset.has_own_tests(partition)
        augment = augmentation(dataset, self.augment)
        federation = dataset.partition(
            partition, clients=clients, seed=seed, weights="size", augment=augment, own_test=own
        )
        return Assembly(
            problem=Single(Classification(network, self.decay)),
            clients=federation,
            x=network.init,
            metrics=on_test(Evaluation(network), dataset, mix=label_mix(federation, dataset.classes)),
            client_metrics=OnOwn(network) if own else None,
        )
