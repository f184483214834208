"""FedBiO with local lower levels: each client solves its own lower problem, only x is exchanged."""

from __future__ import annotations

from typing import Any

from rookery.algorithms.estimators import Neumann, moves_of
from rookery.algorithms.parts import estimator_field
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import rates, steps
from rookery.federation.method import State, Steps, method
from rookery.federation.protocols import Estimator
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.vectors import Sequences


def check_local_lower(name: str, problem: Problem) -> None:
    """Refuses a problem whose lower level is not each client's own."""
    if problem.local != ("y", "v"):
        raise InputError(
            f'{name}: it needs lower_scope="local" and a shared x, and here {", ".join(problem.local) or "nothing"} '
            "stays local; FedBiO and FedBiOAcc solve problems with one lower level for all"
        )


@method
class FedBiOLocal:
    r"""Alternating local steps on each client's own y and on x, along a hypergradient that the client finds by itself.

    In every round client i of the cohort C sets x_i = x and takes I steps, both lines at the same point,

        y_i <- y_i - gamma grad_y g_i(x_i, y_i)
        x_i <- x_i - eta Phi_i(x_i, y_i),   Phi_i = grad_x f_i - (d2 g_i/dx dy) v,   v from the estimator,

    uploads x_i - x, and the server applies the unbiased mean: x <- x + sum_{i in C} (p_i / pi_i) (x_i - x).

    Args:
      lr: eta for x and gamma for y (and a rate for v with `rk.Tracked()`).
      local_steps: I, an int, `rk.FixedSteps`, `rk.RandomSteps` or `rk.StepsBy`.
      hypergradient: how v is found: `rk.Neumann(terms, step)` (the paper), `rk.ConjugateGradient(iterations)`, or
        `rk.Tracked()`.

    Exchanges per round: 1, that is 1 per I steps. Floats per client: dim x down, dim x up; y never travels.
    Exactness: at I = 1 exact with a tracked v or conjugate gradients, the truncation bias with a Neumann series; O(eta)
    more at I > 1.
    Deviations from the paper: its text exchanges the "lower variable", which is a slip; differences are averaged.

    Reference: Communication-Efficient Federated Bilevel Optimization with Local and Global Lower Level Problems,
    Algorithm 3.
    """

    lr: GivenRates = rates()
    local_steps: Steps = steps(default=1, epochs=False)
    hypergradient: Estimator = estimator_field(Neumann())

    kinds = ("bilevel",)
    scopes = ("local",)
    biased = True

    @property
    def uses(self) -> tuple[str, ...]:
        return moves_of(self.hypergradient)

    def check(self, problem: Problem, population: int) -> None:
        check_local_lower("FedBiOLocal", problem)
        self.hypergradient.check()

    def round(self, state: State, cohort: Cohort) -> State:
        return state.next(z=state.z + cohort.mean("steps", state.z))

    def steps(self, client: Client, z: Sequences) -> Sequences:
        eta = client.at(self.lr)

        def step(z_i: Sequences, k: Any, key: Any) -> Sequences:
            (d,) = self.hypergradient.fields(client, [z_i], key)
            return z_i.merged(z_i.only(d.names) - eta * d)

        z_i = client.loop(self.local_steps, step, client.enter(z))
        return client.leave(z_i) - z
