"""Networks: both forms of the convolution give the same numbers, and equal settings are equal."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.data.inputs import Scale
from rookery.errors import InputError
from rookery.tasks.models import (
    CNN,
    FASTER,
    MLP,
    Classification,
    OnStored,
    cross_entropy,
    default_convolution,
    dense,
    direct,
    lenet,
    patches,
    pool,
    squared_norm,
    wide_cnn,
)

NETWORKS = [
    CNN((12, 12, 2), (3, 4), 3, (5,), 4),
    CNN((7, 9, 1), (3, 2), 3, (), 4, padding="same"),
]


def case(network, dtype):
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.normal(size=(3, 5, *network.shape)), dtype)
    labels = jnp.asarray(rng.integers(0, network.classes, (3, 5)), jnp.int32)
    params = jax.vmap(network.init)(jax.random.split(jax.random.key(1), 3))
    # Biases away from zero, where a ReLU of a padded corner has no derivative.
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.1 * rng.normal(size=leaf.shape), dtype), params)
    return params, images, labels


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("network", NETWORKS, ids=["valid", "same"])
def test_both_forms_of_the_convolution_agree(network, precision):
    """Logits, gradients and Hessian-vector products, also under vmap over clients' own weights."""
    tolerance = 1e-5 if precision == "float32" else 1e-12
    with jax.enable_x64(precision == "float64"):
        params, images, labels = case(network, precision)
        found = {}
        for form in ("direct", "patches"):
            loss = Classification(dataclasses.replace(network, convolution=form))

            def mean(p, i, c):
                return jnp.mean(jax.vmap(lambda i, c: loss(p, {"input": i, "label": c}))(i, c))

            def all_of(p, i, c):
                logits = jax.vmap(lambda i: loss.network(p, i))(i)
                gradient, curvature = jax.jvp(jax.grad(lambda p: mean(p, i, c)), (p,), (p,))
                return logits, gradient, curvature

            one = jax.tree.map(lambda leaf: leaf[0], params)
            found[form] = jax.jit(all_of)(one, images[0], labels[0]), jax.jit(jax.vmap(all_of))(params, images, labels)
        for a, b in zip(*(jax.tree.leaves(found[form]) for form in found)):
            assert a.dtype == precision
            np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


def test_a_convolution_is_its_definition():
    rng = np.random.default_rng(0)
    image, w = rng.normal(size=(5, 6, 2)).astype(np.float32), rng.normal(size=(3, 3, 2, 4)).astype(np.float32)
    expected = np.zeros((3, 4, 4))
    for i in range(3):
        for j in range(4):
            expected[i, j] = np.tensordot(image[i : i + 3, j : j + 3], w, axes=3)
    for convolve in (direct, patches):
        np.testing.assert_allclose(convolve(image, w, "valid"), expected, atol=1e-4)
        np.testing.assert_allclose(convolve(image, w, "same")[1:-1, 1:-1], expected, atol=1e-4)


def test_pooling_takes_the_maximum_and_leaves_odd_rows_out():
    image = jnp.arange(5 * 4, dtype=jnp.float32).reshape(5, 4, 1)
    np.testing.assert_array_equal(pool(image)[..., 0], [[5, 7], [13, 15]])


