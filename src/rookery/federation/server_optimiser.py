"""Server optimisers of the optax kind, built inside the program. Imports rates, vectors and errors.

An optimiser is made from its constructor and its numbers, so these stay traced: changing one does not recompile, and a
sweep over them is one program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.tree_util import DictKey, register_pytree_with_keys_class

from rookery.errors import InputError
from rookery.federation.adaptive import ADAPTIVE
from rookery.federation.rates import as_float
from rookery.federation.untuned import UNTUNED
from rookery.vectors import Sequences


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

    def step(self, z: Sequences, d: Sequences, gamma: Any, kept: Any) -> tuple[Sequences, Any]:
        updates, kept = self.constructor(**self.options).update(d, kept, z)
        return z + updates, kept

    def __repr__(self) -> str:
        shown = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"ServerOptimiser({getattr(self.constructor, '__name__', self.constructor)}{shown})"

    def tree_flatten_with_keys(self):
        names = tuple(sorted(name for name, value in self.options.items() if is_traced(value)))
        fixed = tuple((name, value) for name, value in sorted(self.options.items()) if name not in names)
        return tuple((DictKey(name), self.options[name]) for name in names), (self.constructor, names, fixed)

    @classmethod
    def tree_unflatten(cls, structure, children):
        constructor, names, fixed = structure
        return cls(constructor, **dict(zip(names, children)), **dict(fixed))


def is_traced(value: Any) -> bool:
    """Whether an option is a number of the program; what is not is structure."""
    return not isinstance(value, (bool, str)) and (hasattr(value, "dtype") or isinstance(value, (int, float)))


def named_optimiser(name: str, **numbers: float) -> ServerOptimiser:
    """An optimiser by its name, with its numbers: one of Reddi et al.'s, one of this library, or of optax."""
    if constructor := (ADAPTIVE | UNTUNED).get(name):
        return ServerOptimiser(constructor, **numbers)
    try:
        import optax
        from optax import contrib
    except ImportError:
        raise InputError("server: optax is not installed; install it with pip install optax") from None
    if not callable(constructor := getattr(optax, name, getattr(contrib, name, None))):
        raise InputError(f"server: {name!r} was given; the name of an optimiser of optax is needed")
    return ServerOptimiser(constructor, **numbers)
