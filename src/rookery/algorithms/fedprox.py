"""FedProx: FedAvg with a proximal term that holds clients near the server's point."""

from __future__ import annotations

from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.method import State, Steps, method, static
from rookery.federation.rates import GivenRates
from rookery.vectors import Sequences


@method
class FedProx:
    r"""Local steps on f_i + mu/2 ||x_i - x||^2, then an average.

    In every round client i of the cohort C sets x_i = x, takes Q_i steps

        x_i <- x_i - eta (g_i(x_i) + mu (x_i - x)),

    and the server applies the mean of x_i - x, unbiased (default) or normalised, as FedAvg does.

    Args:
      lr: eta, the local step size.
      mu: the weight of the proximal term.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      normalised: divide by the cohort's weight in place of inclusion probabilities.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x down, dim x up.
    Exactness: exact at Q = 1; O(eta) at Q > 1 with equal Q_i.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, 2020.
    """

    lr: GivenRates = rates()
    mu: float = 0.01
    local_steps: Steps = steps(default=1)
    normalised: bool = static(default=False)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    local_bias = "reweighted"

    def round(self, state: State, cohort: Cohort) -> State:
        aggregate = cohort.average if self.normalised else cohort.mean
        return state.next(z=cohort.project(state.z + aggregate("steps", state.z)))

    def steps(self, client: Client, z: Sequences) -> Sequences:
        proximal = lambda g, x: g + self.weight_decay * x + self.mu * (x - z)
        return descend(client, z, client.at(self.lr), self.local_steps, correct=proximal, total=False).moved
