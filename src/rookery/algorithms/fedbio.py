"""FedBiO: local steps on all sequences of a bilevel problem, then an average."""

from __future__ import annotations

from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.method import Rates, State, Steps, method
from rookery.vectors import Sequences


@method
class FedBiO:
    r"""Local steps on x, y and v at once; every I steps the clients' points are averaged.

    In every round client i of the cohort C sets z_i = z and takes I steps

        z_i <- z_i - eta D_i(z_i; fresh sample),

    uploads z_i - z, and the server applies their unbiased mean:

        z <- z + sum_{i in C} (p_i / pi_i) (z_i - z).

    Args:
      lr: eta, the step sizes (the paper's eta, gamma and tau for x, y and u = v).
      local_steps: I, an int, `rk.FixedSteps` or `rk.RandomSteps`.

    Exchanges per round: 1, that is 1 per I steps. Floats per client: dim z down, dim z up.
    Exactness: exact at I = 1; O(eta) at I > 1. It equals SimFBO with gamma = eta and tau = I.
    Deviations from the paper: differences are averaged, not points, so that sampled cohorts stay unbiased.

    Reference: Federated Bilevel Optimization with Local and Global Lower Level Problems, Algorithm 1.
    """

    lr: Rates
    local_steps: Steps = 1

    def round(self, state: State, cohort: Cohort) -> State:
        return state.next(z=cohort.project(state.z + cohort.mean("steps", state.z)))

    def steps(self, client: Client, z: Sequences) -> Sequences:
        return descend(client, z, self.lr.at(client.round), client.steps(self.local_steps)).moved
