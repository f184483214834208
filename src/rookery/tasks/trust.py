"""Trust: how much each site counts, learnt from a few records whose labels were checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.catalogue import LOCAL, TABLE
from rookery.data.datasets import Dataset
from rookery.data.federated import federate
from rookery.data.own_tables import TableOptions
from rookery.data.partitions import Natural, Partition
from rookery.errors import InputError, unknown
from rookery.metric import Metric, together
from rookery.problems.kinds import Single
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.metrics import OnOwn, auc
from rookery.tasks.models import Network
from rookery.tasks.trust_data import checked_in, dataset_of_sites, draw_checked, wrong_labels
from rookery.tasks.trust_models import (
    CANDIDATES,
    MODELS,
    ORACLE,
    START,
    CheckedLoss,
    Copies,
    ModelsLoss,
    ModelsOnOwn,
    RecordsOnOwn,
    WeightedLoss,
    choice_metrics,
    chosen_index,
    records_of_site,
    trust_of,
)
from rookery.vectors import Values

FORMS = ("nested", "records", "plain", "checked", "oracle")
KINDS = ("next", "random")


@dataclass(frozen=True)
class Choice:
    """What a run of `trust` chose, and the results without the choice.

    `chosen` is "plain", "checked" or "trusted"; `losses` are the mean losses of the three on the held-out checked
    records, `errors` the standard errors of those of plain and checked less that of trusted; `accuracies` are of all
    sites' test examples, by weight, also of the oracle where it is known; `trust` is that in each site.
    """

    chosen: str
    losses: Mapping[str, float]
    errors: Mapping[str, float]
    accuracies: Mapping[str, float]
    trust: Mapping[str, float]

    def __str__(self) -> str:
        losses = ", ".join(f"{name} {value:.3g}" for name, value in self.losses.items())
        return f"chosen: {self.chosen} (loss on held-out checked records: {losses})"


@dataclass(frozen=True)
class Trust(Nested):
    """How much to trust each site, learnt from a few checked records.

    x holds one logit for each site; the server learns it, so trust is known to the server. y holds linear softmax
    models that all sites share: plain (all records alike), checked (the checked records alone), and trusted (unchecked
    records weighted by the trust in their site, and the checked records). Trust minimises the loss of the checked
    records; a part of these is held out and chooses among the three models. Sites weigh by their number of records.
    """

    data: str = "heart"
    """Which data: heart, or csv:FOLDER with a file per site, or another of the catalogue."""
    form: Literal["nested", "records", "plain", "checked", "oracle"] = "nested"
    """nested: trust is learnt, and a model is chosen; records: each record has a logit too, which stays at its site;
    plain, checked, oracle: that model alone."""
    checked: str = ""
    """Column that says which records' labels were checked (1) or not (0), or a csv file that names these records by
    site and row; own data needs one of them."""
    checked_part: float = 0.2
    """Without such a column, in built-in data: part of each site's records that is drawn as checked."""
    held_out: float = 0.3
    """Part of the checked records that chooses among plain, checked and trusted."""
    site: str = ""
    """Site or sites, as a,b,c, whose labels are made wrong; by default the one with the most records."""
    wrong: float | None = None
    """Part of these sites' unchecked labels that is made wrong; by default 1 in built-in data and 0 in own data."""
    kind: Literal["next", "random"] = "next"
    """next: wrong labels are the class that follows; random: any class, uniformly, the right one among them."""
    prior: float = 0.0003
    """Weight of (logit - 1)^2 / 2 of each site in the upper loss, and of logit^2 / 2 of each record."""
    budget: float = 0.1
    """Form records: the part of a site's records whose logits may leave the site's. It bounds the sum of all moves."""
    ridge: float = 0.01
    """Weight of |y|^2 / 2 in the lower loss."""

    defaults: ClassVar[Mapping[str, Any]] = {"partition": "natural"}

    @property
    def table(self) -> TableOptions:
        """How a csv file is read. Of other data `checked` names an input, which this task takes out itself."""
        table = super().table
        return table if self.data.startswith(TABLE) else replace(table, checked="")

    @property
    def rates(self) -> Mapping[str, float]:
        nested = self.form in ("nested", "records")
        return self.nested_rates(x=10.0, y=0.5, v=0.5) if nested else {"x": 0.5}

    @property
    def batch_size(self) -> int | None:
        return None

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        own = self.data.startswith((LOCAL, TABLE))
        dataset = find_dataset(self.data, tuning, self.table)
        dataset, flags = checked_in(dataset, self.checked, self.data if own else None)
        return self._assembled(dataset, flags, partition, clients, seed, own)

    def of_sites(self, sites: Mapping[str, Mapping[str, Any]], test: float = 0.2, seed: int = 0) -> Assembly:
        """The task on arrays of your own, ready for `rk.run`; inputs are standardised over all sites.

        Args:
          sites: by name, each site's arrays: `input` (n, features), `label` (n,), whole numbers from 0, and `checked`
            (n,), whether the label was checked. `data` and `checked` of the task have no effect.
          test: part of each site's records that is held out for its own test examples.
          seed: seed of the test examples and of the held-out checked records.

        >>> rng = np.random.default_rng(0)
        >>> site = lambda: {"input": rng.normal(size=(40, 3)), "label": np.arange(40) % 2, "checked": np.arange(40) < 8}
        >>> Trust().of_sites({"north": site(), "south": site()}).clients.names
        ('north', 'south')
        """
        dataset, checked = dataset_of_sites(sites, test, seed)
        return self._assembled(dataset, {"checked": checked}, Natural(), len(dataset.owners), seed, own=True)

    def _assembled(
        self,
        dataset: Dataset,
        flags: Mapping[str, np.ndarray],
        partition: Partition,
        clients: int,
        seed: int,
        own: bool,
    ) -> Assembly:
        """The task on a dataset; `flags`: which training records are checked, or nothing where the task draws them;
        `own`: whether the data is the user's own, whose labels nobody knows to be right."""
        check_options(
            self,
            form=(self.form in FORMS, f"{', '.join(FORMS[:-1])} or {FORMS[-1]}"),
            wrong=(self.wrong is None or 0 <= self.wrong <= 1, "a number from 0 to 1"),
            kind=(self.kind in KINDS, " or ".join(KINDS)),
            checked_part=(0 < self.checked_part < 1, "a number strictly between 0 and 1"),
            held_out=(0 < self.held_out < 1, "a number strictly between 0 and 1"),
            prior=(self.prior >= 0, "a number from 0"),
            budget=(0 < self.budget <= 1, "a number above 0 and at most 1"),
            ridge=(self.ridge > 0, "a positive number"),
        )
        network = find_network("mlp", dataset, (), ("mlp",))
        dataset = replace(dataset, train={**dataset.train, **flags})
        dealt = dataset.partition(partition, clients=clients, seed=seed, own_test=True)
        data = [dealt.client(i) for i in range(dealt.population)]
        wrong = (0.0 if own else 1.0) if self.wrong is None else self.wrong
        at = self._wrong_sites(dealt.names, dealt.sizes) if wrong else []
        if not flags:
            drawn = lambda count, i: draw_checked(count, self.checked_part, (seed, 5, i))
            data = [{**each, "checked": drawn(each["label"].size, i)} for i, each in enumerate(data)]
        elif all(np.any(each["input"]) for each in data) and not any(each["checked"].any() for each in data):
            raise InputError("task.checked: no training record is checked; mark those whose labels were checked")
        seen = [
            wrong_labels(each, wrong * (i in at), self.kind, dataset.classes, (seed, 3, i))
            for i, each in enumerate(data)
        ]
        tests = [dealt.own_test(i) for i in range(dealt.population)]
        return assemble_sites(network, dict(zip(dealt.names, seen)), tests, self, seed, truth=not own or wrong > 0)

    def _wrong_sites(self, names: Sequence[str], sizes: np.ndarray) -> list[int]:
        """The numbers of the sites whose labels are made wrong."""
        if not self.site:
            return [int(np.argmax(sizes))]
        asked = [name.strip() for name in self.site.split(",")]
        for name in asked:
            if name not in names:
                raise unknown("task.site", name, list(names))
        return [list(names).index(name) for name in asked]

    @staticmethod
    def choice(result: Any) -> Choice:
        """What a run of the nested form chose, with the results without the choice.

        Args:
          result: the `Result` of the run, or one of a sweep's or a federation's.
        """
        x = jax.tree.map(np.asarray, result.sequences.x)
        if not isinstance(x, Mapping) or "loss" not in x:
            raise InputError("result: it is not of the nested form of trust, which chooses a model; run that form")
        last = result.history.rows[-1] if result.history.rows else {}
        names = ("accuracy", *(f"accuracy {name}" for name in (*CANDIDATES, ORACLE)))
        accuracies = {name: float(last[f"{name} weighted"]) for name in names if f"{name} weighted" in last}
        sites = list(range(len(x["site"]))) if result.clients is None else list(result.clients["client"])
        return Choice(
            chosen=CANDIDATES[int(chosen_index(x))],
            losses=dict(zip(CANDIDATES, x["loss"].tolist())),
            errors=dict(zip(CANDIDATES[:-1], np.sqrt(np.maximum(x["variance"], 0)).tolist())),
            accuracies={
                name.removeprefix("accuracy ").replace("accuracy", "chosen"): v for name, v in accuracies.items()
            },
            trust={str(name): float(v) for name, v in zip(sites, 1 / (1 + np.exp(-x["site"])))},
        )


