"""Ours: a session of the compiled engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def serve(task: Task, engine: Any, weights_of: Callable[[Any], Any]) -> None:
    """Does the task with an engine; the second says how the weights are read off its session."""
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
    session = engine.open(ready, Ledger())  # `ready` stays, as it does in `rk.run`: its memory counts

    def go(rounds: int) -> None:
        if session.advance(rounds).broken:
            raise FloatingPointError("diverged")

    weights = lambda: tuple(np.asarray(weights_of(session)[name]) for name in NAMES)
    Talk(task, weights).serve(go)


def main(task: Task) -> None:
    serve(task, rk.Local(), lambda session: session.carry.state.z.x.tree)


if __name__ == "__main__":
    main(Task.given())
