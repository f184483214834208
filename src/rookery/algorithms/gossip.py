"""Gossip: clients on a graph move all sequences together and mix them with their neighbours; there is no server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rookery.algorithms.local_steps import descend
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import choice, rates, steps
from rookery.federation.graphs import GivenMixing, mixing_field
from rookery.federation.method import State, Steps, method, struct
from rookery.federation.rates import GivenOptionalRates, GivenRates, Rates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


class Decentralised:
    """What methods without a server share: every client has a point z_i of its own, and z is their plain mean, which
    nobody has but who looks on."""

    mixing: GivenMixing

    participation = "all"
    neighbours = True
    silent = ("take",)

    def check(self, problem: Problem, population: int) -> None:
        self.mixing.check(population)
        if not problem.shared:
            raise InputError(
                f"problem: all its sequences are the clients' own, and {type(self).__name__} mixes what they share"
            )

    def round(self, state: State, cohort: Cohort) -> State:
        return state.next(z=cohort.mix(self.mixing, "give", "take"))

    def observe(self, state: State, clients: Any) -> dict[str, Any]:
        """How far the clients are from their mean, as a root mean square, and the spectral gap of the graph."""
        error = consensus_error(clients.z)
        population = jax.tree.leaves(clients.z)[0].shape[0]
        return {
            "consensus_error": error,
            "spectral_gap": jnp.asarray(self.mixing.spectral_gap(population), error.dtype),
        }


def consensus_error(z: Sequences) -> jax.Array:
    """sqrt((1/n) sum_i |z_i - mean|^2) of points that are stacked over clients."""
    apart = jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, axis=0), z)
    return apart.norm() / jnp.sqrt(jax.tree.leaves(z)[0].shape[0] * 1.0)


def share(client: Client) -> Any:
    """n p_i: what makes a plain mean over clients the one by their weights."""
    return client.population * client.weight


@struct
class GossipClient:
    """A client's point, and where it was heading, if it has momentum."""

    z: Sequences
    h: Any = ()


@method
class Gossip(Decentralised):
    r"""Every client takes steps from its own point, and mixes points with its neighbours.

    With W the Metropolis weights of the graph, in every round client i takes tau_i steps from z_i,

        z_i^{k+1} = z_i^k - eta D_i(z_i^k; sample k),   k = 0 .. tau_i - 1
        h_i <- (1 - theta) h_i + theta n p_i (z_i^tau - z_i)

        adapt="first":  z_i <- sum_j W_ij (z_j + h_j)         as D-SOBA does
        adapt="last":   z_i <- sum_j W_ij z_j + h_i           as decentralised gradient descent does

    The run's z, at which metrics are evaluated, is the plain mean of the z_i. Local sequences stay on their clients.

    Args:
      lr: eta, the step sizes.
      mixing: `rk.Mixing(graph)` or a graph: `rk.Ring()`, `rk.Torus(rows)`, `rk.RandomGraph(p, seed)`,
        `rk.Complete()`.
      local_steps: tau_i, an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      adapt: whether a step comes "first", before points are mixed, or "last".
      momentum: theta for each sequence, in [0, 1]; None: 1. D-SOBA has one for x alone: `rk.Rates(x=0.2, y=1, v=1)`.

    Exchanges per round: 1, between neighbours. Floats: dim z over every edge, each way; none to or from a server.
    Exactness: O(eta) where clients differ, which grows as the spectral gap shrinks: it rests where
    (I - W) z + eta W D(z) = 0, all clients' points stacked (without the second W for adapt="last"). With a complete
    graph and adapt="first" it is SimFBO with all clients (exact at tau = 1). GossipTracking is exact on any graph.
    Deviations from the papers: moves are weighed by n p_i, so that clients of different weights solve their problem.

    References: Kong et al., Decentralized Bilevel Optimization over Graphs: Loopless Algorithmic Update and Transient
    Iteration Complexity, 2024 (D-SOBA); Nedic and Ozdaglar, Distributed Subgradient Methods for Multi-Agent
    Optimization, 2009.
    """

    lr: GivenRates = rates()
    mixing: GivenMixing = mixing_field()
    local_steps: Steps = steps(default=1)
    adapt: str = choice("first", "last")
    momentum: GivenOptionalRates = rates(default=None)

    def check(self, problem: Problem, population: int) -> None:
        super().check(problem, population)
        for name, theta in self.momentum.entries().items() if isinstance(self.momentum, Rates) else ():
            if not callable(theta) and not 0 <= float(jnp.max(jnp.asarray(getattr(theta, "table", theta)))) <= 1:
                raise InputError(f"momentum.{name}: {theta} was given; 0 <= theta <= 1 is needed")

    def client(self, problem: Problem, z: Sequences) -> GossipClient:
        shared = z.only(problem.shared)
        return GossipClient(shared, () if self.momentum is None else shared.zeros())

    def give(self, client: Client) -> tuple[Sequences, GossipClient]:
        kept = client.state
        if self.adapt == "last":
            return kept.z, kept
        h, kept = self.heading(client)
        return kept.z + h, kept

    def take(self, client: Client, mean: Sequences) -> tuple[Sequences, GossipClient]:
        kept = client.state
        if self.adapt == "last":
            h, kept = self.heading(client)
            mean = mean + h
        z = client.project_shared(mean)
        return z, GossipClient(z, kept.h)

    def heading(self, client: Client) -> tuple[Sequences, GossipClient]:
        """h_i after this round's steps, and what the client keeps."""
        z, h = client.state.z, client.state.h
        moved = descend(client, z, client.at(self.lr), self.local_steps, total=False).moved * share(client)
        if self.momentum is None:
            return moved, GossipClient(z)
        h = h + client.at(self.momentum) * (moved - h)
        return h, GossipClient(z, h)


