"""Methods and their parts as json, and back. Imports everything that a method can be made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np

from rookery.algorithms import drift, estimators
from rookery.algorithms.presets import from_optax
from rookery.algorithms.registry import METHODS
from rookery.errors import InputError
from rookery.federation import rates, server, steps
from rookery.federation.rates import Rates
from rookery.federation.server import ServerOptimiser
from rookery.problems import sets

CLASS = "class"  # the key that names what a json object is of


def _dataclasses(module: ModuleType) -> dict[str, type[Any]]:
    found = {name: item for name, item in vars(module).items() if isinstance(item, type)}
    return {name: item for name, item in found.items() if dataclasses.is_dataclass(item)}


MODULES = (drift, estimators, rates, server, steps, sets)
PARTS: dict[str, type[Any]] = {name: item for module in MODULES for name, item in _dataclasses(module).items()}
PARTS |= {row.method.__name__: row.method for row in METHODS.values()}


def build(cls: type[Any], fields: Mapping[str, Any]) -> Any:
    """A dataclass of plain values from json, which has lists for tuples; refuses values that its fields do not take."""
    hints = get_type_hints(cls)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            raise TypeError(f"{name} is {value!r}")
    return cls(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a declared type; of a type that json does not have, it may be."""
    if hint in (int, bool, str, tuple):
        return type(value) is hint
    if hint is float:
        return type(value) in (int, float)
    if hint is None or hint is NoneType:
        return value is None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is tuple:
        return type(value) is tuple and all(_fits(item, arguments[0]) for item in value)
    return True


def encode(value: Any, name: str = "method") -> Any:
    """A method, or a part of one, as json holds it."""
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
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {CLASS: type(value).__name__, **{key: encode(getattr(value, key), f"{name}.{key}") for key in fields}}
    raise InputError(f"{name}: {value!r} was given; a run's folder can hold numbers and the library's own parts only")


def decode(value: Any) -> Any:
    """What `encode` wrote."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    items = {key: decode(item) for key, item in value.items() if key != CLASS}
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
            return from_optax(items.pop("optimiser"), **items)
        case name if name in PARTS:
            return PARTS[name](**items)
        case name:
            raise InputError(f"config: there is no {name!r} in this version of rookery")
