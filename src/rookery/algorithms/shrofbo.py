"""ShroFBO: SimFBO made robust to clients that take different numbers of local steps."""

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
class ShroFBO(TwoRates):
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
      local_steps: tau_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      coefficients: a_k: None (all 1), a table of shape (steps,) or (clients, steps), or a function of
        (k, client, round).
      radius: r of the ball for v; None: no projection.
      drift: `rk.ControlVariates()` or `rk.Duals(gamma, a, d)`, which make local steps exact; None: none.
      server: `rk.ServerOptimiser(optax.adam, ...)` in the place of the server's step, or a mapping that gives some
        sequences one; None: the step above.

    Exchanges per round: 1. Floats per client: dim z down, dim z + 1 up.
    Exactness: exact at tau = 1; O(eta) at any larger numbers of steps, equal or not. Equal steps: SimFBO. With drift
    control exact at any tau_i.
    Deviations from the paper: absent clients' ||a_i||_1 is not known to the server, so rho is the normalised mean over
    the cohort.

    Reference: SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning,
    Algorithm 1, equations (7) and (8).
    """

    aggregation = "ratio"  # rho is a ratio of sums over the cohort
    uncontrolled_bias = "vanishing"

    def round(self, state: ServerState, cohort: Cohort) -> ServerState:
        (h, scaled), work = self.ask(state, cohort)
        rho = work / cohort.weight
        return self.after(state, cohort, rho * h, scaled)

    def steps(self, client: Client, z: Sequences, told: Any) -> tuple[tuple[Scaled, Any], Any]:
        work = self.work(client, z, told)
        # One exchange for the unbiased mean of h_i and the sum of ||a_i||_1, which is not to be divided by pi_i.
        upload = self.drift.upload(client, work, work.norm), work.norm * client.probability
        return upload, self.drift.keep(client, work, told)
