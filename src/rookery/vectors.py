"""Vectors: pytrees with the arithmetic of a vector space, so that an update reads as its formula.

`Vector` is one sequence of a problem (any pytree of arrays); `Sequences` is several of them by name (x, y, v).
Imports errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey, register_pytree_with_keys_class

from rookery.errors import InputError

Tree = Any
Scalar = Any

_LARGE = 2.0**48  # the squares of that many numbers below it, and above one over it, are fine in single precision


class MissingSequence(InputError, AttributeError):
    """A sequence that a point does not have."""


class Values(dict):
    """Named values that read as `z.x` and as `z["x"]`: what losses' companions (metrics, fields) are given."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no sequence {name!r}; there are {', '.join(self)}") from None


# A pytree, so that a field may hand its values to JAX transformations as they are.
jax.tree_util.register_pytree_with_keys(
    Values,
    lambda values: (tuple((DictKey(k), v) for k, v in values.items()), tuple(values)),
    lambda names, children: Values(zip(names, children)),
)


def row(tree: Tree, index: Any) -> Tree:
    """Entry `index` of every leaf: one client's, or one run's, of a tree that is stacked over them."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def zeros(shapes: Tree) -> Tree:
    """Zeros like the leaves of a tree, of which the shapes and types are enough."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


class _Space:
    """The operations that every pytree of floats has, given how to apply a function leaf by leaf."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy scalars defer to the operators below

    def __add__(self, other: Any) -> Any:
        return jax.tree.map(jnp.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return jax.tree.map(jnp.subtract, self, other)

    def __neg__(self) -> Any:
        return jax.tree.map(jnp.negative, self)

    def __mul__(self, scalar: Scalar) -> Any:
        return jax.tree.map(lambda leaf: leaf * scalar, self)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Scalar) -> Any:
        return jax.tree.map(lambda leaf: leaf / scalar, self)

    def dot(self, other: Any) -> jax.Array:
        """The inner product, summed over all leaves."""
        products = jax.tree.map(lambda a, b: jnp.sum(a * b), self, other)
        return jnp.asarray(sum(jax.tree.leaves(products)))

    def norm(self) -> jax.Array:
        """The Euclidean norm, also of what has squares that overflow; its derivative at zero is not defined."""
        unit = self.unit()
        scaled = self / unit
        return unit * jnp.sqrt(scaled.dot(scaled))

    def unit(self) -> jax.Array:
        """What to divide by so that squares neither overflow nor vanish: 1 or, far from that, the largest entry."""
        largest = [jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(self)]
        most = jnp.max(jnp.stack(largest)) if largest else jnp.zeros(())
        usual = (most < _LARGE) & (most > 1 / _LARGE) | (most == 0)
        return jax.lax.stop_gradient(jnp.where(usual, 1, most))

    def zeros(self) -> Any:
        """The zero of the same shape."""
        return jax.tree.map(jnp.zeros_like, self)


@register_pytree_with_keys_class
class Vector(_Space):
    """One sequence: a pytree of float arrays with +, -, scalar *, dot and norm."""

    __slots__ = ("tree",)

    def __init__(self, tree: Tree):
        self.tree = tree

    def __repr__(self) -> str:
        return f"Vector({self.tree!r})"

    def tree_flatten_with_keys(self):
        return ((GetAttrKey("tree"), self.tree),), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(children[0])


@register_pytree_with_keys_class
class Sequences(_Space):
    """Named vectors, a point z = {x, y, v} of a problem. Also scaled name by name: `rates * z`."""

    __slots__ = ("_vectors",)

    def __init__(self, vectors: Mapping[str, Vector]):
        self._vectors = dict(vectors)

    @classmethod
    def of(cls, trees: Mapping[str, Tree]) -> Sequences:
        """From the plain pytrees of each sequence."""
        return cls({name: Vector(tree) for name, tree in trees.items()})

    def trees(self) -> Values:
        """The plain pytrees of each sequence."""
        return Values({name: vector.tree for name, vector in self._vectors.items()})

    def __getattr__(self, name: str) -> Vector:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Vector:
        try:
            return self._vectors[name]
        except KeyError:
            raise MissingSequence(
                f"z: there is no sequence {name!r}; there are {', '.join(self.names)}; a client's own are there after "
                "client.enter(z)"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def __contains__(self, name: str) -> bool:
        return name in self._vectors

    def __repr__(self) -> str:
        return f"Sequences({self._vectors!r})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._vectors)

    def only(self, names) -> Sequences:
        """The part with these names, in this point's order."""
        return Sequences({name: vector for name, vector in self._vectors.items() if name in names})

    def merged(self, other: Sequences) -> Sequences:
        """This point with the other's sequences added or replaced."""
        return Sequences({**self._vectors, **other._vectors})

    def replace(self, **vectors: Vector) -> Sequences:
        """This point with some sequences replaced."""
        return Sequences({**self._vectors, **vectors})

    def map(self, function: Callable[[str, Vector], Vector]) -> Sequences:
        """Each sequence sent through `function(name, vector)`."""
        return Sequences({name: function(name, vector) for name, vector in self._vectors.items()})

    def tree_flatten_with_keys(self):
        return tuple((DictKey(name), vector) for name, vector in self._vectors.items()), tuple(self._vectors)

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(dict(zip(names, children)))
