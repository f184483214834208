"""SimFBO: simple federated bilevel optimisation, one loop and one exchange per round."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.one_loop import TwoRates
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.method import method
from rookery.federation.scaled import Scaled
from rookery.federation.server import ServerState
from rookery.vectors import Sequences


@method
class SimFBO(TwoRates):
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
      lr: eta, the clients' step sizes; "auto": measured.
      server_lr: gamma, the server's step sizes; None: the same as `lr`.
      local_steps: tau_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
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

    def round(self, state: ServerState, cohort: Cohort) -> ServerState:
        q, scaled = self.ask(state, cohort)
        return self.after(state, cohort, q, scaled)

    def steps(self, client: Client, z: Sequences, told: Any) -> tuple[Scaled, Any]:
        work = self.work(client, z, told)
        return self.drift.upload(client, work, 1), self.drift.keep(client, work, told)