def assemble_sites(
    network: Network,
    sites: Mapping[str, Mapping[str, np.ndarray]],
    tests: Sequence[Mapping[str, np.ndarray]],
    task: Trust,
    seed: int,
    truth: bool,
) -> Assembly:
    """The task of some sites' records.

    Args:
      network: the model.
      sites: by name, each site's inputs, labels, which records are checked, and which labels are wrong.
      tests: each site's test examples.
      task: its options.
      seed: what the held-out records are drawn from.
      truth: whether it is known which labels are wrong.
    """
    counts = np.array([own["label"].size for own in sites.values()])
    records = [
        records_of_site(
            own,
            own["checked"],
            own["wrong"] if truth else None,
            i,
            counts[i] / counts.sum(),
            task.held_out,
            (seed, 6, i),
        )
        for i, own in enumerate(sites.values())
    ]
    own_tests = [{**own, "site": np.full(own["label"].size, i, np.int32)} for i, own in enumerate(tests)]
    made = lambda data: federate(dict(zip(sites, data)), weights="size", test=own_tests)
    if task.form not in ("nested", "records"):
        return _alone(network, task, [*MODELS, ORACLE].index(task.form), records, made, truth)
    if task.form == "records":
        return _records(network, task, [own["wrong"] for own in sites.values()], records, made, truth)
    metrics: Any = choice_metrics
    wrong = np.concatenate([own["wrong"] for own in sites.values()])
    if truth and wrong.any():
        metrics = together(
            Metric(choice_metrics), Metric(found_sites, site=np.repeat(np.arange(len(sites)), counts), wrong=wrong)
        )
    return Assembly(
        problem=task.bilevel(upper=CheckedLoss(network, task.prior), lower=ModelsLoss(network, task.ridge)),
        clients=made(records),
        x={
            "site": np.full(len(sites), START, np.float32),
            "loss": np.zeros(len(CANDIDATES), np.float32),
            "variance": np.zeros(len(CANDIDATES) - 1, np.float32),
        },
        y=Copies(network, records[0]["fixed"].shape[1]),
        metrics=metrics,
        client_metrics=ModelsOnOwn(network, truth),
        main_metric="accuracy weighted",
        shared_metrics=choice_metrics,
        conclusion=Trust.choice,
    )


