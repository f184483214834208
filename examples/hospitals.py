"""Whom to trust: four hospitals learn to tell ill hearts, and one of them has its labels swapped.

Every hospital keeps its patients. Nobody says whose labels are wrong: a fifth of each hospital's records was checked,
and a nested method learns from those how far to trust each hospital, and each of its other records.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import rookery as rk

TASK = rk.tasks.Trust
METHODS = {
    "FedAvg, all records alike": (TASK(form="plain"), rk.FedAvg(lr=rk.Rates(0.5))),
    "SimFBO, trust is learnt": (TASK(), rk.SimFBO(lr=rk.Rates(x=300.0, y=0.5, v=0.5))),
    "FedAvg, if all labels were right": (TASK(form="right"), rk.FedAvg(lr=rk.Rates(0.5))),
}
COLOURS = dict(zip(METHODS, ("#c44e52", "#0059b0", "#999999")))


def main(exchanges: int = 300, seeds: int = 3, out: str | Path | None = None) -> Path:
    """Runs the example and gives the path of its picture."""
    out = Path(out or f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}_hospitals")
    print(
        "Four hospitals hold 740 heart patients. At Cleveland, the largest, 'ill' and 'healthy' are swapped, but for\n"
        "a fifth of the records that was checked, as everywhere. No record and no trust in one leaves its hospital.\n"
    )
    found = rk.compare(TASK(), METHODS, exchanges=exchanges, seeds=seeds, out=out)
    tables = {label: [of_clients(folder) for folder in folders(found, label)] for label in METHODS}
    print(f"\n{found}\n")
    for number, (name, trust) in enumerate(zip(*trusted(tables["SimFBO, trust is learnt"]))):
        each = [np.mean([table["accuracy"][number] for table in of_method]) for of_method in tables.values()]
        print(f"{name:<12} trusted {trust:.2f}, told right {' / '.join(f'{part:.2f}' for part in each)}")
    picture = draw(tables, out / "hospitals.png")
    print(f"\npicture in {picture}, a page of all runs in {out / 'report.html'}")
    return picture


def folders(found: rk.Comparison, label: str) -> list[Path]:
    """The folders of a method's runs."""
    number, seeds = list(found.histories).index(label), len(found.histories[label])
    return list(found.folders)[number * seeds : (number + 1) * seeds]


def of_clients(folder: Path) -> rk.Table:
    """A run's table of hospitals."""
    table = rk.Result.load(folder).clients
    assert table is not None, "this run measured nothing where the data is"
    return table


def trusted(tables: list[rk.Table]) -> tuple[list[str], np.ndarray]:
    """The hospitals, and how far each is trusted, the mean over seeds."""
    return list(tables[0]["client"]), np.mean([table["trust"] for table in tables], axis=0)


def told_right(table: rk.Table) -> float:
    """The part of all hospitals' test patients that are told right."""
    return float(np.average(table["accuracy"], weights=table["test examples"]))


def draw(tables: dict[str, list[rk.Table]], path: Path) -> Path:
    """How far each hospital is trusted, and what comes of it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, trust = trusted(tables["SimFBO, trust is learnt"])
    place, shown = np.arange(len(names)), [name.capitalize() if len(name) > 2 else name.upper() for name in names]
    figure = Figure(figsize=(10.5, 4.2), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    wrong = int(np.argmax(tables["SimFBO, trust is learnt"][0]["examples"]))
    left.bar(place, trust, color=["#c44e52" if i == wrong else "#55a868" for i in place])
    left.set_title("How far each hospital is trusted,\nlearnt without being told")
    left.annotate("labels\nswapped", (wrong, trust[wrong]), (wrong, trust[wrong] + 0.08), ha="center", color="#c44e52")
    told = {label: [told_right(table) for table in of_method] for label, of_method in tables.items()}
    means = [np.mean(values) for values in told.values()]
    right.bar(range(len(told)), means, yerr=[np.std(values) for values in told.values()], color=list(COLOURS.values()))
    for number, mean in enumerate(means):
        right.text(number, mean / 2, f"{mean:.0%}", ha="center", va="center", color="white", fontsize=16)
    right.set_title("New patients that are told right,\nfrom all four hospitals")
    right.set_xticks(range(len(told)), [label.replace(", ", ",\n") for label in told])
    left.set_xticks(place, shown)
    for axes in (left, right):
        axes.set_ylim(0, 1.05)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    return path


if __name__ == "__main__":
    main()
