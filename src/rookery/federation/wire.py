"""Messages as bytes: a json header and safetensors, no pickle. Imports replies, vectors and errors.

Both ends know the run's configuration, so they know the structure of every sequence; a node of the user's own (a named
tuple, a Flax or Equinox module), wherever it stands in one, travels as the number of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from safetensors import numpy as safetensors

from rookery.errors import InputError
from rookery.federation.scaled import Scaled
from rookery.vectors import Sequences, Vector

_LENGTH = 8

Names = Callable[[Vector], tuple[int, bool]]  # the number of a vector, and whether the receiver has it


class Wire:
    """Encodes and decodes pytrees of arrays.

    Args:
      templates: trees in which every kind of node occurs that messages may have besides dicts, lists and tuples.
    """

    def __init__(self, *templates: Any):
        self._kinds: list[Any] = []
        for tree in templates:
            self._learn(tree)

    def _learn(self, node: Any) -> None:
        """Numbers the kinds of nodes in a tree."""
        if node is None or jax.tree_util.all_leaves([node]):
            return
        kind, children = _one_level(node)
        if not _is_plain(node) and kind not in self._kinds:
            self._kinds.append(kind)
        for child in children:
            self._learn(child)

    def encode(self, tree: Any, header: dict[str, Any] | None = None, names: Names | None = None) -> bytes:
        """A tree and a small header as bytes; with `names`, vectors that the receiver has go by their numbers."""
        arrays: dict[str, np.ndarray] = {}
        described = json.dumps({"header": header or {}, "tree": self._describe(tree, arrays, names)}).encode()
        return len(described).to_bytes(_LENGTH, "little") + described + safetensors.save(arrays)

    def header(self, data: bytes) -> dict[str, Any]:
        """The header alone."""
        return self._described(data)[0]["header"]

    def decode(self, data: bytes, kept: dict[int, Vector] | None = None) -> tuple[Any, dict[str, Any]]:
        """The tree and the header that were encoded; `kept` are the vectors that this end has, by number, and new
        ones are added to it."""
        described, end = self._described(data)
        arrays = safetensors.load(data[end:])
        return self._build(described["tree"], arrays, {} if kept is None else kept), described["header"]

    def _described(self, data: bytes) -> tuple[dict[str, Any], int]:
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        return json.loads(data[_LENGTH:end]), end

    def _describe(self, node: Any, arrays: dict[str, np.ndarray], names: Names | None) -> Any:
        inside = lambda child: self._describe(child, arrays, names)
        if node is None:
            return None
        if isinstance(node, Scaled):
            return {"scaled": [inside(node.value), inside(node.by)]}
        if isinstance(node, Sequences):
            return {"sequences": {name: inside(node[name]) for name in node.names}}
        if isinstance(node, Vector) and names is not None:
            number, has = names(node)
            return {"kept": number} if has else {"keep": [number, inside(node.tree)]}
        if isinstance(node, Vector):
            return {"vector": inside(node.tree)}
        if type(node) is dict and _is_plain(node):
            return {"dict": {key: inside(child) for key, child in node.items()}}
        if type(node) in (list, tuple):
            return {type(node).__name__: [inside(child) for child in node]}
        if jax.tree_util.all_leaves([node]):
            name = str(len(arrays))
            arrays[name] = np.array(node, order="C")  # a copy: what travels is no longer the sender's
            return name
        kind, children = _one_level(node)
        if kind not in self._kinds:
            raise InputError(
                f"message: {type(node).__name__} cannot travel; use arrays, vectors, dicts and tuples of them"
            )
        return {"kind": [self._kinds.index(kind), [inside(child) for child in children]]}

    def _build(self, node: Any, arrays: dict[str, np.ndarray], kept: dict[int, Vector]) -> Any:
        inside = lambda child: self._build(child, arrays, kept)
        if node is None:
            return None
        if isinstance(node, str):
            return arrays[node]
        ((kind, content),) = node.items()
        if kind == "sequences":
            return Sequences({name: inside(child) for name, child in content.items()})
        if kind == "vector":
            return Vector(inside(content))
        if kind == "scaled":
            value, by = content
            return Scaled(inside(value), inside(by))
        if kind == "keep":
            number, tree = content
            return kept.setdefault(number, Vector(inside(tree)))
        if kind == "kept":
            return kept[content]
        if kind == "dict":
            return {key: inside(child) for key, child in content.items()}
        if kind == "list":
            return [inside(child) for child in content]
        if kind == "tuple":
            return tuple(inside(child) for child in content)
        number, children = content
        return jax.tree.unflatten(self._kinds[number], [inside(child) for child in children])


def _one_level(node: Any) -> tuple[Any, list[Any]]:
    """The kind of a node, and its children as they are."""
    children, kind = jax.tree.flatten(node, is_leaf=lambda inner: inner is not node)
    return kind, children


def _is_plain(node: Any) -> bool:
    """Whether json has the kind of a node: a list, a tuple, or a mapping from texts."""
    return type(node) in (list, tuple) or (type(node) is dict and all(isinstance(key, str) for key in node))
