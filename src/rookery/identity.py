"""Descriptions of code and data: equal texts mean equal functions, with everything that they read. Imports nothing of
rookery.

A function is described by its bytecode, defaults, attributes, closure, the globals that it names, and what these reach:
other functions, classes, objects by their state, arrays by their content, attributes of modules. Code of an installed
package is described by the package's version. Whatever cannot be described is marked `OPAQUE`.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import itertools
import os
import random
import secrets
import struct
import sys
import sysconfig
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import default_registry

OPAQUE = "<opaque>"
LONG = 1000  # characters or bytes; longer ones are described by their digest


def describe(value: Any, code: bool) -> str:
    """Describe a value by a text that is the same in every process. Without `code`, functions are only named."""
    return Description(value, code).text()


def digest(text: str, tree: Any = ()) -> str:
    """Return a digest of a text and of the contents of all arrays in a tree."""
    total = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16)
    for leaf in jax.tree.leaves(tree):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        if array.dtype.hasobject:
            total.update(repr(array.tolist()).encode(errors="surrogatepass"))
            continue
        if array.ndim and len(array) > 1 and array.strides[0] == 0:  # a broadcast row: all rows are equal
            total.update(b"alike")
            array = array[:1]
        rows = max(1, _PART // max(1, array.nbytes // max(1, len(array)))) if array.ndim else 1
        for part in [array[i : i + rows] for i in range(0, len(array), rows)] if array.ndim else [array]:
            total.update(np.ascontiguousarray(part).view(np.uint8).data if part.size else b"")
    return total.hexdigest()


_PART = 2**24  # bytes to digest in one call


class _Ref(NamedTuple):
    """A reference to another node of a description."""

    node: int


class Description:
    """A value as a graph of nodes: every object once, by its content and its references to other nodes."""

    def __init__(self, value: Any, code: bool = True):
        self._code = code
        self._index: dict[int, int] = {}  # id of an object -> its node
        self._nodes: list[tuple[Any, Any]] = []  # objects are held, so that no other gets their id
        self._root = self._of(value)

    def text(self) -> str:
        """All nodes in the order in which they were found."""
        ref = lambda node: f"#{node}"
        parts = [_text(self._root, ref), *(_text(content, ref) for _, content in self._nodes)]
        return "\n".join(parts)

    @property
    def complete(self) -> bool:
        """Whether everything could be described."""
        return OPAQUE not in self.text()

    def keys(self) -> dict[int, str]:
        """The objects that JAX can know by their identity: serial number -> content. Other such objects in a content
        are named by their numbers, since they have entries themselves."""
        nodes = enumerate(self._nodes)
        return {serial(value): self._own_text(number, set()) for number, (value, _) in nodes if _can_be_key(value)}

    def equals(self) -> list[Any]:
        """The objects of the user's classes that JAX knows by their equality or cannot be known by a weak reference."""
        return [value for value, _ in self._nodes if _is_known_by_equality(value)]

    def _own_text(self, number: int, inside: set[int]) -> str:
        """The content of one node. Containers, which have no weak references, count as part of it."""

        def ref(node: int) -> str:
            value = self._nodes[node][0]
            if _can_be_key(value):
                return f"@{serial(value)}"
            return "@cycle" if node in inside else self._own_text(node, inside | {node})

        return _text(self._nodes[number][1], ref)

    def _of(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | complex | np.dtype):
            return repr(value)
        if isinstance(value, str | bytes):
            return repr(value) if len(value) <= LONG else f"{type(value).__name__} {digest(repr(value))}"
        if isinstance(value, np.ndarray | jax.Array | np.generic):
            return _of_array(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, types.MethodType):
            return ("method", self._of(value.__func__), self._of(value.__self__))
        if id(value) not in self._index:
            number = self._index[id(value)] = len(self._nodes)
            self._nodes.append((value, ""))
            try:
                content = self._of_object(value)
            except Exception:  # an object that does not let itself be read
                content = f"{type(value).__qualname__} {OPAQUE}"
            self._nodes[number] = (value, content)
        return _Ref(self._index[id(value)])

    def _of_object(self, value: Any) -> Any:
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, types.FunctionType):
            return self._of_function(value) if self._code else value.__qualname__
        if isinstance(value, functools.partial):
            return ("partial", self._of(value.func), self._of(value.args), self._of(value.keywords))
        if isinstance(value, dict | types.MappingProxyType):
            return (self._of_kind(value), *((self._of(key), self._of(item)) for key, item in value.items()))
        if isinstance(value, set | frozenset):
            return (self._of_kind(value), *sorted(describe(item, self._code) for item in value))
        if isinstance(value, tuple | list):
            return (self._of_kind(value), *map(self._of, value))
        if isinstance(value, enum.Enum):
            return (_name(type(value)), value.name)
        if isinstance(value, weakref.ref):
            return ("weakref", self._of(value()))
        if isinstance(value, property):
            return ("property", self._of(value.fget), self._of(value.fset))
        if isinstance(value, staticmethod | classmethod):
            return (type(value).__name__, self._of(value.__func__))
        if isinstance(value, functools.cached_property):
            return ("property", self._of(value.func))
        if isinstance(value, _LOCKS):
            return "lock"
        if isinstance(value, jax.tree_util.PyTreeDef):
            return ("structure", value.num_leaves, self._of(value.node_data()), *map(self._of, value.children()))
        if (name := _package_name(value)) is not None:
            return name
        return self._of_instance(value)

    def _of_kind(self, container: Any) -> Any:
        """The class of a container, and the attributes that it has beside its items."""
        cls = type(container)
        if cls.__module__ == "builtins":
            return cls.__name__
        return (self._of(cls), self._of(_attribute(container, "__dict__") or None))

    def _of_instance(self, value: Any) -> Any:
        """An object: its class and its state."""
        cls = type(value)
        wrapped = _attribute(value, "__wrapped__")  # such as by jax.jit
        state: Any = _attribute(value, "__dict__")
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            state = fields | _beside(fields, cls, state)
        elif isinstance(value, types.BuiltinFunctionType):
            return ("builtin", value.__qualname__, self._of(value.__self__))
        elif _package(cls) and (level := default_registry.flatten_one_level(value)) is not None:
            state = (list(level[0]), level[1])
        elif isinstance(wrapped, types.FunctionType) and not _is_plain(cls):  # a compiled function
            return ("wrapped", self._of(wrapped))
        elif not (isinstance(state, dict) and _is_plain(cls)):
            held = state if isinstance(state, dict) and not _package(cls) else None
            state = (_reduced(value), held)
        content = (self._of(cls), self._of(state))
        return content if wrapped is None else (*content, self._of(wrapped))

    def _of_class(self, cls: type) -> Any:
        """A class of an installed package by its name; a class of the user also by its attributes.

        Without its module, which has another name when a file is run as a script.
        """
        if not self._code or _package(cls):
            return f"{_package(cls)}{cls.__qualname__}"
        skipped = _UNREAD | (_MADE if dataclasses.is_dataclass(cls) else set())
        own = {
            name: item
            for name, item in sorted(vars(cls).items())
            if name not in skipped and not isinstance(item, _SLOTS)
        }
        bases = [self._of(base) for base in cls.__bases__ if base is not object]
        return ("class", cls.__qualname__, tuple(bases), *((name, self._of(item)) for name, item in own.items()))

    def _of_function(self, function: types.FunctionType) -> Any:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _has_content(cell)]
        held = tuple(map(self._of, cells))
        attributes = self._of(function.__dict__) if function.__dict__ else ""
        if _package(function):
            return ("function", f"{_package(function)}{function.__qualname__}", held, attributes)
        reads = _reads(function.__code__)
        defaults = (self._of(function.__defaults__), self._of(function.__kwdefaults__))
        return ("function", reads.text, held, attributes, defaults, self._of_globals(function, reads))

    def _of_globals(self, function: types.FunctionType, reads: _Reads) -> Any:
        """What a function reads beyond its arguments and its closure."""
        content, modules = [], []
        for name in reads.globals:
            if name in function.__globals__:
                value = function.__globals__[name]
                if isinstance(value, types.ModuleType):
                    modules.append((name, value))
                else:
                    content.append((name, self._of(value)))
        for name, level in reads.imports:
            modules.append((name, _imported(name, level, function)))
        for cell in function.__closure__ or ():
            if _has_content(cell) and isinstance(cell.cell_contents, types.ModuleType):
                modules.append((cell.cell_contents.__name__, cell.cell_contents))
        looks_up = reads.dynamic or any(module in _LOOKS_UP for _, module in modules)
        users = [module for _, module in modules if isinstance(module, types.ModuleType) and not _package(module)]
        if looks_up or ("getattr" in reads.globals and users):
            content.append(("by name", OPAQUE))
        for name, module in modules:
            content.append((name, self._of_module(module, reads.attributes, ())))
        return tuple(content)

    def _of_module(self, module: Any, names: frozenset[str], inside: tuple) -> Any:
        """The attributes of a user's module that a function may read; an installed module by its version."""
        if not isinstance(module, types.ModuleType):
            return "missing"
        if (package := _package(module)) or module in inside:
            return f"{package}{module.__name__}"
        content = []
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            is_module = isinstance(value, types.ModuleType)
            content.append((name, self._of_module(value, names, (*inside, module)) if is_module else self._of(value)))
        return ("module", module.__name__, *content)


