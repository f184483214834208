"""What channels cost and save where the answer is known: `python -m benchmarks.compression docs/compression.png`."""

from __future__ import annotations

import sys
import warnings

import jax.numpy as jnp
import numpy as np
from PIL import Image

import rookery as rk
from rookery.runs.plot import plot_histories

CHANNELS = ("none", "topk:0.1", "error-feedback:topk:0.1", "ef21:topk:0.1", "ef21:topk:0.1+quantise:4")
EXACT = rk.exact.QuadraticBilevel.random(clients=8, dims=(20, 20), heterogeneity=1.0, seed=0)


def distance(z):
    return {"log10 of the error": jnp.log10(abs(z.x - EXACT.solution()).max() + 1e-12)}


def history(up: str) -> rk.Table:
    """SimFBO with one local step and all clients."""
    options = {"rounds": 2000, "every": 10, "precision": "float64", "metrics": distance}
    return rk.run(EXACT.problem, rk.SimFBO(lr=rk.Rates(0.05)), EXACT.clients, up=up, **options, **EXACT.start()).history


def rounds_to_arrive(cohort: int) -> float:
    """Rounds until a client's EF21 shift is its reply, where nothing moves: the mean over clients."""
    state, arrived = None, np.full(8, np.nan)
    for done in range(1, 400):
        options = {"rounds": 1, "precision": "float64", "sampling": rk.Uniform(cohort), "state": state}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rk.AdviceWarning)  # of step sizes that are 0
            method = rk.SimFBO(lr=rk.Rates(0.0))
            result = rk.run(EXACT.problem, method, EXACT.clients, up="ef21:topk:0.1", **options, **EXACT.start())
        state = result.state
        # The last leaves are the shifts of x, y and v; a client's y has arrived when all its entries are there.
        there = np.all(state.leaves[-2] != 0, axis=1)
        arrived = np.where(np.isnan(arrived) & there, done, arrived)
        if there.all():
            break
    return float(arrived.mean())


def main(path: str) -> None:
    found = {up: history(up) for up in CHANNELS}
    for up, table in found.items():
        good = np.flatnonzero(np.asarray(table["log10 of the error"]) < -6)
        where = (
            f"round {table['round'][good[0]]}, {table['bytes_up'][good[0]] / 1e3:.0f} kB up" if len(good) else "never"
        )
        print(f"{up}: 1e-6 at {where}")
    plot_histories(found, "log10 of the error", path, "bytes_up", "SimFBO, one local step, all clients")
    Image.open(path).convert("RGB").quantize(48).save(path, optimize=True)  # a small file
    for cohort in (8, 4, 2):
        print(f"{cohort} of 8: a shift arrives after {rounds_to_arrive(cohort):.1f} rounds")


if __name__ == "__main__":
    main(sys.argv[1])
