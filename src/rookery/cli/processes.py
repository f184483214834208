"""`rookery launch`: one run in several processes of this machine. Imports experiments and hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console

from rookery.engines.hosts import environment
from rookery.errors import InputError
from rookery.experiments.experiment import read_experiment
from rookery.experiments.machines import free_ports
from rookery.runs.interrupts import interrupted_status

USE = "as in: rookery launch -n 2 -- run hyperrep simfbo --engine mesh"
ALIKE = 2.0  # seconds in which processes end for the same reason
PATIENCE = 10.0  # seconds until a process that was asked to end is killed


def launch(arguments: list[str], console: Console) -> int:
    """`rookery launch -n PROCESSES -- run TASK METHOD --engine mesh ...`, or `-- resume RUN`."""
    if len(arguments) < 4 or arguments[0] != "-n" or arguments[2] != "--":
        raise InputError(f"launch: a number of processes and a command are needed, {USE}")
    if not arguments[1].isdigit() or not 1 <= int(arguments[1]) <= 1024:
        raise InputError(f"launch: {arguments[1]!r} processes were given; a whole number from 1 to 1024 is needed")
    command = arguments[3:]
    if command[0] not in ("run", "resume"):
        raise InputError(f"launch: {command[0]!r} was given; run and resume go over several processes, {USE}")
    if not _on_mesh(command):
        raise InputError(f"launch: the run is not on the mesh, so each process would run all of it; {USE}")
    return _together(command, int(arguments[1]), console)


def _on_mesh(command: Sequence[str]) -> bool:
    if command[0] == "resume":
        return len(command) != 2 or read_experiment(command[1]).options.engine == "mesh"  # else it says so itself
    return "--engine=mesh" in command or ("--engine", "mesh") in pairwise(command)


def _together(command: Sequence[str], processes: int, console: Console) -> int:
    """Starts them, and ends them all when one of them fails; the first one's exit status."""
    coordinator = f"127.0.0.1:{free_ports(1)[0]}"
    with tempfile.TemporaryFile() as said:  # what all but the first say: shown where one of them fails first
        started = []
        for process in range(processes):
            where = {} if process == 0 else {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            environ = os.environ | environment(coordinator, processes, process)
            started.append(subprocess.Popen([sys.executable, "-m", "rookery.cli", *command], env=environ, **where))
        failed = None
        try:
            failed = _first_failure(started)
        except KeyboardInterrupt:  # a terminal sends Ctrl-C to all of them; a program may signal this one alone
            _end(started, signal.Signals(interrupted_status() - 128), patience=None)  # which save the run
        finally:
            _end(started, signal.SIGKILL)  # the others of one that failed wait for it, and hear nothing else
        if failed not in (None, 0):
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            console.print(f"launch: process {failed} ended first: {' '.join(last)}", markup=False, soft_wrap=True)
        status = started[failed or 0].returncode
        return status if status >= 0 else 128 - status


def _first_failure(started: Sequence[subprocess.Popen]) -> int | None:
    """Waits for all; the number of the first that ends with an error, if one does."""
    while True:
        ended = [process.poll() for process in started]
        for number, status in enumerate(ended):
            if status not in (None, 0):
                with contextlib.suppress(subprocess.TimeoutExpired):  # what is wrong for one may be so for the first
                    number = 0 if started[0].wait(ALIKE) else number
                return number
        if None not in ended:
            return None
        time.sleep(0.1)


def _end(started: Sequence[subprocess.Popen], how: signal.Signals, patience: float | None = PATIENCE) -> None:
    """Signals the processes that still run, and waits; those that run on after `patience` seconds are killed."""
    there = [process for process in started if process.poll() is None]
    for process in there:
        process.send_signal(how)
    for process in there:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
