"""Where a run takes place: compiled on this machine, on many devices, or client by client."""

from __future__ import annotations

from typing import Any

from rookery.engines.base import Engine
from rookery.engines.eager import Eager
from rookery.engines.local import Local
from rookery.engines.mesh import Mesh
from rookery.engines.streamed import Streamed
from rookery.errors import InputError, unknown
from rookery.federation.protocols import fulfils

ENGINES = {"local": Local, "mesh": Mesh, "streamed": Streamed, "eager": Eager}

__all__ = ["ENGINES", "Eager", "Engine", "Local", "Mesh", "Streamed", "find_engine"]


def find_engine(engine: Any) -> Engine:
    """An engine from its name, or the engine itself."""
    if isinstance(engine, str):
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
        return ENGINES[engine]()
    if fulfils(engine, Engine):
        return engine
    raise InputError(
        f"engine: {engine!r} was given; allowed are {', '.join(ENGINES)}, rk.Local(...), rk.Mesh(...), "
        "rk.Streamed(...), rk.Eager(...) and what has open(prepared, ledger)"
    )
