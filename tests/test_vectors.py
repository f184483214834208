"""Vectors: arithmetic leaf by leaf, and nothing that numpy or JAX scalars could hijack."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.vectors import Sequences, Values, Vector

TREE = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}


def test_arithmetic_is_that_of_the_flat_vector():
    v, w = Vector(TREE), Vector({"a": jnp.array([0.5, -1.0]), "b": jnp.array(2.0)})
    flat = lambda u: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(u)])
    np.testing.assert_allclose(flat(v + w), flat(v) + flat(w))
    np.testing.assert_allclose(flat(v - w), flat(v) - flat(w))
    np.testing.assert_allclose(flat(-v), -flat(v))
    np.testing.assert_allclose(flat(v / 4), flat(v) / 4)
    np.testing.assert_allclose(v.dot(w), flat(v) @ flat(w))
    np.testing.assert_allclose(v.norm(), np.linalg.norm(flat(v)))
    assert not flat(v.zeros()).any()


@pytest.mark.parametrize("scalar", [2.0, np.float64(2.0), np.float32(2.0), jnp.float32(2.0), np.array(2.0), 2])
def test_scalars_of_every_kind_multiply_from_both_sides(scalar):
    for product in (scalar * Vector(TREE), Vector(TREE) * scalar):
        assert isinstance(product, Vector)
        np.testing.assert_allclose(product.tree["a"], [2.0, 4.0])
        assert product.tree["a"].dtype == jnp.float32


def test_sequences_name_their_vectors_and_survive_jax():
    z = Sequences.of({"x": TREE, "y": jnp.ones(2)})
    doubled = jax.jit(lambda z: z + z)(z)
    assert doubled.names == ("x", "y")
    np.testing.assert_allclose(doubled.y.tree, 2.0)
    np.testing.assert_allclose(doubled.x.tree["b"], 6.0)
    assert z.only(("y",)).names == ("y",)
    assert z.only(("y",)).merged(z.only(("x",))).names == ("y", "x")
    with pytest.raises(AttributeError, match="no sequence 'w'; there are x, y"):
        _ = z.w


def test_values_read_by_attribute_and_by_key():
    values = Values(x=1, y=2)
    assert values.x == values["x"] == 1
    assert jax.tree.map(lambda a: a + 1, values) == Values(x=2, y=3)
    with pytest.raises(AttributeError, match="no sequence 'v'"):
        _ = values.v
