"""SimFBO: simple federated bilevel optimisation, one loop and one exchange per round."""

from __future__ import annotations

from rookery.algorithms.local_steps import Coefficients, check_coefficients, check_radius, descend, wrap_coefficients
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.method import Rates, State, Steps, method
from rookery.problems.base import Problem
from rookery.problems.sets import ball
from rookery.vectors import Sequences


@method
class SimFBO:
    r"""Moves all sequences of a nested problem together: tau_i local steps, one exchange, one server step.

    In every round the server sends z = {x, y, v} to the cohort C, client i sets z_i^0 = z and computes

        z_i^{k+1} = z_i^k - eta a_k D_i(z_i^k; sample k),   k = 0 .. tau_i - 1
        q_i       = sum_k a_k D_i(z_i^k; sample k)

    and the server steps along the unbiased mean of what they send, then keeps v in a ball:

        z <- z - gamma sum_{i in C} (p_i / pi_i) q_i
        v <- v min(1, r / ||v||)

    With tau = 1 the local step sizes have no effect on shared sequences. Local sequences move by their local steps
    alone and stay on their client.

    Args:
      lr: eta, the clients' step sizes.
      server_lr: gamma, the server's step sizes; None: the same as `lr`.
      local_steps: tau_i, an int, `rk.FixedSteps` or `rk.RandomSteps`.
      coefficients: a_k: None (all 1), a table of shape (steps,) or (clients, steps), or a function of
        (k, client, round).
      radius: r of the ball for v; None: no projection.

    Exchanges per round: 1. Floats per client: dim z down, dim z up.
    Exactness: exact at tau = 1; O(eta) at tau > 1, which shrinks with `lr` alone; with unequal tau_i it solves the
    problem with weights proportional to p_i ||a_i||_1 (ShroFBO does not).
    Deviations from the paper: means are divided by inclusion probabilities under any sampling, not only uniform.

    >>> import numpy as np, rookery as rk
    >>> clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([3.0])}])
    >>> problem = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
    >>> round(float(rk.run(problem, rk.SimFBO(lr=0.5), clients, x=0.0, rounds=20).x), 3)
    2.0

    Reference: SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning,
    Algorithm 1, equations (3) to (6).
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
        q = cohort.mean("steps", state.z)
        z = cohort.project(state.z - gamma * q)
        if self.radius is not None:
            z = z.replace(v=ball(z.v, self.radius))
        return state.next(z=z)

    def steps(self, client: Client, z: Sequences) -> Sequences:
        tau = client.steps(self.local_steps)
        return descend(client, z, self.lr.at(client.round), tau, self.coefficients).q
