"""Run folders: configuration, versions, history, parameters and a plot of one run, on disk."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.errors import InputError, StorageError
from rookery.files import check_path, fill_folder, hold, refuse_used, remove_leftovers
from rookery.runs.plot import plot_histories
from rookery.runs.result import RESULT, Result
from rookery.runs.table import Table
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


def make_folder(name: str, root: str | Path = "runs") -> Path:
    """Makes a folder that was not there, named after the time and a name."""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{name}"
    for number in range(1, 1000):
        folder = Path(root) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"out: {str(folder)!r} cannot be written: {error.strerror}") from error
        return folder
    raise InputError(f"out: there are a thousand folders {stem!r} under {str(root)!r}; give another")


@contextlib.contextmanager
def open_folder(folder: Path | None, name: str, existing: bool = False) -> Iterator[Path]:
    """Holds a run's folder for this process, so that no other writes it: a new one, or one that is there.

    A folder that can not be made or written, or that holds something already, is refused before time is spent.
    """
    if folder is None:
        folder = make_folder(name)
    check_path(folder, "out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out: {str(folder)!r} cannot be written: {error.strerror}") from error
    with hold(folder, "run" if existing else "out"):
        if existing:
            remove_leftovers(folder)
        else:
            refuse_used(folder, "out")
        yield folder


class HistoryFile:
    """history.csv while a run goes on, so that it can be looked at: a callback that adds a line at every evaluation.

    A process that is killed may leave a part of a line. Who goes on says with `begin` what there was before.
    """

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] = []

    def begin(self, history: Table) -> None:
        """Writes a history in the place of whatever there is, whole or not at all; of no rows, nothing."""
        self.columns = list(history.columns)
        if not history.rows:
            self.path.unlink(missing_ok=True)
            return
        fill_folder(self.path.parent, lambda aside: history.to_csv(aside / self.path.name), last=self.path.name)

    def __call__(self, round: int, row: dict[str, Any]) -> None:
        line = Table([row])
        line.columns = self.columns = self.columns or line.columns
        size = self.path.stat().st_size if self.path.is_file() else 0
        try:
            with open(self.path, "a", newline="") as file:
                line.write_into(file, header=not size)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, size)
            raise StorageError(f"history: {str(self.path)!r} cannot be written: {error.strerror}") from error


def write_results(folder: Path, result: Result, label: str, metric: str) -> None:
    """Writes what came of a run into its folder, each file whole or not at all, result.json last.

    These are history.csv, sequences.safetensors (the final parameters), result.json and state.safetensors (to continue
    from), plot.png, the main metric against exchanges, and, where clients measure something, clients.csv.
    """

    def write(aside: Path) -> None:
        result.write_into(aside)
        if result.clients is not None:
            result.clients.to_csv(aside / "clients.csv")
        if metric in result.history:
            plot_histories({label: result.history}, metric, aside / "plot.png")

    fill_folder(folder, write, last=RESULT)
