"""LFedNest: FedNest with hypergradients that every client builds from its own Hessians."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rookery.algorithms.estimators import Neumann
from rookery.algorithms.rounds import ANCHORS, SOLVERS, TwoLoop, per_step
from rookery.federation.client import Client, Sample
from rookery.federation.cohort import Cohort
from rookery.federation.fields import choice, count, number, rates, steps
from rookery.federation.method import State, Steps, method, static
from rookery.federation.rates import GivenRates
from rookery.vectors import Sequences, Vector


@method
class LFedNest(TwoLoop):
    r"""N rounds on the lower problem, then local steps on x along the client's own truncated hypergradients.

    In every round, with M the unbiased mean over the cohort and T' ~ U{0, ..., T-1}:

        y   <- lower round at (x, y), N times
        p_i <- lambda T grad_y f_i(x_i, y);   p_i <- p_i - lambda H_i(x_i, y) p_i, T' times, a fresh sample each
        x_i <- x_i - alpha (grad_x f_i(x_i, y) - (d2 g_i/dx dy) p_i)       both lines tau_i times, from x_i = x
        x   <- x + M(x_i - x)

    Args:
      lr: alpha for x and beta for y.
      neumann_step: lambda.
      neumann_terms: T, the length of the Neumann series.
      lower_rounds: N.
      lower_steps: local steps of a lower round, an int, `rk.FixedSteps`, `rk.RandomSteps` or `rk.StepsBy`.
      upper_steps: tau_i, local steps on x, likewise.
      lower_solver: "svrg" (two exchanges a lower round) or "sgd" (one).
      scaled_rates: divide alpha and beta by the client's number of steps.
      anchor: the examples that SVRG's gradient q is taken on: one "minibatch" of each client, or its "full" data.
      whole_series: p_i is the sum of all T terms, lambda sum_{k < T} (I - lambda H_i)^k grad_y f_i, in the place of T
        times one of them.

    Exchanges per round: 2N + 1 ("sgd": N + 1). Floats up per client: 2N dim y, dim x.
    Exactness: biased when clients differ: every client inverts its own Hessian, truncated.

    Reference: FedNest: Federated Bilevel, Minimax, and Compositional Optimization (its light version); as in
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
    whole_series: bool = static(default=False)

    def round(self, state: State, cohort: Cohort) -> State:
        x, y = state.z.x, state.z.y
        y = self.solve_lower(cohort, x, y)
        if self.whole_series:
            x = x + cohort.mean("descend", x, y)
        else:
            last = jax.random.randint(cohort.key, (), 0, self.neumann_terms, dtype=jnp.int32)
            x = x + cohort.mean("descend", x, y, last)
        return state.next(z=state.z.replace(x=x, y=y))

    def descend(self, client: Client, x: Vector, y: Vector, last: Any = None) -> Vector:
        """tau_i steps on x along the client's own hypergradient: T' = `last` Hessian products each, or all terms."""

        def one_term(x_i: Vector, s: Sample, key: jax.Array) -> Vector:
            def term(p: Vector, t: Any, _: jax.Array) -> Vector:
                fresh = client.sample(jax.random.fold_in(key, t + 1), only="lower")
                return p - self.neumann_step * client.hvp(x_i, y, p, fresh)

            p = self.neumann_step * self.neumann_terms * client.upper_grad_y(x_i, y, s)
            return client.loop(last, term, p)

        def all_terms(x_i: Vector, s: Sample, key: jax.Array) -> Vector:
            series = Neumann(self.neumann_terms, self.neumann_step)
            return series.adjoints(client, [Sequences({"x": x_i, "y": y})], s, key)[0]

        def step(x_i: Vector, k: Any, key: jax.Array) -> Vector:
            s = client.sample(key)
            p = all_terms(x_i, s, key) if self.whole_series else one_term(x_i, s, key)
            return x_i - alpha * (client.upper_grad_x(x_i, y, s) - client.cross(x_i, y, p, s))

        tau = client.steps(self.upper_steps)
        alpha = per_step(client.at(self.lr)["x"], tau, self.scaled_rates)
        return client.loop(tau, step, x) - x
