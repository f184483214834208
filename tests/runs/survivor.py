"""A run that is to be killed: `python survivor.py FOLDER ENGINE MOMENT` goes on from what it finds, and dies at MOMENT.

MOMENT is `start:S` or `going:S`, S seconds after the process begins or after its first evaluation, or `CALL:N`, the
N-th call of that function of `os`, which are made while checkpoints are written.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import rookery as rk

ROUNDS = 40


def loss(x, y, e):
    return jnp.sum((jnp.sin(x["a"]) - e["a"]) ** 2) + jnp.sum((y - x["b"]) ** 2 * e["b"])


def lower(x, y, e):
    return 0.5 * e["b"] * jnp.sum((y - x["a"]) ** 2)


def size(z):
    return {"size": jnp.sum(z.x["a"] ** 2), "of y": jnp.sum(z.y**2)}


def problem():
    """Two levels, sampled clients who keep control variates, minibatches: everything that a checkpoint must hold."""
    draw = lambda i: np.random.default_rng(i)
    data = [{"a": draw(i).normal(size=(4 + i, 3)), "b": 1 + draw(i).random(4 + i)} for i in range(5)]
    method = rk.SimFBO(lr=rk.Rates(0.05), local_steps=rk.RandomSteps(1, 3), drift=rk.ControlVariates())
    return rk.Bilevel(upper=loss, lower=lower), method, rk.federate(data)


def options(engine, metrics=size):
    return {
        "x": {"a": np.zeros(3), "b": np.ones(3)},
        "y": np.zeros(3),
        "sampling": rk.Bernoulli(0.5),
        "batch_size": 2,
        "seed": 3,
        "metrics": metrics,
        "engine": engine,
    }


def run(engine, checkpoints=None, **changes):
    return rk.run(*problem(), rounds=ROUNDS, every=7, checkpoints=checkpoints, **(options(engine) | changes))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds):
    threading.Timer(seconds, die).start()


def die_in_call(name, number):
    """Dies instead of making the N-th call of a function of `os`."""
    real, calls = getattr(os, name), 0

    def deadly(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == number:
            die()
        return real(*arguments, **named)

    setattr(os, name, deadly)


if __name__ == "__main__":
    folder, engine, moment = sys.argv[1:]
    where, number = moment.split(":")
    begun = False

    def slow(round, row):
        global begun
        if where == "going" and not begun:
            die_after(float(number))
        begun = True
        time.sleep(0.1)  # so that moments differ

    if where == "start":
        die_after(float(number))
    elif where != "going":
        die_in_call(where, int(number))
    if (Path(folder) / "run.json").exists():
        rk.resume(folder, *problem(), **options(engine), callbacks=[slow])
    else:
        run(engine, rk.Checkpoints(folder, every=1), callbacks=[slow])
