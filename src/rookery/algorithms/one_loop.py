"""Methods that move all sequences together: local steps, one exchange, one server step. Imports contracts only."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rookery.algorithms.drift import NoControl, check_drift, wrap_drift
from rookery.algorithms.local_steps import (
    CoefficientFunction,
    Descent,
    check_coefficients,
    check_radius,
    descend,
    wrap_coefficients,
)
from rookery.algorithms.parts import GivenDrift, drift_field
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps, table
from rookery.federation.measuring import OwnTerms, terms_of
from rookery.federation.method import Rates, Steps, struct
from rookery.federation.rates import GivenOptionalRates, GivenRates
from rookery.federation.server import GivenServer, ServerState, check_server, server_field, server_state
from rookery.federation.steps import largest_steps
from rookery.problems.base import Problem
from rookery.problems.sets import ball
from rookery.vectors import Sequences


class OneLoop:
    """What such methods share, whatever their fields: drift control, and the server's step."""

    lr: GivenRates
    local_steps: Steps
    coefficients: Any = None
    drift: GivenDrift
    server: GivenServer
    uncontrolled_bias = "reweighted"  # of local steps without drift control

    @property
    def local_bias(self) -> str:
        return self.uncontrolled_bias if isinstance(self.drift, NoControl) else "none"

    @property
    def adds_up(self) -> bool:
        return not isinstance(self.drift, NoControl)

    def own_terms(self) -> OwnTerms:
        return dataclasses.replace(terms_of(self.drift), factor=_largest(self.coefficients, self.local_steps))

    def init(self, problem: Problem, z: Sequences) -> ServerState:
        return server_state(self, z, self.drift.server(z))

    def client(self, problem: Problem, z: Sequences) -> Any:
        return self.drift.client(z.only(problem.shared))

    def ask(self, state: ServerState, cohort: Cohort) -> Any:
        """The exchange: the unbiased mean of what the clients' `steps` upload."""
        return cohort.update_mean("steps", state.z, self.drift.told(state.duals))

    def work(self, client: Client, z: Sequences, told: Any) -> Descent:
        """A client's local steps."""
        correct = self.drift.correct(client, z, told)
        return descend(client, z, client.at(self.lr), self.local_steps, self.coefficients, correct)

    def move(self, state: ServerState, cohort: Cohort, q: Sequences, scaled: dict, gamma: Rates | None) -> ServerState:
        """The server's step along q: with step sizes gamma; None: a step of length 1 along lr q, which the server's
        optimiser takes for a gradient."""
        q, duals = self.drift.step(q, scaled, state.duals, cohort, self.lr, state.round)
        if gamma is None:
            q = self.lr.at(state.round) * q
        z, optimiser = self.server.step(state.z, q, gamma, state.optimiser)
        return state.next(z=cohort.project(z), optimiser=optimiser, duals=duals)


@struct
class TwoRates(OneLoop):
    """The fields of SimFBO and ShroFBO: step sizes of clients and server, coefficients of local steps, a ball for v."""

    lr: GivenRates = rates(auto=True)
    server_lr: GivenOptionalRates = rates(default=None)
    local_steps: Steps = steps(default=1)
    coefficients: Any = table(wrap_coefficients)
    radius: float | None = None
    drift: GivenDrift = drift_field(wrap_drift)
    server: GivenServer = server_field()

    def check(self, problem: Problem, population: int) -> None:
        check_coefficients(self.coefficients, self.local_steps, population)
        check_radius(self.radius, problem)
        check_drift(self.drift, self.lr, self.server_lr)
        check_server(self.server, problem, self.server_lr)

    def after(self, state: ServerState, cohort: Cohort, q: Sequences, scaled: dict) -> ServerState:
        """The state after a round along q: z moved by the server's step sizes, v kept in its ball."""
        gamma = (self.lr if self.server_lr is None else self.server_lr).at(state.round)
        new = self.move(state, cohort, q, scaled, gamma)
        if self.radius is None:
            return new
        return dataclasses.replace(new, z=new.z.replace(v=ball(new.z.v, self.radius)))


def _largest(coefficients: Any, work: Steps) -> float:
    """max |a_k| over the steps that clients may take; 1 where all are 0."""
    if coefficients is None:
        return 1.0
    if isinstance(coefficients, CoefficientFunction):
        raise InputError(
            "coefficients: a function was given, and lr 'auto', which divides by the largest of them, cannot know it; "
            "give a table, or lr as numbers"
        )
    return float(np.abs(np.asarray(coefficients))[..., : largest_steps(work)].max()) or 1.0
