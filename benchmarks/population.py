"""Milliseconds a round at a fixed cohort, whatever the population: nothing of the population's size moves in a round.

`python -m benchmarks.population`: cohorts of 100 small clients out of 100 to 100,000, with and without records, in
memory and, in the second table, streamed from a file (100,000 clients) or a function (1,000,000, without records), each
population in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time

import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import prepare

COHORT, EXAMPLES, DIM = 100, 4, 32
POPULATIONS = (100, 1_000, 10_000, 100_000)
STREAMED = (1_000, 10_000, 100_000, 1_000_000)
METHODS = {
    "FedAvg": rk.FedAvg(lr=rk.Rates(0.01), local_steps=2),
    "SimFBO": rk.SimFBO(lr=rk.Rates(0.01), local_steps=2),
    "SCAFFOLD": rk.Scaffold(lr=rk.Rates(0.01), local_steps=2),
    "SimFBO, control variates": rk.SimFBO(lr=rk.Rates(0.01), local_steps=2, drift=rk.ControlVariates()),
}


def lower(x, y, e):
    return 0.5 * jnp.sum((e["a"] @ y - x) ** 2) + 0.05 * jnp.sum(y**2)


def upper(x, y, e):
    return 0.5 * jnp.sum((y - e["b"]) ** 2) + 0.05 * jnp.sum(x**2)


def single(x, e):
    return 0.5 * jnp.sum((e["a"] @ x - e["b"]) ** 2)


def clients(population: int) -> tuple[rk.Clients, float]:
    """Clients in memory, and the seconds that `rk.federate` took."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(population, EXAMPLES, DIM, DIM)).astype(np.float32) / DIM**0.5
    b = rng.normal(size=(population, EXAMPLES, DIM)).astype(np.float32)
    apart = [{"a": a[i], "b": b[i]} for i in range(population)]
    begun = time.perf_counter()
    return rk.federate(apart), time.perf_counter() - begun


TABLE = np.random.default_rng(1).normal(size=(1024, DIM, DIM)).astype(np.float32) / DIM**0.5


def load(client: int):
    """A client's examples, for a population that no file here would hold."""
    begin = client * 7919 % (len(TABLE) - EXAMPLES)
    a = TABLE[begin : begin + EXAMPLES]
    return {"a": a, "b": a[:, 0]}


def streamed_clients(population: int, folder: str) -> rk.Clients:
    """The clients of `load`: from a file, where it is of a size to be written, else from the function."""
    sizes = np.full(population, EXAMPLES)
    if population > 200_000:
        return rk.federate(rk.data.Loaded(load, sizes))
    shapes = {"a": (DIM, DIM), "b": (DIM,)}
    files = {name: f"{folder}/{name}.npy" for name in shapes}
    rows = {
        name: np.lib.format.open_memmap(files[name], "w+", np.float32, (population * EXAMPLES, *shape))
        for name, shape in shapes.items()
    }
    for client in range(population):
        for name, own in load(client).items():
            rows[name][client * EXAMPLES : (client + 1) * EXAMPLES] = own
    del rows
    return rk.federate(rk.data.Mapped({name: np.load(file, mmap_mode="r") for name, file in files.items()}, sizes))


def streamed_row(population: int, seconds: float, also_local: bool) -> None:
    """Prints a row of the second table: streamed, over the local engine where the clients fit it, and memory."""
    methods = METHODS if population <= 200_000 else {name: METHODS[name] for name in ("FedAvg", "SimFBO")}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        who = streamed_clients(population, folder)
        made = time.perf_counter() - begun
        before = resident()
        found = {name: milliseconds(method, who, seconds, rk.Streamed()) for name, method in methods.items()}
        took = resident() - before
        cells = [f"{found[name]:.2f}" if name in found else "" for name in METHODS]
        if also_local:  # at last, since it puts everything into memory
            whole = rk.federate([who.client(i) for i in range(population)])
            for k, name in enumerate(found):
                cells[k] += f" ({found[name] / milliseconds(METHODS[name], whole, seconds):.2f})"
    print(f"| {population:,} | {made:.1f} |", " | ".join(cells), f"| {before:,.0f} + {took:,.0f} |", flush=True)


def resident() -> float:
    """MB of memory of this process that no file has."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1e3


def milliseconds(method, who: rk.Clients, seconds: float, engine=None) -> float:
    """The best of calls that take about a tenth of the time each."""
    x = np.zeros(DIM, np.float32)
    nested = isinstance(method, rk.SimFBO)
    problem = rk.Bilevel(upper, lower) if nested else rk.Single(single)
    given = {"x": x} | ({"y": x} if nested else {})
    ready = prepare(
        problem, method, who, **given, sampling=rk.Uniform(COHORT), batch_size=2, seed=0, precision="float32"
    )
    session = (engine or rk.Local()).open(ready, Ledger())
    session.advance(1)
    rounds, best, end = 1, float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        session.advance(rounds)
        took = time.perf_counter() - begun
        best = min(best, 1e3 * took / rounds)
        if took < seconds / 20:
            rounds *= 2
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each number")
    parser.add_argument("--populations", type=int, nargs="*", default=POPULATIONS)
    parser.add_argument("--streamed", type=int, nargs="*", default=STREAMED, help="populations of the second table")
    parser.add_argument("--row", type=int, help="print the row of one streamed population")
    asked = parser.parse_args()
    if asked.row:
        return streamed_row(asked.row, asked.seconds, also_local=asked.row <= 10_000)
    print(f"ms a round, {COHORT} clients of {EXAMPLES} examples a round")
    print("| clients | federate, s |", " | ".join(METHODS), "| memory, MB |")
    for population in asked.populations:
        who, made = clients(population)
        found = [milliseconds(method, who, asked.seconds) for method in METHODS.values()]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"| {population:,} | {made:.2f} |", " | ".join(f"{ms:.2f}" for ms in found), f"| {memory:,.0f} |")
    print("\nstreamed: ms a round (over the local engine's); memory before and what runs added, without pages of files")
    print("| clients | made, s |", " | ".join(METHODS), "| memory, MB |", flush=True)
    for population in asked.streamed:
        command = [sys.executable, "-m", "benchmarks.population", "--row", str(population)]
        subprocess.run([*command, "--seconds", str(asked.seconds)], check=True)


if __name__ == "__main__":
    main()
