"""FedVRA-U: FedVRA for problems whose clients have a block of variables of their own, with constraints."""

from __future__ import annotations

from typing import Any

import jax

from rookery.algorithms.drift import AGGREGATION
from rookery.algorithms.fedvra import FedVRAState, VarianceReduced
from rookery.algorithms.parts import set_field
from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import amount, number, rates, steps
from rookery.federation.method import Steps, method
from rookery.federation.rates import GivenRates
from rookery.problems.base import Problem
from rookery.problems.sets import ConstraintSet
from rookery.vectors import Sequences, Vector


@method
class FedVRAU(VarianceReduced):
    r"""Alternating minimisation on each client, and FedVRA between them, for min over x and y_i of f_i(x, y_i).

    In every round client i of the cohort C first takes Q_y projected steps on its own block at the server's x,

        y_i <- P_{Y_i}(y_i - eta_y grad_y f_i(x, y_i)),

    then Q_i steps on x_i from x, as FedVRA does, with its new y_i held,

        x_i <- x_i - eta (grad_x f_i(x_i, y_i) - lambda_i + gamma (x_i - x));

    the duals and x follow as in FedVRA, and x is projected onto X.

    Args:
      lr: eta, the local step size of x.
      gamma: the penalty: a number, or `rk.PerClient`.
      a: the dual step size: a number, a schedule, or `rk.PerClient`.
      d: the aggregation step size: "inverse-probability", "equal-progress", or as a.
      local_steps: Q_i, steps on x: an int, `rk.FixedSteps`, `rk.RandomSteps`, `rk.StepsBy` or `rk.Epochs`.
      client_lr: eta_y, the step size of y.
      client_steps: Q_y, steps on y, likewise.
      client_set: Y_i, which y_i is in from its first step on; None: the problem's own.
      server_set: X, in the place of the problem's own; None: that.
      weight_decay: added times x to every gradient of x.

    Exchanges per round: 1. Floats per client: dim x down, dim x + 1 up (one more with a d of one's own, two with
    "equal-progress"); y_i stays on its client.
    Exactness: at a fixed point every y_i is stationary on its set, and x where the mean gradient is.
    Deviations from the paper: steps on x are counted from 0 and not from Q_y.

    Reference: Beyond ADMM: A Unified Client-variance-reduced Adaptive Federated Learning Framework, Algorithm 3.
    """

    lr: GivenRates = rates()
    gamma: Any = amount(default=0.1)
    a: Any = amount(default=1.0)
    d: Any = amount(default="inverse-probability", words=AGGREGATION, name="d")
    local_steps: Steps = steps(default=1)
    client_lr: float = number(default=0.1, rate_of="y")
    client_steps: Steps = steps(default=1)
    client_set: ConstraintSet | None = set_field()
    server_set: ConstraintSet | None = set_field()
    weight_decay: float = 0.0

    kinds = ("joint",)
    aggregation = "biased"  # absent clients count with the duals that they keep
    local_bias = "none"
    uses = ("x",)

    def check(self, problem: Problem, population: int) -> None:
        super().check(problem, population)
        for name in ("client_set", "server_set"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, type) or not isinstance(given, ConstraintSet)):
                raise InputError(f"{name}: {given!r} was given; a set such as rk.Simplex(), or None, is needed")

    def round(self, state: FedVRAState, cohort: Cohort) -> FedVRAState:
        z, u = self.exchange(state, cohort, "alternate")
        if self.server_set is None:
            return state.next(z=cohort.project(z), u=u)
        return state.next(z=z.replace(x=Vector(self.server_set.project(z.x.tree))), u=u)

    def alternate(self, client: Client, z: Sequences) -> tuple[Any, Sequences]:
        u, gamma, eta = client.state, client.at(self.gamma).one, client.at(self.lr)["x"]

        def own_step(z_i: Sequences, k: Any, key: Any) -> Sequences:
            y = z_i.y - self.client_lr * client.part("y", z_i, client.sample(key))
            if self.client_set is None:
                return client.project_local(z_i.replace(y=y))
            return z_i.replace(y=Vector(self.client_set.project(y.tree)))

        def step(z_i: Sequences, k: Any, key: Any) -> Sequences:
            g = client.part("x", z_i, client.sample(key)) + self.weight_decay * z_i.x
            return z_i.replace(x=z_i.x - eta * (g + gamma * (z_i.x - z.x - u.x)))

        z_i = client.loop(self.client_steps, own_step, client.enter(z), jax.random.fold_in(client.key, 1))
        z_i = client.loop(self.local_steps, step, z_i)
        return self.answer(client, client.leave(z_i) - z)
