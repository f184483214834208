"""Processes that a federation on this machine needs: started with a log, and ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.errors import InputError
from rookery.runs.folder import open_folder

BEGUN = ".federation"  # says that a folder is one of a federation on this machine
GRACE = 20.0  # seconds that a process is given to end by itself


def free_ports(number: int) -> list[int]:
    """Ports of the loopback device that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """The folder for all that a federation on this machine writes, its whole path: a new one, or that of one that was
    stopped."""
    with open_folder(folder, "", existing=(folder / BEGUN).is_file()):
        (folder / BEGUN).touch()
        yield folder.resolve()


def environment(**more: str) -> dict[str, str]:
    """The environment of what is started, with this Python's programs first."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}", **more}


def patiently(attempt: Callable[[], Any], patience: float, otherwise: str) -> Any:
    """What comes of something that may not work yet; `otherwise` is what is said where it never does."""
    end = time.monotonic() + patience
    while True:
        try:
            return attempt()
        except Exception as error:  # whatever a framework raises
            if time.monotonic() > end:
                raise InputError(f"transport: {otherwise} ({type(error).__name__})") from None
            time.sleep(0.3)


class Started:
    """A process and all that it starts, in a group of their own; ended when the block is left."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None):
        self.command, self.log, self.environment, self.folder = list(command), log, dict(environment), folder

    def __enter__(self) -> Started:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    cwd=self.folder,
                    start_new_session=True,
                )
        except OSError as error:
            raise InputError(f"transport: {self.command[0]!r} cannot be started: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        finally:  # also where somebody is impatient
            self.end(signal.SIGKILL)
            self.process.wait()

    def end(self, how: signal.Signals) -> None:
        """Sends a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, how)
