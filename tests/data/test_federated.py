"""Federated arrays: exact means for ragged clients, whatever the chunk, and refused input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.data import batches
from rookery.data.batches import Batch, shard
from rookery.data.federated import example_shape, federate

RAGGED = [{"a": np.arange(3.0), "k": np.arange(3)}, {"a": np.array([10.0]), "k": np.array([7])}]


def full_batch(clients, index, capacity=None):
    level = clients.level("all")
    own = shard(clients.levels, index)
    return own.batch("all", None, capacity or int(level.size.max()), jnp.float32)


def test_clients_come_back_as_they_were_given():
    clients = federate(RAGGED)
    assert clients.population == 2 and clients.sizes.tolist() == [3, 1]
    for i, data in enumerate(RAGGED):
        jax.tree.map(np.testing.assert_array_equal, clients.client(i), data)
    split = federate([rk.Split(lower={"a": np.ones(2)}, upper={"b": np.ones((1, 4))})])
    assert split.client(0).upper["b"].shape == (1, 4) and split.sizes.tolist() == [3]
    assert example_shape(split, "upper", np.float64)["b"].shape == (4,)


@pytest.mark.parametrize("chunk", [1, 2, 3, 1024])
def test_full_batch_means_are_exact_for_ragged_clients(monkeypatch, chunk):
    monkeypatch.setattr(batches, "FULL_BATCH_CHUNK", chunk)
    sizes = [1, 2, 5, 7]
    data = [{"a": np.random.default_rng(n).normal(size=(n, 2))} for n in sizes]
    clients = federate(data)
    for i, own in enumerate(data):
        mean = jax.jit(lambda i: full_batch(clients, i).mean(lambda e: e["a"] ** 2))(jnp.int32(i))
        np.testing.assert_allclose(mean, (own["a"] ** 2).mean(axis=0), rtol=1e-6)


def test_padding_never_counts_even_where_zeros_would_be_nan():
    clients = federate([{"a": np.array([1.0, 4.0, 2.0])}, {"a": np.array([2.0])}])
    mean = full_batch(clients, 1).mean(lambda e: jnp.log(e["a"]))
    np.testing.assert_allclose(mean, np.log(2.0), rtol=1e-6)


def test_a_minibatch_is_the_mean_of_its_examples():
    clients = federate(RAGGED)
    own = shard(clients.levels, 0)
    batch: Batch = own.batch("all", jnp.array([2, 2, 0]), 3, jnp.float32)
    np.testing.assert_allclose(batch.mean(lambda e: e["a"]), 4 / 3, rtol=1e-6)


def test_weights():
    np.testing.assert_allclose(federate(RAGGED).weights, [0.5, 0.5])
    np.testing.assert_allclose(federate(RAGGED, weights="equal").weights, [0.5, 0.5])
    np.testing.assert_allclose(federate(RAGGED, weights="size").weights, [0.75, 0.25])
    np.testing.assert_allclose(federate(RAGGED, weights=[0.1, 0.9]).weights, [0.1, 0.9])
    np.testing.assert_allclose(federate(RAGGED, weights=[0.1, 0.9]).subset([1]).weights, [1.0])


@pytest.mark.parametrize(
    ("data", "weights", "sentence"),
    [
        ([], None, "data: no client was given; at least one is needed"),
        ([{"a": np.zeros((0, 2))}], None, "data: client 0 has no examples; every client needs at least one"),
        ([{}], None, "data: client 0 holds no arrays"),
        ([{"a": np.ones(2)}, {"b": np.ones(2)}], None, "data: client 1 has structure"),
        ([{"a": np.ones((2, 3))}, {"a": np.ones((2, 4))}], None, "client 1 has examples of shape (4,)"),
        ([{"a": np.ones(2), "b": np.ones(3)}], None, "client 0 has leaves of 2 and 3 examples"),
        ([{"a": np.float64(1.0)}], None, "client 0 has a leaf without an axis of examples"),
        ([{"a": np.array(["cat"])}], None, "leaves must be numbers"),
        ([{"a": np.array([1.0, np.nan])}], None, "client 0 has a value that is NaN or infinite, in row"),
        ([{"a": np.array([np.inf])}], None, "client 0 has a value that is NaN or infinite, in row"),
        ([rk.Split(lower={"a": np.ones(1)}, upper={"a": np.ones(1)}), {"a": np.ones(1)}], None, "some clients are a Split"),
        (RAGGED, [0.5, 0.4], "weights: they sum to 0.9; they must sum to 1"),
        (RAGGED, [1.5, -0.5], "weights: -0.5 was given; every weight must be finite and not negative"),
        (RAGGED, [1.0], "weights: shape (1,) was given for 2 clients"),
        (RAGGED, "sizes", "weights must be \"size\", \"equal\", None or one number per client; got 'sizes'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(data, weights, sentence):
    with pytest.raises(rk.InputError) as error:
        federate(data, weights=weights)
    assert sentence in str(error.value) and "\n" not in str(error.value)


ROWS = np.arange(6.0)


@pytest.mark.parametrize(
    "data",
    [
        {"input": ROWS, "label": ROWS},
        {"input": ROWS[:, None], "label": np.arange(6)},
        {"X": ROWS, "y": ROWS},
        {"a": ROWS[:, None], "b": np.arange(6)},
        {"age": ROWS.tolist(), "ill": [0, 1] * 3},
    ],
)
def test_one_dataset_in_the_place_of_clients_is_refused(data):
    """A dict of arrays is one client's data, and not one client per array."""
    names = " and ".join(map(repr, data))
    with pytest.raises(rk.InputError) as raised:
        federate(data)
    said = str(raised.value)
    assert f"data must have one entry per client; got one dataset, with {names} of 6 examples each" in said
    assert 'by="COLUMN"' in said and "list with one such dict per client" in said


def test_bare_arrays_by_client_name_are_clients():
    assert federate({"north": ROWS, "south": ROWS}).names == ("north", "south")
    assert federate({"north": ROWS, "south": ROWS[:4]}).sizes.tolist() == [6, 4]
    assert federate([{"input": ROWS, "label": ROWS}]).population == 1
