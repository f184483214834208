"""Any pytrees: initial values of every kind run on every engine, and are saved and read back without a loss."""

from __future__ import annotations

from typing import NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk


class Pair(NamedTuple):
    a: object
    b: object


class Layer(equinox.Module):
    w: jax.Array
    b: jax.Array
    name: str = equinox.field(static=True, default="layer")


TREES = {
    "named tuple": Pair(np.ones(2), np.zeros(3)),
    "named tuple in a dict": {"body": Pair(np.ones(2), {"c": np.zeros(3)}), "head": np.ones(1)},
    "module": Layer(jnp.ones(2), jnp.zeros(3)),
    "module in a dict": {"layers": [Layer(jnp.ones(2), jnp.zeros(3)), Layer(jnp.ones(1), jnp.zeros(1), "last")]},
    "module in a named tuple": Pair((Layer(jnp.ones(2), jnp.zeros(3)),), None),
    "numbers as keys": {0: np.ones(2), 1: {2: np.zeros(3)}},
    "names with points": {"a.b": np.ones(2), "a": {"b": np.zeros(3)}},
    "names that look alike": {"a": {"b.c": np.ones(2)}, "a.b": {"c": np.zeros(3)}, "a.b.c": np.ones(4)},
    "a number": 1.0,
}


def loss(x, e):
    return sum(jnp.sum((leaf - e["a"]) ** 2) for leaf in jax.tree.leaves(x))


CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([4.0])}])


def run(tree, method=None, **options):
    method = rk.Scaffold(lr=0.1, local_steps=2) if method is None else method
    return rk.run(rk.Single(loss), method, CLIENTS, x=tree, rounds=3, precision="float64", **options)


@pytest.mark.parametrize("name", TREES)
def test_any_pytrees_run_on_every_engine_alike(name):
    results = [run(TREES[name], engine=engine) for engine in ("local", "eager", rk.Local(at_once=2))]
    for other in results:
        assert jax.tree.structure(other.x) == jax.tree.structure(jax.tree.map(np.asarray, TREES[name]))
        for one, two in zip(jax.tree.leaves(results[0].x), jax.tree.leaves(other.x), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", TREES)
def test_no_parameter_is_lost_when_a_result_is_saved(name, tmp_path):
    # Numbers that tell leaves apart.
    leaves, structure = jax.tree.flatten(TREES[name])
    tree = jax.tree.unflatten(structure, [np.full(np.shape(leaf), number + 1.0) for number, leaf in enumerate(leaves)])
    result = run(tree)
    back = rk.Result.load(result.save(tmp_path / "saved"))
    found = sorted(np.ravel(leaf).tolist() for leaf in jax.tree.leaves(back.x))
    assert found == sorted(np.ravel(leaf).tolist() for leaf in jax.tree.leaves(result.x))
    if "named tuple" not in name and "module" not in name:
        assert jax.tree.structure(back.x) == jax.tree.structure(result.x)
        for one, two in zip(jax.tree.leaves(back.x), jax.tree.leaves(result.x), strict=True):
            np.testing.assert_array_equal(one, two)


def test_clients_own_sequences_may_be_any_pytrees_too():
    problem = rk.Joint(lambda x, y, e: loss(x, e) + loss(y, e) + jnp.sum(x["p"].a) * jnp.sum(y.w))
    start = {"x": {"p": Pair(np.ones(2), np.zeros(1))}, "y": Layer(jnp.ones(2), jnp.zeros(1))}
    options = {"rounds": 3, "precision": "float64", **start}
    one, two = (
        rk.run(problem, rk.SimFBO(lr=rk.Rates(0.05), drift=rk.ControlVariates()), CLIENTS, engine=e, **options)
        for e in ("local", "eager")
    )
    np.testing.assert_allclose(one.x["p"].a, two.x["p"].a, rtol=0, atol=1e-13)
    np.testing.assert_allclose(one.local[1].y.w, two.local[1].y.w, rtol=0, atol=1e-13)
