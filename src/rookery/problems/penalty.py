"""The hypergradient of a bilevel problem from gradients alone. Imports bilevel problems."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery.data.batches import Batch
from rookery.errors import InputError, failing
from rookery.problems.base import Problem, mean_loss
from rookery.problems.bilevel import Bilevel, Form
from rookery.vectors import Tree, Values, Vector

Lam = float | Callable[[Any], Any]
LEAST, MOST = (float(size) for size in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))  # sizes of lam
CHUNK, FORESEEN = 10_000, 1_000_000  # rounds whose lam are looked at together, and at most


@dataclass(frozen=True)
class Penalty(Form):
    r"""Bilevel without second derivatives: the lower problem as a penalty, `rk.Bilevel(..., by=rk.Penalty(lam))`.

    Sequences x, y and w, the last two shaped like y, with the direction field

        D.x = grad_x f_i(x, y) + lam (grad_x g_i(x, y) - grad_x g_i(x, w))
        D.y = grad_y f_i(x, y) / lam + grad_y g_i(x, y)
        D.w = grad_y g_i(x, w):

    w is the lower solution, y that of f / lam + g, and lam (w - y) the adjoint v but for O(1 / lam), as a difference
    of gradients is a second derivative. So its fixed point is off the solution by O(1 / lam). Both gradients of g are
    on one minibatch, or their difference would have a noise of the order of lam; y and w need equal step sizes.

    Several lam at once, with a sequence y, y2, y3, ... each and one w, are extrapolated to lam = infinity:

        D.x = sum_k c_k (grad_x f_i(x, y_k) + lam_k (grad_x g_i(x, y_k) - grad_x g_i(x, w))),
        c_k = prod_{j != k} lam_k / (lam_k - lam_j),   so that sum_k c_k = 1 and sum_k c_k / lam_k^m = 0

    for m = 1 .. K - 1, which leaves O(1 / lam^K): with lam and 2 lam, c = (-1, 2). With lam and -lam it is a central
    difference, c = (1/2, 1/2).

    Args:
      lam: the penalty: a number, a function of the round (it may be traced) where it grows, or a tuple of several that
        differ. It is a part of the problem: another number is another program.

    Gradients of one client for a direction: 4 K + 2 for K values of lam, each level's in x and y counted singly; no
    Hessian-vector products. Floats per client, each way: dim x + (K + 1) dim y.
    Rounding: a difference that is multiplied by lam has an error that grows with lam times the precision.

    References: On Penalty-based Bilevel Gradient Descent Method; A Fully First-Order Method for Stochastic Bilevel
    Optimization (F2SA); Faster Gradient Methods for Highly-smooth Stochastic Bilevel Optimization (F2SA-p: several lam
    as a difference of higher order).

    >>> import rookery as rk
    >>> tiny = rk.exact.QuadraticBilevel.tiny()
    >>> problem = rk.Bilevel(tiny.problem.upper, tiny.problem.lower, by=rk.Penalty(10.0))
    >>> point = rk.fixed_point(problem, rk.SimFBO(lr=rk.Rates(0.1)), tiny.clients, **tiny.start())
    >>> problem.names, (61 * point.flat("x")).round(6).tolist()
    (('x', 'y', 'w'), [40.0])
    """

    lam: Lam | tuple[Lam, ...]

    def __post_init__(self):
        if not self._lams:
            raise InputError("lam: an empty tuple was given; a number, or a tuple of several that differ, is needed")
        if any(isinstance(lam, Tracer) for lam in self._lams):  # of a round that is traced
            return
        first = [_first(lam) for lam in self._lams]
        if len(set(first)) < len(first):
            raise InputError(f"lam: {self.lam} was given; to be extrapolated its numbers must differ")

    def check_rounds(self, first: int, rounds: int) -> None:
        """Raises InputError when lam is no such number in some round to come, or several meet."""
        if not any(map(callable, self._lams)):
            return
        lams_at = jax.jit(jax.vmap(lambda t: [jnp.asarray(_now(lam, t), float) for lam in self._lams]))
        for begin in range(first, first + min(rounds, FORESEEN), CHUNK):
            lams = np.stack(lams_at(begin + np.arange(CHUNK, dtype=np.int32)), axis=1)[: first + rounds - begin]
            fits = (np.abs(lams) >= LEAST) & (np.abs(lams) <= MOST)
            if not fits.all():
                round, which = np.argwhere(~fits)[0]
                raise InputError(
                    f"lam: {lams[round, which]} was given in round {begin + round}; a finite number that is not 0 is "
                    "needed"
                )
            meet = (np.diff(np.sort(lams, axis=1), axis=1) == 0).any(axis=1)
            if meet.any():
                round = int(np.flatnonzero(meet)[0])
                raise InputError(
                    f"lam: {tuple(lams[round].tolist())} was given in round {begin + round}; to be extrapolated its "
                    "numbers must differ"
                )

    @property
    def _lams(self) -> tuple[Any, ...]:
        return self.lam if isinstance(self.lam, tuple) else (self.lam,)

    @property
    def kind(self) -> str:
        return "first-order bilevel"

    @property
    def ys(self) -> tuple[str, ...]:
        """The names of the sequences of f / lam + g, one for each lam."""
        return ("y", *(f"y{k}" for k in range(2, len(self._lams) + 1)))

    @property
    def lower(self) -> tuple[str, ...]:
        return (*self.ys, "w")

    @property
    def oracles(self) -> dict[str, int]:
        return {"gradients": 4 * len(self._lams) + 2}

    @property
    def own_draw(self) -> dict[str, str]:
        # y and w are told apart, too: their directions on g are on one draw, as the two gradients in x are.
        return {"lower_grad": "lower", "lower_grad_x": "cross", "upper_grad_x": "upper", "upper_grad_y": "adjoint"}

    @property
    def singly(self) -> bool:
        return False

    def at(self, round: Any) -> Penalty:
        return Penalty(tuple(_now(lam, round) for lam in self._lams)) if any(map(callable, self._lams)) else self

    def complete(self, y: Tree) -> dict[str, Tree]:
        return dict.fromkeys(self.lower, y)

    def direction(self, problem: Bilevel, z: Values, batch: Mapping[str, Batch]) -> dict[str, Tree]:
        lower, upper = (z[name] for name in self.lower), (z[name] for name in self.ys)
        *g, g_w = _at_each(problem.lower, z.x, tuple(lower), batch["lower_grad_x"], batch["lower_grad"])
        f = _at_each(problem.upper, z.x, tuple(upper), batch["upper_grad_x"], batch["upper_grad_y"])
        trees: dict[str, Tree] = {}
        d_x = []
        for name, lam, c, (f_x, f_y), (g_x, g_y) in zip(self.ys, self._lams, self._weights(), f, g, strict=True):
            trees[name] = (f_y / lam + g_y).tree
            d_x.append(c * (f_x + lam * (g_x - g_w[0])))
        return {"x": sum(d_x[1:], start=d_x[0]).tree, **trees, "w": g_w[1].tree}

    def _weights(self) -> list[Any]:
        """c_k, the weights of Lagrange's polynomial through the points 1 / lam_k, at 0."""
        lams = self._lams
        return [
            prod((lam / (lam - other) for j, other in enumerate(lams) if j != k), start=1.0)
            for k, lam in enumerate(lams)
        ]


