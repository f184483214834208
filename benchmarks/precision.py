"""How fast and how good products in tf32 and bfloat16 are: `python -m benchmarks.precision`, on an accelerator.

SimFBO on hyper-representation, 100 clients of two label-sorted shards, 10 a round with ten local steps: the network
784-200-10 on MNIST, and LeNet on the first 10,000 images of CIFAR-10. Numbers are held in 32 bits throughout. For each
form of products the milliseconds a round, the best of the seeds' runs, and the accuracy at the end (the mean of the
last five evaluations), seed by seed. Data is read from ROOKERY_DATA.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import jax
import numpy as np

import rookery as rk
from rookery.data.partitions import parse

FORMS = ("float32", "tf32", "bfloat16")
TASKS: dict[str, tuple[Any, float, int, int]] = {  # a task, its rate, its minibatches, and how many rounds
    "MNIST, 784-200-10": (rk.tasks.HyperRep("mnist", hidden=200, ridge=0.0, init="pytorch"), 0.1, 32, 400),
    "CIFAR-10, LeNet": (rk.tasks.HyperRep("cifar10", model="lenet", examples=10_000, init="pytorch"), 0.05, 50, 300),
}


def measure(task: Any, rate: float, batch: int, rounds: int, form: str, seed: int) -> tuple[float, float]:
    """Milliseconds a round, and the accuracy at the end."""
    parts = task.assemble(parse("shards:2"), 100, seed)
    result = rk.run(
        parts.problem,
        rk.SimFBO(lr=rk.Rates(rate), local_steps=10),
        parts.clients,
        x=parts.x,
        y=parts.y,
        start=parts.start,
        rounds=rounds,
        sampling=rk.Uniform(10),
        batch_size=batch,
        metrics=parts.metrics,
        every=rounds // 20,
        seed=seed,
        precision=form,
    )
    history = result.history
    return 1e3 * float(history["seconds"][-1]) / rounds, float(np.mean(history["accuracy"][-5:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}\n")
    print("| | products | ms a round | over float32 | accuracy, % |\n|---|---|---|---|---|")
    for name, setting in TASKS.items():
        found = {form: [measure(*setting, form, seed) for seed in range(asked.seeds)] for form in FORMS}
        times = {form: min(ms for ms, _ in runs) for form, runs in found.items()}
        for form, runs in found.items():
            accuracies = ", ".join(f"{100 * accuracy:.2f}" for _, accuracy in runs)
            ratio = times[form] / times["float32"]
            print(f"| {name} | {form} | {times[form]:.2f} | {ratio:.2f} | {accuracies} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", rk.AdviceWarning)
    main()
