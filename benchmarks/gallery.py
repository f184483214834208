"""The pictures of docs/tasks: every task with a few methods, its metric against exchanges.

Run with `python -m benchmarks.gallery [TASK ...]`, which draws docs/tasks/TASK.png and prints what was reached. All on
data that comes with the library, seed 0; about two minutes on two cores.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

import rookery as rk
from rookery.data.partitions import parse
from rookery.runs.plot import plot_histories
from rookery.tasks.registry import TASKS

FOLDER = Path(__file__).parents[1] / "docs" / "tasks"


@dataclass(frozen=True)
class Curve:
    """A method on a task: its class, its options, rates that differ from the task's, and a task in its place."""

    method: Any
    options: dict[str, Any] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    task: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of that task
    moves: tuple[str, ...] | None = None  # the sequences that it needs a rate for; None: all
    each: int = 1  # exchanges of a round


@dataclass(frozen=True)
class Picture:
    """What is drawn for a task."""

    curves: dict[str, Curve]
    exchanges: int = 200
    partition: str = "iid"
    clients: int = 100
    cohort: int = 10  # 0: all
    metric: str | None = None  # None: the task's main one


LOCAL = ("x", "y")
VRAU = {"lr": 0.2, "gamma": 0.1, "a": 5.0, "d": 2.0, "client_lr": 8.0}

PICTURES: dict[str, Picture] = {
    "trust": Picture(
        {
            "SimFBO, trust is learnt": Curve(rk.SimFBO),
            "FedAvg, all records alike": Curve(rk.FedAvg, task="trust", settings={"form": "plain"}),
            "FedAvg, checked records alone": Curve(rk.FedAvg, task="trust", settings={"form": "checked"}),
            "FedAvg, right labels alone": Curve(rk.FedAvg, task="trust", settings={"form": "oracle"}),
        },
        exchanges=300,
        partition="natural",
        clients=4,
        cohort=0,
    ),
    "personalised": Picture(
        {
            "heads (FedAvg)": Curve(rk.FedAvg, {"local_steps": 5}),
            "nested (SimFBO)": Curve(rk.SimFBO, {"local_steps": 5}, task="personalised", settings={"form": "nested"}),
            "shared (FedAvg)": Curve(rk.FedAvg, {"local_steps": 5}, task="personalised", settings={"form": "shared"}),
            "alone": Curve(rk.FedAvg, {"local_steps": 5}, task="personalised", settings={"form": "alone"}),
        },
        exchanges=100,
        partition="dirichlet:0.1",
        clients=100,
        cohort=0,
    ),
    "hyperrep": Picture(
        {
            "SimFBO": Curve(rk.SimFBO),
            "SimFBO, 5 local steps": Curve(rk.SimFBO, {"local_steps": 5}),
            "FedBiOAcc, 5 local steps": Curve(rk.FedBiOAcc, {"local_steps": 5}, each=2),
            "FedNest": Curve(rk.FedNest, {"lower_steps": 5, "neumann_step": 0.1}, moves=LOCAL, each=10),
        },
        exchanges=300,
        partition="dirichlet:0.2",
    ),
    "losstuning": Picture(
        {
            "SimFBO": Curve(rk.SimFBO),
            "SimFBO, 3 local steps": Curve(rk.SimFBO, {"local_steps": 3}),
            "x held, 3 local steps": Curve(rk.SimFBO, {"local_steps": 3}, {"x": 0.0}),
        },
        exchanges=300,
    ),
    "cleaning": Picture(
        {
            "SimFBO": Curve(rk.SimFBO),
            "FedBiO, 3 local steps": Curve(rk.FedBiO, {"local_steps": 3}),
            "weights held": Curve(rk.SimFBO, {}, {"x": 0.0}),
        },
        metric="f1",
    ),
    "regularisation": Picture(
        {
            "SimFBO": Curve(rk.SimFBO),
            "SimFBO, 5 local steps": Curve(rk.SimFBO, {"local_steps": 5}),
            "penalties held, 5 local steps": Curve(rk.SimFBO, {"local_steps": 5}, {"x": 0.0}),
        },
        clients=20,
        metric="loss",
    ),
    "metalearn": Picture(
        {
            "FedBiOLocal, 5 local steps": Curve(rk.FedBiOLocal, {"local_steps": 5}, moves=LOCAL),
            "FedBiOAccLocal, 5 local steps": Curve(
                rk.FedBiOAccLocal, {"local_steps": 5}, {"x": 1.0}, moves=LOCAL, each=2
            ),
            "SimFBO": Curve(rk.SimFBO),
            "one model for all (FedAvg)": Curve(
                rk.FedAvg, {"local_steps": 5}, task="classify", settings={"widths": ()}
            ),
        },
        partition="shards:2",
    ),
    "fairness": Picture(
        {
            "SimFBO": Curve(rk.SimFBO, rates={"y": 0.003}),
            "SimFBO, pull 10": Curve(rk.SimFBO, rates={"y": 0.003}, task="fairness", settings={"pull": 10.0}),
            "the average client (FedAvg)": Curve(rk.FedAvg, task="classify", settings={"widths": ()}),
        },
        exchanges=300,
        partition="longtail:0.05+shards:1",
        clients=20,
        cohort=0,
    ),
    "riskaverse": Picture(
        {
            "SimFBO": Curve(rk.SimFBO),
            "FedMSA, 5 local steps": Curve(rk.FedMSA, {"local_steps": 5, "local_clients": 10}, {"x": 0.001}, each=2),
        },
        exchanges=1000,
        clients=10,
        cohort=0,
    ),
    "classify": Picture(
        {
            "FedAvg": Curve(rk.FedAvg, {"local_steps": 10}),
            "SCAFFOLD": Curve(rk.Scaffold, {"local_steps": 10}),
            "FedDyn": Curve(rk.FedDyn, {"local_steps": 10, "alpha": 0.1}),
            "LeNet, FedAvg": Curve(rk.FedAvg, {"local_steps": 10}, task="classify", settings={"model": "lenet"}),
        },
        exchanges=150,
        partition="dirichlet:0.2",
    ),
    "semisupervised": Picture(
        {
            "FedVRAU": Curve(rk.FedVRAU, VRAU | {"local_steps": rk.Epochs(2), "client_steps": rk.Epochs(1)}, moves=()),
            "FedAvg": Curve(rk.FedAvg, {"local_steps": 18}),
            "SCAFFOLD": Curve(rk.Scaffold, {"local_steps": 18}),
        },
        exchanges=150,
        partition="dirichlet:0.5",
        clients=10,
        cohort=5,
    ),
    "clustering": Picture(
        {
            "FedVRAU": Curve(
                rk.FedVRAU,
                {"lr": 1.0, "gamma": 0.02, "a": 0.5, "client_lr": 8.0, "local_steps": 10, "client_steps": 10},
                moves=(),
            ),
            "SimFBO, 5 local steps": Curve(rk.SimFBO, {"local_steps": 5}),
        },
        exchanges=100,
        partition="dirichlet:0.5",
        clients=10,
        cohort=5,
    ),
}


