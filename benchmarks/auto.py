"""Step sizes that were measured against tuned ones, on every task of the gallery.

Run with `python -m benchmarks.auto [TASK ...]`, which prints a row for each method of a task and, of all tasks, draws
docs/automatic-step-sizes.png. Data that comes with the library, seed 0; some ten minutes on two cores.

A task's target is 95 % of the way from its first value to the last that the task's own rates reach. "tuned" is the best
of twelve, chosen in hindsight by the very number that is compared: the task's own rates, that of x by 1/3, 1, 3 and 9,
those of the others by 1/3, 1 and 3; of one rate, by twelve factors from 1/32 to 64. "auto" pays for its measuring.

`python -m benchmarks.auto servers` prints what servers that need no rate take on problems with known answers.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import rookery as rk
from benchmarks.gallery import PICTURES, Picture
from rookery.data.partitions import parse
from rookery.federation.server import NEEDS_NO_RATE, read_server
from rookery.tasks.registry import TASKS

PICTURE = Path(__file__).parents[1] / "docs" / "automatic-step-sizes.png"
ROUNDS, EVERY = 300, 1

CONTROLLED = {"drift": rk.ControlVariates()}
METHODS: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    "trust": {"SimFBO": (rk.SimFBO, {})},
    "personalised": {"FedAvg, 5 steps": (rk.FedAvg, {"local_steps": 5})},
    "hyperrep": {
        "SimFBO": (rk.SimFBO, {}),
        "FedBiO, 5 steps": (rk.FedBiO, {"local_steps": 5}),
        "SimFBO, 5 steps, control variates": (rk.SimFBO, {"local_steps": 5} | CONTROLLED),
    },
    "losstuning": {"SimFBO": (rk.SimFBO, {}), "FedBiO, 3 steps": (rk.FedBiO, {"local_steps": 3})},
    "cleaning": {"SimFBO": (rk.SimFBO, {}), "FedBiO, 3 steps": (rk.FedBiO, {"local_steps": 3})},
    "regularisation": {"SimFBO": (rk.SimFBO, {}), "SimFBO, 5 steps": (rk.SimFBO, {"local_steps": 5})},
    "metalearn": {"SimFBO": (rk.SimFBO, {}), "FedBiO, 5 steps": (rk.FedBiO, {"local_steps": 5})},
    "fairness": {"SimFBO": (rk.SimFBO, {})},
    "riskaverse": {"SimFBO": (rk.SimFBO, {})},
    "classify": {
        "FedAvg, 10 steps": (rk.FedAvg, {"local_steps": 10}),
        "SCAFFOLD, 10 steps": (rk.Scaffold, {"local_steps": 10}),
    },
    "semisupervised": {
        "FedAvg, 18 steps": (rk.FedAvg, {"local_steps": 18}),
        "SCAFFOLD, 18 steps": (rk.Scaffold, {"local_steps": 18}),
    },
    "clustering": {"SimFBO, 5 steps": (rk.SimFBO, {"local_steps": 5})},
}


def grid(own: Mapping[str, float]) -> list[dict[str, float]]:
    """The rates to choose from, the task's own first."""
    if len(own) == 1:
        factors = [dict.fromkeys(own, 2.0**power) for power in (0, *range(-5, 0), *range(1, 7))]
    else:
        pairs = itertools.product((1.0, 1 / 3, 3.0, 9.0), (1.0, 1 / 3, 3.0))
        factors = [{name: lead if name == "x" else other for name in own} for lead, other in pairs]
    return [{name: rate * by[name] for name, rate in own.items()} for by in factors]


def arguments(name: str, picture: Picture) -> tuple[dict[str, Any], str, dict[str, float]]:
    """What a run of a task is given, its metric, and the rates of its page."""
    task = TASKS[name]()
    parts = task.assemble(parse(picture.partition), picture.clients, seed=0)
    given = {
        "problem": parts.problem,
        "clients": parts.clients,
        "x": parts.x,
        "y": parts.y,
        "start": parts.start,
        "sampling": rk.Uniform(picture.cohort) if picture.cohort else rk.All(),
        "batch_size": task.batch_size,
        "metrics": parts.metrics,
        "client_metrics": parts.client_metrics,
        "rounds": min(ROUNDS, picture.exchanges),
        "every": EVERY,
    }
    of_page = next(iter(picture.curves.values())).rates
    return given, picture.metric or parts.main_metric, {**task.rates, **of_page}


