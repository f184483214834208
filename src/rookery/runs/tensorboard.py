"""Histories in TensorBoard, written while runs go. Needs the tensorboard package, but neither TensorFlow nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.errors import InputError
from rookery.runs.table import COST


class TensorBoard:
    """A callback that logs every row of a history against the round, for `tensorboard --logdir FOLDER`.

    Metrics are filed under `metrics/`, what they cost under `costs/`. Rows are on disk as soon as they are given, so
    curves can be followed; the end of a `with` block, or `close`, closes the file.

        with TensorBoard("logs/simfbo") as log:
            rk.run(problem, method, clients, x=0.0, y=0.0, rounds=200, metrics=metrics, callbacks=[log])
    """

    def __init__(self, folder: str | Path):
        if not isinstance(folder, str | Path):
            raise InputError(f"folder: {folder!r} was given; the path of a folder is needed")
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise InputError(
                "TensorBoard: tensorboard is not installed; install it with pip install tensorboard"
            ) from None
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = Writer(str(self.folder))
        except OSError as error:
            raise InputError(f"folder: {str(folder)!r} cannot be written: {error.strerror}") from error

    def __call__(self, round: int, row: Mapping[str, Any]) -> None:
        """Logs one row of the history."""
        if self._writer is None:
            raise InputError(
                f"callbacks: the log in {str(self.folder)!r} is closed; make a new TensorBoard for this run"
            )
        with np.errstate(over="ignore"):  # event files hold float32, where a larger value is infinite
            for name, value in row.items():
                if name != "round":
                    self._writer.add_scalar(f"{'costs' if name in COST else 'metrics'}/{name}", value, round)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file; closing again does nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
