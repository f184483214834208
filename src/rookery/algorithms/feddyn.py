"""FedDyn: dynamic regularisation that aligns the clients' problems with the common one."""

from __future__ import annotations

from rookery.algorithms.local_steps import descend
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.method import State, Steps, first_round, method, struct
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class FedDynState(State):
    """The server's state with h."""

    h: Sequences


@method
class FedDyn:
    r"""Federated learning with dynamic regularisation.

    In every round client i of the cohort C sets x_i = x and takes Q_i steps

        x_i <- x_i - eta (g_i(x_i) - l_i + alpha (x_i - x))

    then l_i <- l_i - alpha (x_i - x), its gradient at the last point; and, with s = sum_C p_i (m/n in the paper),

        h <- h - alpha sum_{i in C} p_i (x_i - x)
        x <- sum_{i in C} p_i x_i / s - h / alpha

    Args:
      lr: eta, the local step size.
      alpha: the weight of the regulariser, above 0.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x down, dim x up.
    Exactness: exact at any Q_i and under any sampling.
    Deviations from the paper: local steps in place of a minimiser; weights p_i where it has 1/n.

    Reference: Acar et al., Federated Learning Based on Dynamic Regularization, 2021.
    """

    lr: GivenRates = rates()
    alpha: float = 0.1
    local_steps: Steps = steps(default=1)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    aggregation = "biased"  # absent clients count with the duals that they keep
    adds_up = True
    local_bias = "none"

    def check(self, problem: Problem, population: int) -> None:
        if not self.alpha > 0:
            raise InputError(f"alpha: {self.alpha} was given; a positive number is needed")

    def init(self, problem: Problem, z: Sequences) -> FedDynState:
        return FedDynState(z, first_round(), h=z.zeros())

    def client(self, problem: Problem, z: Sequences) -> Sequences:
        return z.only(problem.shared).zeros()

    def round(self, state: FedDynState, cohort: Cohort) -> FedDynState:
        moved = cohort.update_mean("steps", state.z)
        h = state.h - self.alpha * moved
        return state.next(z=cohort.project(state.z + moved / cohort.share - h / self.alpha), h=h)

    def steps(self, client: Client, z: Sequences) -> tuple[Sequences, Sequences]:
        l_i = client.state
        regularised = lambda g, x: g + self.weight_decay * x - l_i + self.alpha * (x - z)
        moved = descend(client, z, client.at(self.lr), self.local_steps, correct=regularised, total=False).moved
        # The unbiased mean of the first is sum_C p_i (x_i - x).
        return client.once_factor * moved, l_i - self.alpha * moved
