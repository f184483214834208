"""Ours: a session of the compiled engine."""

from __future__ import annotations

import jax
import numpy as np

import rookery as rk
from benchmarks.peers.common import NAMES, Talk, Task, first_weights
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import prepare


def loss(x, e):
    """Of one example, as a user writes it."""
    hidden = jax.nn.relu(e["input"] @ x["w1"] + x["b1"])
    return -jax.nn.log_softmax(hidden @ x["w2"] + x["b2"])[e["label"]]


def main(task: Task) -> None:
    inputs, labels = task.data()
    clients = rk.federate([{"input": x, "label": y} for x, y in zip(inputs, labels)])
    method = {"fedavg": rk.FedAvg, "scaffold": rk.Scaffold}[task.method]
    ready = prepare(
        rk.Single(loss),
        method(lr=task.lr, local_steps=rk.Epochs(task.epochs)),
        clients,
        x=dict(zip(NAMES, first_weights())),
        sampling=rk.All() if task.cohort == task.clients else rk.Uniform(task.cohort),
        batch_size=task.batch,
        seed=0,
        precision="float32",
    )
    session = rk.Local().open(ready, Ledger())  # `ready` stays, as it does in `rk.run`: its memory counts

    def go(rounds: int) -> None:
        if session.advance(rounds).broken:
            raise FloatingPointError("diverged")

    weights = lambda: tuple(np.asarray(session.carry.state.z.x.tree[name]) for name in NAMES)
    Talk(task, weights).serve(go)


if __name__ == "__main__":
    main(Task.given())
