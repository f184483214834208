"""Run folders: configuration, versions, history, parameters and a plot of one run, on disk."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.errors import InputError
from rookery.runs.files import write_folder
from rookery.runs.plot import plot_histories
from rookery.runs.result import Result
from rookery.version import __version__


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {
        "rookery": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": str(jax.devices()[0]),
    }


def default_folder(task: str, method: str, root: str | Path = "runs") -> Path:
    """A folder that is not there yet, named after time, task and method."""
    name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{task}_{method}"
    folders = (Path(root) / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(folder for folder in folders if not folder.exists())


def check_writable(folder: Path) -> None:
    """Refuses, before time is spent, a folder that holds something or cannot be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"out: {str(folder)!r} is there already; give a new or empty folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        probe = folder.parent / f".{folder.name}.probe"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise InputError(f"out: {str(folder)!r} cannot be written: {error.strerror}") from error


def write_run(folder: str | Path, result: Result, config: dict[str, Any], metric: str) -> Path:
    """Writes a run's folder, whole or not at all.

    It holds config.json (configuration, versions, seed), history.csv, sequences.safetensors (the final parameters),
    result.json and state.safetensors (to continue from), and plot.png, the main metric against exchanges.
    """

    def write(inside: Path) -> None:
        (inside / "config.json").write_text(json.dumps(config | {"versions": versions()}, indent=1, default=str))
        result.write_into(inside)
        if metric in result.history:
            plot_histories({str(config.get("method_name", "")): result.history}, metric, inside / "plot.png")

    return write_folder(folder, write)