def solve(name: str, picture: Picture, curve: Curve) -> Any:
    """One run of a picture."""
    task = TASKS[curve.task or name](**curve.settings)
    parts = task.assemble(parse(picture.partition), picture.clients, seed=0)
    rates = {s: rate for s, rate in {**task.rates, **curve.rates}.items() if curve.moves is None or s in curve.moves}
    options = ({"lr": rk.Rates(**rates)} if rates else {}) | curve.options
    return rk.run(
        parts.problem, curve.method(**options), parts.clients, x=parts.x, y=parts.y, start=parts.start,
        rounds=picture.exchanges // curve.each, sampling=rk.Uniform(picture.cohort) if picture.cohort else rk.All(),
        batch_size=task.batch_size, metrics=parts.metrics, client_metrics=parts.client_metrics,
    )  # fmt: skip


def draw(name: str, folder: Path = FOLDER) -> Path:
    """Runs a task's methods and draws them."""
    picture = PICTURES[name]
    results = {label: solve(name, picture, curve) for label, curve in picture.curves.items()}
    metric = picture.metric or TASKS[name]().assemble(parse(picture.partition), 10, seed=0).main_metric
    for label, result in results.items():
        row = result.history.rows[-1]
        metrics = result.history.columns[list(result.history.columns).index("seconds") + 1 :]
        numbers = ", ".join(f"{key} {row[key]:.3g}" for key in metrics)
        print(f"{name}: {label}: {row['exchanges']} exchanges, {numbers}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{name}: {picture.clients} clients, {picture.cohort or 'all'} a round, {picture.partition}"
    histories = {label: result.history for label, result in results.items()}
    path = plot_histories(histories, metric, folder / f"{name}.png", title=title)
    # 64 colours are enough for a few curves, and a quarter of the bytes.
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    return path


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        draw(chosen)
