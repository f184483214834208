"""VRL-SGD: variance-reduced local SGD with all clients."""

from __future__ import annotations

import jax.numpy as jnp

from rookery.algorithms.local_steps import descend
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import count, rates
from rookery.federation.method import State, method, struct
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class VRLClient:
    """A client's correction, and where it ended in the last round."""

    delta: Sequences
    x: Sequences


@method
class VRLSGD:
    r"""Every client corrects its gradients by how far its last point was from the average.

    In every round, with x^ the average of the clients' last points x_i (which is what the server sends),

        Delta_i <- Delta_i + (x^ - x_i) / (eta Q)          from the second round on
        x_i     <- x^;   x_i <- x_i - eta (g_i(x_i) - Delta_i), Q times
        x^      <- sum_i p_i x_i

    Args:
      lr: eta, the step size.
      local_steps: Q, one number, the same for all clients.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x down, dim x up. All clients take part in every round.
    Exactness: exact at any Q: it is SCAFFOLD with all clients, Delta_i = c_i - c.

    Reference: Liang et al., Variance Reduced Local SGD with Lower Communication Complexity, 2019.
    """

    lr: GivenRates = rates()
    local_steps: int = count(default=1)
    weight_decay: float = 0.0

    kinds = ("single", "joint")
    adds_up = True
    local_bias = "none"
    participation = "all"

    def client(self, problem: Problem, z: Sequences) -> VRLClient:
        shared = z.only(problem.shared)
        return VRLClient(delta=shared.zeros(), x=shared)

    def round(self, state: State, cohort: Cohort) -> State:
        return state.next(z=cohort.project(state.z + cohort.update_mean("steps", state.z)))

    def steps(self, client: Client, z: Sequences) -> tuple[Sequences, VRLClient]:
        kept, eta = client.state, client.at(self.lr)
        # The step sizes that led to the client's last point; in the first round that is where it is.
        before = self.lr.at(jnp.maximum(client.round - 1, 0), client.index)
        delta = kept.delta + before.inverse() * ((z - kept.x) / self.local_steps)
        corrected = lambda g, x: g + self.weight_decay * x - delta
        moved = descend(client, z, eta, self.local_steps, correct=corrected, total=False).moved
        return moved, VRLClient(delta=delta, x=z + moved)