@struct
class TrackingClient:
    """A client's point, its estimate of everybody's mean direction, and the last direction of its own."""

    z: Sequences
    s: Sequences
    d: Sequences


@method
class GossipTracking(Decentralised):
    r"""Gossip in which every client also tracks the mean direction of all: exact on any connected graph.

    With W the Metropolis weights of the graph, in every round client i, from s_i = d_i = 0,

        d    = n p_i D_i(z_i; sample)
        s_i <- s_i + d - d_i;   d_i <- d
        z_i <- sum_j W_ij (z_j - eta s_j);   s_i <- sum_j W_ij s_j

    The mean of the s_i is always that of the d_i. The run's z, at which metrics are evaluated, is the plain mean of the
    z_i. Local sequences take the step -eta D_i on their clients.

    Args:
      lr: eta, the step sizes.
      mixing: `rk.Mixing(graph)` or a graph: `rk.Ring()`, `rk.Torus(rows)`, `rk.RandomGraph(p, seed)`,
        `rk.Complete()`.

    Exchanges per round: 1, between neighbours. Floats: 2 dim z over every edge, each way; none to or from a server.
    Exactness: exact on any connected graph, where it converges: step sizes must shrink with the spectral gap. With a
    complete graph it is SimFBO with all clients.
    Deviations from the papers: steps are weighed by n p_i; x, y and v are tracked alike, as one point; there are no
    local steps, since a tracked direction is of one point.

    References: Nedic, Olshevsky and Shi, Achieving Geometric Convergence for Distributed Optimization over Time-Varying
    Graphs, 2017; Xu et al., Augmented Distributed Gradient Methods for Multi-Agent Optimization, 2015.
    """

    lr: GivenRates = rates()
    mixing: GivenMixing = mixing_field()

    def client(self, problem: Problem, z: Sequences) -> TrackingClient:
        shared = z.only(problem.shared)
        return TrackingClient(shared, shared.zeros(), shared.zeros())

    def give(self, client: Client) -> tuple[tuple[Sequences, Sequences], TrackingClient]:
        kept, eta = client.state, client.at(self.lr)
        d = descend(client, kept.z, eta, 1).q * share(client)  # and the step of local sequences
        s = kept.s + d - kept.d
        return (kept.z - eta * s, s), TrackingClient(kept.z, s, d)

    def take(self, client: Client, mean: tuple[Sequences, Sequences]) -> tuple[Sequences, TrackingClient]:
        z = client.project_shared(mean[0])
        return z, TrackingClient(z, mean[1], client.state.d)
