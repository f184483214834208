"""Single-level, minimax, joint and compositional problems, and the user's own field. Imports the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from rookery.data.batches import Batch
from rookery.data.federated import BOTH
from rookery.errors import InputError, unknown
from rookery.problems.base import Batches, Problem, Sequence, check_scalar, gradients, zeros_like
from rookery.problems.bilevel import Bilevel
from rookery.problems.sets import ConstraintSet
from rookery.vectors import Tree, Values, Vector

__all__ = ["Bilevel", "Compositional", "Field", "Joint", "Minimax", "Single"]


@dataclass(frozen=True)
class Single(Problem):
    """min_x sum_i p_i f_i(x), plain federated learning: D.x = grad f_i.

    Args:
      loss: f(x, example) of one example, a pure JAX function.
      x_set: the set x must stay in, such as `rk.Ball(10.0)`; None: anywhere.
      scope: "local" when every client has an x of its own and learns alone: nothing is exchanged.
    """

    loss: Callable[[Any, Any], Any]
    x_set: ConstraintSet | None = None
    scope: str = "shared"

    kind: ClassVar[str] = "single"

    def __post_init__(self):
        _ = self.sequences  # refuses an unknown scope here and not in the middle of a run

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (Sequence("x", self.scope, self.x_set),)

    @property
    def losses(self) -> dict[str, Callable]:
        return {"loss": self.loss}

    @property
    def given(self) -> tuple[str, ...]:
        return ("x",)

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        return Values(x=values.x)

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        check_scalar("loss", self.loss, z.x, example(BOTH))

    def direction(self, z: Values, batches: Batches) -> Values:
        return Values(x=gradients(self.loss, (z.x,), batches[BOTH])[0])


@dataclass(frozen=True)
class Minimax(Problem):
    """min_x max_y sum_i p_i F_i(x, y): D.x = grad_x F_i, D.y = -grad_y F_i.

    Args:
      loss: F(x, y, example) of one example.
      x_set, y_set: the sets x and y must stay in, such as `rk.Simplex()` for y; None: anywhere.
    """

    loss: Callable[[Any, Any, Any], Any]
    x_set: ConstraintSet | None = None
    y_set: ConstraintSet | None = None

    kind: ClassVar[str] = "minimax"

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (Sequence("x", constraint=self.x_set), Sequence("y", constraint=self.y_set))

    @property
    def losses(self) -> dict[str, Callable]:
        return {"loss": self.loss}

    @property
    def given(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def oracles(self) -> dict[str, int]:
        return {"gradients": 2}

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        return Values(x=values.x, y=values.y)

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        check_scalar("loss", self.loss, z.x, z.y, example(BOTH))

    def direction(self, z: Values, batches: Batches) -> Values:
        x, y = gradients(self.loss, (z.x, z.y), batches[BOTH])
        return Values(x=x, y=(-Vector(y)).tree)


@dataclass(frozen=True)
class Joint(Problem):
    """min over a shared x and each client's own y_i of sum_i p_i f_i(x, y_i): both gradients, y local.

    Args:
      loss: f(x, y, example) of one example.
      client_set: the set each y_i must stay in; it is projected onto it after every local step.
      server_set: the set x must stay in; the server projects onto it after every aggregation.
    """

    loss: Callable[[Any, Any, Any], Any]
    client_set: ConstraintSet | None = None
    server_set: ConstraintSet | None = None

    kind: ClassVar[str] = "joint"

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (
            Sequence("x", constraint=self.server_set),
            Sequence("y", "local", constraint=self.client_set),
        )

    @property
    def losses(self) -> dict[str, Callable]:
        return {"loss": self.loss}

    @property
    def given(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def oracles(self) -> dict[str, int]:
        return {"gradients": 2}

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        return Values(x=values.x, y=values.y)

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        check_scalar("loss", self.loss, z.x, z.y, example(BOTH))

    def direction(self, z: Values, batches: Batches) -> Values:
        x, y = gradients(self.loss, (z.x, z.y), batches[BOTH])
        return Values(x=x, y=y)


@dataclass(frozen=True)
class Compositional(Problem):
    """min_x f^N(... f^1(f^0(x))), every map averaged over examples and clients.

    Sequences x = z^0, z1..zN with D.z^n = z^n - f_i^{n-1}(z^{n-1}). With `adjoint="tracked"` also w1..wN, shaped
    like z1..zN, with D.w^N = w^N - grad f_i^N(z^N), D.w^n = w^n - (J f_i^n(z^n))' w^{n+1} and
    D.x = (J f_i^0(x))' w^1: exact when clients differ. With `adjoint="local"`, the published form,
    D.x = (J f_i^0(x))' (J f_i^1(z^1))' ... grad f_i^N(z^N), a product of the client's own Jacobians, each on a
    minibatch of its own: its average over clients is biased when they differ.

    Args:
      maps: the maps f^n(z, example) of one example, first to last; the last gives a scalar. One map is single level.
      adjoint: "tracked" or "local".
    """

    maps: tuple[Callable[[Any, Any], Any], ...]
    adjoint: str = "tracked"

    kind: ClassVar[str] = "compositional"

    def __post_init__(self):
        object.__setattr__(self, "maps", tuple(self.maps))
        if not self.maps:
            raise InputError("maps: none was given; at least one map is needed, the last giving a scalar")
        if self.adjoint not in ("tracked", "local"):
            raise unknown("adjoint", self.adjoint, ("tracked", "local"))

    @property
    def depth(self) -> int:
        """N, the number of inner levels."""
        return len(self.maps) - 1

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        levels = range(1, self.depth + 1)
        adjoints = [f"w{n}" for n in levels] if self.adjoint == "tracked" else []
        return tuple(Sequence(name) for name in ["x", *(f"z{n}" for n in levels), *adjoints])

    @property
    def given(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def draws(self) -> dict[str, str]:
        # With tracked adjoints every part is linear in the sample, so one batch serves all; a product of Jacobians
        # is unbiased only when each factor has its own.
        if self.adjoint == "tracked":
            return {BOTH: BOTH}
        return {f"map{n}": BOTH for n in range(len(self.maps))}

    @property
    def oracles(self) -> dict[str, int]:
        return {"gradients": len(self.maps)}

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        trees = {"x": values.x}
        point = values.x
        for n in range(self.depth):
            point = jax.eval_shape(self.maps[n], point, example(BOTH))
            trees[f"z{n + 1}"] = zeros_like(point)
        if self.adjoint == "tracked":
            trees |= {f"w{n}": zeros_like(trees[f"z{n}"]) for n in range(1, self.depth + 1)}
        return Values({name: trees[name] for name in self.names})

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        last = z.x if self.depth == 0 else z[f"z{self.depth}"]
        check_scalar(f"maps[{self.depth}]", self.maps[-1], last, example(BOTH))

    def direction(self, z: Values, batches: Batches) -> Values:
        tracked, depth = self.adjoint == "tracked", self.depth
        batch = (lambda n: batches[BOTH]) if tracked else (lambda n: batches[f"map{n}"])
        at = [z.x, *(z[f"z{n}"] for n in range(1, depth + 1))]
        pulled = gradients(self.maps[depth], (at[depth],), batch(depth))[0]
        trees = {}
        for n in reversed(range(depth)):
            cotangent = z[f"w{n + 1}"] if tracked else pulled
            if tracked:
                trees[f"w{n + 1}"] = (Vector(cotangent) - Vector(pulled)).tree
            value, pulled = _value_and_pullback(self.maps[n], at[n], cotangent, batch(n))
            trees[f"z{n + 1}"] = (Vector(at[n + 1]) - Vector(value)).tree
        trees["x"] = pulled
        return Values({name: trees[name] for name in self.names})


def _value_and_pullback(function: Callable, point: Tree, cotangent: Tree, batch: Batch) -> tuple[Tree, Tree]:
    """The batch mean F of a map at a point, and (J F)' cotangent: averaged first, then composed."""

    def part(examples: Tree, weights: jax.Array) -> tuple[Tree, Tree]:
        def mean(point: Tree) -> Tree:
            values = jax.vmap(lambda example: function(point, example))(examples)
            return jax.tree.map(lambda leaf: jax.numpy.tensordot(weights, leaf, axes=1), values)

        value, pullback = jax.vjp(mean, point)
        return value, pullback(cotangent)[0]

    return batch.total(part)


