"""The problem contract: named sequences, their scopes and sets, and a direction field. Imports data and vectors.

A problem says what its sequences are, which are shared and which stay on a client, and gives the direction
D_i(z; batch) of one client. Methods are written on D alone, so any method runs on any nesting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rookery.data.batches import Batch
from rookery.data.federated import BOTH
from rookery.errors import InputError, failing, unknown
from rookery.problems.sets import ConstraintSet
from rookery.vectors import Sequences, Tree, Values, Vector

SCOPES = ("shared", "local")

Batches = Mapping[str, Batch]


@dataclass(frozen=True)
class Sequence:
    """One sequence of a problem: its name, its scope, and the set it must stay in."""

    name: str
    scope: str = "shared"
    constraint: ConstraintSet | None = None

    def __post_init__(self):
        if self.scope not in SCOPES:
            raise unknown(f"scope of {self.name}", self.scope, SCOPES)
        if self.constraint is not None and not isinstance(self.constraint, ConstraintSet):
            raise InputError(
                f"set of {self.name}: {self.constraint!r} was given; a set has a method project(tree), "
                "such as rk.Simplex()"
            )


class Problem(ABC):
    """What is solved: sum_i p_i D_i(z) = 0 at a solution, and each client's D_i."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What methods that are not for every problem choose by."""

    @property
    @abstractmethod
    def sequences(self) -> tuple[Sequence, ...]:
        """All sequences, in the order in which they are kept."""

    @property
    @abstractmethod
    def given(self) -> tuple[str, ...]:
        """The sequences whose initial values the user gives; the others start from `complete`."""

    @property
    def draws(self) -> Mapping[str, str]:
        """The minibatches that one direction needs: name -> the level whose data it is drawn from."""
        return {BOTH: BOTH}

    @property
    def draw_of(self) -> Mapping[str, str]:
        """Derivative -> the minibatch that it is taken on, for problems whose derivatives clients ask for singly."""
        return {}

    @property
    def oracles(self) -> Mapping[str, int]:
        """What one call of `direction` costs, in oracle calls."""
        return {"gradients": 1}

    @property
    def losses(self) -> Mapping[str, Callable]:
        """Its losses by the argument that gave them, which is also the level whose examples they see where there are
        two: what a run may ask before it begins, such as `fault(rows)`, the first row that a loss cannot take."""
        return {}

    def at(self, round: Any) -> Problem:
        """The problem as it is in a round, which may be traced: itself, where nothing of it changes with the rounds."""
        return self

    @abstractmethod
    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        """Initial values of all sequences of one client, from the given ones and the shape of an example."""

    @abstractmethod
    def direction(self, z: Values, batches: Batches) -> Values:
        """D_i(z; batches): for every sequence, a tree shaped like it."""

    @abstractmethod
    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        """Raises InputError when a loss does not fit the values, before anything is compiled."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sequence.name for sequence in self.sequences)

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of the sequences with one value for all, exchanged."""
        return tuple(sequence.name for sequence in self.sequences if sequence.scope == "shared")

    @property
    def local(self) -> tuple[str, ...]:
        """The names of the sequences that each client keeps for itself and never sends."""
        return tuple(sequence.name for sequence in self.sequences if sequence.scope == "local")

    @property
    def sets(self) -> dict[str, ConstraintSet]:
        """The constraint sets of the sequences that have one."""
        return {s.name: s.constraint for s in self.sequences if s.constraint is not None}

    def project(self, z: Sequences, names: tuple[str, ...]) -> Sequences:
        """z with those of the named sequences that have a set projected onto it."""
        sets = self.sets
        return z.map(lambda name, v: Vector(sets[name].project(v.tree)) if name in sets and name in names else v)


@dataclass(frozen=True)
class OfBatch:
    """A loss of a whole minibatch, for what is no mean over examples: a Cox likelihood, a contrast, a ranking.

    A client's own loss is then that of its minibatch; with all of a client's examples in a step, of these. It goes
    where a loss of one example goes, in `rk.Single`, `rk.Joint`, `rk.Minimax` and `rk.Bilevel`.

    Args:
      function: f(x, examples, weights), or f(x, y, examples, weights), where examples have a leading axis and weights,
        one each, sum to 1; an example of weight 0 is none.
    """

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """The loss of a minibatch of one example."""
        *at, example = arguments
        alone = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], example)
        return self.function(*at, alone, jnp.ones(1, jnp.result_type(float)))


def mean_loss(loss: Callable, arguments: tuple, examples: Tree, weights: jax.Array) -> jax.Array:
    """The weighted mean over examples of a loss of one example, or a loss of all of them."""
    if isinstance(loss, OfBatch):
        return loss.function(*arguments, examples, weights)
    return weights @ jax.vmap(lambda example: loss(*arguments, example))(examples)


def gradients(loss: Callable, arguments: tuple, batch: Batch, of: tuple[int, ...] | None = None) -> tuple:
    """The gradient of the mean loss over a batch, in every argument, or in some of them."""
    chosen = tuple(range(len(arguments))) if of is None else of

    def part(examples: Tree, weights: jax.Array) -> tuple:
        return jax.grad(lambda *at: mean_loss(loss, at, examples, weights), chosen)(*arguments)

    return batch.total(part)


def check_scalar(argument: str, loss: Callable, *arguments: Any) -> None:
    """Refuses a loss that does not give one number for one example."""
    with failing(f"{argument}: the loss on the initial values and one example"):
        result = jax.eval_shape(loss, *arguments)
    if not hasattr(result, "shape") or result.shape != () or not jnp.issubdtype(result.dtype, jnp.floating):
        shown = f"shape {result.shape} of {result.dtype}" if hasattr(result, "shape") else type(result).__name__
        raise InputError(
            f"{argument}: the loss of one example gives {shown}; it must give a scalar floating-point number"
        )


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same shapes and types; also of shapes that are not arrays yet."""
    return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), leaf.dtype), tree)
