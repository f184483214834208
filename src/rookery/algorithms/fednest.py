"""FedNest: lower rounds, a federated Neumann series for the adjoint, an upper round."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rookery.algorithms.rounds import ANCHORS, SOLVERS, TwoLoop
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.fields import choice, count, number, rates, steps
from rookery.federation.method import State, Steps, method, static
from rookery.federation.rates import GivenRates
from rookery.vectors import Vector


@method
class FedNest(TwoLoop):
    r"""Two loops: N rounds on the lower problem, then a hypergradient from T exchanged Hessian products, then x.

    In every round, with M the unbiased mean over the cohort:

        y   <- lower round at (x, y), N times
        p   <- lambda T M(grad_y f_i(x, y));   T' ~ U{0, ..., T-1}
        p   <- p - lambda M(H_i(x, y) p), T' times
        h   <- M(grad_x f_i(x, y; b) - (d2 g_i/dx dy) p),   with the same b of the client's in the next line
        x_i <- x_i - alpha (h - grad_x f_i(x, y; b) + grad_x f_i(x_i, y; b)), tau_i times;   x <- x + M(x_i - x)

    Args:
      lr: alpha for x and beta for y.
      neumann_step: lambda.
      neumann_terms: T, the length of the Neumann series.
      lower_rounds: N.
      lower_steps: local steps of a lower round, an int, `rk.FixedSteps`, `rk.RandomSteps` or `rk.StepsBy`.
      upper_steps: tau_i, local steps of the upper round, likewise.
      lower_solver: "svrg" (two exchanges a lower round) or "sgd" (one).
      scaled_rates: divide alpha and beta by the client's number of steps.
      anchor: the examples that SVRG's gradient q is taken on: one "minibatch" of each client, or its "full" data.

    Exchanges per round: 2N + T + 3 ("sgd": N + T + 3). Floats up per client: 2N dim y, (T + 1) dim y, 2 dim x.
    Exactness: y and the upper round are exact; the adjoint is truncated, W = I - (I - lambda H)^T of it on average.
    Deviations from the paper: all T exchanges always run; from T' on they change nothing.
    The sequence v holds the last p.

    Reference: FedNest: Federated Bilevel, Minimax, and Compositional Optimization; as in
    Communication-Efficient Federated Hypergradient Computation via Aggregated Iterative Differentiation, section 2.1.
    """

    lr: GivenRates = rates()
    neumann_step: float = number(default=0.01, scale=True)
    neumann_terms: int = count(default=5)
    lower_rounds: int = count(default=1)
    lower_steps: Steps = steps(default=1, epochs=False)
    upper_steps: Steps = steps(default=1, epochs=False)
    lower_solver: str = choice(*SOLVERS)
    scaled_rates: bool = static(default=False)
    anchor: str = choice(*ANCHORS)

    fresh = False

    def round(self, state: State, cohort: Cohort) -> State:
        x, y = state.z.x, state.z.y
        y = self.solve_lower(cohort, x, y)
        last = jax.random.randint(cohort.key, (), 0, self.neumann_terms, dtype=jnp.int32)
        p = self.adjoint(cohort, x, y, last)
        return state.next(z=state.z.replace(x=self.step_upper(cohort, x, y, p), y=y, v=p))

    def adjoint(self, cohort: Cohort, x: Vector, y: Vector, last: Any) -> Vector:
        """p after T exchanges, of which the first `last` = T' move it."""

        def term(cohort: Cohort, t: Any, p: Vector) -> Vector:
            moving = jnp.where(t < last, self.neumann_step, 0)
            return p - moving * cohort.mean("hessian", x, y, p)

        p = self.neumann_step * self.neumann_terms * cohort.mean("right_hand_side", x, y)
        return cohort.repeat(self.neumann_terms, term, p)

    def right_hand_side(self, client: Client, x: Vector, y: Vector) -> Vector:
        return client.upper_grad_y(x, y, client.sample(client.key, only="upper"))

    def hessian(self, client: Client, x: Vector, y: Vector, p: Vector) -> Vector:
        return client.hvp(x, y, p, client.sample(client.key, only="lower"))
