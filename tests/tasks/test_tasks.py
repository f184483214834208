"""Tasks: what they assemble can be solved, and where a minimiser is known it is reached."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.tasks.registry import TASKS
from rookery.tasks.riskaverse import RiskAverse, objective


@pytest.mark.parametrize("name", TASKS)
def test_every_task_names_its_sequences_and_has_its_metric(name):
    task = TASKS[name]()
    parts = task.assemble(rk.IID(), clients=10, seed=0)
    assert tuple(task.rates) == parts.problem.names
    result = rk.run(
        parts.problem, rk.SimFBO(lr=rk.Rates(**task.rates)), parts.clients, x=parts.x, y=parts.y, start=parts.start,
        rounds=2, batch_size=task.batch_size, metrics=parts.metrics,
    )  # fmt: skip
    assert parts.main_metric in result.history and TASKS[name].__doc__


def test_hyperrep_learns():
    task = TASKS["hyperrep"]()
    parts = task.assemble(rk.Dirichlet(0.2), clients=50, seed=1)
    result = rk.run(
        parts.problem, rk.SimFBO(lr=rk.Rates(**task.rates), local_steps=5), parts.clients, x=parts.x, y=parts.y,
        rounds=100, sampling=rk.Uniform(10), batch_size=task.batch_size, metrics=parts.metrics, seed=1,
    )  # fmt: skip
    assert result.history["accuracy"][-1] > 0.85 > 0.3 > result.history["accuracy"][0]


def test_riskaverse_solution_is_stationary_and_minimal():
    task = RiskAverse(dimension=5, examples=300)
    a, b = task.measurements(3)
    x = task.solution(3)
    with jax.enable_x64(True):
        value = lambda x: objective(x, jnp.asarray(a), jnp.asarray(b), task.lam, task.delta)
        assert np.abs(jax.grad(value)(x)).max() < 1e-9
        assert np.linalg.eigvalsh(jax.hessian(value)(x))[0] > 0
        others = np.random.default_rng(0).normal(size=(200, 5))
        assert value(x) < min(float(value(other)) for other in others)
        assert abs(value(x) - value(-x)) < 1e-12


@pytest.mark.parametrize("method", [rk.SimFBO, rk.FedMSA])
def test_riskaverse_is_solved_by_clients_that_differ(method):
    """The minimiser of a centralised high-precision solve, from clients whose b lie in different ranges."""
    task = RiskAverse(dimension=5, examples=300)
    parts = task.assemble(rk.Shards(2), clients=6, seed=3)
    rates = rk.Rates(0.3, x=0.001) if method is rk.FedMSA else rk.Rates(1.0, x=0.003)
    extra = {"local_steps": 3, "local_clients": 6} if method is rk.FedMSA else {}
    result = rk.run(
        parts.problem, method(lr=rates, **extra), parts.clients, x=parts.x, rounds=6000, precision="float64",
        metrics=parts.metrics,
    )  # fmt: skip
    assert result.history["distance"][-1] < 1e-6 < result.history["distance"][0]


def test_bad_task_options_are_refused():
    with pytest.raises(rk.InputError, match="task: dimension = 10, examples = 5"):
        RiskAverse(examples=5).assemble(rk.IID(), clients=10, seed=0)
