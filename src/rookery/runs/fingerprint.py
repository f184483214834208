"""What a run is of, in a few digests: so that a checkpoint is never continued as something else. Imports engines."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery.engines.base import Setup
from rookery.vectors import Tree


def fingerprint(setup: Setup) -> dict[str, str]:
    """Digests of a run's parts, by what a person calls them."""
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
        "seed": _digest("", jax.random.key_data(inputs.key)),
        "initial values": _digest(repr(jax.tree.structure(setup.carry)), setup.carry),
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


def _describe(value: Any, code: bool) -> str:
    """A text that is equal for equal things in every process: functions by name, or by their code."""
    if isinstance(value, types.FunctionType):
        if not code:
            return value.__qualname__  # not its module, which is another one when the file is run as a script
        held = [_describe(cell.cell_contents, code) for cell in value.__closure__ or () if _has_content(cell)]
        return _code(value.__code__) + repr(value.__defaults__) + repr(held)
    if isinstance(value, np.ndarray | jax.Array):
        return _digest("", value)
    if isinstance(value, Mapping):
        return repr({str(key): _describe(item, code) for key, item in value.items()})
    if isinstance(value, tuple | list):
        return repr([_describe(item, code) for item in value])
    name = type(value).__qualname__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _describe(getattr(value, field.name), code) for field in dataclasses.fields(value)}
        # Functions that are written alike are told apart by what their class does with them.
        call = vars(type(value)).get("__call__")
        return f"{name}({fields}{_code(call.__code__) if code and isinstance(call, types.FunctionType) else ''})"
    if isinstance(value, int | float | str | bool | type(None)):
        return repr(value)
    return getattr(value, "__qualname__", name)


def _has_content(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # it is still empty
        return False


def _code(code: types.CodeType) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))
