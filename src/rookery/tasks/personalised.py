"""Personalised learning: a body that all clients share, and a head of each one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax

from rookery.data.partitions import Partition
from rookery.problems.base import Problem
from rookery.problems.kinds import Joint, Single
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.hyperrep import Lower, Upper
from rookery.tasks.metrics import OnOwn
from rookery.tasks.models import Classification, Network

FORMS = ("heads", "nested", "shared", "alone")


@dataclass(frozen=True)
class Personalised(Nested):
    """Personalised learning: a body that all clients share, under a head of each client's own.

    heads: one loss of both, min over x and all y_i of sum_i p_i f_i(x, y_i). nested: every head is what fits the
    client's training examples, y_i*(x), and the body is judged by its validation examples. shared: one network for all,
    as FedAvg has it. alone: every client its own network, nothing is exchanged. Accuracies are of each client's own
    test examples.
    """

    data: str = "digits"
    """Which data: digits, heart, mnist, cifar10 or another of the catalogue."""
    form: Literal["heads", "nested", "shared", "alone"] = "heads"
    """What is whose: heads, nested, shared or alone."""
    hidden: int = 64
    """Width of the hidden layer, which is the body."""
    ridge: float = 0.01
    """Weight of |y|^2 / 2, of each client's own head."""
    validation: float = 0.5
    """Part of each client's examples that the upper level of nested sees."""

    defaults: ClassVar[Mapping[str, Any]] = {"partition": "dirichlet:0.1", "cohort": 0}

    @property
    def rates(self) -> Mapping[str, float]:
        if self.form == "nested":
            return self.nested_rates(x=0.2, y=0.2, v=0.2)
        return {"x": 0.2, "y": 0.2} if self.form == "heads" else {"x": 0.2}

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            form=(self.form in FORMS, ", ".join(FORMS[:-1]) + f" or {FORMS[-1]}"),
            hidden=(self.hidden >= 1, "a width of at least 1"),
            ridge=(self.ridge > 0, "a positive number"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network("mlp", dataset, (self.hidden,), ("mlp",))
        validation = self.validation if self.form == "nested" else None
        federation = dataset.partition(partition, clients=clients, seed=seed, validation=validation, own_test=True)
        # Made here and not by the run, whose keys differ by client: all forms, and all clients, start alike.
        layers = list(network.init(jax.random.key(seed)).items())
        apart = self.form in ("heads", "nested")
        return Assembly(
            problem=self._problem(network),
            clients=federation,
            x=dict(layers[:-1] if apart else layers),
            y=dict(layers[-1:]) if apart else None,
            client_metrics=OnOwn(network, ("x", "y") if apart else ("x",)),
            main_metric="accuracy mean",
        )

    def _problem(self, network: Network) -> Problem:
        if self.form == "heads":
            return Joint(Lower(network, self.ridge))
        if self.form == "nested":
            return self.bilevel(upper=Upper(network), lower=Lower(network, self.ridge), lower_scope="local")
        return Single(Classification(network), scope="local" if self.form == "alone" else "shared")
