"""Milliseconds a round at a fixed cohort, whatever the population: nothing of the population's size moves in a round.

`python -m benchmarks.population`: cohorts of 100 small clients out of 100 to 100,000, with and without records.
"""

from __future__ import annotations

import argparse
import resource
import time

import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import prepare

COHORT, EXAMPLES, DIM = 100, 4, 32
POPULATIONS = (100, 1_000, 10_000, 100_000)
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


def clients(population: int) -> rk.Clients:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(population, EXAMPLES, DIM, DIM)).astype(np.float32) / DIM**0.5
    b = rng.normal(size=(population, EXAMPLES, DIM)).astype(np.float32)
    return rk.federate([{"a": a[i], "b": b[i]} for i in range(population)])


def milliseconds(method, who: rk.Clients, seconds: float) -> float:
    """The best of calls that take about a tenth of the time each."""
    x = np.zeros(DIM, np.float32)
    nested = isinstance(method, rk.SimFBO)
    problem = rk.Bilevel(upper, lower) if nested else rk.Single(single)
    given = {"x": x} | ({"y": x} if nested else {})
    ready = prepare(
        problem, method, who, **given, sampling=rk.Uniform(COHORT), batch_size=2, seed=0, precision="float32"
    )
    session = rk.Local().open(ready, Ledger())
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
    asked = parser.parse_args()
    print(f"ms a round, {COHORT} clients of {EXAMPLES} examples a round")
    print("| clients | federate, s |", " | ".join(METHODS), "| memory, MB |")
    for population in asked.populations:
        begun = time.perf_counter()
        who = clients(population)
        made = time.perf_counter() - begun
        found = [milliseconds(method, who, asked.seconds) for method in METHODS.values()]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"| {population:,} | {made:.2f} |", " | ".join(f"{ms:.2f}" for ms in found), f"| {memory:,.0f} |")


if __name__ == "__main__":
    main()
