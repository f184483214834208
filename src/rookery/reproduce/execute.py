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

from rookery.errors import AdviceWarning, DivergenceWarning
from rookery.experiments.experiment import essential
from rookery.metric import split
from rookery.reproduce.study import Cell, Done, Study
from rookery.runs.files import slug, write_text
from rookery.runs.run import run as run_once
from rookery.runs.sweep import sweep
from rookery.runs.table import Table
from rookery.version import __version__

MEMORY = 8 * 2**30  # bytes that the states and data of seeds side by side may take


def run_study(
    study: Study, seeds: int, quick: bool, folder: Path, say: Callable[[str], Any], run: bool = True
) -> dict[str, Done]:
    """All cells of a study, by name; what is done already is read from the folder, and what is not is run, or left."""
    done, cells = {}, list(study.cells(quick))
    for number, cell in enumerate(cells):
        path = folder / f"{slug(cell.name)}.json"
        asked = _asked(cell, seeds)
        kept = _read(path, cell, asked)
        if kept is None and not run:
            continue
        if kept is None:
            say(f"{study.name}: {cell.name} ({number + 1} of {len(cells)}), {seeds} seeds")
            kept = run_cell(cell, seeds)
            _write(path, kept, asked)
            say(f"  {kept.seconds:.1f} s")
        done[cell.name] = kept
    return done


def run_cell(cell: Cell, seeds: int) -> Done:
    """One cell with seeds 0, 1, ..., each with its own partition, initial values and draws."""
    begun = time.perf_counter()
    options = cell.experiment.options
    numbers = [options.seed + number for number in range(seeds)]
    experiments = {
        seed: dataclasses.replace(cell.experiment, options=dataclasses.replace(options, seed=seed)) for seed in numbers
    }
    assembled = {seed: experiment.assemble() for seed, experiment in experiments.items()}
    first = assembled[numbers[0]]
    shared = {"method": cell.experiment.method, "rounds": options.rounds, "every": options.every}
    alike = all(
        each.problem == first.problem and split(each.metrics or _none)[0] == split(first.metrics or _none)[0]
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
    return Done(cell, [result.history for result in results], seconds, commit(), str(jax.devices()[0].device_kind))


def _none(z: Any) -> Mapping[str, Any]:
    return {}


def commit() -> str:
    """The commit that is checked out, where there is one; else the version."""
    if named := os.environ.get("ROOKERY_COMMIT"):  # where the code is a copy without its history
        return named
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"rookery {__version__}"


def _asked(cell: Cell, seeds: int) -> dict[str, Any]:
    return essential(cell.experiment.to_json() | {"seeds": seeds, "version": __version__})


def _read(path: Path, cell: Cell, asked: Mapping[str, Any]) -> Done | None:
    if not path.is_file():
        return None
    kept = json.loads(path.read_text())
    if essential(kept["asked"]) != asked:
        return None
    histories = [Table([dict(zip(kept["columns"], row)) for row in rows]) for rows in kept["histories"]]
    return Done(cell, histories, kept["seconds"], kept["commit"], kept["device"])


def _write(path: Path, done: Done, asked: Mapping[str, Any]) -> None:
    columns = done.histories[0].columns
    rows: Sequence[Any] = [[[row.get(name) for name in columns] for row in h.rows] for h in done.histories]
    kept = {"asked": asked, "seconds": done.seconds, "commit": done.commit, "device": done.device, "columns": columns}
    write_text(path, json.dumps(kept | {"histories": rows}))
