"""Clustering: clients find common centres, and each the memberships of its own examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.data.inputs import Scale
from rookery.data.partitions import Partition, deal
from rookery.problems.kinds import Joint
from rookery.problems.sets import Simplex
from rookery.tasks.base import Assembly, OnData, check_options, find_dataset
from rookery.tasks.metrics import CHUNK, on_test
from rookery.vectors import Values


@dataclass(frozen=True)
class MembershipLoss:
    """sum_k y_k 1/2 |input - x_k|^2 + softness / 2 |y|^2, with y the example's row of the client's memberships."""

    scale: Scale
    softness: float

    def __call__(self, x: jax.Array, y: jax.Array, e: Any) -> jax.Array:
        own = y[e["row"]]
        distance = 0.5 * jnp.sum((x - self.scale(e["input"])) ** 2, axis=1)
        return jnp.dot(own, distance) + 0.5 * self.softness * jnp.dot(own, own)


@dataclass(frozen=True)
class Clustering(OnData):
    """Common cluster centres, with memberships on the simplex that stay on their clients.

    x holds the centres, y_i client i's memberships, a row for each of its examples. Labels are used for nothing but the
    purity of the clusters: the part of the test examples whose label is the most frequent one of their cluster.
    """

    data: str = "digits"
    """Which data: digits, wine, breast_cancer, mnist or another of the catalogue."""
    clusters: int = 20
    """Number of centres."""
    softness: float = 1.0
    """How soft memberships are: the weight of |y|^2 / 2."""

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 1.0, "y": 8.0}

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            clusters=(self.clusters >= 1, "at least 1"),
            softness=(self.softness > 0, "a positive number"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        parts = deal(partition, dataset.train["label"], clients, seed)
        records = [{"input": dataset.train["input"][own], "row": np.arange(own.size, dtype=np.int32)} for own in parts]
        rows, inputs = max(own.size for own in parts), np.asarray(dataset.scale(jnp.asarray(dataset.train["input"])))
        mean, spread = inputs.mean(axis=0), inputs.std(axis=0)

        def centres(key: jax.Array) -> jax.Array:
            return mean + spread * jax.random.normal(key, (self.clusters, inputs.shape[1]), jnp.float32)

        return Assembly(
            problem=Joint(MembershipLoss(dataset.scale, self.softness), client_set=Simplex()),
            clients=federate(records, weights="size"),
            x=centres,
            y=jnp.full((rows, self.clusters), 1.0 / self.clusters),
            metrics=on_test(Purity(dataset.scale), dataset, classes=np.arange(dataset.classes)),
            main_metric="purity",
        )


@dataclass(frozen=True)
class Purity:
    """The purity of the nearest centres' clusters, and the mean squared distance to the nearest centre."""

    scale: Scale

    def __call__(self, z: Values, images: jax.Array, labels: jax.Array, classes: jax.Array) -> dict[str, jax.Array]:
        distance = jax.lax.map(
            lambda stored: jnp.sum((self.scale(stored) - z.x) ** 2, axis=1), images, batch_size=CHUNK
        )
        member = jax.nn.one_hot(jnp.argmin(distance, axis=1), z.x.shape[0], dtype=z.x.dtype)
        counts = member.T @ (labels[:, None] == classes).astype(z.x.dtype)
        return {
            "purity": jnp.sum(jnp.max(counts, axis=1)) / labels.size,
            "distance": jnp.mean(jnp.min(distance, axis=1)),
        }