def exchanges_to(result: Any, metric: str, target: float, rising: bool) -> int | None:
    """What it took to reach a target; None: it did not."""
    values = np.asarray(result.history[metric], float)
    there = np.flatnonzero(values >= target if rising else values <= target)
    return int(result.history["exchanges"][there[0]]) if there.size else None


def shown(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rate:.2g}" for name, rate in rates.items())


def race(name: str) -> list[tuple[str, int, int | None, bool]]:
    """The rows of a task: a label, and the exchanges of the tuned and of the measured rates."""
    given, metric, own = arguments(name, PICTURES[name])
    rows = []
    for label, (method, options) in METHODS[name].items():
        choices = grid(own)
        methods = [method(lr=rk.Rates(**rates), **options) for rates in choices]
        tuned = rk.sweep(method=methods[0], over={"method": methods}, **given).results
        auto = rk.run(method=method(lr="auto", **options), **given)
        values = np.asarray(tuned[0].history[metric], float)
        rising = bool(values[-1] > values[0])
        target = float(values[0] + 0.95 * (values[-1] - values[0]))
        took = [exchanges_to(result, metric, target, rising) for result in tuned]
        best = min((t for t in took if t is not None), default=None)
        assert best is not None
        which, found = took.index(best), exchanges_to(auto, metric, target, rising)
        diverged = sum(result.status == "diverged" for result in tuned)
        ratio = "not reached" if found is None else f"{found / best:.2f}"
        print(
            f"| {name} | {label} | {metric} {target:.3g} | {took[0]} | {best} ({shown(choices[which])}) | {found} "
            f"({shown(auto.rates)}) | {ratio} | {auto.status} | {diverged} of {len(tuned)} |",
            flush=True,
        )
        rows.append((f"{name}: {label}", best, found, auto.status == "diverged"))
    return rows


def draw(rows: list[tuple[str, int, int | None, bool]], path: Path = PICTURE) -> Path:
    """The exchanges of both, row by row."""
    matplotlib.use("agg")
    figure, axes = plt.subplots(figsize=(7.5, 0.28 * len(rows) + 1.2))
    places = np.arange(len(rows))[::-1]
    for place, (_, best, found, _) in zip(places, rows):
        axes.plot([best, best if found is None else found], [place, place], color="0.8", zorder=1)
        axes.axhspan(place - 0.5, place + 0.5, color="0.97" if place % 2 else "white", zorder=0)
    axes.scatter([row[1] for row in rows], places, color="C7", label="tuned in hindsight, twelve runs", zorder=2)
    there = [(row[2], place) for row, place in zip(rows, places) if row[2] is not None]
    axes.scatter([t for t, _ in there], [p for _, p in there], color="C3", label='lr="auto", one run', zorder=3)
    axes.set_yticks(places, [row[0] for row in rows], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("exchanges to the target")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    return path


def servers(rounds: int = 2000) -> None:
    """For each optimiser of the server the exchanges after which x stays within 1 % of its first error, three seeds."""
    beds = {
        "one level": lambda seed: rk.exact.QuadraticConsensus.random(clients=3, dims=3, seed=seed),
        "bilevel": lambda seed: rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 3), seed=seed),
    }
    print(f"| server | {' | '.join(beds)} |")
    print("|---|---|---|", flush=True)
    for word in ("none", *NEEDS_NO_RATE):
        cells = []
        for make in beds.values():
            took = [settled(make(seed), read_server("server", word), rounds) for seed in range(3)]
            cells.append(", ".join("-" if exchanges is None else str(exchanges) for exchanges in took))
        print(f"| {word} | {' | '.join(cells)} |", flush=True)


def settled(bed: Any, server: Any, rounds: int) -> int | None:
    """The exchanges after which x stays within 1 % of its first error; None: it does not."""
    solution, method = bed.solution(), rk.SimFBO(lr="auto", server=server)
    error = lambda z: {"error": abs(z.x - solution).max()}
    given = {"rounds": rounds, "every": 1, "precision": "float64", "metrics": error, **bed.start()}
    history = rk.run(bed.problem, method, bed.clients, **given).history
    errors = np.asarray(history["error"], float)
    outside = np.flatnonzero(~(errors <= 0.01 * errors[0]))
    return None if outside[-1] + 1 == len(errors) else int(history["exchanges"][outside[-1] + 1])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["servers"]:
        servers()
        sys.exit()
    print("| task | method | target | own rates | tuned | auto | auto / tuned | | tuned runs that diverged |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    everything = [row for chosen in sys.argv[1:] or METHODS for row in race(chosen)]
    if not sys.argv[1:]:
        draw(everything)
