"""The registry: one row per method. A method without its row does not exist. Imports the methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rookery.algorithms.aggitd import AggITD
from rookery.algorithms.commfedbio import CommFedBiO
from rookery.algorithms.fedadmm import FedADMM
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.fedbio_local import FedBiOLocal
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.fedbioacc_local import FedBiOAccLocal
from rookery.algorithms.feddyn import FedDyn
from rookery.algorithms.fedmsa import FedMSA
from rookery.algorithms.fednest import FedNest
from rookery.algorithms.fednova import FedNova
from rookery.algorithms.fedpd import FedPD
from rookery.algorithms.fedprox import FedProx
from rookery.algorithms.fedvra import FedVRA
from rookery.algorithms.fedvrau import FedVRAU
from rookery.algorithms.gbdsbo import GBDSBO
from rookery.algorithms.gossip import Gossip, GossipTracking
from rookery.algorithms.lfednest import LFedNest
from rookery.algorithms.scaffold import Scaffold
from rookery.algorithms.shrofbo import ShroFBO
from rookery.algorithms.simfbo import SimFBO
from rookery.algorithms.vrlsgd import VRLSGD
from rookery.errors import InputError, unknown
from rookery.federation.method import is_method
from rookery.own_code import file_and_class, full_name, load_class


@dataclass(frozen=True)
class Row:
    """What a user wants to know of a method before choosing it. In formulas: N lower rounds, T Neumann terms or
    exchanges for the adjoint."""

    method: type[Any]
    summary: str
    exchanges: str  # per round
    floats_up: str  # per client and round
    exactness: str
    client_state: str = "none"
    unequal_steps: str = "yes"
    file: str | None = None  # of a method of the user's own: its whole name, FILE.py:Class

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.file or self.method.__name__.lower()

    @property
    def participation(self) -> str:
        """Who may take part in a round."""
        return "all clients" if self.method.participation == "all" else "any sampling"

    @property
    def problems(self) -> str:
        """The kinds of problem it solves."""
        kinds = "any" if self.method.kinds is None else ", ".join(self.method.kinds)
        if "shared" not in self.method.scopes:
            return f"{kinds}, own lower level per client"
        return kinds if "local" in self.method.scopes else f"{kinds}, all sequences shared"


_EXACT = "exact at any number of local steps"
_ONE_STEP = "exact at 1 local step, O(eta) at more"

METHODS: dict[str, Row] = {
    row.name: row
    for row in [
        Row(SimFBO, "all sequences at once, one exchange a round", "1", "dim z", _ONE_STEP),
        Row(
            ShroFBO,
            "SimFBO for clients with different numbers of local steps",
            "1",
            "dim z + 1",
            _ONE_STEP + ", unequal ones too",
        ),
        Row(FedBiO, "local steps on all sequences, then an average", "1", "dim z", _ONE_STEP),
        Row(
            FedBiOAcc,
            "FedBiO with variance-reduced (STORM) momenta, for noisy minibatches",
            "2",
            "2 dim z",
            "exact at 1 or 2 local steps, O(eta) at more",
            client_state="within a round; momenta of its own sequences",
            unequal_steps="no",
        ),
        Row(
            FedBiOLocal,
            "each client its own lower problem, only x travels",
            "1",
            "dim x",
            "exact at 1 local step with an exact adjoint, truncation bias with a Neumann series",
            client_state="y, v",
        ),
        Row(
            FedBiOAccLocal,
            "FedBiOLocal with STORM momenta",
            "2",
            "2 dim x",
            "as FedBiOLocal, at 1 or 2 local steps",
            client_state="y, v, momenta",
            unequal_steps="no",
        ),
        Row(
            FedMSA,
            "server momentum and SPIDER local steps, on any number of sequences",
            "2",
            "2 dim z",
            "exact at any number of local steps",
            unequal_steps="no",
        ),
        Row(
            FedNest,
            "two loops: lower rounds, an exchanged Neumann series, an upper round",
            "2N + T + 3",
            "(2N + T + 1) dim y + 2 dim x",
            "truncation bias, which shrinks linearly in T",
        ),
        Row(
            LFedNest,
            "FedNest with hypergradients from each client's own Hessians",
            "2N + 1",
            "2N dim y + dim x",
            "biased when clients differ",
        ),
        Row(
            AggITD,
            "two loops: the Neumann product rides on the lower rounds' exchanges",
            "2N + 3",
            "(3N + 1) dim y + 2 dim x",
            "truncation bias, which shrinks linearly in N",
        ),
        Row(
            CommFedBiO,
            "two loops: the adjoint by T exchanges that compress well, or by one of sketches",
            "N + T + 1",
            "(N + T) dim y + dim x",
            "exact at 1 lower step, O(eta) at more; sketched: biased",
        ),
        Row(FedAvg, "plain federated learning: local steps, then an average", "1", "dim z", _ONE_STEP),
        Row(FedProx, "FedAvg with a proximal term", "1", "dim x", _ONE_STEP),
        Row(
            FedNova,
            "FedAvg for clients with different numbers of local steps",
            "1",
            "dim x + 1",
            _ONE_STEP + ", unequal ones too",
        ),
        Row(Scaffold, "control variates against client drift", "1", "2 dim x", _EXACT, client_state="c"),
        Row(
            VRLSGD,
            "SCAFFOLD for all clients at half its upload",
            "1",
            "dim x",
            _EXACT,
            client_state="Delta, last x",
            unequal_steps="no",
        ),
        Row(FedDyn, "dynamic regularisation: a dual per client", "1", "dim x", _EXACT, client_state="dual"),
        Row(FedADMM, "consensus ADMM with local steps", "1", "dim x", _EXACT, client_state="dual"),
        Row(
            FedPD,
            "primal-dual, may skip communication",
            "1",
            "dim x",
            _EXACT + " with skip = 0",
            client_state="dual",
        ),
        Row(
            FedVRA,
            "duals with adaptive dual and aggregation step sizes: ADMM, FedDyn, FedProx and more in one",
            "1",
            "dim x + 1",
            _EXACT,
            client_state="dual",
        ),
        Row(
            FedVRAU,
            "FedVRA with a constrained block of each client's own: pseudo-labels, clusters",
            "1",
            "dim x + 1",
            _EXACT,
            client_state="y, dual",
        ),
        Row(
            Gossip,
            "no server: steps on all sequences, mixed with neighbours on a graph",
            "1",
            "dim z to each neighbour",
            "O(eta) where clients differ",
            client_state="z",
        ),
        Row(
            GossipTracking,
            "Gossip in which every client tracks the mean direction of all",
            "1",
            "2 dim z to each neighbour",
            "exact on any connected graph",
            client_state="z, mean direction, own direction",
            unequal_steps="no",
        ),
        Row(
            GBDSBO,
            "no server: neighbours mix whole Hessians and Jacobians",
            "1",
            "2 dim x + 2 dim y + dim x dim y + (T - 1) dim y^2 to each neighbour",
            "biased when clients differ, truncation bias",
            client_state="x, y, gradients, matrices",
            unequal_steps="no",
        ),
    ]
}


def find_method(name: str) -> Row:
    """A method's row by its name on the command line, or one's own as `path/to/file.py:Class`."""
    if file_and_class(name) is not None:
        cls = load_class(name, "method")
        if not is_method(cls):
            raise InputError(f"method: {cls.__name__} was given, which is no method; make it one with @rk.method")
        summary = (cls.__doc__ or "a method of one's own").strip().split("\n")[0].rstrip(".")
        return Row(cls, summary, "as it makes", "as it sends", "not known", file=full_name(name))
    if name.lower() not in METHODS:
        raise unknown("method", name, [*METHODS, "FILE.py:CLASS"])
    return METHODS[name.lower()]
