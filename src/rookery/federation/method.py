"""The method contract: a straight-line server program and the client phases it names. Imports contracts only.

A method is a frozen dataclass made with `@method`; states and shared pieces are made with `@struct`. Its numbers are
leaves of a pytree, so they are traced: changing one never recompiles. Fields made with `static(...)` are structure.
It has

    init(problem, z)            the server's state before the first round, from the initial shared sequences
    client(problem, z)          the state of one client, () when it keeps none; z holds its local sequences too
    start(state, cohort)        optional: once before the first round
    check(problem, population)  optional: refuses what does not fit the problem, on the host
    advise(plan)                optional: sentences to warn with, on the host
    observe(state, clients)     optional: numbers by name for the history, of the server's and all clients' states
    round(state, cohort)        one round; reaches clients only through the cohort
    <phase>(client, *message)   a client phase, found by its name: runs where the data is

`rounds` of a method without clients' state need no `client`, and most need no `start`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError
from rookery.federation.fields import Scope, amount, bound, count, number, rates, steps, wrapped
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs, FixedSteps, Steps, largest_steps
from rookery.problems.base import Problem
from rookery.structs import static, struct
from rookery.vectors import Sequences

T = TypeVar("T")


def _no_client_state(self: Any, problem: Problem, z: Sequences) -> tuple:
    return ()


def _no_start(self: Any, state: Any, cohort: Any) -> Any:
    return state


def _plain_state(self: Any, problem: Problem, z: Sequences) -> State:
    return State(z, first_round())


def _nothing_to_check(self: Any, problem: Problem, population: int) -> None:
    return None


def _no_advice(self: Any, plan: Plan) -> list[str]:
    return []


def _nothing_to_see(self: Any, state: Any, clients: Any) -> dict[str, Any]:
    return {}


_DEFAULTS = {
    "init": _plain_state,
    "client": _no_client_state,
    "start": _no_start,
    "check": _nothing_to_check,
    "advise": _no_advice,
    "observe": _nothing_to_see,
    "scopes": ("shared", "local"),  # which sequences it can have
    "kinds": None,  # the kinds of problem it solves; None: every kind
    "uses": None,  # the sequences that need step sizes; None: all
    "participation": "any",  # or "all": every client in every round
    "silent": (),  # phases whose replies go nowhere, and so through no channel
    "neighbours": False,  # whether clients talk to one another, which clients elsewhere cannot
    "adds_up": False,  # whether its server adds replies up over rounds, so that each of them has to be whole in the end
    "biased": False,  # whether it may come to rest off the solution, however small its steps
    "stable": None,  # the kinds of problem on which it is stable at small steps; None: every kind that it solves
    "local_bias": None,  # of its fixed point with several local steps: "none", "vanishing", "reweighted" or "equal"
    "aggregation": "unbiased",  # the mean over cohorts is the round of all clients; or a "ratio" of sums, or "biased"
}


@dataclass_transform(
    frozen_default=True, field_specifiers=(static, dataclasses.field, rates, amount, steps, number, count)
)
def method(cls: type[T]) -> type[T]:
    """Makes a method of a class: a frozen dataclass, a pytree, with what it leaves out filled in."""
    for name, default in _DEFAULTS.items():
        if not hasattr(cls, name):
            setattr(cls, name, default)
    if not hasattr(cls, "round"):
        raise InputError(f"{cls.__name__}: a method needs round(self, state, cohort)")
    own = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        wrapped(self)
        if own is not None:
            own(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    return struct(cls)


def first_round() -> jax.Array:
    """The round counter of a run that has not begun."""
    return jnp.zeros((), jnp.int32)


def is_method(cls: type[Any]) -> bool:
    """Whether a class was made a method."""
    return dataclasses.is_dataclass(cls) and all(hasattr(cls, name) for name in ("round", *_DEFAULTS))


@struct
class State:
    """The server's state: the shared sequences and the number of rounds done. Methods that keep more extend it."""

    z: Sequences
    round: Any
    empty: Any = dataclasses.field(default_factory=first_round, kw_only=True)  # rounds so far that nobody was part of

    def next(self: StateT, **changes: Any) -> StateT:
        """The state after this round, with what has changed."""
        return dataclasses.replace(self, round=self.round + 1, **changes)

    def skip(self: StateT) -> StateT:
        """The state after a round that nobody was part of."""
        return dataclasses.replace(self, round=self.round + 1, empty=self.empty + 1)


