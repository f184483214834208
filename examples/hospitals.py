"""Whom to trust: sites learn one model together, and at some of them the labels are wrong.

First six sites with handwritten digits, three of which code every class as the next one. Then four hospitals with
heart patients; at the largest, "ill" and "healthy" are swapped. No site says so. A few records of each site were
checked, and a nested method learns from them how far to trust each site. Beside it are the simplest baselines.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import rookery as rk

LEARNT = "SimFBO, trust is learnt"
COLOURS = {
    "FedAvg, all records": "#c44e52",
    "FedAvg, checked records alone": "#dd8452",
    LEARNT: "#0059b0",
    "FedAvg, right labels alone (oracle)": "#999999",
}
DIGITS = rk.tasks.Trust(data="digits", site="0,1,2", checked_part=0.05)
HEART = rk.tasks.Trust()


def methods(task: rk.tasks.Trust) -> dict:
    """The nested method and its baselines, each with the task in its form."""
    plain = rk.FedAvg(lr=rk.Rates(0.5))
    forms = dict(zip(COLOURS, ("plain", "checked", "nested", "oracle")))
    return {
        label: (replace(task, form=form), rk.SimFBO(lr=rk.Rates(**task.rates)) if form == "nested" else plain)
        for label, form in forms.items()
    }


def main(exchanges: int = 300, seeds: int = 3, out: str | Path | None = None) -> Path:
    """Runs both parts and gives the path of their picture."""
    out = Path(out or f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}_hospitals")
    print(
        "Six sites hold 1,438 handwritten digits. Sites 0, 1 and 2 code every class as the next one; a twentieth of\n"
        "each site's records was checked. No record leaves its site; the server learns how far each site is trusted.\n"
    )
    digits = compared(DIGITS, out / "sites", exchanges, seeds, clients=6, partition="iid")
    print(
        "Four hospitals hold 740 heart patients. At Cleveland, the largest, 'ill' and 'healthy' are swapped, but for\n"
        "a fifth of the records that was checked, as everywhere.\n"
    )
    heart = compared(HEART, out / "heart", exchanges, seeds, clients=4, partition="natural")
    picture = draw({"Six sites with digits": digits, "Four hospitals": heart}, out / "hospitals.png")
    print(f"picture in {picture}, pages of all runs in {out}/sites/report.html and {out}/heart/report.html")
    return picture


def compared(task: rk.tasks.Trust, out: Path, exchanges: int, seeds: int, clients: int, partition: str) -> dict:
    """Each method's tables of sites, one for each seed."""
    given = {"exchanges": exchanges, "seeds": seeds, "out": out, "partition": partition}
    found = rk.compare(task, methods(task), clients, **given)
    tables = {label: [of_clients(folder) for folder in folders(found, label)] for label in COLOURS}
    print(f"\n{found}\n")
    chosen = [rk.tasks.Trust.choice(rk.Result.load(folder)).chosen for folder in folders(found, LEARNT)]
    print(f"the held-out checked records chose: {', '.join(chosen)} (one for each seed)")
    for number, (name, trust) in enumerate(zip(*trusted(tables))):
        each = [np.mean([table["accuracy"][number] for table in of_method]) for of_method in tables.values()]
        print(f"{name:<12} trusted {trust:.2f}, accuracy {' / '.join(f'{part:.2f}' for part in each)}")
    print()
    return tables


def folders(found: rk.Comparison, label: str) -> list[Path]:
    """The folders of a method's runs."""
    number, seeds = list(found.histories).index(label), len(found.histories[label])
    return list(found.folders)[number * seeds : (number + 1) * seeds]


def of_clients(folder: Path) -> rk.Table:
    """A run's table of sites."""
    table = rk.Result.load(folder).clients
    assert table is not None, "this run measured nothing where the data is"
    return table


def trusted(tables: dict[str, list[rk.Table]]) -> tuple[list[str], np.ndarray]:
    """The sites, and how far each is trusted, the mean over seeds."""
    return list(map(str, tables[LEARNT][0]["client"])), np.mean([table["trust"] for table in tables[LEARNT]], axis=0)


def accuracy(table: rk.Table) -> float:
    """The part of all sites' test records that is classified correctly."""
    return float(np.average(table["accuracy"], weights=table["test examples"]))


def draw(parts: dict[str, dict[str, list[rk.Table]]], path: Path) -> Path:
    """How far each site is trusted, and the accuracy of every method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2 * len(parts)), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    for (title, tables), (left, right) in zip(parts.items(), figure.subplots(len(parts), 2)):
        names, trust = trusted(tables)
        left.bar(names, trust, color=["#55a868" if value > 0.5 else "#c44e52" for value in trust])
        left.set_title(f"{title}: learnt trust in each site")
        means = {label: [accuracy(table) for table in of_method] for label, of_method in tables.items()}
        for number, (label, values) in enumerate(means.items()):
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            right.bar(number, np.mean(values), yerr=spread, color=COLOURS[label])
            right.text(number, np.mean(values) / 2, f"{np.mean(values):.0%}", ha="center", color="white", fontsize=14)
        right.set_title("Test records classified correctly")
        right.set_xticks(range(len(means)), [label.replace(", ", ",\n").replace(" (", "\n(") for label in means])
        for axes in (left, right):
            axes.set_ylim(0, 1.05)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    return path


if __name__ == "__main__":
    main()
