"""Methods and their parts as json, and back. Imports rates and the sets that problems have.

A part is a dataclass that json may name: it is registered by `part`, as the library's own are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from rookery.errors import InputError, unknown
from rookery.federation.rates import Decay, PerClient, Rates
from rookery.federation.server_optimiser import ServerOptimiser, named_optimiser
from rookery.federation.steps import Epochs, FixedSteps, RandomSteps
from rookery.problems.sets import Ball, Box, Simplex

CLASS = "class"  # the key that names what a json object is of
T = TypeVar("T")

PARTS: dict[str, type[Any]] = {}


def part(cls: type[T]) -> type[T]:
    """Registers a dataclass as a part of methods, which a run's folder can hold by its name."""
    known = PARTS.get(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):  # the same again is a file read anew
        raise InputError(f"part: there is a part {cls.__name__!r} already; give it another name")
    PARTS[cls.__name__] = cls
    return cls


for _known in (Decay, PerClient, FixedSteps, RandomSteps, Epochs, Simplex, Box, Ball):
    part(_known)


def is_part(value: Any) -> bool:
    """Whether a value was made by `struct`: a part whose fields say what they are."""
    return getattr(type(value), "is_struct", False)


def encode(value: Any, name: str = "method") -> Any:
    """A part of a method, or something that one holds, as json has it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Rates):
        return {CLASS: "Rates", **{key: encode(rate, f"{name}.{key}") for key, rate in value.entries().items()}}
    if isinstance(value, ServerOptimiser):
        options = {key: encode(option, f"{name}.{key}") for key, option in value.options.items()}
        return {CLASS: "ServerOptimiser", "optimiser": value.constructor.__name__, **options}
    if isinstance(value, dict):
        return {key: encode(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, np.ndarray | jax.Array):
        return {CLASS: "array", "type": str(value.dtype), "values": np.asarray(value).tolist()}
    if isinstance(value, tuple):
        return {CLASS: "tuple", "items": [encode(item, name) for item in value]}
    if isinstance(value, list):
        return [encode(item, name) for item in value]
    if PARTS.get(type(value).__name__) is type(value):
        return encode_fields(value, name)
    raise InputError(
        f"{name}: {value!r} was given; a run's folder can hold numbers and parts that are registered by rk.part alone"
    )


def encode_fields(value: Any, name: str = "method") -> dict[str, Any]:
    """A dataclass by the name of its class and its fields."""
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    return {CLASS: type(value).__name__, **{key: encode(getattr(value, key), f"{name}.{key}") for key in fields}}


def decode(value: Any, classes: Mapping[str, type[Any]] | None = None) -> Any:
    """What `encode` wrote; `classes` are those that json may name besides parts."""
    if isinstance(value, list):
        return [decode(item, classes) for item in value]
    if not isinstance(value, dict):
        return value
    items = {key: decode(item, classes) for key, item in value.items() if key != CLASS}
    known = PARTS | dict(classes or {})
    match value.get(CLASS):
        case None:
            return items
        case "Rates":
            return Rates(items.pop("default", None), **items)
        case "array":
            return np.asarray(items["values"], items["type"])
        case "tuple":
            return tuple(items["items"])
        case "ServerOptimiser":
            return named_optimiser(items.pop("optimiser"), **items)
        case str(name) if name in known:
            return known[name](**items)
        case name:
            raise unknown("config", str(name), known)
