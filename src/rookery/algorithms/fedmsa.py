"""FedMSA: federated multi-sequence stochastic approximation, momentum at the server and SPIDER steps at clients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import count, rates
from rookery.federation.method import State, first_round, method, struct
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class MSAState(State):
    """The server's state with the previous point and the previous direction."""

    previous: Sequences
    d: Sequences


@method
class FedMSA:
    r"""Any number of coupled sequences: an aggregated momentum direction, then K local variance-reduced steps.

    In every round, with M the unbiased mean, one sample xi used at both points [exchange 1, the whole cohort]:

        d <- M(D_i(z; xi) + (1 - rho) (d_prev - D_i(z_prev; xi)))

    Then `local_clients` of the cohort take K steps from z_1 = z_0 = z, d_0 = d [exchange 2]:

        d_k = D_i(z_k; xi_k) + d_{k-1} - D_i(z_{k-1}; xi_k),   z_{k+1} = z_k - eta d_k
        z  <- z + M(z_{K+1} - z)

    In the first round that has clients rho = 1 and K = 1.

    Args:
      lr: eta, the step sizes.
      local_steps: K, one whole number.
      momentum: rho, in [0, 1]; with 0 the direction of the first round is only ever corrected, as SPIDER's.
      local_clients: how many clients of the cohort run the local steps: 1 in the paper's analysis, 10 in its
        experiments; at most the cohort.

    Exchanges per round: 2. Floats per client: 3 dim z down and dim z up, then 2 dim z down and dim z up.
    Exactness: exact at any K: the momentum and the SPIDER terms vanish at the solution, where it does not move.
    With a sampled cohort exchange 1 is noisy, and so is the answer.
    With rho = 0 it is so only with full batches and all clients: what the first direction lacks stays.
    Deviations from the paper: the output is the last point; its analysis is about a local one z_k that is drawn from
    all rounds. For K = 1 that is where a run ends whose number of rounds is drawn: `rounds=rng.integers(1, R + 1)`.

    Reference: Federated Multi-Sequence Stochastic Approximation with Local Hypergradient Estimation, Algorithm 1.
    """

    lr: GivenRates = rates()
    local_steps: int = count(default=1)
    momentum: float = 1.0
    local_clients: int = count(default=1, static=True)

    scopes = ("shared",)
    aggregation = "biased"  # exchanges of a round build on one another
    local_bias = "none"

    def check(self, problem: Problem, population: int) -> None:
        if not 0 <= self.momentum <= 1:
            raise InputError(f"momentum: {self.momentum} was given; 0 <= rho <= 1 is needed")
        if self.local_clients > population:
            raise InputError(f"local_clients: {self.local_clients} was given; there are {population} clients")

    def init(self, problem: Problem, z: Sequences) -> MSAState:
        return MSAState(z, first_round(), previous=z, d=z.zeros())

    def round(self, state: MSAState, cohort: Cohort) -> MSAState:
        d = cohort.mean("momentum_direction", state.z, state.previous, state.d)
        z = state.z + cohort.select(self.local_clients).mean("spider", state.z, d)
        return state.next(z=cohort.project(z), previous=state.z, d=d)

    def momentum_direction(self, client: Client, z: Sequences, previous: Sequences, d: Sequences) -> Sequences:
        """D_i(z; xi) + (1 - rho) (d_prev - D_i(z_prev; xi))."""
        rho = jnp.where(client.first, 1, self.momentum)
        xi = client.sample(client.key)
        return client.direction(z, xi) + (1 - rho) * (d - client.direction(previous, xi))

    def spider(self, client: Client, z: Sequences, d: Sequences) -> Sequences:
        """K steps along d_k; the first is along d itself, since z_1 = z_0."""
        eta = client.at(self.lr)
        steps = jnp.where(client.first, 1, self.local_steps)

        def step(carry: tuple, k: Any, key: jax.Array) -> tuple:
            new, old, d = carry
            xi = client.sample(key)
            d = client.direction(new, xi) + d - client.direction(old, xi)
            return new - eta * d, new, d

        new, _, _ = client.loop(steps - 1, step, (z - eta * d, z, d))
        return new - z
