"""Trust: how much each site and each of its records counts, learnt from a few records that were checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Clients, Split, federate
from rookery.data.own_tables import TableOptions
from rookery.data.partitions import Partition
from rookery.data.schema import read_schema
from rookery.errors import unknown
from rookery.metric import Metric
from rookery.problems.kinds import Single
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.cleaning import CleanLoss, corrupt
from rookery.tasks.metrics import OnOwn, auc
from rookery.tasks.models import Classification, Network, OfClasses, cross_entropy, squared_norm
from rookery.vectors import Values


def logit(x: Any, row: Any, gain: Any) -> jax.Array:
    """What a site's trust in itself and in one of its records add up to."""
    return x["site"] + gain * x["record"][row]


@dataclass(frozen=True)
class TrustedLoss(OfClasses):
    """sigmoid(site + sqrt(n) record_k) CE + ridge / 2 |y|^2 of record k of a site that has n."""

    network: Network
    ridge: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        loss = cross_entropy(self.network(y, e["input"]), e["label"])
        return jax.nn.sigmoid(logit(x, e["row"], e["gain"])) * loss + 0.5 * self.ridge * squared_norm(y)


@dataclass(frozen=True)
class Trust(Nested):
    """How much to trust each site and each of its records, where one site's labels are wrong.

    x_i = {site, record} is site i's own and never leaves it: a logit of the whole site and one of each record; y is a
    linear softmax that all share, fitted to the records as far as they are trusted. The upper loss is that of the
    records that were checked. At one site a part of the other labels is wrong. `plain` is FedAvg's problem, one model
    of all records alike; `right` is the same where no label is wrong, which no method can know.
    """

    data: str = "heart"
    """Which data: heart, or csv:FOLDER with a file per site, or another of the catalogue."""
    form: Literal["nested", "plain", "right"] = "nested"
    """nested: trust is learnt; plain: all records count alike; right: the same with right labels."""
    site: str = ""
    """The site whose labels are wrong; by default the one with the most records."""
    wrong: float = 1.0
    """The part of that site's labels that is wrong, but for those that were checked."""
    checked: float = 0.2  # type: ignore[assignment]
    """Part of each site's records whose labels were checked, which the upper level sees."""
    ridge: float = 0.01
    """Weight of |y|^2 / 2 in the lower loss."""

    defaults: ClassVar[Mapping[str, Any]] = {"partition": "natural"}

    @property
    def table(self) -> TableOptions:
        """How a csv file is read; `checked` is here a part of the records and no column."""
        schema = read_schema(self.schema) if self.schema else None
        return TableOptions(self.label, self.categories, self.missing, self.standardise, schema)

    @property
    def rates(self) -> Mapping[str, float]:
        return self.nested_rates(x=300.0, y=0.5, v=0.5) if self.form == "nested" else {"x": 0.5}

    @property
    def batch_size(self) -> int | None:
        return None

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            form=(self.form in ("nested", "plain", "right"), "nested, plain or right"),
            wrong=(0 <= self.wrong <= 1, "a number from 0 to 1"),
            checked=(0 < self.checked < 1, "a number strictly between 0 and 1"),
            ridge=(self.ridge > 0, "a positive number"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network("mlp", dataset, (), ("mlp",))
        sites = dataset.partition(partition, clients=clients, seed=seed, validation=self.checked, own_test=True)
        records = [sites.client(i) for i in range(sites.population)]
        at = self._wrong_site(sites)
        lower = [
            _numbered(corrupt(record.lower, self.wrong * (i == at), dataset.classes, (seed, 3, i)))
            for i, record in enumerate(records)
        ]
        tests = [sites.own_test(i) for i in range(sites.population)]
        split = [Split(lower=own, upper=record.upper) for own, record in zip(lower, records)]
        if self.form == "nested":
            return self._nested(network, federate(dict(zip(sites.names, split)), weights="size", test=tests))
        seen = [record.lower for record in records] if self.form == "right" else lower
        data = [
            {name: np.concatenate([own[name], record.upper[name]]) for name in ("input", "label")}
            for own, record in zip(seen, records)
        ]
        return Assembly(
            problem=Single(Classification(network, self.ridge)),
            clients=federate(dict(zip(sites.names, data)), weights="size", test=tests),
            x=network.init,
            client_metrics=OnOwn(network),
            main_metric="accuracy weighted",
        )

    def _wrong_site(self, sites: Clients) -> int:
        """The number of the site whose labels are wrong."""
        if not self.site:
            return int(np.argmax(sites.sizes))
        if self.site not in sites.names:
            raise unknown("task.site", self.site, sites.names)
        return sites.names.index(self.site)

    def _nested(self, network: Network, sites: Clients) -> Assembly:
        level = sites.level("lower")
        rows = {name: level.rows[name] for name in ("row", "gain", "noisy")}
        return Assembly(
            problem=self.bilevel(upper=CleanLoss(network), lower=TrustedLoss(network, self.ridge), upper_scope="local"),
            clients=sites,
            x={"site": np.zeros((), np.float32), "record": np.zeros(int(np.max(level.size)), np.float32)},
            y=network.init,
            metrics=Metric(found_records, owner=np.repeat(np.arange(sites.population), level.size), **rows),
            client_metrics=TrustOnOwn(OnOwn(network, ("y",))),
            main_metric="accuracy weighted",
        )


def _numbered(examples: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A site's records with the square root of their number: a step of x then moves the trust in one record as far as
    that in the site, though it is one among so many."""
    count = examples["label"].size
    return {**examples, "gain": np.full(count, count**0.5, np.float32)}


def found_records(
    z: Values, owner: jax.Array, row: jax.Array, gain: jax.Array, noisy: jax.Array
) -> dict[str, jax.Array]:
    """The chance that a wrong record is trusted less than a right one, over all sites."""
    own = jax.tree.map(lambda leaf: leaf[owner], z.x)
    return {"auc": auc(-jax.vmap(logit)(own, row, gain), noisy)}


@dataclass(frozen=True)
class TrustOnOwn:
    """How the model does on one of a site's own test examples, and how far the site is trusted."""

    model: OnOwn

    def __call__(self, z: Values, e: Any) -> dict[str, Any]:
        return self.model(z, e) | {"trust": jax.nn.sigmoid(jnp.asarray(z.x["site"]))}
