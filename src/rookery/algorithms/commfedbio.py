"""CommFedBiO: lower rounds, an adjoint from compressed or sketched replies, an upper step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rookery.algorithms.rounds import LowerRound
from rookery.federation.channels import Per
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.feedback import ErrorFeedback
from rookery.federation.fields import choice, count, rates, steps
from rookery.federation.method import State, Steps, method
from rookery.federation.rates import GivenRates
from rookery.federation.stages import TopK, hashed
from rookery.vectors import Sequences, Vector


class Sketch(NamedTuple):
    """A count-sketch matrix S: every entry of a vector with a sign of its own, added into one of r cells."""

    cells: jax.Array
    signs: jax.Array

    @classmethod
    def draw(cls, key: jax.Array, rows: int, like: jax.Array) -> Sketch:
        """One of r = `rows` cells, for the entries of a flat array."""
        cells, turned = hashed(key, like.shape, rows)
        return cls(cells, jnp.where(turned == 1, -1, 1).astype(like.dtype))

    def pack(self, flat: jax.Array, rows: int) -> jax.Array:
        """S u."""
        return jnp.zeros(rows, flat.dtype).at[self.cells].add(self.signs * flat)

    def spread(self, table: jax.Array) -> jax.Array:
        """S' w."""
        return self.signs * table[self.cells]


@method
class CommFedBiO:
    r"""Two loops: N rounds on the lower problem, then the adjoint from replies of few bytes, then one step on x.

    In every round, with M the unbiased mean over the cohort, H_i = d2 g_i/dy2 and C what the run's channel does to v:

        y <- y + M(y_i - y),   y_i by local steps along grad_y g_i(x, y_i), N times
        v <- v - eta_v M(C(H_i v - grad_y f_i)), T times                          "iterative"
        v <- S1' argmin_w |M(S2 H_i S1') w - M(S2 grad_y f_i)|                    "sketched"
        x <- x - eta_x M(grad_x f_i - (d2 g_i/dx dy) v)

    all but the first at (x, y) with the new y. S1 (r1 x dim y) and S2 (2 r1 x dim y) are count sketches of the round:
    each column has one entry, 1 or -1; the server sends the key that they are drawn with.

    Args:
      lr: eta for x, y and v; "sketched" takes no step on v.
      form: "iterative", by gradients of the quadratic problem that v solves, or "sketched", by one linear system.
      adjoint_rounds: T.
      sketch: r1.
      lower_rounds: N.
      lower_steps: local steps of a lower round, an int, `rk.FixedSteps`, `rk.RandomSteps` or `rk.StepsBy`.

    Exchanges per round: N + T + 1 ("sketched": N + 2). Floats up per client: (N + T) dim y, dim x ("sketched":
    N dim y, 2 r1 (r1 + 1), dim x), before the channel. "sketched" takes r1 Hessian products a round and client.
    Exactness: "iterative": exact at 1 lower step, O(eta) at more; v goes on from the round before, so any T will do. A
    channel `channel(fraction)` leaves an error that falls with eta_v. "sketched": biased, unless no two entries of y
    share a cell; it shrinks as r1 grows.
    Deviations from the paper: compression is the run's (`up=rk.CommFedBiO.channel(0.1)`), not the method's; what else
    had to be chosen is in docs/compression.md.

    Reference: Li, Pei and Huang, Communication-Efficient Robust Federated Learning with Noisy Labels, KDD 2022.
    """

    lr: GivenRates = rates()
    form: str = choice("iterative", "sketched")
    adjoint_rounds: int = count(default=5)
    sketch: int = count(default=10, static=True)
    lower_rounds: int = count(default=1)
    lower_steps: Steps = steps(default=1, epochs=False)

    kinds = ("bilevel",)
    scopes = ("shared",)
    aggregation = "biased"  # exchanges of a round build on one another
    local_bias = "equal"  # unequal lower steps reweigh the lower level alone

    @staticmethod
    def channel(fraction: float = 0.1) -> Per:
        """What a run takes as `up`: of v alone the largest entries travel, and what was left out is added later."""
        return Per(v=ErrorFeedback(TopK(fraction)))

    @property
    def uses(self) -> tuple[str, ...] | None:
        return ("x", "y") if self.form == "sketched" else None

    @property
    def biased(self) -> bool:
        return self.form == "sketched"

    @property
    def lower(self) -> LowerRound:
        return LowerRound(self.lr, self.lower_steps, scaled=False, solver="sgd")

    def round(self, state: State, cohort: Cohort) -> State:
        x, eta = state.z.x, self.lr.at(state.round)
        y = cohort.repeat(self.lower_rounds, lambda cohort, t, y: self.lower.run(cohort, x, y), state.z.y)
        if self.form == "iterative":
            v = self.iterate(cohort, x, y, state.z.v, eta["v"])
        else:
            v = self.solve(cohort, x, y)
        h = cohort.mean("hypergradient", x, y, v).x
        return state.next(z=state.z.replace(x=x - eta["x"] * h, y=y, v=v))

    # The iterative form.

    def iterate(self, cohort: Cohort, x: Vector, y: Vector, v: Vector, eta: Any) -> Vector:
        """v after T exchanges."""
        descend = lambda cohort, t, v: v - eta * cohort.mean("residual", x, y, v).v
        return cohort.repeat(self.adjoint_rounds, descend, v)

    def residual(self, client: Client, x: Vector, y: Vector, v: Vector) -> Sequences:
        """H_i v - grad_y f_i, named, so that a channel of its own is found for it."""
        s = client.sample(client.key)
        return Sequences({"v": client.hvp(x, y, v, s) - client.upper_grad_y(x, y, s)})

    # The sketched form.

    def solve(self, cohort: Cohort, x: Vector, y: Vector) -> Vector:
        """v = S1' w, of one exchange."""
        key = jax.random.key_data(cohort.key)
        matrix, right = cohort.mean("sketches", x, y, key)
        flat, like = ravel_pytree(y)
        first, _ = self.drawn(key, flat)
        return like(first.spread(jnp.linalg.lstsq(matrix, right)[0]))

    def sketches(self, client: Client, x: Vector, y: Vector, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """S2 H_i S1', column by column, and S2 grad_y f_i."""
        s, rows = client.sample(client.key), 2 * self.sketch
        flat, like = ravel_pytree(y)
        first, second = self.drawn(key, flat)

        def column(matrix: jax.Array, k: Any, _: jax.Array) -> jax.Array:
            unit = jnp.zeros(self.sketch, flat.dtype).at[k].set(1)
            product = client.hvp(x, y, like(first.spread(unit)), s)
            return matrix.at[:, k].set(second.pack(ravel_pytree(product)[0], rows))

        matrix = client.loop(self.sketch, column, jnp.zeros((rows, self.sketch), flat.dtype))
        return matrix, second.pack(ravel_pytree(client.upper_grad_y(x, y, s))[0], rows)

    def drawn(self, key: jax.Array, flat: jax.Array) -> tuple[Sketch, Sketch]:
        """S1 and S2 of a round, by the numbers of its key: the server and its clients draw the same."""
        one, two = jax.random.split(jax.random.wrap_key_data(key))
        return Sketch.draw(one, self.sketch, flat), Sketch.draw(two, 2 * self.sketch, flat)

    # The upper step.

    def hypergradient(self, client: Client, x: Vector, y: Vector, v: Vector) -> Sequences:
        """grad_x f_i - (d2 g_i/dx dy) v."""
        s = client.sample(client.key)
        return Sequences({"x": client.upper_grad_x(x, y, s) - client.cross(x, y, v, s)})
