"""What a run is of, in a few digests: so that a checkpoint is never continued as something else. Imports engines."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rookery.engines.base import Setup
from rookery.vectors import Tree


def fingerprint(setup: Setup, metrics: Sequence[str] = ()) -> dict[str, str]:
    """Digests of a run's parts, by what a person calls them; of its metrics the names."""
    setting, inputs = setup.setting, setup.inputs
    return {
        "precision": setting.precision,  # before what is held in it
        "problem": _digest(_describe(setting.problem, code=False)),
        "losses": f"{sys.version_info.major}.{sys.version_info.minor} "
        + _digest(_describe(setting.problem, code=True)),
        "method": _digest(_describe(inputs.method, code=False), inputs.method),
        "sampling": _digest(_describe(inputs.sampling, code=False), inputs.sampling),
        "batch size": _digest(repr(setting.batch)),
        "data": _digest(
            repr({name: sorted(_shapes(level.rows)) for name, level in inputs.levels.items()}),
            (dict(inputs.levels), inputs.weights),
        ),
        "augmentation": _digest(_describe(setting.augment, code=True)),
        "seed": _digest("", jax.random.key_data(inputs.key)),
        "initial values": _digest(repr(jax.tree.structure(setup.carry)), setup.carry),
        "set of metrics": ", ".join(metrics),
    }


def difference(stored: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first part in which two runs differ; the code of losses is compared within one version of Python."""
    for name, digest in now.items():
        before = stored.get(name, "")
        if name == "losses" and before.split(" ")[0] != digest.split(" ")[0]:
            continue
        if before != digest:
            return name
    return None


def _digest(text: str, tree: Tree = ()) -> str:
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for leaf in jax.tree.leaves(tree):
        array = np.ascontiguousarray(leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(array.data if array.size else b"")
    return total.hexdigest()


def _shapes(rows: Tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(rows)[0]]


def _describe(value: Any, code: bool, seen: frozenset[int] = frozenset()) -> str:
    """A text that is equal for equal things in every process: functions by name, or by their code."""
    inside = lambda item: _describe(item, code, seen | {id(value)})
    if id(value) in seen:  # a function that calls itself
        return "..."
    if isinstance(value, types.FunctionType):
        return _describe_function(value, inside) if code else value.__qualname__
    if isinstance(value, functools.partial):
        return f"partial({inside(value.func)}, {inside(value.args)}, {inside(value.keywords)})"
    if isinstance(value, np.ndarray | jax.Array):
        return _digest("", value)
    if isinstance(value, Mapping):
        return repr({str(key): inside(item) for key, item in value.items()})
    if isinstance(value, set | frozenset):
        return repr(sorted(inside(item) for item in value))
    if isinstance(value, tuple | list):
        return repr([inside(item) for item in value])
    name = type(value).__qualname__  # not its module, which is another one when the file is run as a script
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: inside(getattr(value, field.name)) for field in dataclasses.fields(value)}
        # Classes with the same fields are told apart by what they do with them.
        call = vars(type(value)).get("__call__")
        return f"{name}({fields}{inside(call) if code and isinstance(call, types.FunctionType) else ''})"
    if isinstance(value, int | float | str | bytes | bool | type(None)):
        return repr(value)
    return getattr(value, "__qualname__", name)


def _describe_function(function: types.FunctionType, inside: Callable[[Any], str]) -> str:
    """The code of a function, what it closes over, its defaults, and what it uses of its own module."""
    held = [inside(cell.cell_contents) for cell in function.__closure__ or () if _has_content(cell)]
    own = {}
    for name in sorted(_names(function.__code__)):
        used = function.__globals__.get(name)
        if (isinstance(used, types.FunctionType) and used.__module__ == function.__module__) or isinstance(
            used, int | float | str | tuple | np.ndarray
        ):
            own[name] = inside(used)
    defaults = inside([function.__defaults__, function.__kwdefaults__])
    return repr((_code(function.__code__, inside), held, defaults, own))


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _has_content(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # it is still empty
        return False


def _code(code: types.CodeType, inside: Callable[[Any], str]) -> str:
    constants = [_code(c, inside) if isinstance(c, types.CodeType) else inside(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))
