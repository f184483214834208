"""What a run is of, in a few digests: so that a checkpoint is never continued as something else. Imports engines."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import default_registry

from rookery.data.sources import read_checked
from rookery.engines.base import PreparedRun
from rookery.vectors import Tree

UNCOMPARED = "?"  # how a digest begins that could not take in everything
CODE = (  # by code
    "losses",
    "functions of the method",
    "functions of the sampling",
    "functions of the channels",
    "augmentation",
    "clients' metrics",
)


def fingerprint(prepared: PreparedRun, metrics: Sequence[str] = ()) -> dict[str, str]:
    """Digests of a run's parts, by what a person calls them; of its metrics the names."""
    config, inputs = prepared.config, prepared.inputs
    return {
        "precision": config.precision,  # before what is held in it
        "problem": _digest(describe(config.problem, code=False)),
        "losses": code_digest(config.problem),
        "method": _digest(describe(inputs.method, code=False), inputs.method),
        "functions of the method": code_digest(inputs.method),
        "sampling": _digest(describe(inputs.sampling, code=False), inputs.sampling),
        "functions of the sampling": code_digest(inputs.sampling),
        "batch size": _digest(repr(config.batch)),
        "channels": _digest(describe((config.up, config.down), code=False)),
        "functions of the channels": code_digest((config.up, config.down)),
        "data": _digest(
            repr({name: sorted(_shapes(level.rows)) for name, level in inputs.levels.items()}),
            (dict(inputs.levels) if prepared.source is None else _told(prepared), inputs.weights),
        ),
        "augmentation": code_digest(config.augment),
        "seed": _digest("", jax.random.key_data(inputs.key)),
        "initial values": _digest(repr(jax.tree.structure(prepared.carry)), prepared.carry),
        "set of metrics": ", ".join(metrics),
    }


def _told(prepared: PreparedRun) -> Tree:
    """What tells examples that are not in memory from others: all sizes, and the first and the last client's."""
    assert prepared.source is not None
    ends, sizes = np.asarray([0, prepared.config.population - 1]), prepared.source.sizes
    return dict(sizes), read_checked(prepared.source, ends, {name: size[ends] for name, size in sizes.items()})