def _at_each(loss: Callable, x: Tree, ys: tuple[Tree, ...], of_x: Batch, of_y: Batch) -> list[tuple[Vector, Vector]]:
    """The gradients of a mean loss in x and in y at (x, y) for each y, each y on the same minibatches."""

    def part(examples: Tree, weights: jax.Array, argument: tuple[int, ...]) -> list[tuple[Tree, ...]]:
        grad = jax.grad(lambda x, y: mean_loss(loss, (x, y), examples, weights), argument)
        return [grad(x, y) for y in ys]

    if of_x is of_y:
        both = of_x.total(lambda examples, weights: part(examples, weights, (0, 1)))
        return [(Vector(in_x), Vector(in_y)) for in_x, in_y in both]
    in_x = of_x.total(lambda examples, weights: part(examples, weights, (0,)))
    in_y = of_y.total(lambda examples, weights: part(examples, weights, (1,)))
    return [(Vector(a), Vector(b)) for (a,), (b,) in zip(in_x, in_y, strict=True)]


def _now(lam: Any, round: Any) -> Any:
    """A penalty in a round."""
    now: Any = lam(round) if callable(lam) else lam
    return now if isinstance(now, Tracer) else float(now)


def _first(lam: Any) -> float:
    """A penalty in the first round; refuses what is no number, and a schedule that gives none."""
    if callable(lam):
        with failing("lam: the schedule, of a traced round,"):
            shape = jax.eval_shape(lambda round: jnp.asarray(lam(round)), jnp.int32(0)).shape
        if shape != ():
            raise InputError(f"lam: a schedule that gives shape {shape} of a round was given; one number is needed")
        return _first(_now(lam, 0))
    if not isinstance(lam, numbers.Real) or isinstance(lam, bool):
        raise InputError(f"lam: {lam!r} was given; a finite number that is not 0, or a schedule of such, is needed")
    try:
        number = float(lam)
    except OverflowError:
        raise InputError(f"lam: a number above 1e308 was given; {_HELD}") from None
    if not isfinite(number) or number == 0:
        raise InputError(f"lam: {lam!r} was given; a finite number that is not 0, or a schedule of such, is needed")
    if not LEAST <= abs(number) <= MOST:
        raise InputError(f"lam: {lam!r} was given; {_HELD}")
    return number


_HELD = f"numbers of a size from {LEAST:.3g} to {MOST:.3g} are held in float32"


def check_penalty(problem: Problem, first: int, rounds: int) -> None:
    """Refuses a problem whose penalty, where it has one, is none in some round to come."""
    by = problem.by if isinstance(problem, Bilevel) else None
    if isinstance(by, Penalty):
        by.check_rounds(first, rounds)
