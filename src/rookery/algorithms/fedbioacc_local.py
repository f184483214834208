"""FedBiOAcc with local lower levels: STORM momenta, of which only that of x is exchanged."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.estimators import Neumann, moves_of
from rookery.algorithms.fedbio_local import check_local_lower
from rookery.algorithms.parts import estimator_field
from rookery.algorithms.storm import AccState, StormClient, alpha, check_storm, starting_momentum
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import count, rates
from rookery.federation.method import Rates, first_round, method
from rookery.federation.protocols import Estimator
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@method
class FedBiOAccLocal:
    r"""Local steps along STORM momenta, each client with its own y; x, then the momentum of x, are averaged.

    Iterations are counted t = 1, 2, ... over the whole run, with alpha_t = delta / (u + t)^{1/3} and the client's field
    F_i = (Phi_i for x, grad_y g_i for y). At every iteration

        z_i' = z_i - eta alpha_t m_i
        m_i  = F_i(z_i'; B) + (1 - c alpha_t^2) (m_i - F_i(z_i; B)),   B fresh, the same at both points.

    At every I-th iteration x is averaged [exchange 1], m_i is formed at the averaged x against the client's own z_i,
    and its x-part is averaged [exchange 2]. y and its momentum never leave the client.

    Args:
      lr: eta, the step sizes for x and y (and v with `rk.Tracked()`).
      local_steps: I, one whole number, the same for all clients.
      momentum: c, per sequence; c alpha_1^2 <= 1 is needed.
      delta: delta of alpha_t.
      offset: u of alpha_t.
      hypergradient: how v is found: `rk.Neumann(terms, step)` (the paper), `rk.ConjugateGradient(iterations)`, or
        `rk.Tracked()`.
      first_batch: the batch size of the first momentum, the client's own; None: as in the run.

    Exchanges per round: 2, that is 2 per I iterations. Floats per client: 2 dim x down and dim x up, then dim x down
    and dim x up.
    Exactness: at I <= 2 exact with a tracked v or conjugate gradients, the truncation bias with a Neumann series;
    O(eta) more at larger I.
    Deviations from the paper: its u-line is stray; the first momentum costs no exchange; a client that was absent
    starts its momentum of x from the server's.

    Reference: Communication-Efficient Federated Bilevel Optimization with Local and Global Lower Level Problems,
    Algorithm 4.
    """

    lr: GivenRates = rates()
    local_steps: int = count(default=1)
    momentum: GivenRates = rates(default=Rates(1.0), positive=False)
    delta: float = 1.0
    offset: float = 1.0
    hypergradient: Estimator = estimator_field(Neumann())
    first_batch: int | None = count(default=None, static=True)

    kinds = ("bilevel",)
    scopes = ("local",)
    biased = True

    @property
    def uses(self) -> tuple[str, ...]:
        return moves_of(self.hypergradient)

    def check(self, problem: Problem, population: int) -> None:
        check_local_lower("FedBiOAccLocal", problem)
        self.hypergradient.check()
        check_storm(self, self.uses)

    def init(self, problem: Problem, z: Sequences) -> AccState:
        return AccState(z, first_round(), m=z.zeros())

    def client(self, problem: Problem, z: Sequences) -> StormClient:
        return StormClient(z=z.zeros(), m=z.only(self.hypergradient.moves).zeros(), visits=first_round())

    def round(self, state: AccState, cohort: Cohort) -> AccState:
        z = state.z + cohort.update_mean("iterations", state.z, state.m)
        m = cohort.update_mean("momentum_at", z)
        return state.next(z=z, m=m)

    def iterations(self, client: Client, z: Sequences, m: Sequences) -> tuple[Sequences, StormClient]:
        """I - 1 whole iterations and the step of the I-th."""
        z_i = client.enter(z)
        size = {} if self.first_batch is None else {"size": self.first_batch}  # estimators of one's own may have none
        first = lambda: self.hypergradient.fields(client, [z_i], client.key, **size)[0]
        m_i = starting_momentum(client, m, first)

        def iteration(carry: tuple, k: Any, key: Any) -> tuple:
            z, m = carry
            new = self.move(client, z, m, k)
            return new, self.storm(client, new, z, m, k, key)

        last = self.local_steps - 1
        z_i, m_i = client.loop(last, iteration, (z_i, m_i))
        moved = client.leave(self.move(client, z_i, m_i, last)) - z
        return moved, StormClient(z=z_i, m=m_i, visits=client.state.visits + 1)

    def momentum_at(self, client: Client, z: Sequences) -> tuple[Sequences, StormClient]:
        """The momentum of the I-th iteration, at the averaged x and the client's own y."""
        kept = client.state
        m = self.storm(client, client.enter(z), kept.z, kept.m, self.local_steps - 1, client.key)
        return client.shared(m), StormClient(z=kept.z, m=m, visits=kept.visits)

    def move(self, client: Client, z: Sequences, m: Sequences, k: Any) -> Sequences:
        """z - eta alpha_t m, of the sequences that have a momentum."""
        return z.merged(z.only(m.names) - client.at(self.lr) * (m * alpha(self, client, k)))

    def storm(self, client: Client, new: Sequences, old: Sequences, m: Sequences, k: Any, key: Any) -> Sequences:
        """F_i(new; B) + (1 - c alpha_t^2) (m - F_i(old; B)) with fresh samples B."""
        keep = 1 - client.at(self.momentum) * alpha(self, client, k) ** 2
        at_new, at_old = self.hypergradient.fields(client, [new, old], key)
        return at_new + keep * (m - at_old)
