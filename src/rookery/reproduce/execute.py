"""Running the cells of a study: seeds side by side in one program, and none that is done is run again."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.errors import AdviceWarning, DivergenceWarning
from rookery.experiments.codec import decode, encode
from rookery.experiments.experiment import decisive
from rookery.experiments.tune import Tuning, choose
from rookery.files import read_json, slug, undamaged, write_text
from rookery.metric import split
from rookery.reproduce.code import digests
from rookery.reproduce.study import Cell, Done, Study
from rookery.runs.run import run as run_once
from rookery.runs.sweep import sweep
from rookery.runs.table import Table
from rookery.tasks.base import Assembly
from rookery.version import __version__

MEMORY = 8 * 2**30  # bytes that the states and data of seeds side by side may take


def run_study(
    study: Study, seeds: int, quick: bool, folder: Path, say: Callable[[str], Any], run: bool = True
) -> dict[str, Done]:
    """All cells of a study, by name; what is done already is read from the folder, and what is not is run, or left."""
    done, cells = {}, list(study.cells(quick))
    for number, cell in enumerate(cells):
        path = folder / f"{slug(cell.name)}.json"
        own = cell.seeds(seeds)
        asked = asked_for(cell, own)
        kept = read_done(path, cell, asked)
        if kept is None and not run:
            continue
        if kept is None:
            say(f"{study.name}: {cell.name} ({number + 1} of {len(cells)}), {own} seed{'s' * (own > 1)}")
            kept = run_cell(cell, own, say)
            write_done(path, kept, asked)
            say(f"  {kept.seconds:.1f} s")
        done[cell.name] = kept
    return done


def run_cell(cell: Cell, seeds: int, say: Callable[[str], Any] = lambda text: None) -> Done:
    """One cell with seeds 0, 1, ..., each with its own partition, initial values and draws; tuned first where asked."""
    begun, made_by = time.perf_counter(), commit()
    code = digests(cell.experiment.task, cell.experiment.method)
    options, method, tuning = cell.experiment.options, cell.experiment.method, None
    if cell.search is not None:
        tuning = choose(cell.experiment, cell.search.methods, cell.search.exchanges, say)
        method = tuning.method
    numbers = [options.seed + number for number in range(seeds)]
    experiments = {
        seed: dataclasses.replace(cell.experiment, options=dataclasses.replace(options, seed=seed)) for seed in numbers
    }
    assembled = {seed: experiment.assemble() for seed, experiment in experiments.items()}
    first = assembled[numbers[0]]
    shared = {"method": method, "rounds": options.rounds, "every": options.every}
    alike = all(
        each.problem == first.problem
        and split(each.metrics or _none)[0] == split(first.metrics or _none)[0]
        and _start_alike(each, first)
        for each in assembled.values()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        warnings.simplefilter("ignore", DivergenceWarning)
        if alike and seeds > 1:
            arguments: dict[str, Any] = experiments[numbers[0]].arguments(first) | {"engine": None} | shared
            arguments["clients"] = lambda seed: assembled[seed].clients
            own = lambda seed: assembled[seed].metrics or _none
            results = sweep(over={"seed": numbers}, memory=MEMORY, own_metrics=own, **arguments).results
        else:
            results = [run_once(**(experiments[s].arguments(assembled[s]) | shared)) for s in numbers]
    seconds = time.perf_counter() - begun
    histories = [result.history for result in results]
    return Done(cell, histories, seconds, made_by, str(jax.devices()[0].device_kind), tuning, code)


def _start_alike(one: Assembly, other: Assembly) -> bool:
    """Whether two seeds' runs can be given the same initial values: functions of a key, or equal numbers."""
    pairs = [(one.x, other.x), (one.y, other.y), *((one.start.get(n), other.start.get(n)) for n in one.start)]
    return all(callable(a) or jax.tree.all(jax.tree.map(np.array_equal, a, b)) for a, b in pairs)


def _none(z: Any) -> Mapping[str, Any]:
    return {}


def commit() -> str:
    """The commit that is checked out, marked where the package was changed since; the version where there is none."""
    if named := os.environ.get("ROOKERY_COMMIT"):  # where the code is a copy without its history
        return named
    try:
        changed = _git("status", "--porcelain", "--", ".")
        return _git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return f"rookery {__version__}"


def _git(*arguments: str) -> str:
    package = Path(__file__).parents[1]
    found = subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def asked_for(cell: Cell, seeds: int) -> dict[str, Any]:
    asked = cell.experiment.to_json() | {"seeds": seeds, "version": __version__}
    if cell.search is not None:
        asked["search"] = {"methods": encode(list(cell.search.methods)), "exchanges": cell.search.exchanges}
    return decisive(asked)


def read_done(path: Path, cell: Cell, asked: Mapping[str, Any]) -> Done | None:
    if not path.is_file():
        return None
    again = "; remove it, and the cell is run again"
    kept = read_json(path, "cell", again)
    with undamaged(path, "cell", again):
        if _as_of_now(kept["asked"], cell) != asked:
            return None
        columns = kept["columns"]
        histories = [Table([dict(zip(columns, row, strict=True)) for row in rows]) for rows in kept["histories"]]
        tuning = Tuning.from_json(kept["tuning"]) if "tuning" in kept else None
        made_by = str(kept["commit"]), str(kept["device"])
        return Done(cell, histories, float(kept["seconds"]), *made_by, tuning, kept.get("code", {}))


def _as_of_now(asked: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """What was asked for then: an option that a task or a method did not have had the value that is its default now."""
    again = lambda methods: encode(decode(methods))
    task = dataclasses.asdict(type(cell.experiment.task)()) | asked["task"]
    search = asked.get("search")
    more = {} if search is None else {"search": search | {"methods": again(search["methods"])}}
    return decisive({**asked, "task": task, "method": again(asked["method"]), **more})


def write_done(path: Path, done: Done, asked: Mapping[str, Any]) -> None:
    columns, tuning = done.histories[0].columns, done.tuning
    rows: Sequence[Any] = [[[row.get(name) for name in columns] for row in h.rows] for h in done.histories]
    kept = {"asked": asked, "seconds": done.seconds, "commit": done.commit, "device": done.device, "columns": columns}
    kept["code"] = dict(done.code)
    if tuning is not None:
        kept["tuning"] = tuning.to_json()
    write_text(path, json.dumps(kept | {"histories": rows}))
