"""Seconds per exchange on every transport, side by side: python -m benchmarks.exchanges [loopback nvflare flower]

SimFBO on digits, three sites; the time of a run's rounds by their number, without the first, which compiles.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import rookery as rk

ROUNDS = {"local": 200, "eager": 60, "loopback": 60, "nvflare": 60, "flower": 6}


def seconds(transport: str) -> tuple[float, float]:
    """Seconds per exchange, and of the first round."""
    task, method = rk.tasks.HyperRep(), rk.SimFBO(lr=rk.Rates(0.2))
    with tempfile.TemporaryDirectory() as place:
        rounds = ROUNDS[transport]
        if transport in ("local", "eager"):
            from rookery.experiments.experiment import Experiment, Options, launch

            options = Options(clients=3, cohort=0, rounds=rounds, every=1, engine=transport)
            history = launch(Experiment("hyperrep", task, "simfbo", method, options), Path(place) / "run")[0].history
        else:
            history = rk.federated(
                task, method, out=Path(place) / "run", transport=transport, rounds=rounds, cohort=0, every=1, say=print
            ).history
    times = history["seconds"]
    return float(times[-1] - times[1]) / (rounds - 1), float(times[1])


if __name__ == "__main__":
    for name in sys.argv[1:] or ROUNDS:
        each, first = seconds(name)
        print(f"{name:<10} {each:8.4f} s an exchange, {first:6.2f} s the first round", flush=True)
