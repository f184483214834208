"""SimFBO: simple federated bilevel optimisation, one loop and one exchange per round."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.drift import check_drift, wrap_drift
from rookery.algorithms.local_steps import check_coefficients, check_radius, descend, wrap_coefficients
from rookery.algorithms.parts import drift_field
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps, table
from rookery.federation.method import Rates, Steps, method
from rookery.federation.protocols import Drift, ServerStep
from rookery.federation.replies import Scaled
from rookery.federation.server import ServerState, check_server, server_field, server_state
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
      local_steps: tau_i, an int, `rk.FixedSteps`, `rk.RandomSteps` or `rk.Epochs`.
      coefficients: a_k: None (all 1), a table of shape (steps,) or (clients, steps), or a function of
        (k, client, round).
      radius: r of the ball for v; None: no projection.
      drift: `rk.ControlVariates()` or `rk.Duals(gamma, a, d)`, which make local steps exact; None: none.
      server: `rk.ServerOptimiser(optax.adam, ...)` in the place of the server's step, or a mapping that gives some
        sequences one; None: the step above.

    Exchanges per round: 1. Floats per client: dim z down, dim z up.
    Exactness: exact at tau = 1; O(eta) at tau > 1, which shrinks with `lr` alone; with unequal tau_i it solves the
    problem with weights proportional to p_i ||a_i||_1 (ShroFBO does not). With drift control exact at any tau_i.
    Deviations from the paper: means are divided by inclusion probabilities under any sampling, not only uniform.

    >>> import numpy as np, rookery as rk
    >>> clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([3.0])}])
    >>> problem = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
    >>> round(float(rk.run(problem, rk.SimFBO(lr=0.5), clients, x=0.0, rounds=20).x), 3)
    2.0

    Reference: SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning,
    Algorithm 1, equations (3) to (6).
    """

    lr: Rates = rates()
    server_lr: Rates | None = rates(default=None)
    local_steps: Steps = steps(default=1)
    coefficients: Any = table(wrap_coefficients)
    radius: float | None = None
    drift: Drift = drift_field(wrap_drift)
    server: ServerStep = server_field()

    def check(self, problem: Problem, population: int) -> None:
        check_coefficients(self.coefficients, self.local_steps, population)
        check_radius(self.radius, problem)
        check_drift(self.drift, self.lr, self.server_lr)
        check_server(self.server, problem, self.server_lr)

    def init(self, problem: Problem, z: Sequences) -> ServerState:
        return server_state(self, z, self.drift.server(z))

    def client(self, problem: Problem, z: Sequences) -> Any:
        return self.drift.client(z.only(problem.shared))

    def round(self, state: ServerState, cohort: Cohort) -> ServerState:
        gamma = (self.lr if self.server_lr is None else self.server_lr).at(state.round)
        q, scaled = cohort.update_mean("steps", state.z, self.drift.told(state.duals))
        q, duals = self.drift.step(q, scaled, state.duals, cohort, self.lr, state.round)
        z, optimiser = self.server.step(state.z, q, gamma, state.optimiser)
        z = cohort.project(z)
        if self.radius is not None:
            z = z.replace(v=ball(z.v, self.radius))
        return state.next(z=z, optimiser=optimiser, duals=duals)

    def steps(self, client: Client, z: Sequences, told: Any) -> tuple[Scaled, Any]:
        correct = self.drift.correct(client, z, told)
        work = descend(client, z, client.at(self.lr), self.local_steps, self.coefficients, correct)
        return self.drift.upload(client, work, 1), self.drift.keep(client, work, told)
