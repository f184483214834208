"""Milliseconds a round on 1, 2, 4 and 8 devices over those of the local engine, in turns in one run.

`python -m benchmarks.mesh`: SimFBO on 784-200-10 with synthetic data, 100 clients, 16 a round, batch 64, on host
devices that share this machine's cores; on a machine with accelerators, on these. First one run, whose clients are
spread, and then a sweep of eight runs, which are spread themselves.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

import rookery as rk
from benchmarks.bench import cross_entropy, ridge_cross_entropy
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import prepare

DEVICES = (1, 2, 4, 8)
LANES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--local-steps", type=int, default=10)
    asked = parser.parse_args()
    # Read when JAX first looks for devices.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES[-1]}"
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    data = [{"input": normal(600, 784), "label": rng.integers(0, 10, 600).astype(np.int32)} for _ in range(100)]
    x, y = ({"w": normal(m, n) / m**0.5, "b": np.zeros(n, np.float32)} for m, n in ((784, 200), (200, 10)))
    problem, clients = rk.Bilevel(cross_entropy, ridge_cross_entropy), rk.federate(data)
    method = rk.SimFBO(lr=rk.Rates(0.05), local_steps=asked.local_steps)
    given: dict[str, Any] = {"x": x, "y": y, "sampling": rk.Uniform(16), "batch_size": 64}
    there = [count for count in DEVICES if count <= jax.device_count()]
    engines = {"local": rk.Local()} | {f"mesh, {count}": rk.Mesh(count) for count in there}

    ready = prepare(problem, method, clients, seed=0, precision="float32", **given)
    sessions = {name: engine.open(ready, Ledger()) for name, engine in engines.items()}

    def ran(name: str, rounds: int) -> float:
        begun = time.perf_counter()
        sessions[name].advance(rounds)
        return time.perf_counter() - begun

    def swept(name: str, rounds: int) -> float:
        over = {"lr.default": [0.05 + 0.001 * lane for lane in range(LANES)]}
        found = rk.sweep(
            problem, method, clients, over=over, rounds=rounds, every=rounds, engine=engines[name], **given
        )
        return found.results[0].history["seconds"][-1]  # without compiling, and putting data on devices

    show("engine, devices", "ms a round", in_turns(ran, engines, asked.turns, 10))
    show(f"a sweep of {LANES}, devices", "ms a round of all", in_turns(swept, engines, asked.turns, 2))


def in_turns(seconds: Callable[[str, int], float], names: Iterable[str], turns: int, rounds: int) -> dict[str, float]:
    """The best milliseconds a round of each."""
    best = dict.fromkeys(names, float("inf"))
    for name in best:
        seconds(name, rounds)  # compiles
    for _ in range(turns):
        for name in best:
            best[name] = min(best[name], 1000 * seconds(name, rounds) / rounds)
    return best


def show(what: str, unit: str, best: Mapping[str, float]) -> None:
    print(f"| {what} | {unit} | over local |")
    for name, ms in best.items():
        print(f"| {name} | {ms:.1f} | {ms / best['local']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
