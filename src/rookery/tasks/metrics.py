"""Metrics of tasks. Imports vectors, models and federated data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.absent import PartyRows
from rookery.data.datasets import Dataset
from rookery.data.federated import Clients
from rookery.data.levels import ABSENT
from rookery.metric import Metric
from rookery.tasks.models import Network, cross_entropy
from rookery.vectors import Values

CHUNK = 500  # examples that are evaluated side by side, so that a CNN on 10,000 images fits into memory


def predict(network: Network, params: Any, images: jax.Array) -> jax.Array:
    """The logits of many examples, `chunk` at a time."""
    one = lambda image: network(params, image)
    if images.shape[0] <= CHUNK:
        return jax.vmap(one)(images)
    return jax.lax.map(one, images, batch_size=CHUNK)


def classification(scores: jax.Array, labels: jax.Array, balanced: bool = False) -> dict[str, jax.Array]:
    """Accuracy and mean cross-entropy of some examples' logits; where asked, the mean accuracy of the classes."""
    loss = jax.vmap(cross_entropy)(scores, labels)
    right = jnp.argmax(scores, axis=1) == labels
    found = {"accuracy": jnp.mean(right), "loss": jnp.mean(loss)}
    if not balanced:
        return found
    of_class, present = class_accuracies(scores, labels)
    return found | {"balanced": jnp.sum(of_class) / jnp.sum(present)}


