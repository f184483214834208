"""What the parties of a federation must have in common: one configuration, and how they tell that it is one.

A folder of a configuration holds config.json, which describes the experiment, and the files of the user's own code
that it names, so that it can be given to others. Imports experiments and runs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.engines.base import PreparedRun
from rookery.errors import InputError
from rookery.experiments.experiment import CONFIG, Experiment, decisive
from rookery.federation.evaluation import ClientMetrics
from rookery.files import read_json, write_text
from rookery.own_code import file_and_class, neighbours
from rookery.runs.fingerprint import code_digest, fingerprint
from rookery.version import __version__

OWN = "own"  # the folder of the user's own code
_NAMES = {"task_name": "task", "method_file": "method"}  # where a configuration names such code, and what for
_LOCAL = ("engine", "out")  # options that are one party's own


def write_configuration(experiment: Experiment, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Writes a configuration into a folder, with the files of the user's own code."""
    described = experiment.to_json()
    for name, argument in _NAMES.items():
        own = file_and_class(str(described.get(name)))
        if own is not None:
            kept = folder / OWN / argument / own[0].name
            kept.parent.mkdir(parents=True, exist_ok=True)
            files = {own[0].name: own[0], **neighbours(own[0])}
            for place, path in files.items():
                copied = kept.parent / place
                copied.parent.mkdir(parents=True, exist_ok=True)
                if not (copied.exists() and copied.samefile(path)):
                    shutil.copyfile(path, copied)
            described[name] = f"{kept.relative_to(folder)}:{own[1]}"
    if file_and_class(str(described["method_name"])) is not None:
        described["method_name"] = described["method_file"]
    write_text(folder / CONFIG, json.dumps(described | dict(more or {}), indent=1))


def read_configuration(folder: Path) -> tuple[Experiment, dict[str, Any]]:
    """The experiment of such a folder, and all that is written there."""
    config = read_json(folder / CONFIG, "configuration")
    placed = dict(config)
    for name in (*_NAMES, "method_name"):
        own = file_and_class(str(config.get(name)))
        if own is not None:
            if own[0].is_absolute() or ".." in own[0].parts:
                raise InputError(
                    f"configuration: {name} is {config[name]!r}; a file beside the configuration is needed"
                )
            placed[name] = f"{(folder / own[0]).resolve()}:{own[1]}"
    return Experiment.from_json(placed, folder), config


def common(config: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration says, in digests by what a person calls it: two parties can tell where they differ."""
    said = decisive(config)
    of_task = {name: said.get(name) for name in ("task_name", "task")}
    of_method = {name: said.get(name) for name in ("method_name", "method", "method_file")}
    known = {*of_task, *of_method, "task_source", "method_source", "federation", *_LOCAL, *_TOLD}
    return {
        "version of rookery": __version__,
        "task": _digest(of_task),
        "code of the task": str(said.get("task_source")),
        "method": _digest(of_method),
        "code of the method": str(said.get("method_source")),
        "set of options": _digest({name: value for name, value in said.items() if name not in known}),
    }


_TOLD = ("main_metric", "falling", "versions", "data")  # what a run's folder adds to its configuration


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def agreement(prepared: PreparedRun, client_metrics: ClientMetrics | None) -> dict[str, str]:
    """Digests of what a run's parties must have alike once it is made ready, the code of its functions among it, and of
    anybody's data but how much there is."""
    parts = fingerprint(prepared)
    sizes = (prepared.config.capacity, prepared.config.population, prepared.inputs.weights.tolist())
    own = {"data", "initial values", "set of metrics"}
    return {name: digest for name, digest in parts.items() if name not in own} | {
        "number of examples": _digest(sizes),
        "clients' metrics": "none" if client_metrics is None else code_digest(client_metrics),
    }
