"""Flax and Equinox modules run as networks of tasks, and equal ones share a program."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.tasks.adapters import from_equinox, from_flax
from rookery.tasks.hyperrep import Lower, Upper, layers_of
from rookery.tasks.metrics import Evaluation, on_test
from rookery.tasks.models import Classification, OnStored

nn = pytest.importorskip("flax.linen")
eqx = pytest.importorskip("equinox")

DIGITS = rk.data.digits()


class Linen(nn.Module):
    widths: tuple = (16,)

    @nn.compact
    def __call__(self, image):
        values = image.reshape(-1)
        for width in self.widths:
            values = nn.relu(nn.Dense(width)(values))
        return nn.Dense(10)(values)


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, image):
        return nn.BatchNorm(use_running_average=True)(image)


class Own(eqx.Module):
    conv: Any
    layers: list
    activation: Any

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.conv = eqx.nn.Conv2d(1, 2, 3, key=keys[0])
        self.layers = [eqx.nn.Linear(72, 16, key=keys[1]), eqx.nn.Linear(16, 10, key=keys[2])]
        self.activation = jax.nn.relu

    def __call__(self, image):
        values = self.activation(self.conv(image.transpose(2, 0, 1))).reshape(-1)
        return self.layers[1](self.activation(self.layers[0](values)))


class Counting(eqx.Module):
    count: jax.Array


class Table(eqx.Module):
    names: object


MAKE = {"flax": lambda: from_flax(Linen(), DIGITS.shape), "equinox": lambda: from_equinox(Own)}


@pytest.mark.parametrize("name", MAKE)
def test_a_module_is_trained_on_one_level_and_on_two(name, compilations):
    network = OnStored(MAKE[name](), DIGITS.scale)
    options = {"rounds": 60, "every": 60, "sampling": rk.Uniform(5), "batch_size": 16}
    single = lambda: rk.run(
        rk.Single(Classification(OnStored(MAKE[name](), DIGITS.scale))), rk.FedAvg(lr=rk.Rates(0.2), local_steps=2),
        DIGITS.partition(rk.IID(), clients=10), x=network.init, metrics=on_test(Evaluation(network), DIGITS), **options,
    )  # fmt: skip
    result = single()
    assert result.history["accuracy"][-1] > 0.75 > 0.3 > result.history["accuracy"][0]
    with compilations.counted() as counted:
        single()
    assert counted.count == 0
    bilevel = rk.run(
        rk.Bilevel(Upper(network), Lower(network, 0.01)), rk.SimFBO(lr=rk.Rates(0.2), local_steps=2),
        DIGITS.partition(rk.IID(), clients=10, validation=0.5), x=lambda key: layers_of(network, slice(None, -1), key),
        y=lambda key: layers_of(network, slice(-1, None), key), metrics=on_test(Evaluation(network, ("x", "y")), DIGITS),
        **options,
    )  # fmt: skip
    assert bilevel.history["accuracy"][-1] > 0.7 > 0.3 > bilevel.history["accuracy"][0]


def test_a_flax_network_computes_what_the_module_does():
    network, image = from_flax(Linen(), np.zeros(DIGITS.shape)), jnp.ones(DIGITS.shape)
    params = network.init(jax.random.key(3))
    assert list(params) == ["Dense_0", "Dense_1"]
    np.testing.assert_array_equal(network(params, image), Linen().apply({"params": params}, image))
    assert network == from_flax(Linen(), DIGITS.shape) != from_flax(Linen(widths=(8,)), DIGITS.shape)
    lists = lambda: from_flax(nn.Sequential([jnp.ravel, nn.Dense(4), nn.relu, nn.Dense(10)]), DIGITS.shape)
    assert lists() == lists() and hash(lists()) == hash(lists())
    assert list(lists().init(jax.random.key(0))) == ["layers_1", "layers_3"]


class Held(nn.Module):
    numbers: object

    @nn.compact
    def __call__(self, image):
        return nn.Dense(10)(image.reshape(-1))


def test_an_equinox_network_computes_what_the_module_does():
    network, image, module = from_equinox(Own), jnp.ones(DIGITS.shape), Own(jax.random.key(3))
    params = network.init(jax.random.key(3))
    assert list(params) == ["conv", "layers.0", "layers.1"] and set(params["conv"]) == {"weight", "bias"}
    np.testing.assert_array_equal(network(params, image), module(image))
    given = from_equinox(module)
    np.testing.assert_array_equal(given(given.init(jax.random.key(9)), image), module(image))
    assert given == network and hash(given) == hash(network)
    assert network != from_equinox(lambda key: eqx.nn.Linear(64, 10, key=key))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: from_flax(Linen, (8, 8, 1)), "was given; an instance of a flax.linen module is needed"),
        (lambda: from_flax(Normalised(), (8, 8, 1)), "module: it holds batch_stats; a module with parameters"),
        (lambda: from_flax(Held(np.zeros(3)), (8, 8, 1)), "module: Held holds something that cannot be hashed"),
        (lambda: from_equinox(3), "module: int was given; an equinox.Module or a function of a key is needed"),
        (lambda: from_equinox(lambda key: 3), "module: the function gives int"),
        (lambda: from_equinox(Counting(jnp.arange(3))), "module: it holds an array of int32 at .count"),
        (lambda: from_equinox(Table("abc")), "module: it holds no floating-point array"),
        (lambda: from_equinox(Table({1, 2})), "module: set holds something that cannot be hashed"),
    ],
)
def test_what_is_no_network_is_refused(make, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        make()


@pytest.mark.parametrize(("name", "make"), [("flax.linen", from_flax), ("equinox", from_equinox)])
def test_a_missing_library_is_named(name, make, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(rk.InputError, match=f"pip install {name.split('.')[0]}"):
        make(*([None, (8,)] if make is from_flax else [None]))
