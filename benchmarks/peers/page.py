"""What was measured, as tables and as a page that says which goals were reached."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

OURS = "Rookery"
TITLES = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Contender:
    """Someone to measure; `needs` names what has to be installed, and the folder of its environment."""

    name: str
    module: str
    needs: str
    packages: tuple[str, ...] = ()  # of an environment of its own; none: it runs in this one
    framework: bool = True  # not a yardstick written by hand
    task_per_client: bool = False  # whether it starts a task or a process for each client
    note: str = ""  # why its results are others, where they are


@dataclass
class Measured:
    """One contender on one task."""

    seconds: float  # a round
    startup: float
    memory: float  # MB
    loss: float  # after three rounds


@dataclass
class Results:
    """A whole run."""

    versions: dict[Contender, str] = field(default_factory=dict)
    losses: dict[str, dict[str, float | str]] = field(default_factory=dict)  # of the small task, by method and name
    measured: dict[tuple[str, int], dict[str, Measured]] = field(default_factory=dict)

    def same(self, method: str, name: str) -> bool:
        """Whether its results on the small task are ours."""
        loss, ours = (self.losses[method].get(who) for who in (name, OURS))
        return isinstance(loss, float) and isinstance(ours, float) and math.isclose(loss, ours, rel_tol=TOLERANCE)


def tables(results: Results, rows: Sequence[tuple[str, int]]) -> str:
    """A table for each row, with every measure and its ratio to ours."""
    parts = []
    for method, clients in rows:
        done = results.measured[method, clients]
        ours = done.get(OURS)
        lines = [
            f"{TITLES[method]}, {clients:,} clients",
            "",
            "| | ms a round | over ours | start-up, s | over ours | memory, MB | over ours | loss after 3 rounds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, found in done.items():
            over = lambda what: f"{getattr(found, what) / getattr(ours, what):.2f}" if ours else ""
            mark = "" if results.same(method, name) else " (other results)"
            lines.append(
                f"| {name}{mark} | {1e3 * found.seconds:.4g} | {over('seconds')} | {found.startup:.1f} "
                f"| {over('startup')} | {found.memory:,.0f} | {over('memory')} | {found.loss:.3f} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


MEASURES = {"seconds": "A round", "startup": "Start-up", "memory": "Memory"}
WHY = {  # a measure may be missed
    "seconds": [],
    "startup": [
        "Ours imports JAX and compiles one program that has a whole round in it, with its cohort, ledger and check of",
        "finiteness; FedJAX compiles a client's step alone, and those on PyTorch nothing. The parts are in",
        "[Speed](speed.md). Programs that the command keeps, so that a second start compiles nothing, are left out.",
    ],
    "memory": [
        "Ours holds the clients' data once more than the user does, in one array; a run with records also a copy of",
        "all of them from some rounds ago, to go back to where it diverges or is interrupted: SCAFFOLD's control",
        'variates are there twice, and those of all clients from the start. `engine="streamed"` has those of who takes',
        "part on the device, and the others' in a file.",
    ],
}


def missed(results: Results) -> dict[str, list[str]]:
    """By measure, the goals that were missed, against frameworks alone: who was better, by how much, and where."""
    found: dict[str, list[str]] = {}
    for contender in results.versions:
        if not contender.framework or contender.name == OURS:
            continue
        for what in MEASURES:
            goal = 10 if contender.task_per_client and what == "seconds" else 1
            below = []
            for (method, clients), done in results.measured.items():
                if contender.name in done and OURS in done:
                    ratio = getattr(done[contender.name], what) / getattr(done[OURS], what)
                    if ratio < goal:
                        below.append(f"{ratio:.2f} ({TITLES[method]}, {clients:,})")
            if below:
                wanted = f"; at least {goal} wanted" if goal > 1 else ""
                found.setdefault(what, []).append(f"{contender.name} at {', '.join(below)} of ours{wanted}")
    return found


def _same_results(results: Results) -> list[str]:
    lines, notes = [], {contender.name: f" ({contender.note})" for contender in results.versions if contender.note}
    for method, losses in results.losses.items():
        others = [name for name in losses if not results.same(method, name)]
        agree = len(losses) - len(others)
        lines.append(f"- {TITLES[method]}: {agree} of {len(losses)} the same to {TOLERANCE:g}" + "".join(
            f"; {name} not: {losses[name] if isinstance(losses[name], str) else f'{losses[name]:.5f}'}"
            f" against {losses[OURS]:.5f}{notes.get(name, '')}" for name in others
        ) + ".")  # fmt: skip
    return lines


def page(results: Results) -> str:
    """The page."""
    versions = ", ".join(f"{contender.name} {version}" for contender, version in results.versions.items() if version)
    lines = [
        "# Beside other frameworks",
        "",
        "FedAvg and SCAFFOLD by Rookery, by hand, and by other frameworks for simulation: the same network",
        "(784-64-10), first weights and synthetic data, 20 examples a client, 2 epochs of batches of 10 by plain SGD;",
        "of 100 clients 10 a round, of 1,000 and 10,000 clients 100. Each is a process in an environment of its own;",
        "they are measured in turns in one run (where all would not fit the memory, ours with three others at a time),",
        "and the best turn counts. Start-up is from the start of the process to the end of the first round; memory the",
        "sum of the peaks of its processes. `python -m benchmarks.peers` measures, after",
        f"`python -m benchmarks.peers --setup`. This run: {os.cpu_count()} cores; {versions}.",
        "",
        "## Same results",
        "",
        "The training loss after three rounds of a small task on which every random draw falls away (all clients, full",
        "batches, two local steps):",
        "",
        *_same_results(results),
        "",
        "In the tables below cohorts and batches are drawn by each in its own way, so their losses agree roughly.",
        "Memory of SCAFFOLD is not of the same state: Rookery and the loop in JAX have control variates of all clients",
        "from the start, the others of those that have taken part, in fewer rounds where rounds are slower.",
        "NVFlare's simulator is not among them, since its rounds cannot be asked for one by one and so not be measured",
        "in turns; alone, it once took about 32 times as long as ours.",
        "",
        "## Measured",
        "",
        tables(results, list(results.measured)),
        "",
        "The loop by hand is slower than ours with 10,000 clients because `jax.random.choice` shuffles all of them:",
        "3.0 ms of its round, where ours draws a cohort by Floyd's method. FedJAX calls a program for every client's",
        "step, those on PyTorch every layer of it, and Flower starts a task for every client; ours is one program for",
        'many rounds. What "Rookery, streamed" adds is in [populations](populations.md).',
        "",
        "## Goals",
        "",
        "First among the frameworks in every row of every table, and ten times as fast a round as one that starts a",
        "task or a process for each client. The loops written by hand are yardsticks.",
        "",
    ]
    found = missed(results)
    if not found:
        lines += ["All reached."]
    for what, below in found.items():
        lines += [f"{MEASURES[what]}, missed:", "", *(f"- {line}." for line in below), "", *WHY[what], ""]
    lines = lines[:-1] if lines[-1] == "" else lines
    return "\n".join(lines) + "\n"
