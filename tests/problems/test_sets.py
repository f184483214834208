"""Constraint sets: what is projected is in the set, in single precision and at any size; what blew up is not hidden."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk


def exact_simplex(a):
    """The projection by bisection on the threshold, in extended precision."""
    a = np.asarray(a, np.longdouble) - np.longdouble(np.max(a))
    low, high = np.longdouble(-1), np.longdouble(0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(a - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(a - low, 0)


@pytest.mark.parametrize("size", [1, 2, 10, 1000, 100_000])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e5, 1e8, -1e8, 1e30])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e4])
def test_a_projection_is_in_the_simplex_whatever_the_offset(size, offset, spread):
    a = (offset + spread * np.random.default_rng(size).normal(size=size)).astype(np.float32)
    p = np.asarray(rk.Simplex().project(jnp.asarray(a)))
    assert p.dtype == np.float32 and (p >= 0).all()
    assert abs(p.astype(np.float64).sum() - 1) < 1e-5
    if size <= 1000:
        np.testing.assert_allclose(p, exact_simplex(a), atol=2e-6)


def test_rows_are_projected_one_by_one():
    a = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32) * 1e5
    p = np.asarray(rk.Simplex().project(a))
    np.testing.assert_allclose(p.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(p[1, 2], rk.Simplex().project(a[1, 2]))


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1.0, 1e18, 1e20, 3e38])
def test_a_projection_is_in_the_ball_whatever_the_size(size):
    direction = np.array([0.6, 0.8], np.float32)
    p = rk.Ball(1.0).project(
        {"a": jnp.asarray(direction[:1] * np.float32(size)), "b": jnp.asarray(direction[1:] * np.float32(size))}
    )
    np.testing.assert_allclose(np.concatenate([p["a"], p["b"]]), direction * min(1.0, size), rtol=1e-6)


def test_the_norm_of_huge_and_tiny_vectors_is_theirs():
    for size in (1e-30, 1.0, 1e30):
        np.testing.assert_allclose(
            rk.Vector(jnp.float32([3, 4]) * np.float32(size)).norm(), 5 * np.float32(size), rtol=1e-6
        )
    assert rk.Vector(jnp.zeros(3)).norm() == 0


@pytest.mark.parametrize("made", [rk.Simplex(), rk.Ball(1.0), rk.Box(-1.0, 1.0)])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_blew_up_is_not_reset_in_silence(made, value):
    p = np.asarray(made.project(jnp.asarray([0.5, value, 0.1], jnp.float32)))
    assert not np.isfinite(p).all()


def test_a_run_that_blows_up_inside_a_ball_is_said_to_diverge():
    clients = rk.federate([{"a": np.array([1.0])}])
    problem = rk.Single(lambda x, e: -(x**4) * e["a"], x_set=rk.Ball(3.4e38))
    with pytest.warns(rk.DivergenceWarning):
        result = rk.run(problem, rk.FedAvg(lr=10.0), clients, x=10.0, rounds=50)
    assert result.status == "diverged" and abs(result.x) > 10


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rk.Box("a", "b"), "Box: low = 'a', high = 'b' were given; numbers with low <= high are needed"),
        (lambda: rk.Box(1.0, 0.0), "Box: low = 1.0, high = 0.0 were given"),
        (lambda: rk.Box(float("nan"), 0.0), "Box: low = nan"),
        (lambda: rk.Ball(-1.0), "Ball: radius = -1.0 was given; a finite number that is not negative is needed"),
        (lambda: rk.Ball("a"), "Ball: radius = 'a' was given"),
        (lambda: rk.Ball(float("inf")), "Ball: radius = inf was given"),
    ],
)
def test_sets_that_are_none(make, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        make()
