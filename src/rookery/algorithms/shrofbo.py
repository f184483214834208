"""ShroFBO: SimFBO made robust to clients that take different numbers of local steps."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.local_steps import Coefficients, check_coefficients, check_radius, descend, wrap_coefficients
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.method import Rates, State, Steps, method
from rookery.problems.base import Problem
from rookery.problems.sets import ball
from rookery.vectors import Sequences


@method
class ShroFBO:
    r"""SimFBO with every client's upload divided by its own amount of local work.

    In every round client i of the cohort C takes the local steps of SimFBO and uploads

        h_i = q_i / ||a_i||_1   and   ||a_i||_1,   q_i = sum_k a_k D_i(z_i^k; sample k)

    and the server steps along their unbiased mean, scaled by the cohort's mean amount of work:

        rho = sum_C p_i ||a_i||_1 / sum_C p_i
        z  <- z - rho gamma sum_C (p_i / pi_i) h_i
        v  <- v min(1, r / ||v||)

    Args:
      lr: eta, the clients' step sizes.
      server_lr: gamma, the server's step sizes; None: the same as `lr`.
      local_steps: tau_i, an int, `rk.FixedSteps` or `rk.RandomSteps`.
      coefficients: a_k: None (all 1), a table of shape (steps,) or (clients, steps), or a function of
        (k, client, round).
      radius: r of the ball for v; None: no projection.

    Exchanges per round: 1. Floats per client: dim z down, dim z + 1 up.
    Exactness: exact at tau = 1; O(eta) at any larger numbers of steps, equal or not. Equal steps: SimFBO.
    Deviations from the paper: absent clients' ||a_i||_1 is not known to the server, so rho is the normalised mean over
    the cohort.

    Reference: SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning,
    Algorithm 1, equations (7) and (8).
    """

    lr: Rates
    server_lr: Rates | None = None
    local_steps: Steps = 1
    coefficients: Coefficients = None
    radius: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "coefficients", wrap_coefficients(self.coefficients))

    def check(self, problem: Problem, population: int) -> None:
        check_coefficients(self.coefficients, self.local_steps, population)
        check_radius(self.radius, problem)

    def round(self, state: State, cohort: Cohort) -> State:
        gamma = (self.lr if self.server_lr is None else self.server_lr).at(state.round)
        h, work = cohort.sum("steps", state.z)
        rho = work / cohort.weight
        z = cohort.project(state.z - rho * (gamma * h))
        if self.radius is not None:
            z = z.replace(v=ball(z.v, self.radius))
        return state.next(z=z)

    def steps(self, client: Client, z: Sequences) -> tuple[Sequences, Any]:
        tau = client.steps(self.local_steps)
        work = descend(client, z, self.lr.at(client.round), tau, self.coefficients)
        # The server adds h_i / pi_i, an unbiased mean, and ||a_i||_1, a sum to be normalised, in one exchange.
        return work.q / (work.norm * client.probability), work.norm
