"""The server's step: plain, or through an optimiser of the optax kind. Imports contracts only.

The optimiser is built inside the program from its constructor and its numbers, so these stay traced: changing one does
not recompile, and a sweep over them is one program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, register_pytree_with_keys_class

from rookery.errors import InputError, unknown
from rookery.federation.method import State, first_round, struct
from rookery.federation.rates import Rates, as_float
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class ServerState(State):
    """The server's state with what its optimiser and the drift control keep."""

    optimiser: Any
    duals: Any


def server_state(method: Any, z: Sequences, duals: Any = ()) -> ServerState:
    """The state before the first round of a method with a field `server`."""
    return ServerState(z, first_round(), optimiser=method.server.init(z), duals=duals)


@struct
class PlainServer:
    """z <- z - gamma d."""

    def init(self, z: Sequences) -> tuple:
        return ()

    def step(self, z: Sequences, d: Sequences, gamma: Rates | None, kept: tuple) -> tuple[Sequences, tuple]:
        return z - (d if gamma is None else gamma * d), ()


@register_pytree_with_keys_class
class ServerOptimiser:
    """z <- z + u, where u comes of the aggregated direction d by an optax transformation, as if d were a gradient.

    >>> import optax
    >>> ServerOptimiser(optax.adam, learning_rate=0.01, b1=0.9)
    ServerOptimiser(adam, learning_rate=0.01, b1=0.9)

    Args:
      constructor: a function that gives a transformation, such as `optax.adam`.
      options: what it is called with; numbers are traced, the rest is structure.
    """

    def __init__(self, constructor: Callable[..., Any], **options: Any):
        if not callable(constructor):
            raise InputError(f"server: {constructor!r} was given; a constructor such as optax.adam is needed")
        self.constructor = constructor
        self.options = {name: as_float(value) for name, value in options.items()}

    def replace(self, **options: Any) -> ServerOptimiser:
        """The same optimiser with some options set."""
        return ServerOptimiser(self.constructor, **(self.options | options))

    def init(self, z: Sequences) -> Any:
        return self.constructor(**self.options).init(z)

    def step(self, z: Sequences, d: Sequences, gamma: Rates | None, kept: Any) -> tuple[Sequences, Any]:
        updates, kept = self.constructor(**self.options).update(d, kept, z)
        return z + updates, kept

    def __repr__(self) -> str:
        shown = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"ServerOptimiser({getattr(self.constructor, '__name__', self.constructor)}{shown})"

    def tree_flatten_with_keys(self):
        names = tuple(sorted(name for name, value in self.options.items() if _is_traced(value)))
        fixed = tuple((name, value) for name, value in sorted(self.options.items()) if name not in names)
        return tuple((DictKey(name), self.options[name]) for name in names), (self.constructor, names, fixed)

    @classmethod
    def tree_unflatten(cls, structure, children):
        constructor, names, fixed = structure
        return cls(constructor, **dict(zip(names, children)), **dict(fixed))


def _is_traced(value: Any) -> bool:
    return not isinstance(value, (bool, str)) and (hasattr(value, "dtype") or isinstance(value, (int, float)))


@struct
class PerSequence:
    """An optimiser for some sequences; the others take the plain step."""

    optimisers: dict[str, ServerOptimiser]

    def init(self, z: Sequences) -> dict[str, Any]:
        return {name: optimiser.init(z.only((name,))) for name, optimiser in self.optimisers.items()}

    def step(self, z: Sequences, d: Sequences, gamma: Rates | None, kept: Any) -> tuple[Sequences, Any]:
        moved, _ = PlainServer().step(z, d, gamma, ())
        now = {}
        for name, optimiser in self.optimisers.items():
            alone = (name,)
            after, now[name] = optimiser.step(z.only(alone), d.only(alone), gamma, kept[name])
            moved = moved.merged(after)
        return moved, now


Server = PlainServer | ServerOptimiser | PerSequence


def wrap_server(server: Any) -> Any:
    """None is the plain step, and a mapping gives some sequences an optimiser of their own."""
    if server is None:
        return PlainServer()
    return PerSequence(dict(server)) if isinstance(server, Mapping) else server


def check_server(server: Any, problem: Problem, server_lr: Any = None) -> None:
    """Refuses what is no optimiser, names that the problem does not share, and two step sizes for one step."""
    if isinstance(server, PlainServer):
        return
    if isinstance(server, PerSequence):
        for name, optimiser in server.optimisers.items():
            if name not in problem.shared:
                raise unknown("server", name, problem.shared)
            check_server(optimiser, problem)
        return
    if not isinstance(server, ServerOptimiser):
        raise InputError(
            f"server: {server!r} was given; rk.ServerOptimiser(optax.adam, learning_rate=0.1), or a mapping from "
            "sequences to such, is needed"
        )
    for name, value in server.options.items():
        if _is_traced(value) and not np.isfinite(value).all():
            raise InputError(f"server.{name}: {value} was given; a finite number is needed")
    if server_lr is not None:
        raise InputError("server_lr: it was given together with server, which has a step size of its own")
    try:
        made = server.constructor(**{name: _plain(value) for name, value in server.options.items()})
        zero = {"x": np.zeros(1, np.float32)}
        jax.eval_shape(lambda: made.update(zero, made.init(zero), zero))
    except Exception as raised:
        raise InputError(f"server: {server} cannot be built: {raised}") from None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
