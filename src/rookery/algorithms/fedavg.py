"""FedAvg: local gradient steps, then an average."""

from __future__ import annotations

from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.measuring import OwnTerms
from rookery.federation.method import Rates, Steps, method, static
from rookery.federation.rates import GivenRates
from rookery.federation.server import GivenServer, ServerState, check_server, server_field, server_state
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@method
class FedAvg:
    r"""Federated averaging: Q_i local steps on each client, then the server averages how far they went.

    In every round client i of the cohort C sets x_i = x and takes Q_i steps

        x_i <- x_i - eta grad f_i(x_i; fresh sample),

    and the server applies the mean of x_i - x:

        x <- x + sum_{i in C} (p_i / pi_i) (x_i - x)              unbiased (default)
        x <- x + sum_{i in C} p_i (x_i - x) / sum_{i in C} p_i    normalised, as in McMahan et al.

    On a problem with more sequences all of them move so, along the direction field.

    Args:
      lr: eta, the local step size; a plain number where the problem has one sequence; "auto": measured.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      normalised: take McMahan's normalised mean.
      weight_decay: added times x to every gradient.
      server: `rk.ServerOptimiser(optax.adam, ...)`, which takes the mean of x - x_i for a gradient; or a mapping that
        gives some sequences one; None: the step above. `rk.FedAvgM`, `rk.FedAdam` and `rk.FedYogi` are presets.

    Exchanges per round: 1. Floats per client: dim x down, dim x up.
    Exactness: exact at Q = 1; O(eta) at Q > 1; with unequal Q_i it solves the problem with weights proportional to
    p_i Q_i.
    Deviations from the paper: the unbiased mean is the default; under full participation both are the same.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017; the
    unbiased form as in Beyond ADMM: A Unified Client-variance-reduced Adaptive Federated Learning Framework.
    """

    lr: GivenRates = rates(auto=True)
    local_steps: Steps = steps(default=1)
    normalised: bool = static(default=False)
    weight_decay: float = 0.0
    server: GivenServer = server_field()

    local_bias = "reweighted"

    def check(self, problem: Problem, population: int) -> None:
        check_server(self.server, problem)

    def own_terms(self) -> OwnTerms:
        return OwnTerms(Rates(self.weight_decay), normalised=self.normalised)

    def init(self, problem: Problem, z: Sequences) -> ServerState:
        return server_state(self, z)

    def round(self, state: ServerState, cohort: Cohort) -> ServerState:
        aggregate = cohort.average if self.normalised else cohort.mean
        moved = aggregate("steps", state.z)
        z, optimiser = self.server.step(state.z, -moved, None, state.optimiser)
        return state.next(z=cohort.project(z), optimiser=optimiser)

    def steps(self, client: Client, z: Sequences) -> Sequences:
        decayed = lambda d, x: d + self.weight_decay * x
        return descend(client, z, client.at(self.lr), self.local_steps, correct=decayed, total=False).moved
