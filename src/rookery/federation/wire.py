"""Messages as bytes: a seal, a json header and safetensors, no pickle. Imports replies, vectors and errors.

A message is MAGIC, the version, a digest of all that follows, the length of the header, the header, and arrays. Only
arrays and plain values are ever decoded; whatever is wrong with a message is a `MessageError`. The digest tells damage,
not malice: who may talk to whom is the transport's matter. A hostile message can be refused, and can lie about numbers;
it cannot run code, take more memory than it is long, or have another shape than the receiver asks for.

Both ends know the run's configuration, so they know the structure of every sequence; a node of the user's own (a named
tuple, a Flax or Equinox module), wherever it stands in one, travels as the number of its kind.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import numpy as safetensors

from rookery.errors import InputError, MessageError
from rookery.federation.scaled import Scaled
from rookery.vectors import Sequences, Vector

MAGIC, VERSION = b"rookery", 1
_DIGEST, _LENGTH = 16, 4
_START = len(MAGIC) + 1 + _DIGEST + _LENGTH
HEADER = 2**24  # bytes of a header at most
NODES, ITEMS = 2**17, 2**20  # objects and lists of a header at most, and values in them
LARGEST = 2**34  # bytes of a message at most
DEPTH = 100  # levels of a tree at most
_BRACKETS = 4 * DEPTH  # levels of json at most: a level of a tree takes up to three
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_KINDS = "fiub"  # of arrays: floats, integers, flags
# Floats of JAX's that NumPy has not: they travel as the bits they are, with their name.
_SHORT = {name: np.dtype(getattr(jnp, name)) for name in dir(jnp) if name == "bfloat16" or name.startswith("float8_")}

Names = Callable[[Vector], tuple[int, bool]]  # the number of a vector, and whether the receiver has it


class Opened(NamedTuple):
    """A message whose seal was whole: its header, how its tree is built, and its arrays as bytes."""

    header: dict[str, Any]
    tree: Any
    arrays: bytes


class Wire:
    """Encodes and decodes pytrees of arrays.

    Args:
      templates: trees in which every kind of node occurs that messages may have besides dicts, lists and tuples.
      largest: bytes of a message at most.
    """

    def __init__(self, *templates: Any, largest: int = LARGEST):
        self._kinds: list[Any] = []
        self.largest = largest
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
        return seal(described, safetensors.save(arrays))

    def header(self, data: bytes) -> dict[str, Any]:
        """The header alone."""
        return self.open(data).header

    def decode(
        self, data: bytes | Opened, kept: dict[int, Vector] | None = None, like: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """The tree and the header that were encoded; refuses what is no message.

        Args:
          data: the message, or what `open` gave of it.
          kept: the vectors that this end has, by number; new ones are added to it.
          like: a tree of arrays, or of their shapes, that the message must be like; None: of any shape.
        """
        opened = data if isinstance(data, Opened) else self.open(data)
        new: dict[int, Vector] = dict(kept or {})
        try:
            arrays = safetensors.load(opened.arrays)
            if wrong := [array.dtype for array in arrays.values() if array.dtype.kind not in _KINDS]:
                raise MessageError(f"message: it has an array of {wrong[0]}; numbers and flags are sent")
            tree = self._build(opened.tree, arrays, new, DEPTH)
        except MessageError:
            raise
        except Exception as error:  # whatever bytes may do to a reader
            raise MessageError(f"message: it cannot be read ({type(error).__name__})") from None
        if like is not None:
            _check_like(tree, like)
        if kept is not None:
            kept.update(new)
        return tree, opened.header

    def open(self, data: bytes) -> Opened:
        """A message whose seal is whole, its arrays not looked at yet."""
        if len(data) > self.largest:
            raise MessageError(f"message: it is {len(data)} bytes long; at most {self.largest} are taken")
        if len(data) < _START or data[: len(MAGIC)] != MAGIC:
            raise MessageError("message: it does not begin as one of Rookery's")
        if data[len(MAGIC)] != VERSION:
            raise MessageError(f"message: it is of version {data[len(MAGIC)]}; this one speaks {VERSION}")
        begin = len(MAGIC) + 1
        if _digest(data[begin + _DIGEST :]) != data[begin : begin + _DIGEST]:
            raise MessageError("message: it was cut or changed on its way")
        size = int.from_bytes(data[_START - _LENGTH : _START], "little")
        if size > min(HEADER, len(data) - _START):
            raise MessageError(f"message: it says that its header is {size} bytes long, which it cannot be")
        _check_json(data[_START : _START + size])
        try:
            described = json.loads(data[_START : _START + size])
        except (ValueError, RecursionError):
            raise MessageError("message: its header cannot be read") from None
        if not isinstance(described, dict) or set(described) != {"header", "tree"}:
            raise MessageError("message: its header is none")
        if not isinstance(described["header"], dict):
            raise MessageError("message: its header is none")
        return Opened(described["header"], described["tree"], data[_START + size :])

    def left_out(self, opened: Opened) -> set[int]:
        """The numbers of the vectors that a message leaves out, since its receiver has been sent them before."""
        there: set[int] = set()
        named: set[int] = set()
        nodes = [opened.tree]
        while nodes:
            node = nodes.pop()
            if isinstance(node, dict):
                if isinstance(number := node.get("kept"), int):
                    named.add(number)
                if isinstance(pair := node.get("keep"), list) and pair and isinstance(pair[0], int):
                    there.add(pair[0])
            nodes += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        return named - there

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
            array = np.array(node, order="C")  # a copy: what travels is no longer the sender's
            if array.dtype.name in _SHORT:
                arrays[name] = array.view(f"u{array.dtype.itemsize}")
                return {"short": [array.dtype.name, name]}
            if array.dtype.kind not in _KINDS or array.dtype.name.startswith(("int2", "int4", "uint2", "uint4")):
                raise InputError(f"message: an array of {array.dtype} cannot travel; numbers of whole bytes are needed")
            arrays[name] = array
            return name
        kind, children = _one_level(node)
        if kind not in self._kinds:
            raise InputError(
                f"message: {type(node).__name__} cannot travel; use arrays, vectors, dicts and tuples of them"
            )
        return {"kind": [self._kinds.index(kind), [inside(child) for child in children]]}

    def _build(self, node: Any, arrays: Mapping[str, np.ndarray], kept: dict[int, Vector], depth: int) -> Any:
        if depth == 0:
            raise MessageError(f"message: it is more than {DEPTH} levels deep")
        inside = lambda child: self._build(child, arrays, kept, depth - 1)
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
            if not isinstance(number, int) or isinstance(number, bool):
                raise MessageError("message: a vector in it has no number")
            return kept.setdefault(number, Vector(inside(tree)))
        if kind == "kept":
            return kept[content]
        if kind == "short":
            name, bits = content
            return arrays[bits].view(_SHORT[name])
        if kind == "dict":
            return {key: inside(child) for key, child in content.items()}
        if kind == "list":
            return [inside(child) for child in content]
        if kind == "tuple":
            return tuple(inside(child) for child in content)
        if kind != "kind":
            raise MessageError(f"message: it has a {kind[:20]!r}, which is nothing that is sent")
        number, children = content
        if not isinstance(number, int) or not 0 <= number < len(self._kinds):
            raise MessageError("message: it has a node of a kind that this run does not know")
        return jax.tree.unflatten(self._kinds[number], [inside(child) for child in children])


def _check_json(text: bytes) -> None:
    """Refuses json that would take much more memory or time than it is long, before it is parsed."""
    opened = text.count(b"{") + text.count(b"[")
    if opened > NODES or text.count(b",") > ITEMS:
        raise MessageError(f"message: its header has more than {NODES} objects and lists, or {ITEMS} values")
    if opened > _BRACKETS:
        depth = 0
        for bracket in re.sub(rb"[^][{}]+", b"", _STRING.sub(b"", text)):
            depth += 1 if bracket in b"[{" else -1
            if depth > _BRACKETS:
                raise MessageError(f"message: its header is more than {_BRACKETS} levels deep")


def seal(described: bytes, arrays: bytes) -> bytes:
    """A message of a description and arrays."""
    content = len(described).to_bytes(_LENGTH, "little") + described + arrays
    return MAGIC + bytes([VERSION]) + _digest(content) + content


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _check_like(tree: Any, like: Any) -> None:
    """Refuses a tree that is not of the structure, shapes and types that it must have."""
    if jax.tree.structure(tree) != jax.tree.structure(like):
        raise MessageError("message: it is not built as what was asked for")
    for found, wanted in zip(jax.tree.leaves(tree), jax.tree.leaves(like)):
        given, needed = (np.shape(found), np.dtype(found.dtype)), (np.shape(wanted), np.dtype(wanted.dtype))
        if given != needed:
            raise MessageError(
                f"message: it has an array of shape {given[0]} and type {given[1]}; {needed[0]} and {needed[1]} are "
                "needed"
            )


def _one_level(node: Any) -> tuple[Any, list[Any]]:
    """The kind of a node, and its children as they are."""
    children, kind = jax.tree.flatten(node, is_leaf=lambda inner: inner is not node)
    return kind, children


def _is_plain(node: Any) -> bool:
    """Whether json has the kind of a node: a list, a tuple, or a mapping from texts."""
    return type(node) in (list, tuple) or (type(node) is dict and all(isinstance(key, str) for key in node))
