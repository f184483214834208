"""Experiments as json, and back: dataclasses of plain values, and methods by the names of their classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rookery.algorithms.registry import METHODS
from rookery.federation import codec
from rookery.federation.codec import CLASS
from rookery.own_code import own_name

__all__ = ["CLASS", "CLASSES", "build", "decode", "encode", "fits"]

CLASSES = {row.method.__name__: row.method for row in METHODS.values()}


def build(cls: type[Any], fields: Mapping[str, Any]) -> Any:
    """A dataclass of plain values from json, which has lists for tuples; refuses values that its fields do not take."""
    hints = get_type_hints(cls)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{name} is {value!r}")
    return cls(**values)


def fits(value: Any, hint: Any) -> bool:
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
        return any(fits(value, each) for each in arguments)
    if origin is tuple:
        return type(value) is tuple and all(fits(item, arguments[0]) for item in value)
    return True


def encode(value: Any, name: str = "method") -> Any:
    """A method, or some of them, or a part of one, as json has it."""
    if isinstance(value, list):
        return [encode(item, name) for item in value]
    if CLASSES.get(type(value).__name__) is type(value) or own_name(type(value)) is not None:
        return codec.encode_fields(value, name)
    return codec.encode(value, name)


def decode(value: Any, classes: Mapping[str, type[Any]] | None = None) -> Any:
    """What `encode` wrote; `classes` are the user's own that it may name."""
    return codec.decode(value, CLASSES | dict(classes or {}))
