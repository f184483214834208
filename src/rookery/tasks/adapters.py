"""Networks of Flax and Equinox as networks of tasks. Imports models and errors; the two libraries only when asked.

An adapted network keeps the contract of `rookery.tasks.models`: `init(key)` gives a dict of layers, `network(params,
image)` the logits of one example. Two of them are equal, and share a program, when they compute the same from the same
parameters.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError

__all__ = ["from_equinox", "from_flax"]


def from_flax(module: Any, example: Any) -> FlaxNetwork:
    """A Flax linen module, whose call takes one image.

    Args:
      module: the module, such as an `nn.Sequential` or one of your own; it may hold parameters and nothing else (no
        batch statistics), and draw nothing (no dropout).
      example: an image, or its shape: what the parameters are made for.
    """
    linen = _need("flax.linen", "flax")
    if not isinstance(module, linen.Module):
        raise InputError(f"module: {type(module).__name__} was given; an instance of a flax.linen module is needed")
    # Lists cannot be hashed, and nn.Sequential is given one.
    lists = {f.name: tuple(own) for f in fields(module) if isinstance(own := getattr(module, f.name), list)}
    module = module.clone(**lists)
    _check_hashable("module", module)
    shape = tuple(example) if isinstance(example, tuple) else tuple(jnp.shape(example))
    variables = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
    if set(variables) != {"params"}:
        others = ", ".join(sorted(set(variables) - {"params"})) or "nothing"
        raise InputError(f"module: it holds {others}; a module with parameters and nothing else is needed")
    return FlaxNetwork(module, shape)


@dataclass(frozen=True)
class FlaxNetwork:
    """A linen module for images of a shape; made by `from_flax`."""

    module: Any
    shape: tuple[int, ...]

    def init(self, key: jax.Array) -> dict[str, Any]:
        return dict(self.module.init(key, jnp.zeros(self.shape, jnp.float32))["params"])

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        return self.module.apply({"params": params}, image.reshape(self.shape))


def from_equinox(module: Any) -> EquinoxNetwork:
    """An Equinox module, whose call takes one image.

    Its parameters are its floating-point arrays; whatever else it holds is fixed. A layer is a field of the module, or
    an entry of a field that is a tuple or a list (`"layers.0"`).

    Args:
      module: a module, which then starts from the numbers it holds, or a function of a key that makes one.
    """
    equinox = _need("equinox", "equinox")
    if isinstance(module, equinox.Module):
        return EquinoxNetwork(*_structure(module), make=lambda key: module)
    if not callable(module):
        raise InputError(
            f"module: {type(module).__name__} was given; an equinox.Module or a function of a key is needed"
        )
    made = equinox.filter_eval_shape(module, jax.random.key(0))
    if not isinstance(made, equinox.Module):
        raise InputError(f"module: the function gives {type(made).__name__}; it must give an equinox.Module")
    return EquinoxNetwork(*_structure(made), make=module)


@dataclass(frozen=True)
class EquinoxNetwork:
    """The structure of a module, what in it is fixed, and where its parameters are; made by `from_equinox`."""

    structure: Any
    fixed: tuple[Any, ...]  # a leaf each, None where a parameter is
    places: tuple[tuple[str, str] | None, ...]  # (layer, name in it) of a parameter, None where something is fixed
    make: Callable[[jax.Array], Any] = field(compare=False, repr=False)

    def init(self, key: jax.Array) -> dict[str, Any]:
        layers: dict[str, Any] = {}
        for place, leaf in zip(self.places, jax.tree.leaves(self.make(key))):
            if place is not None:
                layers.setdefault(place[0], {})[place[1]] = leaf
        return layers

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        leaves = [
            fixed if place is None else params[place[0]][place[1]] for place, fixed in zip(self.places, self.fixed)
        ]
        return jax.tree.unflatten(self.structure, leaves)(image)


def _structure(module: Any) -> tuple[Any, tuple, tuple]:
    """A module's structure, its fixed leaves, and the places of its parameters."""
    fixed, places = [], []
    leaves, structure = jax.tree_util.tree_flatten_with_path(module)
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None:
            _check_hashable("module", leaf)
            fixed.append(leaf)
            places.append(None)
        elif jnp.issubdtype(dtype, jnp.floating):
            fixed.append(None)
            places.append(_place(path))
        else:
            raise InputError(
                f"module: it holds an array of {dtype} at {jax.tree_util.keystr(path)}; its arrays must be "
                "floating-point parameters"
            )
    if not any(places):
        raise InputError("module: it holds no floating-point array; a module with parameters is needed")
    return structure, tuple(fixed), tuple(places)


def _place(path: tuple) -> tuple[str, str]:
    """The layer that a path leads through, and the rest of the path."""
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    inside = 2 if len(path) > 2 and isinstance(path[1], jax.tree_util.SequenceKey) else 1
    return ".".join(names[:inside]), ".".join(names[inside:]) or "value"


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"module: {package} is not installed; pip install {package}") from None


def _check_hashable(argument: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise InputError(
            f"{argument}: {type(value).__name__} holds something that cannot be hashed; tuples in the place of lists "
            "and arrays are needed"
        ) from None
