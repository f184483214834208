"""FedPD: a primal-dual method whose clients may go several rounds without communicating."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rookery.algorithms.local_steps import descend
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.method import State, Steps, method
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@method
class FedPD:
    r"""Local primal-dual rounds, aggregated with probability 1 - p after each.

    In every local round client i sets x_i = x_{0,i} and takes Q steps, then updates its multiplier and its centre:

        x_i      <- x_i - lr (g_i(x_i) + lambda_i + (x_i - x_{0,i}) / eta)
        lambda_i <- lambda_i + (x_i - x_{0,i}) / eta
        x_{0,i}  <- x_i + eta lambda_i

    With probability 1 - p the server then averages the centres, x_{0,i} <- sum_i p_i x_{0,i}; otherwise each client
    goes on from its own. A round of a run is one aggregation, after R local rounds, P(R = r) = (1 - p) p^(r-1): R is
    drawn by the server and sent along.

    Args:
      lr: the local step size.
      eta: 1 / the penalty.
      skip: p, the probability that a local round ends without communication.
      local_steps: Q_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      weight_decay: added times x to every gradient.

    Exchanges per round: 1. Floats per client: dim x + 1 down, dim x up. All clients take part in every round.
    Exactness: exact at any Q_i with p = 0, where it is federated ADMM with gamma = 1 / eta.
    Deviations from the paper: local rounds without communication belong to the round of the next aggregation.

    Reference: Zhang et al., FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity to Non-IID Data,
    2020, option I.
    """

    lr: GivenRates = rates()
    eta: float = 1.0
    skip: float = 0.0
    local_steps: Steps = steps(default=1)
    weight_decay: float = 0.0

    kinds = ("single",)
    participation = "all"
    local_bias = "none"

    def check(self, problem: Problem, population: int) -> None:
        if not self.eta > 0:
            raise InputError(f"eta: {self.eta} was given; a positive number is needed")
        if not 0 <= self.skip < 1:
            raise InputError(f"skip: {self.skip} was given; 0 <= skip < 1 is needed")

    def client(self, problem: Problem, z: Sequences) -> Sequences:
        return z.zeros()

    def round(self, state: State, cohort: Cohort) -> State:
        rounds = geometric(cohort.key, self.skip)
        return state.next(z=cohort.project(state.z + cohort.update_mean("local_rounds", state.z, rounds)))

    def local_rounds(self, client: Client, z: Sequences, rounds: Any) -> tuple[Sequences, Sequences]:
        def local_round(carry: tuple, r: Any, key: jax.Array) -> tuple:
            centre, dual = carry
            x_i = self.solve(client, centre, dual, key)
            dual = dual + (x_i - centre) / self.eta
            return x_i + self.eta * dual, dual

        centre, dual = client.loop(rounds, local_round, (z, client.state))
        return centre - z, dual

    def solve(self, client: Client, centre: Sequences, dual: Sequences, key: jax.Array) -> Sequences:
        """Q_i steps on the augmented Lagrangian from the client's centre."""
        lagrangian = lambda g, x: g + self.weight_decay * x + dual + (x - centre) / self.eta
        return (
            centre
            + descend(
                client, centre, client.at(self.lr), self.local_steps, correct=lagrangian, total=False, key=key
            ).moved
        )


def geometric(key: jax.Array, skip: Any) -> jax.Array:
    """R >= 1 with P(R > r) = skip^r."""
    u = jax.random.uniform(key, (), jnp.float32, minval=jnp.finfo(jnp.float32).tiny)
    draws = jnp.floor(jnp.log(u) / jnp.log(jnp.maximum(skip, 1e-30)))
    return 1 + jnp.where(skip > 0, draws, 0).astype(jnp.int32)