def _alone(network: Network, task: Trust, place: int, records: list[Any], made: Any, truth: bool) -> Assembly:
    """One of the models alone, which plain federated learning fits."""
    if task.form == ORACLE and not truth:
        raise InputError("task.form: oracle was given, and nobody knows which labels of own data are wrong")
    data = [{**{name: own[name] for name in ("input", "label")}, "weight": own["fixed"][:, place]} for own in records]
    return Assembly(
        problem=Single(WeightedLoss(network, task.ridge)),
        clients=made(data),
        x=network.init,
        client_metrics=OnOwn(network),
        main_metric="accuracy weighted",
    )


def _records(network: Network, task: Trust, wrong: list[Any], records: list[Any], made: Any, truth: bool) -> Assembly:
    """Sites and records with logits of their own, which stay at their site: the probe and the trusted model."""
    most = max(own["label"].size for own in records)
    models = [MODELS.index("probe"), MODELS.index("trusted")]
    data = [
        {
            **{name: own[name] for name in ("input", "label", "site", "upper")},
            **{name: own[name][:, models] for name in ("fixed", "trusted")},
            "row": np.arange(own["label"].size, dtype=np.int32),
            "gain": np.full(own["label"].size, own["label"].size ** 0.5, np.float32),
            "budget": np.full(own["label"].size, task.budget * own["label"].size, np.float32),
        }
        for own in records
    ]
    rows = {name: np.concatenate([own[name] for own in data]) for name in ("site", "row", "gain", "budget")}
    where = np.concatenate(wrong)
    return Assembly(
        problem=task.bilevel(
            upper=CheckedLoss(network, task.prior), lower=ModelsLoss(network, task.ridge), upper_scope="local"
        ),
        clients=made(data),
        x={"site": np.asarray(START, np.float32), "record": np.zeros(most, np.float32)},
        y=Copies(network, len(models)),
        metrics=Metric(found_records, wrong=where, **rows) if truth and where.any() else None,
        client_metrics=RecordsOnOwn(network),
        main_metric="accuracy weighted",
    )


def found_sites(z: Values, site: jax.Array, wrong: jax.Array) -> dict[str, jax.Array]:
    """The chance that a record with a wrong label is trusted less than one with a right label."""
    return {"auc": auc(-jnp.asarray(z.x["site"])[site], wrong)}


def found_records(
    z: Values, site: jax.Array, row: jax.Array, gain: jax.Array, budget: jax.Array, wrong: jax.Array
) -> dict[str, jax.Array]:
    """The same where records have logits of their own."""
    trust = lambda i, **own: trust_of(jax.tree.map(lambda leaf: leaf[i], z.x), own)
    return {"auc": auc(-jax.vmap(lambda i, r, g, b: trust(i, row=r, gain=g, budget=b))(site, row, gain, budget), wrong)}