def difference(stored: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first part in which two runs differ; code is compared within one version of Python."""
    for name, digest in now.items():
        before = stored.get(name, "")
        if name in CODE and before.split(" ")[0] != digest.split(" ")[0]:
            continue
        if before != digest:
            return name
    return None


def uncompared(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts of two runs that may differ without being seen to."""
    versions = lambda name: {digest.get(name, "").split(" ")[0] for digest in (stored, now)}
    return [name for name in CODE if name in now and (len(versions(name)) > 1 or UNCOMPARED in now[name])]


def code_digest(value: Any) -> str:
    """What tells functions, and all that they hold, from others; within one version of Python."""
    text = describe(value, code=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version} {UNCOMPARED if OPAQUE in text else ''}{_digest(text)}"


def _digest(text: str, tree: Tree = ()) -> str:
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for leaf in jax.tree.leaves(tree):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        if array.ndim and len(array) > 1 and array.strides[0] == 0:  # a view of one row: all are alike
            total.update(b"alike")
            array = array[:1]
        rows = max(1, _PART // max(1, array.nbytes // max(1, len(array)))) if array.ndim else 1
        for part in [array[i : i + rows] for i in range(0, len(array), rows)] if array.ndim else [array]:
            total.update(np.ascontiguousarray(part).data if part.size else b"")
    return total.hexdigest()


_PART = 2**24  # bytes that are digested in one go


def _shapes(rows: Tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(rows)[0]]


OPAQUE = "<not to be looked into>"


def describe(value: Any, code: bool) -> str:
    """A text that is equal for equal things in every process: functions by name, or by their code."""
    return _Description(code).of(value)


class _Description:
    """A text of something and of all that it holds; what was met before is named, so that no text is without end."""

    def __init__(self, code: bool):
        self.code = code
        self.met: dict[int, tuple[int, Any]] = {}  # by id: which it was, and itself, so that no other gets its id

    def of(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.dtype):
            return repr(value)
        if isinstance(value, np.ndarray | jax.Array | np.generic):
            return _digest("", value)
        if id(value) in self.met:
            return f"#{self.met[id(value)][0]}"
        self.met[id(value)] = (len(self.met), value)
        return self.of_object(value)

    def of_object(self, value: Any) -> str:
        if isinstance(value, type):
            return self.of_class(value)
        if isinstance(value, types.FunctionType):
            return self.of_function(value) if self.code else value.__qualname__
        if isinstance(value, types.MethodType):
            return f"method({self.of(value.__func__)}, {self.of(value.__self__)})"
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, functools.partial):
            return f"partial({self.of(value.func)}, {self.of(value.args)}, {self.of(value.keywords)})"
        if isinstance(value, Mapping):
            return repr([(self.of(key), self.of(item)) for key, item in value.items()])
        if isinstance(value, set | frozenset):
            return repr(sorted(describe(item, self.code) for item in value))
        if isinstance(value, tuple | list):
            return repr([self.of(item) for item in value])
        if isinstance(wrapped := getattr(value, "__wrapped__", None), types.FunctionType):  # such as by jax.jit
            return f"wrapped({self.of(wrapped)})"
        return self.of_instance(value)

    def of_instance(self, value: Any) -> str:
        """An object: its class, and what it holds."""
        if dataclasses.is_dataclass(value):
            held: Any = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        elif (level := default_registry.flatten_one_level(value)) is not None:  # a pytree that is no dataclass
            held = (list(level[0]), level[1])
        elif isinstance(slots := getattr(value, "__dict__", None), dict):
            held = slots
        elif isinstance(value, types.BuiltinFunctionType | np.ufunc):
            return value.__qualname__ if isinstance(value, types.BuiltinFunctionType) else value.__name__
        else:
            return f"{type(value).__qualname__} {OPAQUE}"
        return f"{self.of(type(value))}({self.of(held)})"

    def of_class(self, cls: type) -> str:
        """A class by its name, and one of the user's own by the code of its methods, too.

        Not by its module, which is another one when the file is run as a script.
        """
        if not self.code or _package(cls):
            return f"{_package(cls)}{cls.__qualname__}"
        made = _MADE if dataclasses.is_dataclass(cls) else ()
        own = {name: item for name, item in sorted(vars(cls).items()) if isinstance(item, _CODED) and name not in made}
        bases = [self.of(base) for base in cls.__bases__ if base is not object]
        return f"{cls.__qualname__}({bases}, { {name: self.of(_bare(item)) for name, item in own.items()} })"

    def of_function(self, function: types.FunctionType) -> str:
        """The code of a function, what it closes over, its defaults, and what it uses of its own module."""
        held = [self.of(cell.cell_contents) for cell in function.__closure__ or () if _has_content(cell)]
        if _package(function):
            return f"{_package(function)}{function.__qualname__}({held})"
        own = {}
        for name in sorted(_names(function.__code__)):
            used = function.__globals__.get(name)
            if (isinstance(used, types.FunctionType) and used.__module__ == function.__module__) or isinstance(
                used, int | float | str | tuple | np.ndarray
            ):
                own[name] = self.of(used)
        defaults = self.of([function.__defaults__, function.__kwdefaults__])
        return repr((self.of_code(function.__code__), held, defaults, own))

    def of_code(self, code: types.CodeType) -> str:
        constants = [self.of_code(c) if isinstance(c, types.CodeType) else self.of(c) for c in code.co_consts]
        return repr((code.co_code, code.co_names, code.co_varnames, constants))


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _package(made: Any) -> str:
    """The package and version that a class or function is of, where it is installed; empty: it is the user's own."""
    module = getattr(made, "__module__", None) or "builtins"
    name, file = module.split(".")[0], getattr(sys.modules.get(module), "__file__", None)
    installed = name in (*sys.builtin_module_names, "rookery") or (file or "").startswith(_INSTALLED)
    return f"{name} {getattr(sys.modules.get(name), '__version__', '')}: " if installed else ""


_CODED = types.FunctionType | staticmethod | classmethod | property
_MADE = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")  # by @dataclass, from the fields


def _bare(item: Any) -> Any:
    """The function inside a property, a static or a class method."""
    return item.fget if isinstance(item, property) else getattr(item, "__func__", item)


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _has_content(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # it is still empty
        return False
