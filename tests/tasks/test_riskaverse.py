"""The risk-averse task: its minimiser is one, and is reached from clients that differ."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.tasks.riskaverse import RiskAverse, objective


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
