"""The fields of methods that are parts of their own, and how a shell gives them. Imports the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rookery.algorithms.drift import ControlVariates, Duals
from rookery.algorithms.estimators import ConjugateGradient, Neumann, Tracked
from rookery.federation.fields import component, parse_words, whole
from rookery.federation.protocols import Drift, Estimator
from rookery.federation.rates import Rates
from rookery.problems.sets import Ball, Box, Simplex
from rookery.structs import Given


def read_drift(argument: str, text: str) -> Any:
    """`none`, `control-variates`, `duals:1:0.5` or `duals:1:0.5:2`."""
    forms = {
        "none/0": lambda: None,
        "control-variates/0": ControlVariates,
        "duals/2": lambda gamma, a: Duals(Rates(gamma), a),
        "duals/3": lambda gamma, a, d: Duals(Rates(gamma), a, d),
    }
    return parse_words(argument, text, forms, "none, control-variates, duals:GAMMA:A and duals:GAMMA:A:D")


def drift_field(wrapped: Callable[[Any], Any]) -> Any:
    """A method's field `drift`; `wrapped` makes one of None."""
    text = "Drift control: none, control-variates, duals:GAMMA:A or duals:GAMMA:A:D."
    return component(read=read_drift, text=text, wrapped=wrapped)


def read_estimator(argument: str, text: str) -> Estimator:
    """`neumann:10:0.1`, `cg:10` or `tracked`."""
    forms = {
        "neumann/2": lambda terms, step: Neumann(whole(terms), step),
        "cg/1": lambda iterations: ConjugateGradient(whole(iterations)),
        "tracked/0": Tracked,
    }
    return parse_words(argument, text, forms, "neumann:TERMS:STEP, cg:ITERATIONS and tracked")


def estimator_field(default: Estimator) -> Any:
    """A method's field `hypergradient`."""
    text = "How the adjoint is found: neumann:TERMS:STEP, cg:ITERATIONS or tracked."
    return component(default, read=read_estimator, text=text, given="neumann:10:0.1")


def read_set(argument: str, text: str) -> Any:
    """`none`, `simplex`, `box:-1:1` or `ball:2`."""
    forms = {"none/0": lambda: None, "simplex/0": Simplex, "box/2": Box, "ball/1": Ball}
    return parse_words(argument, text, forms, "none, simplex, box:LOW:HIGH and ball:RADIUS")


def set_field() -> Any:
    """A field that is a set, part of the structure."""
    return component(read=read_set, text="The set: none, simplex, box:LOW:HIGH or ball:RADIUS.", static=True)


GivenDrift = Given[Drift, Drift | None]
