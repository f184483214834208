"""Sweeps and runs for many devices. `python -m engines.grids FOLDER` does them in one of several processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from engines.test_engines import Everything
from properties.table import bed
from rookery.engines.hosts import join

DIVERGES, STOPS = 1e60, 0.5  # step sizes of y, of x


def _measured(z: Any) -> dict[str, Any]:
    return {"x": z.x["a"][0]}


def uneven(engine: Any, **options: Any) -> rk.Table:
    """Eleven runs, which no number of devices from 2 to 8 divides: one diverges, one reaches its target."""
    exact = bed("E1")
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    rates = [(0.002, 0.002), (0.002, DIVERGES), (STOPS, 0.002), (1e-6, 0.002)]
    rates += [(0.001 + 0.0002 * i, 0.001) for i in range(7)]
    methods = [rk.SimFBO(lr=rk.Rates(0.002, x=x, y=y), local_steps=2, drift=rk.ControlVariates()) for x, y in rates]
    given = {"rounds": 40, "every": 8, "batch_size": 2, "precision": "float64", "sampling": rk.Uniform(2)} | options
    given |= {"metrics": _measured, "stop": {"x": lambda x: x < -1}, "engine": engine}
    return rk.sweep(exact.problem, methods[0], exact.clients, over={"method": methods}, **start, **given)


def _federation(seed: int) -> rk.Clients:
    draw = np.random.default_rng(seed)
    return rk.federate([{"a": draw.normal(size=6)} for _ in range(3)], test=0.3)


def _loss(x: Any, example: Any) -> Any:
    return 0.5 * (x - example["a"]) ** 2


def _distance(z: Any, centre: Any) -> dict[str, Any]:
    return {"distance": abs(z.x - centre)}


def _own(z: Any, example: Any) -> dict[str, Any]:
    return {"own loss": _loss(z.x, example)}


def own_data(engine: Any) -> rk.Table:
    """Five seeds with two step sizes: a federation and metrics for each seed, and metrics of its clients."""
    return rk.sweep(
        rk.Single(_loss),
        rk.Scaffold(lr=rk.Rates(0.1), local_steps=2),
        _federation,
        over={"seed": range(5), "lr.default": [0.1, 0.2]},
        x=0.0,
        rounds=5,
        batch_size=2,
        precision="float64",
        own_metrics=lambda seed: rk.Metric(_distance, centre=np.float64(seed)),
        client_metrics=_own,
        engine=engine,
    )


def numbers(table: Any) -> dict[str, np.ndarray]:
    """All that a sweep gives, but for seconds."""
    found = {}
    for i, result in enumerate(table.results):
        columns = {name: result.history[name] for name in result.history.columns if name != "seconds"}
        found |= {f"{i} {name}": np.asarray(column) for name, column in columns.items()}
        found |= {f"{i} leaf {k}": np.asarray(leaf) for k, leaf in enumerate(result.state.leaves)}
        found[f"{i} ended"] = np.asarray([result.status, str(result.divergence), str(result.ledger)])
    return found


def same_numbers(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    """The same numbers to rounding, and the same of all else."""
    assert list(one) == list(other)
    for name in one:
        if one[name].dtype.kind == "f":
            np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(one[name], other[name], name)


def everything(engine: Any) -> dict[str, np.ndarray]:
    """The numbers of both."""
    return {f"{make.__name__} {name}": n for make in (uneven, own_data) for name, n in numbers(make(engine)).items()}


def with_records(engine: Any, resumed: Path | None = None, **options: Any) -> rk.Result:
    """A run whose clients keep something, with sampled clients; one that goes on, where a folder is given."""
    exact, method = bed("E1a"), rk.Scaffold(lr=rk.Rates(0.05), local_steps=2)
    given = {"rounds": 6, "sampling": rk.Uniform(2), "batch_size": 2, "precision": "float64", "engine": engine}
    given |= {**exact.start(leaves=2), **options}
    if resumed is not None:
        return rk.resume(resumed, exact.problem, method, exact.clients, **given)
    return rk.run(exact.problem, method, exact.clients, **given)


def contract(engine: Any) -> rk.Result:
    """Start, loops of exchanges, `select`, `when`, states, and rounds in which nobody takes part."""
    exact, method = bed("E1"), Everything(lr=rk.Rates(0.02))
    given = {"rounds": 6, "sampling": rk.Bernoulli(0.4), "batch_size": 2, "seed": 2, "precision": "float64"}
    return rk.run(exact.problem, method, exact.clients, engine=engine, **given, **exact.start(leaves=2))


def own_sequences(engine: Any) -> rk.Result:
    """A run whose clients have sequences of their own, which are measured."""
    exact, method = bed("E1-local"), rk.FedBiOLocal(lr=rk.Rates(0.02), hypergradient=rk.Tracked())
    given = {"rounds": 4, "precision": "float64", "metrics": lambda z: {"y": jnp.sum(z.y["a"])}}
    return rk.run(exact.problem, method, exact.clients, engine=engine, **given, **exact.start(leaves=2))


def runs(engine: Any, ordered: Any) -> dict[str, np.ndarray]:
    """The numbers of these; one on an engine that adds up in order."""
    results = [with_records(engine), with_records(ordered), contract(engine), own_sequences(engine)]
    return {f"run {name}": n for name, n in numbers(SimpleNamespace(results=results)).items()}


if __name__ == "__main__":
    join()
    assert jax.process_count() == 2
    folder = Path(sys.argv[1])
    np.savez(folder / "numbers.npz", **everything("mesh"), **runs("mesh", rk.Mesh(ordered=True)))
    with_records("mesh", rounds=3, checkpoints=rk.Checkpoints(folder / "run", every=3))
