"""The command: run, federate, resume, compare, report and more. Options come from the dataclasses they fill."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

import jax
from rich.console import Console

from rookery.cli import commands, processes
from rookery.cli.show import show_list
from rookery.engines.hosts import together
from rookery.errors import InputError, unknown
from rookery.runs.compiled import keep_compiled
from rookery.runs.interrupts import interrupted_status, listening
from rookery.version import __version__

USAGE = """usage: rookery COMMAND

  rookery run TASK METHOD [options]        solve a task with a method; --help after METHOD shows the options
  rookery federate TASK METHOD [options]   the same with clients in processes of their own, which keep their data
  rookery export TASK METHOD -o FOLDER     what every party of a federation on NVFlare or Flower starts with
  rookery resume RUN                       go on with a run that was stopped, bit for bit
  rookery launch -n 2 -- run TASK METHOD --engine mesh [options]   one run in several processes
  rookery compare TASK METHOD... [options] methods at equal exchanges, bytes and gradient evaluations
  rookery report RUN... -o report.html     one page with the curves, tables and settings of some runs
  rookery reproduce STUDY [--quick]        a paper's table or figure, with its numbers beside ours
  rookery queue [STUDY...] --minutes 9     cells of the papers' studies by priority, until a time limit
  rookery check FILE.py:CLASS [--like M]   check what a method promises, or that it runs as another one does
  rookery data NAME [options]              what a dataset holds, and how a partition divides it
  rookery schema FILE.csv [options]        write what every site's table must hold, or check a table against it
  rookery list                             methods, tasks, datasets and partitions
  rookery --version
  rookery --no-cache COMMAND               do not keep compiled programs for the next start (ROOKERY_CACHE says where)
"""

NO_CACHE = "--no-cache"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and gives its exit status."""
    try:
        status = _main(list(sys.argv[1:] if arguments is None else arguments))
    except Exception:
        if not together():
            raise
        traceback.print_exc()
        status = 1
    if status and together():  # the others may be waiting for this one, and it would wait for them
        sys.stdout.flush()
        os._exit(status)
    return status


def _main(arguments: list[str]) -> int:
    console = Console(highlight=False)
    try:
        with listening():
            return _dispatch(arguments, console)
    except InputError as error:
        Console(stderr=True, highlight=False).print(f"rookery: {error}", markup=False, soft_wrap=True)
        return 2
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        said = f"rookery: {what}it cannot be read or written: {error.strerror or error}"
        Console(stderr=True, highlight=False).print(said, markup=False, soft_wrap=True)
        return 2
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = "rookery: this machine's memory does not hold it; a smaller network, minibatch or cohort is needed"
        Console(stderr=True, highlight=False).print(said, markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False).print("rookery: interrupted")
        return interrupted_status()


def _list(arguments: list[str], console: Console) -> int:
    if arguments:
        raise InputError(f"list: {arguments[0]!r} was given; it takes no arguments")
    show_list(console)
    return 0


COMMANDS: dict[str, Callable[[list[str], Console], int]] = {
    "run": commands.run,
    "federate": commands.federate,
    "export": commands.export,
    "resume": commands.resume,
    "launch": processes.launch,
    "compare": commands.compare,
    "report": commands.report,
    "reproduce": commands.reproduce,
    "queue": commands.queue,
    "check": commands.check,
    "data": commands.data,
    "schema": commands.schema,
    "list": _list,
}


def _dispatch(arguments: list[str], console: Console) -> int:
    if arguments[:1] == [NO_CACHE]:
        arguments = arguments[1:]
    else:
        keep_compiled()
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help"):
        console.print(USAGE, markup=False, end="", soft_wrap=True)
        return 0
    if command == "--version":
        console.print(__version__, markup=False)
        return 0
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS)
    if {"-h", "--help"} & set(rest[:1]) and command not in commands.HELP:
        console.print(USAGE, markup=False, end="", soft_wrap=True)
        return 0
    return COMMANDS[command](rest, console)