def _text(content: Any, ref: Callable[[int], str]) -> str:
    if isinstance(content, _Ref):
        return ref(content.node)
    if isinstance(content, tuple):
        return f"({','.join(_text(part, ref) for part in content)})"
    return str(content)


def _beside(fields: Mapping[str, Any], cls: type, state: Any) -> dict[str, Any]:
    """What a dataclass of the user holds beside its fields; without what a base class of a package keeps for itself."""
    if _package(cls) or not isinstance(state, dict):
        return {}
    packages = {base.__module__.split(".")[0] for base in cls.__mro__[1:-1] if _package(base)} - {"rookery", "builtins"}
    return {name: item for name, item in state.items() if type(item).__module__.split(".")[0] not in packages}


def _of_array(value: Any) -> str:
    return f"{'jax' if isinstance(value, jax.Array) else 'numpy'} {digest('', value)}"


class _Reads(NamedTuple):
    """What the code of a function is, and what it may read."""

    text: str
    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[tuple[str, int], ...]  # modules with their level, where imports are relative
    dynamic: bool  # whether it looks names up by their text


@functools.lru_cache(4096)
def _reads(code: types.CodeType) -> _Reads:
    names, imports, before, holder = set(), set(), [0, 0], ""
    reads_outside = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            names.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            imports.add((instruction.argval, before[0]))  # the level and the names are loaded before
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in _OUTSIDE and holder:
            reads_outside = True
        if instruction.opname != "EXTENDED_ARG":
            holder = instruction.argval if instruction.opname in _GLOBAL and instruction.argval in _NUMPY else ""
            before = [before[1], instruction.argval]
    constants = []
    attributes = set(code.co_names)
    dynamic = bool(names & _DYNAMIC or attributes & {"read_text", "read_bytes"}) or reads_outside
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _reads(constant)
            names, imports = names | set(inner.globals), imports | set(inner.imports)
            attributes, dynamic = attributes | inner.attributes, dynamic or inner.dynamic
            constants.append(inner.text)
        else:
            constants.append(_constant(constant))
    kind = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    variables = (code.co_varnames, code.co_freevars, code.co_cellvars)
    text = repr((code.co_code, code.co_names, variables, kind, getattr(code, "co_exceptiontable", b""), constants))
    digested = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return _Reads(digested, tuple(sorted(names)), frozenset(attributes), tuple(sorted(imports)), dynamic)


