"""Trust: how much each site counts, learnt from a few records whose labels were checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from rookery.data.catalogue import LOCAL, TABLE
from rookery.data.datasets import Dataset
from rookery.data.federated import federate
from rookery.data.partitions import Partition
from rookery.errors import InputError, unknown
from rookery.metric import Metric, together
from rookery.problems.kinds import Single
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.metrics import OnOwn, auc
from rookery.tasks.models import Network
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
    """Column that says which records' labels were checked (1) or not (0); own data needs it."""
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
    ridge: float = 0.01
    """Weight of |y|^2 / 2 in the lower loss."""

    defaults: ClassVar[Mapping[str, Any]] = {"partition": "natural"}

    @property
    def rates(self) -> Mapping[str, float]:
        nested = self.form in ("nested", "records")
        return self.nested_rates(x=10.0, y=0.5, v=0.5) if nested else {"x": 0.5}

    @property
    def batch_size(self) -> int | None:
        return None

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            form=(self.form in FORMS, f"{', '.join(FORMS[:-1])} or {FORMS[-1]}"),
            wrong=(self.wrong is None or 0 <= self.wrong <= 1, "a number from 0 to 1"),
            kind=(self.kind in KINDS, " or ".join(KINDS)),
            checked_part=(0 < self.checked_part < 1, "a number strictly between 0 and 1"),
            held_out=(0 < self.held_out < 1, "a number strictly between 0 and 1"),
            prior=(self.prior >= 0, "a number from 0"),
            ridge=(self.ridge > 0, "a positive number"),
        )
        own = self.data.startswith((LOCAL, TABLE))
        dataset, flags = self._flags(find_dataset(self.data, tuning), own)
        network = find_network("mlp", dataset, (), ("mlp",))
        dataset = replace(dataset, train={**dataset.train, **flags})
        dealt = dataset.partition(partition, clients=clients, seed=seed, own_test=True)
        data = [dealt.client(i) for i in range(dealt.population)]
        names, sizes = dealt.names, dealt.sizes
        wrong = (0.0 if own else 1.0) if self.wrong is None else self.wrong
        at = self._wrong_sites(names, sizes) if wrong else []
        if not flags:
            drawn = lambda count, i: draw_checked(count, self.checked_part, (seed, 5, i))
            data = [{**each, "checked": drawn(each["label"].size, i)} for i, each in enumerate(data)]
        elif all(np.any(each["input"]) for each in data) and not any(each["checked"].any() for each in data):
            raise InputError(
                f"task.checked: no record is checked in column {self.checked!r}; set it to 1 where a label was checked"
            )
        seen = [
            wrong_labels(each, wrong * (i in at), self.kind, dataset.classes, (seed, 3, i))
            for i, each in enumerate(data)
        ]
        return assemble_sites(
            network,
            dict(zip(names, seen)),
            [dealt.own_test(i) for i in range(dealt.population)],
            self,
            seed,
            truth=not own or wrong > 0,
        )

    def _flags(self, dataset: Dataset, own: bool) -> tuple[Dataset, dict[str, np.ndarray]]:
        """The dataset without the column of checked records, and which training records are checked; nothing where
        the task draws them."""
        if not self.checked:
            if own:
                raise InputError(
                    f"task.checked: none was given, and {self.data!r} is own data; add a column that is 1 where a "
                    "record's label was checked and 0 elsewhere, and name it: --task.checked COLUMN"
                )
            return dataset, {}
        if self.checked not in dataset.columns:
            part = _as_number(self.checked)
            if part is not None and not own:
                raise InputError(
                    f"task.checked: {self.checked!r} was given; it names a column. A part of built-in data is drawn as "
                    f"checked by --task.checked-part {part:g}"
                )
            raise unknown("task.checked", self.checked, dataset.columns)
        place = dataset.columns.index(self.checked)
        if len(dataset.columns) == 1:
            raise InputError(f"task.checked: {self.checked!r} is the only column; at least one input is needed")
        for part in (dataset.train, dataset.test):
            values = np.unique(part["input"][:, place])
            if not set(values.tolist()) <= {0.0, 1.0}:
                raise InputError(
                    f"task.checked: column {self.checked!r} holds {values[~np.isin(values, (0, 1))][0]:g}; it must be "
                    "1 where a label was checked and 0 elsewhere"
                )
        return _without_column(dataset, place), {"checked": dataset.train["input"][:, place] > 0}

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
        metrics_of_values=True,
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
        }
        for own in records
    ]
    rows = {name: np.concatenate([own[name] for own in data]) for name in ("site", "row", "gain")}
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
    return {"auc": auc(-z.x["site"][site], wrong)}


def found_records(
    z: Values, site: jax.Array, row: jax.Array, gain: jax.Array, wrong: jax.Array
) -> dict[str, jax.Array]:
    """The same where records have logits of their own."""
    own = jax.tree.map(lambda leaf: leaf[site], z.x)
    return {"auc": auc(-jax.vmap(lambda x, r, g: trust_of(x, {"row": r, "gain": g}))(own, row, gain), wrong)}


def draw_checked(count: int, part: float, seed: tuple[int, ...]) -> np.ndarray:
    """Which of a site's records are checked, where these are drawn: a part of them, and at least one."""
    checked = np.zeros(count, bool)
    number = min(max(round(part * count), 1), max(count - 1, 1))
    checked[np.random.default_rng(seed).permutation(count)[:number]] = True
    return checked


def wrong_labels(
    own: Mapping[str, np.ndarray], part: float, kind: str, classes: int, seed: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """A site's records with a part of the unchecked labels replaced, and which labels are wrong."""
    rng, label = np.random.default_rng(seed), own["label"]
    replaced = (rng.random(label.size) < part) & ~own["checked"]
    other = (label + 1) % classes if kind == "next" else rng.integers(0, classes, label.size)
    found = np.where(replaced, other, label).astype(np.int32)
    return {**own, "label": found, "wrong": found != label}


def _without_column(dataset: Dataset, place: int) -> Dataset:
    """The dataset without one of its columns."""
    part = lambda examples: {**examples, "input": np.delete(examples["input"], place, axis=1)}
    scale = dataset.scale
    fewer = lambda value: tuple(np.delete(value, place).tolist()) if isinstance(value, tuple) else value
    return replace(
        dataset,
        train=part(dataset.train),
        test=part(dataset.test),
        columns=tuple(np.delete(dataset.columns, place).tolist()),
        scale=replace(scale, shape=(scale.shape[0] - 1,), mean=fewer(scale.mean), std=fewer(scale.std)),
    )


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
