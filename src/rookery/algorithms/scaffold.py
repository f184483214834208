"""SCAFFOLD: local steps corrected by control variates."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.measuring import OwnTerms
from rookery.federation.method import Rates, State, Steps, first_round, method, struct
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class ScaffoldState(State):
    """The server's state with its control variate c."""

    c: Sequences


@method
class Scaffold:
    r"""Stochastic controlled averaging, option II.

    In every round client i of the cohort C sets x_i = x and takes Q_i steps

        x_i <- x_i - eta (g_i(x_i) - c_i + c)

    then, with the old c_i and c on the right,

        c_i <- c_i - c + (x - x_i) / (eta Q_i)
        x   <- x + gamma sum_{i in C} (p_i / pi_i) (x_i - x)
        c   <- c + sum_{i in C} p_i (c_i^+ - c_i)

    from c_i = c = 0.

    Args:
      lr: eta, the local step size; "auto": measured.
      server_lr: gamma, the server's.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: 2 dim x down, 2 dim x up.
    Exactness: exact at any Q_i and under any sampling; in float32 c_i is known to 1e-7 |x| / (eta Q_i).
    Deviations from the paper: weights p_i where it has 1/n, and the unbiased mean under any sampling.

    Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020.
    """

    lr: GivenRates = rates(auto=True)
    server_lr: float = 1.0
    local_steps: Steps = steps(default=1)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    adds_up = True
    local_bias = "none"

    def own_terms(self) -> OwnTerms:
        return OwnTerms(Rates(self.weight_decay))

    def init(self, problem: Problem, z: Sequences) -> ScaffoldState:
        return ScaffoldState(z, first_round(), c=z.zeros())

    def client(self, problem: Problem, z: Sequences) -> Sequences:
        return z.only(problem.shared).zeros()

    def round(self, state: ScaffoldState, cohort: Cohort) -> ScaffoldState:
        moved, changed = cohort.update_mean("steps", state.z, state.c)
        return state.next(z=cohort.project(state.z + self.server_lr * moved), c=state.c + changed)

    def steps(self, client: Client, z: Sequences, c: Sequences) -> tuple[tuple[Sequences, Sequences], Sequences]:
        c_i, eta = client.state, client.at(self.lr)
        apart = c - c_i
        controlled = lambda g, x: g + self.weight_decay * x + apart
        work = descend(client, z, eta, self.local_steps, correct=controlled, total=False)
        went = eta.inverse() * (work.moved / -work.norm) - apart
        # Who does not move learns nothing of its gradients.
        new = went.map(lambda name, c: jax.tree.map(partial(jnp.where, eta[name] == 0), c_i[name], c))
        return (work.moved, client.once_factor * (new - c_i)), new