_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_DYNAMIC = {"globals", "vars", "locals", "eval", "exec", "__import__", "compile", "open", "input"}
_NUMPY = {"np", "numpy", "onp"}  # the usual names of a module with a random state and with files
_OUTSIDE = {"random", "load", "loadtxt", "genfromtxt", "fromfile", "memmap"}
_LOOKS_UP = (sys, importlib, os, random, secrets, time)


def _constant(value: Any) -> str:
    """A constant of a function's code; the order of sets differs from process to process."""
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return repr(value)


def _imported(name: str, level: int, function: types.FunctionType) -> Any:
    """A module that a function imports when it runs; None: it has not been loaded yet."""
    if level:
        package = function.__globals__.get("__package__") or ""
        name = ".".join([*package.split(".")[: len(package.split(".")) - level + 1], *([name] if name else [])])
    return sys.modules.get(name)


def _reduced(value: Any) -> Any:
    """The state of an object as its class gives it for copies; fails where the class has hidden state."""
    reduced = value.__reduce_ex__(2)
    if isinstance(reduced, str):
        return reduced
    function, arguments, *rest = reduced
    state, items, pairs = [*rest[:3], None, None, None][:3]
    return [_name(function), arguments, state, list(items or ()), list(pairs or ())]


def _is_plain(cls: type) -> bool:
    """Whether the state of a class's objects is their `__dict__`: all of its bases are Python classes without slots."""
    for base in cls.__mro__[:-1]:
        if "__slots__" in vars(base) and vars(base)["__slots__"]:
            return False
        if not base.__flags__ & _HEAP_TYPE or base.__basicsize__ > _plain_size(base):
            return False
    return cls.__mro__[-1] is object