@pytest.mark.parametrize(
    ("network", "layers", "size"),
    [
        (MLP(784, (200,), 10), 2, 784 * 200 + 200 + 2010),
        (MLP(784, (200, 200), 10), 3, 199_210),
        (MLP(64, (), 10), 1, 650),
        (lenet((32, 32, 3), 10), 5, 62_006),  # LeNet-5 on CIFAR-10
        (lenet((8, 8, 1), 10), 5, (9 * 6 + 6) + (54 * 16 + 16) + (64 * 120 + 120) + (120 * 84 + 84) + 850),
        (wide_cnn((32, 32, 3), 10), 5, 797_962),  # FedDyn's and FedVRA's
    ],
)
def test_shapes(network, layers, size):
    params = network.init(jax.random.key(0))
    assert len(params) == layers and list(params) == sorted(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    shape = network.shape if isinstance(network, CNN) else (network.inputs,)
    assert network(params, jnp.zeros(shape)).shape == (10,)


def test_an_mlp_is_its_formula():
    network = MLP(3, (4,), 2)
    p = network.init(jax.random.key(0))
    x = jnp.asarray([1.0, -2.0, 0.5])
    expected = jnp.maximum(x @ p["dense0"]["w"] + p["dense0"]["b"], 0) @ p["dense1"]["w"] + p["dense1"]["b"]
    np.testing.assert_allclose(network(p, x), expected, rtol=1e-6)
    total = sum(float(np.sum(np.asarray(leaf, np.float64) ** 2)) for leaf in jax.tree.leaves(p))
    example = {"input": x, "label": jnp.int32(1)}
    assert abs(squared_norm(p) - total) < 1e-5
    np.testing.assert_allclose(
        Classification(network, 0.3)(p, example), cross_entropy(expected, 1) + 0.15 * total, rtol=1e-5
    )


def test_equal_settings_are_equal():
    scale = rk.data.Scale((8, 8, 1))
    make = [lambda: OnStored(lenet((8, 8, 1), 10), scale), lambda: OnStored(MLP(64, (8,), 10), scale)]
    for one in make:
        assert one() == one() and hash(one()) == hash(one())
    assert make[0]() != make[1]()


def test_the_default_form_looks_at_the_backend(monkeypatch):
    assert default_convolution() == FASTER["cpu"]
    monkeypatch.setitem(FASTER, "cpu", "direct")
    assert lenet((8, 8, 1), 10).convolution == "direct"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CNN((8, 8), (4,), 3, (), 2), "shape: .8, 8. was given"),
        (lambda: CNN((8, 8, 1), (4, 4, 4), 3, (), 2), "kernel: 3 was given with 3 blocks"),
        (lambda: CNN((8, 8, 1), (4,), 2, (), 2, padding="same"), "kernel: 2 was given; same padding needs an odd one"),
        (lambda: CNN((8, 8, 1), (0,), 3, (), 2), "0 was given; every size must be at least 1"),
        (lambda: CNN((8, 8, 1), (4,), 3, (), 2, padding="full"), "padding: 'full' is not known"),
        (lambda: CNN((8, 8, 1), (4,), 3, (), 2, convolution="fft"), "convolution: 'fft' is not known"),
        (lambda: lenet((30,), 2), "shape: .30,. was given; a LeNet needs images"),
        (lambda: wide_cnn((8, 8, 1), 2), "at least 16 x 16 pixels"),
        (lambda: MLP(3, (0,), 2), "0 was given; every size must be at least 1"),
    ],
)
def test_illegal_networks_are_refused(make, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        make()


def test_labels_that_no_class_has_are_refused():
    """JAX would take the last class for them without a word."""
    network = MLP(2, (), 3)
    data = {"A": {"input": np.zeros((2, 2)), "label": np.array([0, 2])}}
    data["B"] = {"input": np.zeros((3, 2)), "label": np.array([1, 3, 0])}
    for problem in (rk.Single(Classification(network)), rk.Single(Classification(OnStored(network, Scale((2,)))))):
        with pytest.raises(
            rk.InputError, match="data: client 'B', row 1: its label is 3, and the network tells 3 classes"
        ):
            rk.run(problem, rk.FedAvg(lr=0.1), rk.federate(data), x=network.init, rounds=1)


@pytest.mark.parametrize(
    "network", [MLP(100, (300,), 10, "pytorch"), CNN((8, 8, 3), (40,), 3, (50,), 10, initial="pytorch")]
)
def test_layers_start_as_pytorchs_do(network):
    """Weights and biases uniform in +-1/sqrt(fan-in): their largest is there, and their variance a third of its square."""
    for layer in network.init(jax.random.key(0)).values():
        bound = np.prod(layer["w"].shape[:-1]) ** -0.5
        for part in (layer["w"], layer["b"]):
            assert np.abs(part).max() <= bound and np.abs(part).max() > 0.8 * bound
        assert abs(np.var(layer["w"]) / (bound**2 / 3) - 1) < 0.1


def test_the_other_ways_to_start():
    key = jax.random.key(1)
    plain, he = (dense(key, 400, 500, initial) for initial in ("fan_in", "he"))
    np.testing.assert_allclose(he["w"], plain["w"] * 2**0.5, rtol=1e-6)
    assert abs(np.var(plain["w"]) * 400 - 1) < 0.02 and not plain["b"].any()
    with pytest.raises(InputError, match="initial: 'xavier' is not known"):
        dense(key, 2, 2, "xavier")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"task\.init: 'xavier' is not known"):
        rk.tasks.HyperRep(init="xavier").assemble(rk.IID(), 3, 0)  # type: ignore[arg-type]
