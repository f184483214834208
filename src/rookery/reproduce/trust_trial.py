"""The trials of the study `trust`: sites of chosen sizes, of which some have wrong labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.catalogue import load
from rookery.data.datasets import Dataset, synthetic
from rookery.data.partitions import Partition, deal_like
from rookery.metric import Metric
from rookery.tasks.base import Assembly, find_network
from rookery.tasks.trust import Trust, assemble_sites
from rookery.tasks.trust_data import draw_checked, wrong_labels
from rookery.tasks.trust_models import choice_metrics
from rookery.vectors import Values

SYNTHETIC = "synthetic"  # four classes in sixteen dimensions, for sites larger than the built-in data has
KEPT = 0.1  # part of the training records of a rare class that is kept


@dataclass(frozen=True)
class TrustTrial:
    """The task `trust` on sites of given sizes, some with wrong labels."""

    data: str = "digits"
    """Which data: digits, heart, breast_cancer, or synthetic."""
    sizes: tuple[int, ...] = ()
    """Training records of each site; none: the data's own sites."""
    bad: tuple[int, ...] = ()
    """The numbers of the sites whose labels are wrong."""
    wrong: float = 1.0
    """Part of these sites' unchecked labels that is wrong."""
    kind: Literal["next", "random"] = "next"
    """next: the class that follows; random: any class, uniformly."""
    checked_part: float = 0.05
    """Part of each site's records that is checked."""
    rare: tuple[int, ...] = ()
    """Classes of which a tenth of the training records is kept."""

    @property
    def rates(self) -> Mapping[str, float]:
        return Trust().rates

    @property
    def batch_size(self) -> int | None:
        return None

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        dataset = self._dataset()
        parts, tests, names = self._dealt(dataset, seed)
        sites = {}
        for i, (name, part) in enumerate(zip(names, parts)):
            own = {key: dataset.train[key][part] for key in ("input", "label")}
            checked = draw_checked(part.size, self.checked_part, (seed, 5, i))
            wrong = self.wrong * (i in self.bad)
            sites[name] = wrong_labels({**own, "checked": checked}, wrong, self.kind, dataset.classes, (seed, 3, i))
        own_tests = [{key: dataset.test[key][part] for key in ("input", "label")} for part in tests]
        network = find_network("mlp", dataset, (), ("mlp",))
        made = assemble_sites(network, sites, own_tests, Trust(), seed, truth=True)
        return replace(made, metrics=Metric(found, bad=np.isin(np.arange(len(parts)), self.bad)))

    def _dataset(self) -> Dataset:
        if self.data == SYNTHETIC:
            return synthetic(10_000, features=16, classes=4, test_examples=2_000)
        return load(self.data)

    def _dealt(self, dataset: Dataset, seed: int) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
        """Each site's training and test examples, and its name."""
        if not self.sizes:
            assert dataset.owner is not None and dataset.test_owner is not None, "the data has no sites of its own"
            own = [
                [np.flatnonzero(owner == i) for i in range(len(dataset.owners))]
                for owner in (dataset.owner, dataset.test_owner)
            ]
            return own[0], own[1], list(dataset.owners)
        rng = np.random.default_rng((seed, 1))
        order = rng.permutation(dataset.train["label"].size)
        parts = np.split(order, np.cumsum(self.sizes))[: len(self.sizes)]
        if self.rare:
            keep = ~np.isin(dataset.train["label"], self.rare) | (rng.random(order.size) < KEPT)
            parts = [part[keep[part]] for part in parts]
        tests = deal_like(dataset.train["label"], parts, dataset.test["label"])
        return parts, tests, [str(i) for i in range(len(parts))]


def found(z: Values, bad: jax.Array) -> dict[str, Any]:
    """The choice, and which parts of the sites with wrong labels, and of the others, are trusted less than one half."""
    out, wrong = (z.x["site"] < 0).astype(jnp.float32), bad.astype(jnp.float32)
    part = lambda where: jnp.sum(out * where) / jnp.maximum(jnp.sum(where), 1)
    return {**choice_metrics(z), "found": part(wrong), "left out": part(1 - wrong)}