@dataclass(frozen=True, init=False)
class Field(Problem):
    """The user's own direction field over any named sequences: find z with sum_i p_i D_i(z) = 0.

    Args:
      direction: D(z, example) of one example: takes the values by name (`z.x`), returns a mapping with a tree
        like each sequence. The library averages it over a client's examples and over clients.
      sequences: a list of names (all shared), or a mapping from name to "shared" or "local".

    Initial values go to `rk.run` by name: `x=` and `y=`, and any others in `start={"u": ...}`.
    """

    function: Callable[[Values, Any], Mapping[str, Any]]
    scopes: tuple[tuple[str, str], ...]

    kind: ClassVar[str] = "field"

    def __init__(self, direction: Callable[[Values, Any], Mapping[str, Any]], sequences: Any):
        pairs = sequences.items() if isinstance(sequences, Mapping) else ((name, "shared") for name in sequences)
        object.__setattr__(self, "function", direction)
        object.__setattr__(self, "scopes", tuple(pairs))
        if not self.sequences:
            raise InputError("sequences: none was given; a field needs at least one name")

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(Sequence(name, scope) for name, scope in self.scopes)

    @property
    def given(self) -> tuple[str, ...]:
        return self.names

    def complete(self, values: Values, example: Callable[[str], Tree]) -> Values:
        return Values({name: values[name] for name in self.names})

    def check(self, z: Values, example: Callable[[str], Tree]) -> None:
        result = jax.eval_shape(lambda z, e: Values(self.function(z, e)), z, example(BOTH))
        missing = [name for name in self.names if name not in result]
        if missing:
            raise InputError(
                f"direction: it gives {', '.join(result) or 'nothing'}; it must also give {', '.join(missing)}"
            )
        for name in self.names:
            shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (result[name], z[name])]
            if jax.tree.structure(result[name]) != jax.tree.structure(z[name]) or shapes[0] != shapes[1]:
                raise InputError(f"direction: its {name} has shapes {shapes[0]}; the sequence has {shapes[1]}")

    def direction(self, z: Values, batches: Batches) -> Values:
        mean = batches[BOTH].mean(lambda example: dict(self.function(z, example)))
        return Values({name: mean[name] for name in self.names})
