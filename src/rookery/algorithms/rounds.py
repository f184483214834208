"""The lower round and the upper round of two-loop bilevel methods: components with phases. Imports contracts only."""

from __future__ import annotations

from typing import Any

import jax

from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.method import Rates, Steps, static, struct
from rookery.federation.rates import GivenRates
from rookery.vectors import Vector

SOLVERS = ("svrg", "sgd")
ANCHORS = ("minibatch", "full")  # the examples that SVRG's gradient q is taken on


@struct
class LowerRound:
    """One round on the lower problem at (x, y), found by a method's phases as "lower.*".

    "svrg", two exchanges: q = mean of grad_y g_i(x, y); then tau_i steps, with the same sample b in both terms,

        y_i <- y_i - beta (grad_y g_i(x, y_i; b) - grad_y g_i(x, y; b) + q),   y <- y + mean of (y_i - y).

    The anchor q is taken on one minibatch of each client, or on all of its examples ("full"). The steps draw `batch`
    examples each, or the run's batch size.

    "sgd", one exchange: plain local steps y_i <- y_i - beta grad_y g_i(x, y_i; b).
    """

    lr: Rates
    count: Steps
    scaled: bool = static()  # beta / tau_i in place of beta
    solver: str = static()
    anchor: str = static(default="minibatch")
    batch: int | None = static(default=None)

    def run(self, cohort: Cohort, x: Vector, y: Vector) -> Vector:
        """The server's side."""
        if self.solver == "sgd":
            return y + cohort.mean("lower.descend", x, y)
        q = cohort.mean("lower.gradient", x, y)
        return y + cohort.mean("lower.correct", x, y, q)

    def gradient(self, client: Client, x: Vector, y: Vector) -> Vector:
        full = self.anchor == "full"
        return client.lower_grad(x, y, client.everything("lower") if full else client.sample(client.key, only="lower"))

    def correct(self, client: Client, x: Vector, y: Vector, q: Vector) -> Vector:
        def step(y_i: Vector, k: Any, key: jax.Array) -> Vector:
            b = client.sample(key, self.batch, only="lower")
            return y_i - beta * (client.lower_grad(x, y_i, b) - client.lower_grad(x, y, b) + q)

        tau = client.steps(self.count)
        beta = per_step(client.at(self.lr)["y"], tau, self.scaled)
        return client.loop(tau, step, y) - y

    def descend(self, client: Client, x: Vector, y: Vector) -> Vector:
        def step(y_i: Vector, k: Any, key: jax.Array) -> Vector:
            return y_i - beta * client.lower_grad(x, y_i, client.sample(key, self.batch, only="lower"))

        tau = client.steps(self.count)
        beta = per_step(client.at(self.lr)["y"], tau, self.scaled)
        return client.loop(tau, step, y) - y


@struct
class UpperRound:
    """One round on x along a hypergradient h at (x, y), one exchange, found by a method's phases as "upper.steps":

    x_i <- x_i - alpha (h - grad_x f_i(x, y; b) + grad_x f_i(x_i, y; b)), tau_i times;   x <- x + mean of (x_i - x),

    with a fresh b in every step, or with the client's own of the round in all of them.
    """

    lr: Rates
    count: Steps
    scaled: bool = static()  # alpha / tau_i in place of alpha
    fresh: bool = static(default=True)

    def run(self, cohort: Cohort, x: Vector, y: Vector, h: Vector) -> Vector:
        """The server's side."""
        return x + cohort.mean("upper.steps", x, y, h)

    def steps(self, client: Client, x: Vector, y: Vector, h: Vector) -> Vector:
        of_round = None if self.fresh else client.sample(client.round_key, only="upper", again=True)

        def step(x_i: Vector, k: Any, key: jax.Array) -> Vector:
            b = client.sample(key, only="upper") if of_round is None else of_round
            return x_i - alpha * (h - client.upper_grad_x(x, y, b) + client.upper_grad_x(x_i, y, b))

        tau = client.steps(self.count)
        alpha = per_step(client.at(self.lr)["x"], tau, self.scaled)
        return client.loop(tau, step, x) - x


class TwoLoop:
    """What FedNest, LFedNest and AggITD share, whatever their other fields: the rounds on either level."""

    lr: GivenRates
    lower_rounds: int
    lower_steps: Steps
    upper_steps: Steps
    lower_solver: str
    scaled_rates: bool
    anchor: str

    kinds = ("bilevel",)
    scopes = ("shared",)
    uses = ("x", "y")
    biased = True
    aggregation = "biased"  # exchanges of a round build on one another
    fresh = True  # whether the steps of the upper round draw samples of their own; otherwise they take that of h

    @property
    def lower(self) -> LowerRound:
        return LowerRound(self.lr, self.lower_steps, self.scaled_rates, self.lower_solver, self.anchor)

    @property
    def upper(self) -> UpperRound:
        return UpperRound(self.lr, self.upper_steps, self.scaled_rates, self.fresh)

    def solve_lower(self, cohort: Cohort, x: Vector, y: Vector) -> Vector:
        """y after N lower rounds."""
        return cohort.repeat(self.lower_rounds, lambda cohort, t, y: self.lower.run(cohort, x, y), y)

    def step_upper(self, cohort: Cohort, x: Vector, y: Vector, p: Vector) -> Vector:
        """x after an upper round along h = M(grad_x f_i(x, y) - (d2 g_i/dx dy) p)."""
        return self.upper.run(cohort, x, y, cohort.mean("hypergradient", x, y, p))

    def hypergradient(self, client: Client, x: Vector, y: Vector, p: Vector) -> Vector:
        """grad_x f_i(x, y) - (d2 g_i/dx dy) p on one sample: a fresh one, or that of the round."""
        s = client.sample(client.key if self.fresh else client.round_key)
        return client.upper_grad_x(x, y, s) - client.cross(x, y, p, s)


def per_step(rate: Any, tau: Any, scaled: bool) -> Any:
    """A step size, divided by the client's number of steps where asked for."""
    return rate / tau if scaled else rate