def _plain_size(cls: type) -> int:
    """The size of an object of a class without hidden state: that of `object`, and places for references."""
    places = (cls.__weakrefoffset__ > 0) + (cls.__dictoffset__ > 0)
    return object.__basicsize__ + places * _POINTER


_POINTER = struct.calcsize("P")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by an extension that takes the same way


_serials: dict[int, tuple[weakref.ref, int]] = {}
_next_serial = itertools.count()


def serial(value: Any) -> int:
    """The number of an object, which no other object of this process gets, unlike its id."""
    number = id(value)
    known = _serials.get(number)
    if known is None or known[0]() is not value:

        def forget(dead: weakref.ref) -> None:
            if number in _serials and _serials[number][0] is dead:
                del _serials[number]

        known = _serials[number] = (weakref.ref(value, forget), next(_next_serial))
    return known[1]


def living() -> set[int]:
    """The serial numbers of all objects that are still there."""
    return {number for _, number in _serials.values()}


def _can_be_key(value: Any) -> bool:
    """Whether JAX may keep what it traced by this object: it has weak references, and is no plain container."""
    return not isinstance(value, Set | Mapping | tuple | list) and type(value).__weakrefoffset__ != 0


def _is_known_by_equality(value: Any) -> bool:
    cls = type(value)
    if isinstance(value, type | types.FunctionType | functools.partial) or _package(cls) or cls.__hash__ is None:
        return False
    return cls.__eq__ is not object.__eq__ or not _can_be_key(value)


@functools.cache
def _installed() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _package(made: Any) -> str:
    """The package and version of an installed module, class or function; empty: it is the user's own."""
    is_module = isinstance(made, types.ModuleType)
    module = made.__name__ if is_module else getattr(made, "__module__", None) or "builtins"
    if module == "__main__":  # a script, a notebook, or a package that was started with -m
        return ""
    name, file = module.split(".")[0], _file(module)
    there = file.startswith(_installed()) or "/site-packages/" in file or "/dist-packages/" in file
    if name in ("rookery", *sys.builtin_module_names) or there or module.startswith("<frozen"):
        return f"{name} {getattr(sys.modules.get(name), '__version__', '')}: "
    return ""


def _file(module: str) -> str:
    """The file of a module, or of the closest one above it: a compiled module may hold others without files."""
    while module:
        if file := getattr(sys.modules.get(module), "__file__", None):
            return file
        module = module.rpartition(".")[0]
    return ""


def _package_name(value: Any) -> str | None:
    """The name of an object that an installed module has under this name; None: there is none such."""
    module, name = _attribute(value, "__module__"), _attribute(value, "__name__")
    if isinstance(module, str) and isinstance(name, str) and module in sys.modules:
        holder = sys.modules[module]
        if _package(holder) and vars(holder).get(name) is value:
            return f"{_package(holder)}{name}"
    return None


def _name(value: Any) -> str:
    return f"{_package(value)}{getattr(value, '__qualname__', type(value).__qualname__)}"


_UNREAD = {
    "__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__dataclass_fields__", "__dataclass_params__", "__abstractmethods__", "_abc_impl",
    "__match_args__", "__slots__", "__parameters__", "__orig_bases__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__type_params__", "__hash__",
}  # fmt: skip
_MADE = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}  # by @dataclass
_SLOTS = types.MemberDescriptorType | types.GetSetDescriptorType
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)


def _attribute(value: Any, name: str) -> Any:
    """An attribute of any object; None: there is none, or it cannot be read."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _has_content(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # an empty cell
        return False
