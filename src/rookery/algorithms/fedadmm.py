"""Federated ADMM: the alternating direction method of multipliers with sampled clients and local steps."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.fedvra import FedVRAState, check_gamma, inverse_of_mean, times_gamma
from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import amount, rates, steps
from rookery.federation.method import Steps, first_round, method
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@method
class FedADMM:
    r"""Consensus ADMM: inexact local solves of the augmented Lagrangian, multipliers, a consensus step.

    In every round client i of the cohort C sets x_i = x, takes Q_i steps

        x_i <- x_i - eta (g_i(x_i) - lambda_i + gamma_i (x_i - x))

    and then lambda_i <- lambda_i + gamma_i (x - x_i). An absent client has x_i = x, its lambda_i stays. The server,
    with beta = 1 / sum_i p_i gamma_i,

        x <- beta sum_i p_i (gamma_i x_i - lambda_i)
           = x + beta (sum_{i in C} p_i gamma_i (x_i - x) - sum_i p_i lambda_i)

    Kept as u_i = lambda_i / gamma_i and u = beta sum_i p_i lambda_i, so that gamma = 0 is no singularity.

    Args:
      lr: eta, the local step size.
      gamma: the penalty: a number, or `rk.PerClient`.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x down, dim x up.
    Exactness: exact at any Q_i and under any sampling; gamma large enough for it to be stable.
    Deviations from the paper: x_i - x is uploaded (times gamma_i, where clients have their own), of which the server
    forms the multipliers itself.

    Reference: Beyond ADMM: A Unified Client-variance-reduced Adaptive Federated Learning Framework, Algorithm 2.
    """

    lr: GivenRates = rates()
    gamma: Any = amount(default=0.1)
    local_steps: Steps = steps(default=1)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    aggregation = "biased"  # absent clients count with the duals that they keep
    adds_up = True
    local_bias = "none"

    def check(self, problem: Problem, population: int) -> None:
        check_gamma(self.gamma)

    def init(self, problem: Problem, z: Sequences) -> FedVRAState:
        return FedVRAState(z, first_round(), u=z.zeros())

    def client(self, problem: Problem, z: Sequences) -> Sequences:
        return z.only(problem.shared).zeros()

    def round(self, state: FedVRAState, cohort: Cohort) -> FedVRAState:
        moved = inverse_of_mean(self.gamma, cohort) * cohort.update_mean("steps", state.z)
        u = state.u - moved
        return state.next(z=cohort.project(state.z + moved - u), u=u)

    def steps(self, client: Client, z: Sequences) -> tuple[Sequences, Sequences]:
        u, gamma = client.state, client.at(self.gamma).one
        lagrangian = lambda g, x: g + self.weight_decay * x + gamma * (x - z - u)
        moved = descend(client, z, client.at(self.lr), self.local_steps, correct=lagrangian, total=False).moved
        # The unbiased mean of the first is sum_C p_i gamma_i (x_i - x).
        return client.once_factor * times_gamma(self.gamma, client, moved), u - moved