StateT = TypeVar("StateT", bound=State)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a run before it begins, for `advise`."""

    population: int
    probabilities: np.ndarray  # pi_i in the first round
    epoch: np.ndarray  # the minibatches of an epoch of each client

    def largest_steps(self, work: Any, client: int) -> int:
        """The most local steps that a client can take in a round."""
        if isinstance(work, Epochs):
            return int((work.low if work.high is None else work.high) * self.epoch[client])
        return int(work.steps[client]) if isinstance(work, FixedSteps) else largest_steps(work)


def find_phase(program: Any, name: Any) -> Callable[..., Any]:
    """The client phase of a method by its dotted name ("steps", "lower.correct")."""
    if not isinstance(name, str):
        raise InputError(
            f"phase: {name!r} was given; a phase is named, so that a client elsewhere can find it on its own copy of "
            "the method: pass the method's name as a string"
        )
    owner = program
    for part in name.split("."):
        known = hasattr(type(owner), part) or part in getattr(owner, "__dataclass_fields__", {})
        if part.startswith("_") or not known:
            raise InputError(f"phase: {type(program).__name__} has no phase {name!r}")
        owner = getattr(owner, part)
    return owner


def has_start(program: Any) -> bool:
    """Whether a method does something once before its first round."""
    return getattr(type(program), "start", _no_start) is not _no_start


@jax.jit
def observed(program: Any, state: Any, clients: Any) -> dict[str, Any]:
    """What a method says of a run, for its history; `clients` are the states of all of them, stacked."""
    return program.observe(state, clients)


def keeps_state(program: Any) -> bool:
    """Whether a method's clients keep state between rounds."""
    return getattr(type(program), "client", _no_client_state) is not _no_client_state


def observes(program: Any) -> bool:
    """Whether a method says anything of the kind."""
    return type(program).observe is not _nothing_to_see


def next_state(program: Any, state: Any, cohort: Any) -> Any:
    """The state after a round of a method; refuses what is none. Every engine runs rounds through here."""
    after = program.round(state, cohort)
    if not isinstance(after, type(state)):
        raise InputError(
            f"{type(program).__name__}: its round gives {type(after).__name__}; it must give the next state, as "
            "state.next(...) makes it"
        )
    was, now = (jax.tree.structure(each) for each in (state, after))
    if was != now:
        raise InputError(
            f"{type(program).__name__}: its round gives a state of structure {now}, and was given one of {was}; the "
            "two must be alike"
        )
    return after


def bind(program: T, problem: Problem, population: int) -> T:
    """The method made ready for a problem: plain numbers become rates, and every field is checked, on the host."""
    owner: Any = program
    if owner.kinds is not None and problem.kind not in owner.kinds:
        raise InputError(
            f"{type(program).__name__}: it solves {' and '.join(owner.kinds)} problems, and this one is "
            f"{problem.kind}; a method for that kind is needed, and rookery list shows which are"
        )
    local = [name for name in problem.local if "local" not in owner.scopes]
    if local:
        raise InputError(
            f"{type(program).__name__}: it needs every sequence shared, and {', '.join(local)} of this "
            f"{problem.kind} problem stay local; a method that keeps local sequences on their clients is needed"
        )
    uses = owner.uses or problem.names
    others = tuple(name for name in problem.names if name not in uses)
    ready: Any = bound(owner, Scope(uses, problem.shared, population, others=others))
    ready.check(problem, population)
    return ready


__all__ = [
    "Plan",
    "Rates",
    "State",
    "Steps",
    "bind",
    "find_phase",
    "first_round",
    "has_start",
    "method",
    "next_state",
    "observed",
    "observes",
    "static",
    "struct",
]
