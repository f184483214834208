"""Methods as their authors' public code runs them, where that differs from the paper's algorithm."""

from __future__ import annotations

from typing import Any

import jax

from rookery.algorithms.fedmsa import FedMSA, MSAState
from rookery.algorithms.fednest import FedNest
from rookery.algorithms.rounds import LowerRound
from rookery.federation.client import Client
from rookery.federation.codec import part
from rookery.federation.cohort import Cohort
from rookery.federation.fields import count, number
from rookery.federation.method import State, method
from rookery.vectors import Vector


class HarmonicAdjoint:
    """The public code's adjoint: p = b + sum_{j=1..T} M((I - lambda H_i)^j b) / j with b = M(grad_y f_i(x, y)).

    The powers are those of each client's own Hessian. The weights 1 / j come from a list of replies that is not
    cleared between the T exchanges. There is no factor lambda.
    """

    neumann_step: float
    neumann_terms: int

    def harmonic_adjoint(self, cohort: Cohort, x: Vector, y: Vector) -> Vector:
        """Return p after 1 + T exchanges."""
        b = cohort.mean("right_hand_side", x, y)

        def term(cohort: Cohort, j: Any, p: Vector) -> Vector:
            return p + cohort.mean("power", x, y, b, j + 1) / (j + 1)

        return cohort.repeat(self.neumann_terms, term, b)

    def right_hand_side(self, client: Client, x: Vector, y: Vector) -> Vector:
        return client.upper_grad_y(x, y, client.everything("upper"))

    def power(self, client: Client, x: Vector, y: Vector, b: Vector, exponent: Any) -> Vector:
        """(I - lambda H_i)^exponent b."""
        every = client.everything("lower")
        step = lambda p, k, key: p - self.neumann_step * client.hvp(x, y, p, every)
        return client.loop(exponent, step, b)


@part
@method
class PublishedFedMSA(HarmonicAdjoint, FedMSA):
    r"""FedMSA after a warm-up of y and a start of the adjoint, as in the authors' loss-tuning script.

    Before the first round `local_clients` clients take `warm_steps` minibatch steps on y in each of `warm_rounds`
    exchanges, each time other clients. Then v starts at `HarmonicAdjoint`'s p, over the whole cohort.

    Args:
      warm_rounds: Number of warm-up exchanges.
      warm_steps: Local steps on y in each of them.
      warm_lr: Their step size.
      warm_batch: Examples of a minibatch in them.
      neumann_terms: T.
      neumann_step: lambda.
    """

    warm_rounds: int = count(default=5)
    warm_steps: int = count(default=60)
    warm_lr: float = number(default=0.01)
    warm_batch: int = count(default=10, static=True)
    neumann_terms: int = count(default=5)
    neumann_step: float = number(default=0.02)

    kinds = ("bilevel",)

    def start(self, state: MSAState, cohort: Cohort) -> MSAState:
        x = state.z.x

        def warm(cohort: Cohort, t: Any, y: Vector) -> Vector:
            return y + cohort.select(self.local_clients).mean("warm_up", x, y)

        y = cohort.repeat(self.warm_rounds, warm, state.z.y)
        z = state.z.replace(y=y, v=self.harmonic_adjoint(cohort, x, y))
        return MSAState(z, state.round, previous=z, d=state.d, empty=state.empty)

    def warm_up(self, client: Client, x: Vector, y: Vector) -> Vector:
        def step(y_i: Vector, k: Any, key: jax.Array) -> Vector:
            return y_i - self.warm_lr * client.lower_grad(x, y_i, client.sample(key, self.warm_batch, only="lower"))

        return client.loop(self.warm_steps, step, y) - y


@part
@method
class PublishedFedNest(HarmonicAdjoint, FedNest):
    r"""FedNest as its authors' code runs it: all derivatives but those of the lower steps on all examples.

    Every lower round draws other clients, and so does the upper part. The adjoint is `HarmonicAdjoint`'s. Run it with
    all clients and without a batch size: `clients_per_exchange` of them take part in an exchange, and a lower step
    draws `lower_batch` examples.

    Args:
      clients_per_exchange: Clients that take part in an exchange.
      lower_batch: Examples of a minibatch in a lower step.
    """

    clients_per_exchange: int = count(default=10, static=True)
    lower_batch: int = count(default=10, static=True)

    @property
    def lower(self) -> LowerRound:
        return LowerRound(self.lr, self.lower_steps, self.scaled_rates, self.lower_solver, "full", self.lower_batch)

    def round(self, state: State, cohort: Cohort) -> State:
        x, y = state.z.x, state.z.y

        def lower(cohort: Cohort, t: Any, y: Vector) -> Vector:
            return self.lower.run(cohort.select(self.clients_per_exchange), x, y)

        y = cohort.repeat(self.lower_rounds, lower, y)
        others = cohort.select(self.clients_per_exchange)
        p = self.harmonic_adjoint(others, x, y)
        return state.next(z=state.z.replace(x=self.step_upper(others, x, y, p), y=y, v=p))
