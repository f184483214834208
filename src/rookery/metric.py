"""Metrics with examples of their own. Imports vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.vectors import Values

Metrics = Callable[[Values], Mapping[str, Any]]


class Metric:
    """A function of the sequences and of arrays, `function(z, **arrays)`, to a dict of scalars.

    The arrays, or pytrees of them, are given to the compiled program, not built into it: two metrics with the same
    function and arrays of the same shapes share one.
    """

    def __init__(self, function: Callable[..., Mapping[str, Any]], **arrays: Any):
        self.function = function
        self.arrays = {
            name: jax.tree.map(np.asarray, array, is_leaf=lambda node: isinstance(node, list))
            for name, array in arrays.items()
        }

    def __call__(self, z: Values) -> Mapping[str, Any]:
        return self.function(z, **jax.tree.map(jnp.asarray, self.arrays))


@dataclass(frozen=True)
class _Together:
    """Two metrics' functions, each with its own arrays."""

    first: Callable[..., Mapping[str, Any]]
    second: Callable[..., Mapping[str, Any]]

    def __call__(self, z: Values, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.first(z, **first), **self.second(z, **second)}


def together(first: Metrics, second: Metrics) -> Metric:
    """The metrics of both."""
    (one, its_own), (other, others) = split(first), split(second)
    return Metric(_Together(one, other), first=its_own, second=others)


def split(metrics: Metrics) -> tuple[Callable[..., Mapping[str, Any]], dict[str, Any]]:
    """Metrics as a function, which a program is compiled for, and arrays, which it is given."""
    return (metrics.function, metrics.arrays) if isinstance(metrics, Metric) else (metrics, {})


@partial(jax.jit, static_argnums=0)
def measure(function: Callable[..., Mapping[str, Any]], values: Values, arrays: dict[str, Any]) -> dict[str, Any]:
    """The metrics of some sequences."""
    return dict(function(values, **arrays))
