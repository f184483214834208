"""The cohort contract: the only way a server program reaches clients. Imports contracts only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.federation.graphs import Mixing
from rookery.federation.keys import select_key, server_key
from rookery.federation.sampling import Members
from rookery.problems.base import Problem
from rookery.vectors import Sequences


class Cohort(ABC):
    """The clients of a round. Each call of sum, mean or average is one exchange: the message goes to every client of
    the cohort, the phase runs there, and the replies r_i come back aggregated. With k_i = 1 for a client drawn once:

        sum      sum_C k_i p_i r_i
        mean     sum_C k_i (p_i / pi_i) r_i               unbiased: for directions and differences
        average  sum_C k_i p_i r_i / sum_C k_i p_i        normalised

    The `update_` forms are for phases that return `(reply, new client state)`.
    """

    problem: Problem
    members: Members
    weights: jax.Array  # p_i of the members
    all_weights: jax.Array  # p_i of everybody
    round_key: jax.Array

    def sum(self, phase: str, *message: Any) -> Any:
        """One exchange; the weighted sum of the replies."""
        return self._exchange(phase, message, self._share, update=False)

    def mean(self, phase: str, *message: Any) -> Any:
        """One exchange; the unbiased mean of the replies."""
        return self._exchange(phase, message, self._share / self.members.expected, update=False)

    def average(self, phase: str, *message: Any) -> Any:
        """One exchange; the normalised mean of the replies."""
        return self._exchange(phase, message, self._normalised, update=False)

    def update_sum(self, phase: str, *message: Any) -> Any:
        """As `sum`, keeping the clients' new states."""
        return self._exchange(phase, message, self._share, update=True)

    def update_mean(self, phase: str, *message: Any) -> Any:
        """As `mean`, keeping the clients' new states."""
        return self._exchange(phase, message, self._share / self.members.expected, update=True)

    def update_average(self, phase: str, *message: Any) -> Any:
        """As `average`, keeping the clients' new states."""
        return self._exchange(phase, message, self._normalised, update=True)

    def mix(self, mixing: Mixing, give: str, take: str) -> Any:
        """One exchange between neighbours, in which no server is: each client's phase `give(client)` says r_i, which
        its neighbours get, and its phase `take(client, mean)` is given sum_j W_ij r_j. Both return `(reply, new client
        state)`. What `take` replies goes nowhere: its plain mean over all clients comes back, for whoever looks on.
        """
        if not self._whole:
            raise InputError("sampling: neighbours mix, and not all clients are there; rk.All() is needed")
        return self._mix(mixing, give, take)

    @property
    def size(self) -> jax.Array:
        """The number of clients in the cohort."""
        return self.members.present

    @property
    def weight(self) -> jax.Array:
        """sum_C k_i p_i, which the server knows without asking; 1 for an empty cohort, so that it divides."""
        total = jnp.sum(self._share)
        return jnp.where(total > 0, total, 1)

    @property
    def share(self) -> jax.Array:
        """sum_C p_i, every client once."""
        return jnp.sum(jnp.where(self.members.count > 0, self.weights, 0))

    @property
    @abstractmethod
    def population(self) -> int:
        """The number of clients in all."""

    @property
    def key(self) -> jax.Array:
        """For the server program's own draws in this round."""
        return server_key(self.round_key)

    def expectation(self, values: Any) -> jax.Array:
        """sum_i p_i values_i over all clients, which the server knows without asking."""
        return jnp.dot(self.all_weights, jnp.asarray(values))

    def project(self, z: Sequences) -> Sequences:
        """z with its shared sequences projected onto the problem's sets."""
        return self.problem.project(z, self.problem.shared)

    def select(self, size: int) -> Cohort:
        """Some of the cohort, uniformly without replacement; its means stay unbiased."""
        return self._with(self.members.select(size, select_key(self.round_key, self._tick())), always=True)

    def when(self, flag: Any) -> Cohort:
        """This cohort or, when the flag is false, an empty one: no exchange takes place, its sums are 0."""
        return self._with(self.members.when(flag), always=False)

    @abstractmethod
    def repeat(self, times: Any, body: Callable[[Cohort, Any, Any], Any], carry: Any) -> Any:
        """`carry = body(cohort, t, carry)` for t = 0 .. times - 1, with exchanges inside."""

    @property
    def _whole(self) -> bool:
        """Whether everybody is known to be there."""
        return self.members.index.shape[0] == self.population

    @property
    def _share(self) -> jax.Array:
        return self.members.count * self.weights

    @property
    def _normalised(self) -> jax.Array:
        return self._share / self.weight

    @abstractmethod
    def _with(self, members: Members, always: bool) -> Cohort:
        """A cohort of other members in the same round; `always`: filled wherever this one is."""

    @abstractmethod
    def _tick(self) -> Any:
        """The number of the next exchange of this round, which is then taken."""

    @abstractmethod
    def _exchange(self, phase: str, message: tuple, factors: jax.Array, update: bool) -> Any:
        """Sends, runs, aggregates and counts: the one primitive."""

    def _mix(self, mixing: Mixing, give: str, take: str) -> Any:
        """The same between neighbours."""
        raise InputError('engine: it has no way from client to client, which neighbours need; engine="local" has one')
