"""Milliseconds a round on 1, 2, 4 and 8 devices over those of the local engine, in turns in one run.

`python -m benchmarks.mesh`: SimFBO on 784-200-10 with synthetic data, 100 clients, 16 a round, batch 64, on host
devices that share this machine's cores; on a machine with accelerators, on these.
"""

from __future__ import annotations

import argparse
import os
import time

import jax
import numpy as np

import rookery as rk
from benchmarks.bench import cross_entropy, ridge_cross_entropy
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import prepare

DEVICES = (1, 2, 4, 8)


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
    ready = prepare(
        rk.Bilevel(cross_entropy, ridge_cross_entropy),
        rk.SimFBO(lr=rk.Rates(0.05), local_steps=asked.local_steps),
        rk.federate(data),
        x=x,
        y=y,
        sampling=rk.Uniform(16),
        batch_size=64,
        seed=0,
        precision="float32",
    )
    there = [count for count in DEVICES if count <= jax.device_count()]
    engines = {"local": rk.Local()} | {f"mesh, {count}": rk.Mesh(count) for count in there}
    sessions = {name: engine.open(ready, Ledger()) for name, engine in engines.items()}
    best = dict.fromkeys(sessions, float("inf"))
    for session in sessions.values():
        session.advance(2)
    for _ in range(asked.turns):
        for name, session in sessions.items():
            begun = time.perf_counter()
            session.advance(10)
            best[name] = min(best[name], 100 * (time.perf_counter() - begun))
    print("| engine, devices | ms a round | over local |")
    for name, ms in best.items():
        print(f"| {name} | {ms:.1f} | {ms / best['local']:.2f} |")


if __name__ == "__main__":
    main()
