"""Whether a cell is what the code gives now: two rounds are run again on a CPU and compared."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from rookery.errors import AdviceWarning, DivergenceWarning
from rookery.files import write_text
from rookery.reproduce.code import PYTHON, changed, digests
from rookery.reproduce.execute import commit
from rookery.reproduce.study import Cell, Done
from rookery.runs.run import run
from rookery.vectors import Vector

ROUNDS = 2
AGREED = 1e-4  # how far apart norms may be, as a part of the larger one

CURRENT, STAMPED, STALE, UNKNOWN = "current", "stamped", "stale", "unknown"

Norms = dict[str, list[float]]


def norms(cell: Cell, method: Any = None) -> Norms:
    """Return the norm of each sequence after rounds 1 and 2, run on a CPU with the cell's first seed.

    Args:
      cell: The cell.
      method: The method that tuning chose; default: the cell's own.
    """
    experiment = cell.experiment
    with jax.default_device(jax.devices("cpu")[0]), warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        warnings.simplefilter("ignore", DivergenceWarning)
        assembly = dataclasses.replace(experiment.assemble(), metrics=_norms, client_metrics=None)
        arguments: dict[str, Any] = experiment.arguments(assembly) | {"stop": None}
        method = experiment.method if method is None else method
        history = run(method=method, rounds=ROUNDS, every=1, **arguments).history
    names = [name for name in history.columns if name.startswith("norm of ")]
    return {name.removeprefix("norm of "): [float(row[name]) for row in history.rows[1:]] for name in names}


def _norms(z: Mapping[str, Any]) -> dict[str, Any]:
    return {f"norm of {name}": Vector(tree).norm() for name, tree in z.items()}


def agree(before: Norms, now: Norms) -> bool:
    """Whether two replays are the same run, to `AGREED`."""
    near = lambda a, b: math.isclose(a, b, rel_tol=AGREED, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    alike = before.keys() == now.keys() and all(len(before[name]) == len(now[name]) for name in now)
    return alike and all(near(a, b) for name in now for a, b in zip(before[name], now[name]))


def check_cell(path: Path, done: Done, say: Callable[[str], Any] = lambda text: None) -> str:
    """Compare a cell with the present code, and note the outcome in its file.

    A cell of the present code is stamped with its norms. A cell of other code is current if two rounds agree with its
    norms, and is then noted as the present code's. Otherwise it is stale, and the queue runs it again.

    Returns:
      "current", "stamped", "stale", or "unknown": there are no norms, and the code has changed since.
    """
    kept = json.loads(path.read_text())
    cell, method = done.cell, None if done.tuning is None else done.tuning.method
    now = digests(cell.experiment.task, cell.experiment.method)
    same = done.commit == commit() and not done.commit.endswith("+changes")
    same |= done.code.get(PYTHON) == now[PYTHON] and not changed(done.code, now)
    if "norms" not in kept:
        if not same:
            return UNKNOWN
        kept |= {"norms": norms(cell, method), "code": now}
        write_text(path, json.dumps(kept))
        return STAMPED
    if done.code == now:
        return CURRENT
    found = norms(cell, method)
    kept["stale"] = not agree(kept["norms"], found)
    if kept["stale"]:
        say(f"{cell.name}: norms were {kept['norms']}, and are {found}")
    else:
        kept["code"] = now
    write_text(path, json.dumps(kept))
    return STALE if kept["stale"] else CURRENT
