"""The hypergradients of tasks in float64, against implicit differentiation by dense linear algebra and by differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import rookery as rk
from rookery.data.batches import shard
from rookery.tasks.cleaning import CleanLoss, WeightedLoss
from rookery.tasks.losstuning import BalancedLoss, TunedLoss
from rookery.tasks.metalearn import AdaptedLoss, JudgedLoss
from rookery.tasks.models import MLP
from rookery.tasks.regularisation import PenalisedLoss, ValidationLoss
from rookery.tasks.trust_models import CheckedLoss, Copies, ModelsLoss
from rookery.vectors import Values

NETWORK = MLP(3, (), 2)


def clients(seed=0):
    """Three ragged clients with a few examples of three features and two classes."""
    rng = np.random.default_rng(seed)

    def examples(n, site):
        return {
            "input": rng.normal(size=(n, 3)),
            "label": rng.integers(0, 2, n).astype(np.int32),
            "row": np.arange(n, dtype=np.int32),
            "gain": np.full(n, n**0.5),
            "budget": np.full(n, 1.0),
            "site": np.full(n, site, np.int32),
            "fixed": rng.uniform(0.1, 1.0, (n, 4)),
            "trusted": rng.uniform(0.1, 1.0, (n, 4)),
            "upper": rng.uniform(0.0, 2.0, n),
            "held": np.zeros(n),
            "spread": np.zeros(n),
        }

    data = [rk.Split(lower=examples(n, i), upper=examples(4, i)) for i, n in enumerate((4, 5, 6))]
    return rk.federate(data, weights="size")


# Upper loss, lower loss, x of one client, and the scopes.
CASES = {
    "regularisation": (ValidationLoss(NETWORK), PenalisedLoss(NETWORK, 0.3), np.log([0.2, 0.5, 1.0]), {}),
    "losstuning": (
        BalancedLoss(NETWORK, (0.7, 1.6)), TunedLoss(NETWORK, 0.2), {"dy": np.array([0.1, -0.3]), "ly": np.array([0.2, 0.4])},
        {},
    ),
    "cleaning": (CleanLoss(NETWORK), WeightedLoss(NETWORK, 0.2), np.linspace(-1, 1, 6), {"upper_scope": "local"}),
    "trust": (
        CheckedLoss(NETWORK, 0.1), ModelsLoss(NETWORK, 0.2),
        {"site": np.array([0.4, -1.0, 2.0]), "loss": np.zeros(3), "variance": np.zeros(2)}, {},
    ),
    "trust in records": (
        CheckedLoss(NETWORK, 0.1), ModelsLoss(NETWORK, 0.2), {"site": np.array(0.4), "record": np.linspace(-1, 1, 6)},
        {"upper_scope": "local"},
    ),
    "trust in few records": (
        CheckedLoss(NETWORK, 0.1), ModelsLoss(NETWORK, 0.2), {"site": np.array(0.4), "record": np.linspace(-3, 2, 6)},
        {"upper_scope": "local"},
    ),
    "metalearn": (
        JudgedLoss(NETWORK), AdaptedLoss(NETWORK, 0.5), {"dense0": {"w": np.full((3, 2), 0.1), "b": np.array([0.3, -0.2])}},
        {"lower_scope": "local"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_direction_of_x_is_the_hypergradient(name):
    """D.x at y*(x), v*(x), over all clients, is the derivative of sum_i p_i f_i(x, y*(x))."""
    upper, lower, x, scopes = CASES[name]
    problem, federation = rk.Bilevel(upper, lower, **scopes), clients()
    start = Copies(NETWORK, 4) if name.startswith("trust") else NETWORK.init
    p, n = federation.weights, federation.population
    with jax.enable_x64(True):
        x_flat, x_tree = ravel_pytree(jax.tree.map(jnp.asarray, x))
        y_flat, y_tree = ravel_pytree(
            jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), start(jax.random.key(0)))
        )
        own_x, own_y = ("upper_scope" in scopes), ("lower_scope" in scopes)
        xs = jnp.concatenate([x_flat + 0.1 * i for i in range(n)]) if own_x else x_flat
        ys = jnp.concatenate([y_flat] * n) if own_y else y_flat
        pick = lambda flat, tree, own, i: tree(flat.reshape(n, -1)[i] if own else flat)

        def total(loss, level, xs, ys):
            """sum_i p_i times the mean of a loss over client i's examples, by the definition."""
            value = 0.0
            for i in range(n):
                own = getattr(federation.client(i), level)
                at = pick(xs, x_tree, own_x, i), pick(ys, y_tree, own_y, i)
                losses = [loss(*at, jax.tree.map(lambda a: jnp.asarray(a[k]), own)) for k in range(len(own["label"]))]
                value = value + p[i] * sum(losses) / len(losses)
            return value

        f = jax.jit(lambda xs, ys: total(upper, "upper", xs, ys))
        g_y = jax.jit(jax.grad(lambda xs, ys: total(lower, "lower", xs, ys), 1))
        g_yy, g_xy = jax.jit(jax.jacobian(g_y, 1)), jax.jit(jax.jacobian(g_y, 0))

        def best(xs, ys):
            for _ in range(50):
                ys = ys - jnp.linalg.solve(g_yy(xs, ys), g_y(xs, ys))
            return ys

        ys = best(xs, ys)
        assert np.abs(g_y(xs, ys)).max() < 1e-14
        vs = jnp.linalg.solve(g_yy(xs, ys), jax.grad(f, 1)(xs, ys))
        expected = jax.grad(f, 0)(xs, ys) - g_xy(xs, ys).T @ vs

        # The same by differences of f at re-solved lower levels.
        for k in (0, len(xs) - 1):
            step = 1e-4 * jnp.eye(len(xs))[k]
            difference = (f(xs + step, best(xs + step, ys)) - f(xs - step, best(xs - step, ys))) / 2e-4
            assert abs(difference - expected[k]) < 1e-7

        # And as methods get it: each client's direction, with p_i for what is shared; local parts carry p_i already.
        found = []
        for i in range(n):
            z = Values(x=pick(xs, x_tree, own_x, i), y=pick(ys, y_tree, own_y, i), v=pick(vs, y_tree, own_y, i))
            own = shard(federation.levels, i)
            batches = {level: own.batch(level, None, 6, jnp.float64) for level in ("lower", "upper")}
            d = problem.direction(z, batches)
            found.append(p[i] * ravel_pytree(d.x)[0])
        found = jnp.concatenate(found) if own_x else sum(found)
        np.testing.assert_allclose(found, expected, atol=1e-12)
