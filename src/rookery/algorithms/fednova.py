"""FedNova: FedAvg whose clients' moves are divided by their numbers of steps."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.method import State, Steps, method
from rookery.federation.rates import GivenRates
from rookery.vectors import Sequences


@method
class FedNova:
    r"""Normalised averaging: every client counts by how far it went per step, not by how many steps it took.

    In every round client i of the cohort C takes Q_i local gradient steps from x to x_i, and with N the cohort's
    normalised mean, N(r) = sum_C p_i r_i / sum_C p_i,

        x <- x + N(Q) N((x_i - x) / Q_i).

    Args:
      lr: eta, the local step size.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x down, dim x + 1 up.
    Exactness: exact at Q = 1; O(eta) at larger Q_i, equal or not: unequal Q_i do not change what is solved.

    Reference: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020.
    """

    lr: GivenRates = rates()
    local_steps: Steps = steps(default=1)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    aggregation = "ratio"  # normalised by the cohort's amount of work
    local_bias = "vanishing"

    def round(self, state: State, cohort: Cohort) -> State:
        per_step, steps = cohort.average("steps", state.z)
        return state.next(z=cohort.project(state.z + steps * per_step))

    def steps(self, client: Client, z: Sequences) -> tuple[Sequences, Any]:
        decayed = lambda g, x: g + self.weight_decay * x
        work = descend(client, z, client.at(self.lr), self.local_steps, correct=decayed, total=False)
        return work.moved / work.norm, work.norm
