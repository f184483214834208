"""The server's step: plain, or through an optimiser of the optax kind. Imports contracts only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rookery.errors import InputError, unknown
from rookery.federation.codec import part
from rookery.federation.fields import component, parse_words
from rookery.federation.method import State, first_round, struct
from rookery.federation.protocols import ServerStep, fulfils
from rookery.federation.rates import Rates
from rookery.federation.server_optimiser import ServerOptimiser, is_traced, named_optimiser
from rookery.problems.base import Problem
from rookery.structs import Given
from rookery.vectors import Sequences

# Optimisers that need no step size, as a shell names them.
NEEDS_NO_RATE = {
    "adagrad-norm": "adagrad_norm",
    "d-adaptation": "dadapt_adamw",
    "prodigy": "prodigy",
    "mechanic": "mechanic",
}


@struct
class ServerState(State):
    """The server's state with what its optimiser and the drift control keep."""

    optimiser: Any
    duals: Any


def server_state(method: Any, z: Sequences, duals: Any = ()) -> ServerState:
    """The state before the first round of a method with a field `server`."""
    return ServerState(z, first_round(), optimiser=method.server.init(z), duals=duals)


@part
@struct
class PlainServer:
    """z <- z - gamma d."""

    def init(self, z: Sequences) -> tuple:
        return ()

    def step(self, z: Sequences, d: Sequences, gamma: Rates | None, kept: tuple) -> tuple[Sequences, tuple]:
        return z - (d if gamma is None else gamma * d), ()


@part
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


@part
@struct
class EachSequence:
    """The same optimiser for every sequence, which sees that one alone: x, y and v have step sizes of their own."""

    optimiser: ServerOptimiser

    def init(self, z: Sequences) -> dict[str, Any]:
        return {name: self.optimiser.init(z.only((name,))) for name in z.names}

    def step(self, z: Sequences, d: Sequences, gamma: Rates | None, kept: Any) -> tuple[Sequences, Any]:
        return PerSequence(dict.fromkeys(z.names, self.optimiser)).step(z, d, gamma, kept)


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
    if isinstance(server, EachSequence):
        return check_server(server.optimiser, problem, server_lr)
    if not fulfils(server, ServerStep):
        raise InputError(
            f"server: {server!r} was given; rk.ServerOptimiser(optax.adam, learning_rate=0.1), or a mapping from "
            "sequences to such, is needed"
        )
    if not isinstance(server, ServerOptimiser):  # one from outside, which checks itself
        return
    for name, value in server.options.items():
        if is_traced(value) and not np.isfinite(value).all():
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


def read_server(argument: str, text: str) -> Any:
    """`none`, `sgd:1:0.9`, `adam:0.01`, `prodigy`, ..."""

    def optimiser(word: str) -> Callable[..., Any]:
        return lambda *numbers: named_optimiser(word, **dict(zip(("learning_rate", "momentum"), numbers)))

    forms = {"none/0": lambda: None, "sgd/2": optimiser("sgd")}
    forms |= {f"{word}/1": optimiser(word) for word in ("sgd", "adam", "yogi", "adagrad")}
    untuned = lambda name: lambda: EachSequence(named_optimiser(name))
    forms |= {f"{word}/0": untuned(name) for word, name in NEEDS_NO_RATE.items()}
    allowed = f"none, sgd:LR, sgd:LR:MOMENTUM, adam:LR, yogi:LR, adagrad:LR, {', '.join(list(NEEDS_NO_RATE)[:-1])} and "
    return parse_words(argument, text, forms, allowed + list(NEEDS_NO_RATE)[-1])


def server_field() -> Any:
    """A method's field `server`: an optimiser in the place of the server's plain step."""
    text = "The server's optimiser: none, sgd:LR:MOMENTUM, adam:LR, yogi:LR, adagrad:LR; or one that needs no rate: "
    text += ", ".join(NEEDS_NO_RATE) + "."
    return component(read=read_server, text=text, wrapped=wrap_server)


GivenServer = Given[ServerStep, ServerStep | Mapping[str, ServerOptimiser] | None]
