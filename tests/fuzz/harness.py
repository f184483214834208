"""What fuzzers ask of the command: it ends, with a status that fits, in sentences, and leaves nothing half-written."""

from __future__ import annotations

import contextlib
import io
import signal
import warnings
from pathlib import Path

from rookery.cli import main

SECONDS = 90  # of one command: more is a hang


class Hung(Exception):
    pass


def _too_long(*_):
    raise Hung


def command(arguments: list[str]) -> tuple[int, str]:
    """Runs the command in this process: its status and what it said, on both streams."""
    said, before = io.StringIO(), signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                status = main(arguments)
            except SystemExit as ended:  # how the parser of options ends it
                status = ended.code if isinstance(ended.code, int) else 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert status in (0, 1, 2, 130), (arguments, status)
    assert "Traceback" not in said.getvalue(), (arguments, said.getvalue())
    if status == 2:
        assert said.getvalue().strip(), arguments
    return status, said.getvalue()


def half_written(folder: Path) -> list[Path]:
    """Files that a command which ended must not have left."""
    return [path for path in folder.rglob(".*") if path.name.startswith((".rookery-aside-", ".lock"))]
