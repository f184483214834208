"""Federated bilevel problems, their derivatives, and the forms of their hypergradient. Imports the problem contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from rookery.data.batches import Batch
from rookery.errors import InputError
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

# The draws that a derivative can have to itself, and the level that each is from.
LEVEL = {"lower": "lower", "hessian": "lower", "cross": "lower", "upper": "upper", "adjoint": "upper"}


class Form(ABC):
    """How the hypergradient of a bilevel problem is had: what moves beside x and y, and every direction."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of problem that it makes, which methods are for."""

    @property
    @abstractmethod
    def lower(self) -> tuple[str, ...]:
        """The sequences of the lower level, all shaped like y, which is the first."""

    @property
    @abstractmethod
    def oracles(self) -> Mapping[str, int]:
        """What one call of `direction` costs, in oracle calls."""

    @property
    @abstractmethod
    def own_draw(self) -> Mapping[str, str]:
        """Derivative -> the draw that it has to itself where draws are independent."""

    @property
    @abstractmethod
    def singly(self) -> bool:
        """Whether clients may ask for these derivatives one by one, as methods with loops of their own do."""

    def at(self, round: Any) -> Form:
        """The form as it is in a round, which may be traced."""
        return self

    @abstractmethod
    def complete(self, y: Tree) -> dict[str, Tree]:
        """Initial values of the sequences of the lower level, from that of y."""

    @abstractmethod
    def direction(self, problem: Bilevel, z: Values, batch: Mapping[str, Batch]) -> dict[str, Tree]:
        """The direction of every sequence; `batch` is the one that each derivative is taken on."""


@dataclass(frozen=True)
class Adjoint(Form):
    """By the adjoint v, from Hessian-vector products: D.y = grad_y g_i, D.v = (d2 g_i/dy2) v - grad_y f_i and
    D.x = grad_x f_i - (d2 g_i/dx dy) v."""

    @property
    def kind(self) -> str:
        return "bilevel"

    @property
    def lower(self) -> tuple[str, ...]:
        return ("y", "v")

    @property
    def oracles(self) -> dict[str, int]:
        return {"gradients": 3, "hvps": 1, "crosses": 1}

    @property
    def own_draw(self) -> dict[str, str]:
        return {
            "lower_grad": "lower",
            "hvp": "hessian",
            "cross": "cross",
            "upper_grad_x": "upper",
            "upper_grad_y": "adjoint",
        }

    @property
    def singly(self) -> bool:
        return True

    def complete(self, y: Tree) -> dict[str, Tree]:
        return {"y": y, "v": zeros_like(y)}

    def direction(self, problem: Bilevel, z: Values, batch: Mapping[str, Batch]) -> dict[str, Tree]:
        if problem.independent:
            f_x = problem.upper_grad_x(z.x, z.y, batch["upper_grad_x"])
            f_y = problem.upper_grad_y(z.x, z.y, batch["upper_grad_y"])
            g_y = problem.lower_grad(z.x, z.y, batch["lower_grad"])
            hv = problem.hvp(z.x, z.y, z.v, batch["hvp"])
            cross = problem.cross(z.x, z.y, z.v, batch["cross"])
        else:
            f_x, f_y = problem.upper_grads(z.x, z.y, batch["upper_grad_x"])
            g_y, hv, cross = problem.lower_pass(z.x, z.y, z.v, batch["lower_grad"])
        return {"x": (Vector(f_x) - Vector(cross)).tree, "y": g_y, "v": (Vector(hv) - Vector(f_y)).tree}


@dataclass(frozen=True)
class Bilevel(Problem):
    """min_x sum_i p_i f_i(x, y*(x)) subject to y*(x) = argmin_y sum_i p_i g_i(x, y).

    Sequences: x (upper), y (lower) and v (the adjoint, shaped like y), with the direction field

        D.y = grad_y g_i,   D.v = (d2 g_i/dy2) v - grad_y f_i,   D.x = grad_x f_i - (d2 g_i/dx dy) v,

    or those of `by`.

    Args:
      upper: the loss f(x, y, example) of one example of the upper level, a pure JAX function.
      lower: the loss g(x, y, example) of one example of the lower level.
      upper_scope: "local" when each client has its own x (a weight per sample, say), kept there.
      lower_scope: "local" when each client solves its own lower problem; then y and v, or what `by` has in the place of
        v, are kept there and y_i*(x) = argmin g_i. "shared" when there is one lower problem, over all clients.
      independent: every derivative has a minibatch of its own, as the papers' proofs assume, instead of one lower and
        one upper minibatch for all: in the direction, in every oracle of a client, and in the estimators. Each part is
        unbiased either way; a product of two is unbiased only so.
      by: `rk.Penalty(lam)`, gradients alone, for methods that are written on any field; None: the field above.
    """

    upper: Callable[[Any, Any, Any], Any]
    lower: Callable[[Any, Any, Any], Any]
    upper_scope: str = "shared"
    lower_scope: str = "shared"
    independent: bool = False
    by: Form | None = None

    def __post_init__(self):
        if not isinstance(self.by, Form | None):
            raise InputError(f"by: {self.by!r} was given; None or rk.Penalty(lam) is needed")
        _ = self.sequences  # refuses unknown scopes here and not in the middle of a run

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        own = (Sequence(name, self.lower_scope) for name in self.form.lower)
        return (Sequence("x", self.upper_scope), *own)

    @property
    def form(self) -> Form:
        """How its hypergradient is had."""
        return Adjoint() if self.by is None else self.by

    @property
    def kind(self) -> str:
        return self.form.kind

    @property
    def losses(self) -> dict[str, Callable]:
        return {"upper": self.upper, "lower": self.lower}

    @property
    def given(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def draw_of(self) -> dict[str, str]:
        return self._draw_of if self.form.singly else {}

    @property
    def _draw_of(self) -> dict[str, str]:
        return {oracle: draw if self.independent else LEVEL[draw] for oracle, draw in self.form.own_draw.items()}

    @property
    def draws(self) -> dict[str, str]:
        return {draw: LEVEL[draw] for draw in self._draw_of.values()}

    @property
    def oracles(self) -> Mapping[str, int]:
        return self.form.oracles

    def at(self, round: Any) -> Bilevel:
        return self if self.by is None else replace(self, by=self.by.at(round))

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        return Values(x=values.x, **self.form.complete(values.y))

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        check_scalar("upper", self.upper, z.x, z.y, example("upper"))
        check_scalar("lower", self.lower, z.x, z.y, example("lower"))

    def direction(self, z: Values, batches: Batches) -> Values:
        batch = {oracle: batches[draw] for oracle, draw in self._draw_of.items()}
        return Values(self.form.direction(self, z, batch))

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
