"""FedBiOAcc: FedBiO with a variance-reduced momentum for every sequence."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.storm import AccState, StormClient, alpha, check_storm, starting_momentum
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import count, rates
from rookery.federation.method import Rates, first_round, method
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@method
class FedBiOAcc:
    r"""Local steps along STORM momenta of x, y and v; every I iterations the points, then the momenta, are averaged.

    Iterations are counted t = 1, 2, ... over the whole run, with alpha_t = delta / (u + t)^{1/3}. At every iteration

        z_i' = z_i - eta alpha_t m_i
        m_i  = D_i(z_i'; B) + (1 - c alpha_t^2) (m_i - D_i(z_i; B)),   B a fresh sample, the same at both points.

    At every I-th iteration the server first averages the points,

        z <- z + sum_{i in C} (p_i / pi_i) (z_i' - z)                                              [exchange 1]

    then m_i is formed at the averaged z' = z against the client's own z_i, and averaged:

        m <- sum_{i in C} (p_i / pi_i) m_i                                                         [exchange 2]

    Args:
      lr: eta, the step sizes.
      local_steps: I, one whole number, the same for all clients.
      momentum: c, per sequence; c alpha_1^2 <= 1 is needed.
      delta: delta of alpha_t.
      offset: u of alpha_t.
      first_batch: the batch size of the first momentum m_i = D_i(z; B), the client's own; None: as in the run.

    Sequences that are a client's own stay there, and so do their momenta; those of a client that was absent are of the
    shared point at its last visit.

    Exchanges per round: 2, that is 2 per I iterations. Floats per client: 2 dim z down and dim z up, then dim z down
    and dim z up.
    Exactness: exact at I <= 2; O(eta) at larger I.
    Deviations from the paper: the first momentum costs no exchange; D at the old point uses the old v; under sampling
    the server sends z and m in every round, so that a client needs no memory between rounds, but of its own sequences.

    Reference: Communication-Efficient Federated Bilevel Optimization with Local and Global Lower Level Problems,
    Algorithm 2.
    """

    lr: GivenRates = rates()
    local_steps: int = count(default=1)
    momentum: GivenRates = rates(default=Rates(1.0), positive=False)
    delta: float = 1.0
    offset: float = 1.0
    first_batch: int | None = count(default=None, static=True)

    local_bias = "vanishing"

    def check(self, problem: Problem, population: int) -> None:
        check_storm(self, problem.names)

    def init(self, problem: Problem, z: Sequences) -> AccState:
        return AccState(z, first_round(), m=z.zeros())

    def client(self, problem: Problem, z: Sequences) -> StormClient:
        nothing = Sequences({name: z[name] for name in problem.names if name in z}).zeros()
        return StormClient(z=nothing, m=nothing, visits=first_round())

    def round(self, state: AccState, cohort: Cohort) -> AccState:
        z = cohort.project(state.z + cohort.update_mean("iterations", state.z, state.m))
        # What a client keeps of the second exchange is the momentum of its own sequences.
        m = cohort.update_mean("momenta_at", z) if cohort.problem.local else cohort.mean("momentum_at", z)
        return state.next(z=z, m=m)

    def iterations(self, client: Client, z: Sequences, m: Sequences) -> tuple[Sequences, StormClient]:
        """I - 1 whole iterations and the step of the I-th."""
        z_i = client.enter(z)
        m = starting_momentum(client, m, lambda: client.direction(z_i, client.sample(client.key, self.first_batch)))

        def iteration(carry: tuple, k: Any, key: Any) -> tuple:
            z, m = carry
            new = client.project_local(z - client.at(self.lr) * (m * alpha(self, client, k)))
            return new, self.storm(client, new, z, m, k, key)

        last = self.local_steps - 1
        z_i, m = client.loop(last, iteration, (z_i, m))
        new = client.project_local(z_i - client.at(self.lr) * (m * alpha(self, client, last)))
        return client.leave(new) - z, StormClient(z=z_i, m=m, visits=client.state.visits + 1)

    def momentum_at(self, client: Client, z: Sequences) -> Sequences:
        """The momentum of the I-th iteration, at the averaged point."""
        before = client.state
        return self.storm(client, client.enter(z), before.z, before.m, self.local_steps - 1, client.key)

    def momenta_at(self, client: Client, z: Sequences) -> tuple[Sequences, StormClient]:
        """The same, of which its own sequences' part stays."""
        m, kept = self.momentum_at(client, z), client.state
        return client.shared(m), StormClient(z=kept.z, m=m, visits=kept.visits)

    def storm(self, client: Client, new: Sequences, old: Sequences, m: Sequences, k: Any, key: Any) -> Sequences:
        """D_i(new; B) + (1 - c alpha_t^2) (m - D_i(old; B)) with one fresh sample B."""
        sample = client.sample(key)
        keep = 1 - client.at(self.momentum) * alpha(self, client, k) ** 2
        return client.direction(new, sample) + keep * (m - client.direction(old, sample))
