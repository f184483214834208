"""Methods of the literature that are settings of others: for one client, or with an optimiser on the server.

Imports methods.
"""

from __future__ import annotations

from typing import Any

from rookery.algorithms.estimators import Neumann
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbioacc_local import FedBiOAccLocal
from rookery.algorithms.lfednest import LFedNest
from rookery.algorithms.simfbo import SimFBO
from rookery.federation.rates import Rates
from rookery.federation.server_optimiser import named_optimiser


def StocBiO(lr: Rates, neumann_step: float = 0.01, neumann_terms: int = 5, lower_steps: Any = 10) -> LFedNest:
    """StocBiO (Ji et al., 2021) for one client: lower SGD steps, the sum of all Q + 1 = `neumann_terms` terms of a
    Neumann series at the last of them, with a fresh Hessian sample for every factor, one step on x.

    Run it on `rk.federate([data])`; on more clients it is LFedNest with the whole series.
    """
    return LFedNest(
        lr=lr,
        neumann_step=neumann_step,
        neumann_terms=neumann_terms,
        lower_steps=lower_steps,
        upper_steps=1,
        lower_solver="sgd",
        whole_series=True,
    )


def MRBO(
    lr: Rates,
    momentum: Any = 1.0,
    delta: float = 1.0,
    offset: float = 1.0,
    neumann_step: float = 0.1,
    neumann_terms: int = 10,
    first_batch: int | None = None,
) -> FedBiOAccLocal:
    """MRBO (Yang et al., 2021) for one client: STORM momenta of y and of a Neumann hypergradient, in a single loop.

    Run it on `rk.federate([data])` and a problem with `lower_scope="local"`, which for one client is all the same; on
    more clients it is FedBiOAccLocal with I = 1.
    """
    return FedBiOAccLocal(
        lr=lr,
        local_steps=1,
        momentum=momentum,
        delta=delta,
        offset=offset,
        hypergradient=Neumann(neumann_terms, neumann_step),
        first_batch=first_batch,
    )


def SOBA(lr: Rates) -> SimFBO:
    """SOBA (Dagreou et al., 2022) for one client: x, y and v move together, SimFBO with one local step."""
    return SimFBO(lr=lr, local_steps=1)


def FedAvgM(lr: Any, server_lr: float = 1.0, momentum: float = 0.9, **options: Any) -> FedAvg:
    """FedAvgM (Hsu et al., 2019): FedAvg with momentum on the server. Other options are FedAvg's."""
    return FedAvg(lr=lr, server=named_optimiser("sgd", learning_rate=server_lr, momentum=momentum), **options)


def FedAdam(
    lr: Any, server_lr: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, **options: Any
) -> FedAvg:
    """FedAdam (Reddi et al., 2021): FedAvg with Adam on the server, as the paper has it, without bias correction.

    Other options are FedAvg's.
    """
    return FedAvg(lr=lr, server=named_optimiser("fed_adam", learning_rate=server_lr, b1=b1, b2=b2, eps=eps), **options)


def FedYogi(
    lr: Any, server_lr: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, **options: Any
) -> FedAvg:
    """FedYogi (Reddi et al., 2021): FedAvg with Yogi on the server, as the paper has it. Other options are FedAvg's."""
    return FedAvg(lr=lr, server=named_optimiser("fed_yogi", learning_rate=server_lr, b1=b1, b2=b2, eps=eps), **options)


def FedAdagrad(lr: Any, server_lr: float = 0.1, b1: float = 0.0, eps: float = 1e-3, **options: Any) -> FedAvg:
    """FedAdagrad (Reddi et al., 2021): FedAvg with Adagrad on the server. Other options are FedAvg's."""
    return FedAvg(lr=lr, server=named_optimiser("fed_adagrad", learning_rate=server_lr, b1=b1, eps=eps), **options)
