"""`python -m benchmarks.peers`: FedAvg and SCAFFOLD, ours and other frameworks': seconds a round, start-up, memory.

All train the same network 784-64-10 from the same weights on the same synthetic data: 20 examples a client, 2 epochs of
batches of 10, so 4 steps of plain SGD; of 100 clients 10 a round, of 1,000 and 10,000 clients 100. Small examples and a
small network keep 10,000 clients' data (630 MB) and control variates (2 GB) in memory for several contenders at once.

- Same results: first a small task with all clients, full batches and two steps, on which every random draw falls away:
  the training losses after three rounds are the same to 1e-4.
- Every contender is a process of its own, in an environment of its own, and does rounds when it is asked to, so that
  they are measured in turns in one run; the best turn counts, since other work only ever slows one down.
- Start-up is from the start of the process to the end of its first round: imports, data, compiling, one round.
- Memory is the sum of the peaks of its processes.

`python -m benchmarks.peers --setup` makes the environments (those that do not install are named, and left out); a
contender whose environment is absent is skipped. `--write FILE` writes the page.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.common import Task, make_data
from benchmarks.peers.page import OURS, Contender, Measured, Results, page, tables

ROOT = Path(__file__).parents[2]
# Of PyTorch the CPU build: the default one brings gigabytes for GPUs.
TORCH = os.environ.get("TORCH", "torch==2.13.0+cpu")
CONTENDERS = (
    Contender(OURS, "with_rookery", needs="rookery"),
    Contender("Rookery, streamed", "with_streamed", needs="rookery", framework=False),
    Contender("by hand in JAX", "with_jax", needs="jax", framework=False),
    Contender("bare PyTorch loop", "with_torch", needs="torch", framework=False),
    Contender("FedJAX", "with_fedjax", needs="fedjax", packages=("fedjax",)),
    Contender(
        "pfl-research",
        "with_pfl",
        needs="pfl",
        packages=("pfl", TORCH),
        note="it takes x_i - x where the paper has x - x_i in a client's new control variate; a loop with that sign "
        "turned gives its numbers",
    ),
    Contender("FedLab", "with_fedlab", needs="fedlab", packages=("fedlab", TORCH)),
    Contender("fluke", "with_fluke", needs="fluke-fl", packages=("fluke-fl", TORCH)),
    Contender("Flower", "with_flower", needs="flwr", packages=("flwr[simulation]", TORCH), task_per_client=True),
)
METHODS = ("fedavg", "scaffold")
COHORTS = {100: 10, 1_000: 100, 10_000: 100}
BESIDE = {("scaffold", 10_000): 3}  # contenders beside ours at a time, where all together would not fit the memory
SAME = Task("", "fedavg", clients=6, cohort=6, examples=20, batch=20, epochs=2, lr=0.1)
TIMED = Task("", "fedavg", clients=0, cohort=0, examples=20, batch=10, epochs=2, lr=0.05)
ROUNDS_OF_CHECK = 3


class Failed(Exception):
    """A contender has ended, or said something else than an answer."""


def python_of(contender: Contender, environments: Path) -> Path | None:
    """The Python that has what a contender needs; None: it is not there."""
    if not contender.packages:
        return Path(sys.executable) if importlib.util.find_spec(contender.needs) else None
    python = environments / contender.needs / "bin" / "python"
    return python if python.exists() else None


def set_up(contenders: Iterable[Contender], environments: Path) -> None:
    """Makes the environments that are not there yet; one that cannot be made is removed again, and named."""
    for contender in contenders:
        folder = environments / contender.needs
        if not contender.packages or folder.exists():
            continue
        install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *contender.packages]
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run(install, check=True)
            print(f"{contender.name}: installed", flush=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{contender.name}: could not be installed", flush=True)


class Process:
    """A contender at work on a task."""

    def __init__(self, contender: Contender, python: Path, task: Task):
        # Kept programs would make a start-up look shorter than it is.
        environment = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
        # Others must not find this environment's packages; workers that a framework starts must find this one.
        known = environment.get("PYTHONPATH", "").split(os.pathsep) if not contender.packages else []
        environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, known)]), "JAX_PLATFORMS": "cpu"}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{contender.module}", task.as_json()],
            cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip

    def ask(self, command: str) -> dict[str, Any]:
        """Its answer to a command."""
        try:
            print(command, file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self.log.seek(0)
            said = [line.strip() for line in self.log if line.strip()]
            raise Failed(said[-1] if said else "it ended without a word") from None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends it, and what it has started."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(timeout=30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def check(contenders: dict[Contender, Path], method: str) -> dict[str, float | str]:
    """The training loss of each after some rounds of the small task, or why there is none."""
    losses: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), SAME.clients, SAME.examples)
        for contender, python in contenders.items():
            with Process(contender, python, replace(SAME, folder=folder, method=method)) as process:
                try:
                    process.ask(f"go {ROUNDS_OF_CHECK}")
                    losses[contender.name] = process.ask("loss")["loss"]
                except Failed as failed:
                    losses[contender.name] = str(failed)
    return losses


@dataclass
class Standing:
    """A contender that is being measured."""

    process: Process
    rounds: int
    measured: Measured

    def turn(self) -> None:
        answer = self.process.ask(f"go {self.rounds}")
        self.measured.seconds = min(self.measured.seconds, answer["seconds"] / self.rounds)
        self.measured.memory = answer["memory"]


def start(process: Process, seconds: float) -> Standing:
    """The first three rounds of a contender, from nothing."""
    process.ask("go 1")
    startup = time.perf_counter() - process.begun
    warm = process.ask("go 2")
    measured = Measured(warm["seconds"] / 2, startup, warm["memory"], process.ask("loss")["loss"])
    return Standing(process, max(1, round(seconds / measured.seconds)), measured)


def measure(contenders: dict[Contender, Path], task: Task, turns: int, seconds: float) -> dict[str, Measured]:
    """Everything about one task; all in turns, or ours with some of the others at a time."""
    others = [contender for contender in contenders if contender.name != OURS]
    beside = BESIDE.get((task.method, task.clients), max(1, len(others)))
    done: dict[str, Measured] = {}
    for begin in range(0, max(1, len(others)), beside):
        some = others[begin : begin + beside]
        group = {each: python for each, python in contenders.items() if each.name == OURS or each in some}
        done = measure_together(group, task, turns, seconds) | done  # of ours what the first group found
    return {contender.name: done[contender.name] for contender in contenders if contender.name in done}


def measure_together(contenders: dict[Contender, Path], task: Task, turns: int, seconds: float) -> dict[str, Measured]:
    """The same of contenders whose processes are there together, in turns of about so many seconds each."""
    standings: dict[str, Standing] = {}
    processes: list[Process] = []

    def attempt(name: str, action: Any) -> Any:
        try:
            return action()
        except Failed as failed:
            standings.pop(name, None)
            print(f"{name}: failed: {failed}", flush=True)

    try:
        for contender, python in contenders.items():
            processes.append(Process(contender, python, task))
            if standing := attempt(contender.name, lambda: start(processes[-1], seconds)):
                standings[contender.name] = standing
        for _ in range(turns):
            for name, standing in list(standings.items()):
                attempt(name, standing.turn)
    finally:
        for process in processes:
            process.__exit__()
    return {name: standing.measured for name, standing in standings.items()}


def version_of(contender: Contender, python: Path) -> str:
    code = f"from importlib.metadata import version; print(version({contender.needs!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def chosen(environments: Path, names: list[str]) -> dict[Contender, Path]:
    """Those that are there, ours first; says which are not."""
    found = {}
    for contender in CONTENDERS:
        if names and contender.name not in names and contender.name != OURS:
            continue
        if python := python_of(contender, environments):
            found[contender] = python
        else:
            print(f"{contender.name}: skipped, there is no environment with {contender.needs}", flush=True)
    return found


def main(given: list[str] | None = None) -> Results:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="their folder")
    parser.add_argument("--setup", action="store_true", help="make the environments, and nothing else")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these contenders, beside ours")
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--clients", type=int, nargs="*", default=tuple(COHORTS), choices=tuple(COHORTS))
    parser.add_argument("--turns", type=int, default=5, help="to take the best of; 0: the check of results alone")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--write", type=Path, help="a file for the page")
    asked = parser.parse_args(given)
    if asked.setup:
        set_up(CONTENDERS, asked.environments)
        return Results()
    contenders = chosen(asked.environments, asked.only)
    results = Results({contender: version_of(contender, python) for contender, python in contenders.items()})
    for method in asked.methods:
        results.losses[method] = check(contenders, method)
        print(f"\n{method}, the training loss of the small task:", flush=True)
        for name, loss in results.losses[method].items():
            print(f"  {name:20s} {loss} {'' if results.same(method, name) else '(NOT the same)'}", flush=True)
    for clients in asked.clients if asked.turns else ():
        with tempfile.TemporaryDirectory() as folder:
            task = replace(TIMED, folder=folder, clients=clients, cohort=COHORTS[clients])
            make_data(Path(folder), clients, task.examples)
            for method in asked.methods:
                done = measure(contenders, replace(task, method=method), asked.turns, asked.seconds)
                results.measured[method, clients] = done
                print("\n" + tables(results, [(method, clients)]), flush=True)
    if asked.write:
        asked.write.write_text(page(results))
    return results


if __name__ == "__main__":
    main()
