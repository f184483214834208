"""Digests of the parts of a run, so that a checkpoint is never resumed as another run. Imports engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rookery.data.sources import read_checked
from rookery.engines.base import PreparedRun
from rookery.identity import OPAQUE, describe, digest
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
PROGRAM = "traced program"
CONFIGURATION = (  # options of JAX that change numbers and are not set by a run
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_default_dtype_bits",
    "jax_softmax_custom_jvp",
)


def fingerprint(
    prepared: PreparedRun, metrics: Sequence[str] = (), program: Callable[[], str] | None = None
) -> dict[str, str]:
    """Digest the parts of a run, by names that a person knows.

    Args:
      metrics: Names of the metrics.
      program: Function that returns the text of the traced program; None: code is compared by its description alone.
    """
    config, inputs = prepared.config, prepared.inputs
    return {
        "precision": config.precision,  # before what is held in it
        "problem": digest(describe(config.problem, code=False)),
        "losses": code_digest(config.problem),
        "method": digest(describe(inputs.method, code=False), inputs.method),
        "functions of the method": code_digest(inputs.method),
        "sampling": digest(describe(inputs.sampling, code=False), inputs.sampling),
        "functions of the sampling": code_digest(inputs.sampling),
        "batch size": digest(repr(config.batch)),
        "channels": digest(describe((config.up, config.down), code=False)),
        "functions of the channels": code_digest((config.up, config.down)),
        "data": digest(
            repr({name: sorted(_shapes(level.rows)) for name, level in inputs.levels.items()}),
            (dict(inputs.levels) if prepared.source is None else _told(prepared), inputs.weights),
        ),
        "augmentation": code_digest(config.augment),
        "seed": digest("", jax.random.key_data(inputs.key)),
        "initial values": digest(repr(jax.tree.structure(prepared.carry)), prepared.carry),
        "set of metrics": ", ".join(metrics),
        "JAX configuration": repr({name: getattr(jax.config, name, None) for name in CONFIGURATION}),
        **({} if program is None else {PROGRAM: f"{_compiler()} {digest(program())}"}),
    }


def _compiler() -> str:
    """What the text of a traced program depends on besides the program."""
    return f"{_python()}/{jax.__version__}/{jax.default_backend()}"


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _told(prepared: PreparedRun) -> Tree:
    """What tells examples that are not in memory from others: all sizes, and the first and the last client's."""
    assert prepared.source is not None
    ends, sizes = np.asarray([0, prepared.config.population - 1]), prepared.source.sizes
    return dict(sizes), read_checked(prepared.source, ends, {name: size[ends] for name, size in sizes.items()})


def difference(stored: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Return the first part in which two runs differ.

    Where both have the text of their program, it decides: code that is written otherwise and compiles to the same
    program is the same. Otherwise descriptions of code decide, within one version of Python.
    """
    same = _same_program(stored, now)
    for name, value in now.items():
        before = stored.get(name, "")
        if name == PROGRAM:
            if same is False:
                return name
        elif name in CODE:
            if not same and before.split(" ")[0] == value.split(" ")[0] and before != value:
                return name
        elif before != value:
            return name
    return None


def uncompared(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the parts of two runs that may differ unseen."""
    versions = lambda name: {digests.get(name, "").split(" ")[0] for digests in (stored, now)}
    if _same_program(stored, now) is not None:
        return []
    return [name for name in CODE if name in now and (len(versions(name)) > 1 or UNCOMPARED in now[name])]


def _same_program(stored: Mapping[str, str], now: Mapping[str, str]) -> bool | None:
    """Whether two runs have one traced program; None: it cannot be compared."""
    before, after = stored.get(PROGRAM, "").split(" "), now.get(PROGRAM, "").split(" ")
    return before[1] == after[1] if before[0] == after[0] != "" else None


def code_digest(value: Any) -> str:
    """Digest functions and everything that they read; comparable within one version of Python."""
    text = describe(value, code=True)
    return f"{_python()} {UNCOMPARED if OPAQUE in text else ''}{digest(text)}"


def _shapes(rows: Tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(rows)[0]]
