"""FBO-AggITD: the hypergradient is aggregated along the lower iterations, at no exchanges of its own."""

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
class AggITD(TwoLoop):
    r"""N lower rounds whose exchanges also carry a truncated Neumann product; then x along the hypergradient.

    In every round, with M the unbiased mean over the cohort and Q ~ U{0, ..., N}, for t = 0, ..., N:

        one exchange carries    q^t = M(grad_y g_i(x, y^t))                     when t < N
                                z   = M(grad_y f_i(x, y^t))                     at t = Q
                                z  <- z - lambda M(H_i(x, y^t) z)               when t > Q
        another                 y^{t+1}, the local part of the lower round      when t < N
        p = lambda (N + 1) z;   h = M(grad_x f_i(x, y^N) - (d2 g_i/dx dy) p);   upper round along h

    Args:
      lr: alpha for x and beta for y.
      neumann_step: lambda.
      lower_rounds: N.
      lower_steps: local steps of a lower round, an int, `rk.FixedSteps`, `rk.RandomSteps` or `rk.StepsBy`.
      upper_steps: tau_i, local steps of the upper round, likewise.
      lower_solver: "svrg" (two exchanges a lower round) or "sgd" (one, which then carries the product as well).
      scaled_rates: divide alpha and beta by the client's number of steps.
      anchor: the examples that SVRG's gradient q is taken on: one "minibatch" of each client, or its "full" data.

    Exchanges per round: 2N + 3 ("sgd": N + 3). Floats up per client: (3N + 1) dim y, 2 dim x ("sgd": (2N + 1) dim y).
    Exactness: y and the upper round are exact; the adjoint is the (N + 1)-term sum along y^0, ..., y^N on average.
    Deviations from the paper: line 6 lacks lambda, line 15 means z^N; messages have the same shape at every t.
    The sequence v holds the last p.

    Reference: Communication-Efficient Federated Hypergradient Computation via Aggregated Iterative Differentiation,
    Algorithms 1 to 4.
    """

    lr: GivenRates = rates()
    neumann_step: float = number(default=0.01, scale=True)
    lower_rounds: int = count(default=1)
    lower_steps: Steps = steps(default=1, epochs=False)
    upper_steps: Steps = steps(default=1, epochs=False)
    lower_solver: str = choice(*SOLVERS)
    scaled_rates: bool = static(default=False)
    anchor: str = choice(*ANCHORS)

    def round(self, state: State, cohort: Cohort) -> State:
        x = state.z.x
        first = jax.random.randint(cohort.key, (), 0, self.lower_rounds + 1, dtype=jnp.int32)
        y, p = self.aggregate(cohort, x, state.z.y, first)
        return state.next(z=state.z.replace(x=self.step_upper(cohort, x, y, p), y=y, v=p))

    def aggregate(self, cohort: Cohort, x: Vector, y: Vector, first: Any) -> tuple[Vector, Vector]:
        """y^N and p, with the product starting at t = `first` = Q."""

        def next_z(t: Any, z: Vector, product: Vector) -> Vector:
            started = z - self.neumann_step * product
            return jax.tree.map(
                lambda new, old, b: jnp.where(t == first, b, jnp.where(t > first, new, old)), started, z, product
            )

        def lower(cohort: Cohort, t: Any, carry: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            y, z = carry
            if self.lower_solver == "sgd":
                moved, product = cohort.mean("descend_and_product", x, y, z, t, first)
                return y + moved, next_z(t, z, product)
            q, product = cohort.mean("gradient_and_product", x, y, z, t, first)
            return y + cohort.mean("lower.correct", x, y, q), next_z(t, z, product)

        y, z = cohort.repeat(self.lower_rounds, lower, (y, y.zeros()))
        z = next_z(self.lower_rounds, z, cohort.mean("product", x, y, z, self.lower_rounds, first))
        return y, self.neumann_step * (self.lower_rounds + 1) * z

    def gradient_and_product(
        self, client: Client, x: Vector, y: Vector, z: Vector, t: Any, first: Any
    ) -> tuple[Vector, Vector]:
        return self.lower.gradient(client, x, y), self.product(client, x, y, z, t, first)

    def descend_and_product(
        self, client: Client, x: Vector, y: Vector, z: Vector, t: Any, first: Any
    ) -> tuple[Vector, Vector]:
        return self.lower.descend(client, x, y), self.product(client, x, y, z, t, first)

    def product(self, client: Client, x: Vector, y: Vector, z: Vector, t: Any, first: Any) -> Vector:
        """grad_y f_i at t = Q, H_i z after it, and nothing before it."""
        key = jax.random.fold_in(client.key, 1)
        after = lambda: client.hvp(x, y, z, client.sample(key, only="lower"))
        at = lambda: client.upper_grad_y(x, y, client.sample(key, only="upper"))
        return client.choose(t > first, after, lambda: client.choose(t == first, at, z.zeros))
