"""Exchanges until x is within 1e-6 of the solution, for nested methods on clients that differ.

Run with `python -m benchmarks.drift`, which prints the table of docs/drift-control.md.

E1 with strong heterogeneity: 10 clients, full batches, all of them or 4 per round. Every method runs over the same grid
of step sizes (and its own few numbers, where it has any) and is shown at its best. `-`: not reached within 1000 rounds.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import rookery as rk
from rookery.problems.exact import QuadraticBilevel

STEPS = [0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5]
ROUNDS = 1000
TARGET = 1e-6


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method, and what besides its step size is searched."""

    name: str
    method: Any
    rate: str = "lr.default"
    grid: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


def entries() -> list[Entry]:
    lr = rk.Rates(0.1)
    return [
        Entry("SimFBO, 1 local step", rk.SimFBO(lr)),
        Entry("SimFBO, 10 local steps", rk.SimFBO(lr, local_steps=10)),
        Entry(
            "SimFBO, 10 tiny local steps",
            rk.SimFBO(rk.Rates(1e-8), server_lr=lr, local_steps=10),
            rate="server_lr.default",
        ),
        Entry("SimFBO, 10, control variates", rk.SimFBO(lr, local_steps=10, drift=rk.ControlVariates())),
        Entry(
            "SimFBO, 10, duals",
            rk.SimFBO(lr, local_steps=10, drift=rk.Duals()),
            grid={"drift.gamma.default": [0.3, 1.0, 3.0], "drift.a": [0.3, 1.0, 3.0]},
        ),
        Entry("FedMSA, K = 10", rk.FedMSA(lr, local_steps=10, local_clients=10), grid={"momentum": [0.1, 0.5, 1.0]}),
        Entry("FedBiOAcc, I = 2", rk.FedBiOAcc(lr, local_steps=2, offset=8.0), grid={"delta": [1.0, 2.0]}),
        Entry(
            "AggITD, N = 5",
            rk.AggITD(lr, lower_rounds=5, lower_steps=2, upper_steps=2),
            grid={"neumann_step": [0.1, 0.3]},
        ),
    ]


def best(entry: Entry, sampling: Any, seed: int = 0) -> dict[str, Any] | None:
    """The grid point that reaches the target in the fewest exchanges, on one instance of the problem."""
    exact = QuadraticBilevel.random(clients=10, dims=(3, 4), heterogeneity=1.0, seed=seed)
    solution = exact.solution()
    grid = {entry.rate: STEPS, **entry.grid}
    table = rk.sweep(
        exact.problem, entry.method, exact.clients, over=grid, rounds=ROUNDS, every=1, precision="float64",
        sampling=sampling, metrics=lambda z: {"error": abs(z.x - solution).max()},
        stop={"error": lambda error: error < TARGET}, **exact.start(),
    )  # fmt: skip
    reached = [row for row in table.rows if row["status"] == "stopped"]
    return min(reached, key=lambda row: row["exchanges"]) if reached else None


def measure() -> list[tuple[str, ...]]:
    """The rows of the table: the method, then exchanges and floats per client and exchange, full and sampled."""
    rows = []
    for entry in entries():
        cells = []
        for cohort, sampling in ((10, rk.All()), (4, rk.Uniform(4))):
            row = best(entry, sampling)
            if row is None:
                cells += ["-", "-"]
            else:
                floats = (row["floats_up"] + row["floats_down"]) / row["exchanges"] / cohort
                cells += [str(row["exchanges"]), f"{floats:.0f}"]
        rows.append((entry.name, *cells))
        print(f"{entry.name}: {cells}", file=sys.stderr, flush=True)
    return rows


INSTANCES = 10


def instances() -> list[tuple[str, ...]]:
    """One step against ten with control variates on ten instances of the problem, all clients: exchanges and gradient
    evaluations to the target, median and range, and the step sizes that won."""
    rows = []
    for entry in (entries()[0], entries()[3]):
        found = [row for seed in range(INSTANCES) if (row := best(entry, rk.All(), seed)) is not None]
        cells = []
        for column in ("exchanges", "gradients"):
            values = sorted(int(row[column]) for row in found)
            middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
            cells.append(f"{middle:g} ({values[0]} to {values[-1]})")
        rates = sorted({float(row[entry.rate]) for row in found})
        rows.append((entry.name, *cells, ", ".join(f"{rate:g}" for rate in rates), f"{len(found)} of {INSTANCES}"))
    return rows


def markdown(rows: list[tuple[str, ...]]) -> str:
    """The table as the docs print it."""
    head = ("method", "exchanges, all 10", "floats each", "exchanges, 4 of 10", "floats each")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(markdown(measure()))
    for row in instances():
        print(" | ".join(row))
