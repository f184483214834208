"""Federated bilevel problems and their derivatives. Imports the problem contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from rookery.data.batches import Batch
from rookery.problems.base import (
    Batches,
    Problem,
    Sequence,
    check_scalar,
    gradients,
    mean_loss,
    zeros_like,
)
from rookery.vectors import Tree, Values, Vector

# The draw that each derivative has to itself where draws are independent, and the level that it is from.
OWN_DRAW = {
    "lower_grad": "lower",
    "hvp": "hessian",
    "cross": "cross",
    "upper_grad_x": "upper",
    "upper_grad_y": "adjoint",
}
LEVEL = {"lower": "lower", "hessian": "lower", "cross": "lower", "upper": "upper", "adjoint": "upper"}


@dataclass(frozen=True)
class Bilevel(Problem):
    """min_x sum_i p_i f_i(x, y*(x)) subject to y*(x) = argmin_y sum_i p_i g_i(x, y).

    Sequences: x (upper), y (lower) and v (the adjoint, shaped like y), with the direction field

        D.y = grad_y g_i,   D.v = (d2 g_i/dy2) v - grad_y f_i,   D.x = grad_x f_i - (d2 g_i/dx dy) v.

    Args:
      upper: the loss f(x, y, example) of one example of the upper level, a pure JAX function.
      lower: the loss g(x, y, example) of one example of the lower level.
      upper_scope: "local" when each client has its own x (a weight per sample, say), kept there.
      lower_scope: "local" when each client solves its own lower problem; then y and v are kept there and
        y_i*(x) = argmin g_i. "shared" when there is one lower problem, over all clients.
      independent: every derivative has a minibatch of its own, as the papers' proofs assume, instead of one lower and
        one upper minibatch for all: in the direction, in every oracle of a client, and in the estimators. Each part is
        unbiased either way; a product of two is unbiased only so.
    """

    upper: Callable[[Any, Any, Any], Any]
    lower: Callable[[Any, Any, Any], Any]
    upper_scope: str = "shared"
    lower_scope: str = "shared"
    independent: bool = False

    kind: ClassVar[str] = "bilevel"

    def __post_init__(self):
        _ = self.sequences  # refuses unknown scopes here and not in the middle of a run

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (
            Sequence("x", self.upper_scope),
            Sequence("y", self.lower_scope),
            Sequence("v", self.lower_scope),
        )

    @property
    def losses(self) -> dict[str, Callable]:
        return {"upper": self.upper, "lower": self.lower}

    @property
    def given(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def draw_of(self) -> dict[str, str]:
        return OWN_DRAW if self.independent else {oracle: LEVEL[draw] for oracle, draw in OWN_DRAW.items()}

    @property
    def draws(self) -> dict[str, str]:
        return {draw: LEVEL[draw] for draw in self.draw_of.values()}

    @property
    def oracles(self) -> dict[str, int]:
        return {"gradients": 3, "hvps": 1, "crosses": 1}

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        return Values(x=values.x, y=values.y, v=zeros_like(values.y))

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        check_scalar("upper", self.upper, z.x, z.y, example("upper"))
        check_scalar("lower", self.lower, z.x, z.y, example("lower"))

    def direction(self, z: Values, batches: Batches) -> Values:
        if self.independent:
            batch = {oracle: batches[draw] for oracle, draw in self.draw_of.items()}
            f_x = self.upper_grad_x(z.x, z.y, batch["upper_grad_x"])
            f_y = self.upper_grad_y(z.x, z.y, batch["upper_grad_y"])
            g_y = self.lower_grad(z.x, z.y, batch["lower_grad"])
            hv = self.hvp(z.x, z.y, z.v, batch["hvp"])
            cross = self.cross(z.x, z.y, z.v, batch["cross"])
        else:
            f_x, f_y = self.upper_grads(z.x, z.y, batches["upper"])
            g_y, hv, cross = self.lower_pass(z.x, z.y, z.v, batches["lower"])
        return Values(
            x=(Vector(f_x) - Vector(cross)).tree,
            y=g_y,
            v=(Vector(hv) - Vector(f_y)).tree,
        )

    def lower_pass(self, x: Tree, y: Tree, v: Tree, batch: Batch) -> tuple[Tree, Tree, Tree]:
        """grad_y g, (d2 g/dy2) v and (d2 g/dx dy) v together: one forward-over-reverse pass along v."""

        def part(examples: Tree, weights: jax.Array) -> tuple[Tree, Tree, Tree]:
            # x is closed over, so the pass carries no tangent through the layers that only x reaches.
            def grads(y: Tree) -> tuple[Tree, Tree]:
                return jax.grad(lambda x, y: mean_loss(self.lower, (x, y), examples, weights), (0, 1))(x, y)

            (_, g_y), (cross, hv) = jax.jvp(grads, (y,), (v,))
            return g_y, hv, cross

        return batch.total(part)

    def upper_grads(self, x: Tree, y: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """grad_x f and grad_y f together."""
        return gradients(self.upper, (x, y), batch)

    # The parts one by one; a compiler drops what a caller does not use.

    def lower_grad(self, x: Tree, y: Tree, batch: Batch) -> Tree:
        """grad_y g."""
        return gradients(self.lower, (x, y), batch, of=(1,))[0]

    def hvp(self, x: Tree, y: Tree, v: Tree, batch: Batch) -> Tree:
        """(d2 g/dy2) v."""
        return self.lower_pass(x, y, v, batch)[1]

    def cross(self, x: Tree, y: Tree, v: Tree, batch: Batch) -> Tree:
        """(d2 g/dx dy) v, shaped like x."""
        return self.lower_pass(x, y, v, batch)[2]

    def upper_grad_x(self, x: Tree, y: Tree, batch: Batch) -> Tree:
        """grad_x f."""
        return gradients(self.upper, (x, y), batch, of=(0,))[0]

    def upper_grad_y(self, x: Tree, y: Tree, batch: Batch) -> Tree:
        """grad_y f."""
        return gradients(self.upper, (x, y), batch, of=(1,))[0]
