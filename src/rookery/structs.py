"""Frozen dataclasses that are pytrees: numbers are leaves, static fields and the class itself are structure.

Imports nothing of rookery.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar, dataclass_transform

import jax
from jax.tree_util import GetAttrKey

T = TypeVar("T")
Held = TypeVar("Held", covariant=True)
Taken = TypeVar("Taken", contravariant=True)


class Given(Generic[Held, Taken]):
    """The type of a field that is given as one thing and held as another: `lr` takes a number and holds rates.

    It is for type checkers alone, which take a field of a descriptor's type so; nothing is one.
    """

    def __get__(self, owner: object, cls: Any = None) -> Held: ...  # type: ignore[empty-body]
    def __set__(self, owner: object, value: Taken) -> None: ...


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that is part of the structure: changing it makes another program."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def struct(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass of a class and registers it as a pytree.

    `jax.tree_util.register_dataclass` would not do: it gives two classes with the same fields equal tree structures, so
    that a compiled program of one (SimFBO) can be taken for that of the other (ShroFBO). Here the class is part of the
    structure. Rebuilding an instance does not run `__post_init__`, which would see tracers.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    cls.is_struct = True  # type: ignore[attr-defined]
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    traced = tuple(field.name for field in fields if not field.metadata.get("static", False))
    fixed = tuple(field.name for field in fields if field.metadata.get("static", False))

    def structure(instance: Any) -> tuple:
        return cls, tuple(getattr(instance, name) for name in fixed)

    def flatten_with_keys(instance: Any) -> tuple:
        return tuple((GetAttrKey(name), getattr(instance, name)) for name in traced), structure(instance)

    def flatten(instance: Any) -> tuple:
        return tuple(getattr(instance, name) for name in traced), structure(instance)

    def unflatten(structure: tuple, children: Any) -> Any:
        instance = object.__new__(cls)
        for name, value in (*zip(traced, children), *zip(fixed, structure[1])):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