def class_accuracies(scores: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The accuracy on the examples of each class, and 1 for the classes that have any; the others' is 0."""
    member = jax.nn.one_hot(labels, scores.shape[1], dtype=scores.dtype)
    right = (jnp.argmax(scores, axis=1) == labels).astype(scores.dtype)
    count = member.sum(axis=0)
    return right @ member / jnp.maximum(count, 1), (count > 0).astype(scores.dtype)


def client_accuracies(scores: jax.Array, labels: jax.Array, mix: jax.Array) -> jax.Array:
    """Each client's accuracy: that of the examples, weighted so that their labels are mixed as the client's own.

    It is sum_c mix[i, c] a_c with a_c the accuracy on class c; a class without examples is left out of the mix.
    """
    of_class, present = class_accuracies(scores, labels)
    mix = jnp.asarray(mix, scores.dtype)
    return mix @ of_class / (mix @ present)


def over_clients(accuracies: jax.Array) -> dict[str, jax.Array]:
    """The smallest, the mean and the standard deviation of the clients' accuracies."""
    return {
        "worst_client": jnp.min(accuracies),
        "mean_client": jnp.mean(accuracies),
        "spread": jnp.std(accuracies),
    }


def label_mix(clients: Clients, classes: int) -> np.ndarray:
    """The share of each class in each client's examples, both levels together: (clients, classes), float32.

    Clients whose rows are at another party have shares of 0.
    """
    counts = np.zeros((clients.population, classes))
    for level in clients.levels.values():
        here = np.asarray(level.offset) != ABSENT
        if here.any():
            owner = np.repeat(np.flatnonzero(here), np.asarray(level.size)[here])
            np.add.at(counts, (owner, level.rows["label"]), 1)
    return (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).astype(np.float32)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and loss of a network whose parameters are the union of some sequences' layers.

    Args:
      network: the network, on inputs as they are stored.
      parts: the sequences that hold its layers.
      balanced: whether the class-balanced accuracy is measured too.
    """

    network: Network
    parts: tuple[str, ...] = ("x",)
    balanced: bool = False

    def __call__(
        self, z: Values, images: jax.Array, labels: jax.Array, mix: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        params = {name: layer for part in self.parts for name, layer in z[part].items()}
        scores = predict(self.network, params, images)
        found = classification(scores, labels, self.balanced)
        return found if mix is None else found | over_clients(client_accuracies(scores, labels, mix))


@dataclass(frozen=True)
class OnOwn:
    """Whether one of a client's own test examples is told right, and its loss: for `client_metrics`.

    Args:
      network: the network, on inputs as they are stored.
      parts: the sequences that hold its layers.
    """

    network: Network
    parts: tuple[str, ...] = ("x",)

    def __call__(self, z: Values, e: Any) -> dict[str, jax.Array]:
        params = {name: layer for part in self.parts for name, layer in z[part].items()}
        scores = self.network(params, e["input"])
        return {"accuracy": jnp.argmax(scores) == e["label"], "loss": cross_entropy(scores, e["label"])}


def on_test(function: Callable[..., dict[str, jax.Array]], dataset: Dataset, **arrays: Any) -> Metric | None:
    """A metric on a dataset's test examples, given as `images` and `labels`; None if they are at several sites."""
    if isinstance(dataset.test["input"], PartyRows):
        return None
    return Metric(function, images=dataset.test["input"], labels=dataset.test["label"], **arrays)


@dataclass(frozen=True)
class WithTraining:
    """A metric on test examples, and its accuracy on training examples too, as `training_accuracy`."""

    function: Callable[..., dict[str, jax.Array]]

    def __call__(
        self, z: Values, images: jax.Array, labels: jax.Array, seen: jax.Array, seen_labels: jax.Array
    ) -> dict[str, jax.Array]:
        return self.function(z, images, labels) | {"training_accuracy": self.function(z, seen, seen_labels)["accuracy"]}


def on_both(function: Callable[..., dict[str, jax.Array]], dataset: Dataset, most: int = 10_000) -> Metric | None:
    """A metric on a dataset's test examples, and its accuracy on at most `most` training examples; None as above."""
    if isinstance(dataset.test["input"], PartyRows):
        return None
    total = len(dataset.train["label"])
    rows = np.sort(np.random.default_rng(0).permutation(total)[:most])
    seen = {"seen": dataset.train["input"][rows], "seen_labels": dataset.train["label"][rows]}
    return on_test(WithTraining(function), dataset, **seen)


def f1(found: jax.Array, truth: jax.Array) -> jax.Array:
    """2 hits / (2 hits + false alarms + misses) of a yes-no answer; 0 where nothing is found and nothing is there."""
    found, truth = found.astype(jnp.float32), truth.astype(jnp.float32)
    hits = jnp.sum(found * truth)
    return 2 * hits / jnp.maximum(jnp.sum(found) + jnp.sum(truth), 1)


def auc(scores: jax.Array, truth: jax.Array) -> jax.Array:
    """The chance that a true example has a larger score than a false one; ties count one half.

    From ranks: (mean rank of the true ones - (their number + 1) / 2) / number of the false ones, where tied scores
    share their mean rank. Without examples of both kinds it is one half.
    """
    truth = truth.astype(scores.dtype)
    ordered = jnp.sort(scores)
    below = jnp.searchsorted(ordered, scores, side="left", method="sort")
    not_above = jnp.searchsorted(ordered, scores, side="right", method="sort")
    rank = (below + not_above + 1).astype(scores.dtype) / 2
    true = jnp.sum(truth)
    false = scores.size - true
    area = (jnp.sum(truth * rank) / jnp.maximum(true, 1) - (true + 1) / 2) / jnp.maximum(false, 1)
    return jnp.where((true > 0) & (false > 0), area, 0.5)


def concordance(risks: jax.Array, times: jax.Array, events: jax.Array) -> jax.Array:
    """The chance that of two people the one at higher risk has the event first; equal risks count one half.

    Two people are compared where it is known who had it first: the one with the shorter time had the event, or the
    times are equal and one of both had it. Without such a pair it is one half.
    """
    earlier = (times[:, None] < times[None, :]) | ((times[:, None] == times[None, :]) & (events[None, :] == 0))
    compared = (events[:, None] > 0) & earlier
    agree = jnp.where(risks[:, None] > risks[None, :], 1.0, jnp.where(risks[:, None] == risks[None, :], 0.5, 0.0))
    pairs = jnp.sum(compared)
    return jnp.where(pairs > 0, jnp.sum(jnp.where(compared, agree, 0.0)) / jnp.maximum(pairs, 1), 0.5)
