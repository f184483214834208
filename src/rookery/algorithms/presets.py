"""Methods of the one-client literature as settings of the federated ones. Imports methods."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.fednest import FedNest
from rookery.algorithms.simfbo import SimFBO
from rookery.federation.rates import Rates


def StocBiO(lr: Rates, neumann_step: float = 0.01, neumann_terms: int = 5, lower_steps: Any = 10) -> FedNest:
    """StocBiO (Ji et al., 2021) for one client: lower SGD steps, a Neumann series from y^N, one step on x.

    Run it on `rk.federate([data])`; on more clients it is FedNest with plain lower steps.
    """
    return FedNest(
        lr=lr,
        neumann_step=neumann_step,
        neumann_terms=neumann_terms,
        lower_steps=lower_steps,
        upper_steps=1,
        lower_solver="sgd",
    )


def MRBO(lr: Rates, momentum: float = 1.0, delta: float = 1.0, offset: float = 1.0) -> FedBiOAcc:
    """MRBO (Yang et al., 2021) for one client: STORM momenta in a single loop, FedBiOAcc with I = 1."""
    return FedBiOAcc(lr=lr, local_steps=1, momentum=Rates(momentum), delta=delta, offset=offset)


def SOBA(lr: Rates) -> SimFBO:
    """SOBA (Dagreou et al., 2022) for one client: x, y and v move together, SimFBO with one local step."""
    return SimFBO(lr=lr, local_steps=1)
