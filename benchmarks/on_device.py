"""Whether an accelerator gives the numbers of the reference engine: `python -m benchmarks.on_device`.

Nested methods on the exact bilevel problem, compiled for the device with all clients side by side, against client by
client; metrics of clients; and the time of a tuned comparison on a task. A check to run where there is an accelerator.
"""

from __future__ import annotations

import time

import jax
import numpy as np

import rookery as rk


def main() -> None:
    print(jax.devices(), flush=True)
    exact = rk.exact.QuadraticBilevel.random(clients=6, dims=(3, 4), heterogeneity=1.0, seed=0)
    lr = rk.Rates(0.02)
    methods = {
        "SimFBO": rk.SimFBO(lr, local_steps=3, drift=rk.ControlVariates()),
        "ShroFBO": rk.ShroFBO(lr, local_steps=rk.RandomSteps(1, 4)),
        "FedBiOAcc": rk.FedBiOAcc(lr, local_steps=2),
        "FedMSA": rk.FedMSA(lr, local_steps=3),
        "FedNest": rk.FedNest(lr, lower_steps=rk.RandomSteps(1, 3), upper_steps=rk.RandomSteps(1, 3), lower_rounds=2),
        "AggITD": rk.AggITD(lr, lower_rounds=2),
    }
    for name, method in methods.items():
        options = {"rounds": 5, "batch_size": 2, "sampling": rk.Uniform(4), "precision": "float64", **exact.start()}
        begun = time.perf_counter()
        ours, reference = (
            rk.run(exact.problem, method, exact.clients, engine=engine, **options) for engine in ("local", "eager")
        )
        gap = max(float(np.abs(ours.sequences[each] - reference.sequences[each]).max()) for each in ours.sequences)
        same = ours.ledger == reference.ledger
        print(
            f"{name}: {gap:.1e} apart, ledgers {'equal' if same else 'DIFFER'}, {time.perf_counter() - begun:.1f} s",
            flush=True,
        )
    clients = rk.federate(rk.data.heart(), label="ill", categories=["cp", "restecg"], standardise=True, test=0.3)
    problem = rk.Single(lambda w, e: jax.numpy.logaddexp(0.0, e["input"] @ w) - e["label"] * (e["input"] @ w))
    right = lambda z, e: {"accuracy": ((e["input"] @ z.x > 0) == (e["label"] == 1)) * 1.0}
    found = [
        rk.run(problem, rk.FedAvg(lr=0.2), clients, x=np.zeros(15), rounds=50, client_metrics=right, engine=engine)
        for engine in ("local", "eager")
    ]
    print(found[0].clients, "\n", found[1].clients, flush=True)
    begun = time.perf_counter()
    methods = {
        "SimFBO": rk.SimFBO(lr=rk.Rates(0.3), local_steps=5),
        "FedBiO": rk.FedBiO(lr=rk.Rates(0.3), local_steps=5),
    }
    print(rk.compare(rk.tasks.HyperRep(), methods, exchanges=60, seeds=2, tune=True, progress=False))
    print(f"a tuned comparison: {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
