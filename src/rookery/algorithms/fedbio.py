"""FedBiO: local steps on all sequences of a bilevel problem, then an average."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.drift import check_drift, wrap_drift
from rookery.algorithms.one_loop import OneLoop
from rookery.algorithms.parts import GivenDrift, drift_field
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.method import Steps, method
from rookery.federation.rates import GivenRates
from rookery.federation.scaled import Scaled
from rookery.federation.server import GivenServer, ServerState, check_server, server_field
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@method
class FedBiO(OneLoop):
    r"""Local steps on x, y and v at once; every I steps the clients' points are averaged.

    In every round client i of the cohort C sets z_i = z and takes I steps

        z_i <- z_i - eta D_i(z_i; fresh sample),

    uploads (z - z_i) / eta, the sum of its directions, and the server applies their unbiased mean:

        z <- z + sum_{i in C} (p_i / pi_i) (z_i - z).

    Args:
      lr: eta, the step sizes (the paper's eta, gamma and tau for x, y and u = v); "auto": measured.
      local_steps: I, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      drift: `rk.ControlVariates()` or `rk.Duals(gamma, a, d)`, which make local steps exact; None: none.
      server: `rk.ServerOptimiser(optax.adam, ...)`, which takes z - z_i for a gradient, or a mapping that gives some
        sequences one; None: the average.

    Exchanges per round: 1, that is 1 per I steps. Floats per client: dim z down, dim z up.
    Exactness: exact at I = 1; O(eta) at I > 1; with drift control exact at any I. It equals SimFBO with gamma = eta and
    tau = I.
    Deviations from the paper: differences are averaged, not points, so that sampled cohorts stay unbiased.

    Reference: Communication-Efficient Federated Bilevel Optimization with Local and Global Lower Level Problems,
    Algorithm 1.
    """

    lr: GivenRates = rates(auto=True)
    local_steps: Steps = steps(default=1)
    drift: GivenDrift = drift_field(wrap_drift)
    server: GivenServer = server_field()

    def check(self, problem: Problem, population: int) -> None:
        check_drift(self.drift, self.lr)
        check_server(self.server, problem)

    def round(self, state: ServerState, cohort: Cohort) -> ServerState:
        q, scaled = self.ask(state, cohort)
        return self.move(state, cohort, q, scaled, None)

    def steps(self, client: Client, z: Sequences, told: Any) -> tuple[Scaled, Any]:
        work = self.work(client, z, told)
        return self.drift.upload(client, work, 1), self.drift.keep(client, work, told)
