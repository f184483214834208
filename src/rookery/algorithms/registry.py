"""The registry: one row per method. A method without its row does not exist. Imports the methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.shrofbo import ShroFBO
from rookery.algorithms.simfbo import SimFBO
from rookery.errors import unknown


@dataclass(frozen=True)
class Row:
    """What a user wants to know of a method before choosing it."""

    method: type[Any]
    summary: str
    exchanges: int  # per round
    exactness: str
    problems: str = "any"

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.method.__name__.lower()

    @property
    def local_sequences(self) -> bool:
        """Whether it keeps local sequences on their clients."""
        return "local" in self.method.scopes


METHODS: dict[str, Row] = {
    row.name: row
    for row in [
        Row(SimFBO, "all sequences at once, one exchange a round", 1, "exact at 1 local step, O(eta) at more"),
        Row(
            ShroFBO,
            "SimFBO for clients with different numbers of local steps",
            1,
            "exact at 1 local step, O(eta) at more, unequal ones too",
        ),
        Row(
            FedBiO,
            "local steps on all sequences, then an average",
            1,
            "exact at 1 local step, O(eta) at more",
        ),
        Row(
            FedBiOAcc,
            "FedBiO with variance-reduced (STORM) momenta, for noisy minibatches",
            2,
            "exact at 1 or 2 local steps, O(eta) at more",
        ),
        Row(
            FedAvg,
            "plain federated learning: local steps, then an average",
            1,
            "exact at 1 local step, O(eta) at more",
        ),
    ]
}


def find_method(name: str) -> Row:
    """A method's row by its name on the command line."""
    if name.lower() not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name.lower()]
