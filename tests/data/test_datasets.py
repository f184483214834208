"""Datasets: what they promise about their arrays, and what becomes of the examples when clients are made."""

import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any, cast

import numpy as np
import pytest

from rookery.data.datasets import Dataset, digits, synthetic
from rookery.data.federated import Split
from rookery.data.partitions import IID, Dirichlet, Shards
from rookery.errors import InputError

TABLE = {
    "digits": lambda: digits(),
    "synthetic": lambda: synthetic(examples=600, features=20, classes=7, seed=1),
}

all_datasets = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE.keys())


def numbered(examples=200, classes=4):
    """A dataset whose images are the numbers of the examples, so that they can be followed."""
    part = {
        "input": np.arange(examples, dtype=np.float32)[:, None],
        "label": (np.arange(examples) % classes).astype(np.int32),
    }
    return Dataset("numbered", part, part, classes)


def numbers(data):
    return data["input"][:, 0].astype(int).tolist()


def nearest_centre_accuracy(dataset):
    """The accuracy on the test set of the closest class mean of the training set: a linear classifier."""
    train, test = dataset.train, dataset.test
    means = np.stack([train["input"][train["label"] == c].mean(axis=0) for c in range(dataset.classes)])
    distance = (means**2).sum(axis=1) - 2 * test["input"] @ means.T
    return np.mean(distance.argmin(axis=1) == test["label"])


# Every dataset


@all_datasets
def test_arrays_are_what_is_promised(make):
    dataset = make()
    for part in (dataset.train, dataset.test):
        assert set(part) == {"input", "label"}
        assert part["input"].dtype == np.float32 and part["input"].ndim == 2
        assert part["label"].dtype == np.int32 and part["label"].shape == part["input"].shape[:1]
        assert part["input"].min() >= 0 and part["input"].max() <= 1
        assert set(part["label"].tolist()) == set(range(dataset.classes))
    assert dataset.train["input"].shape[1] == dataset.test["input"].shape[1]


@all_datasets
def test_made_twice_is_the_same(make):
    first, second = make(), make()
    for part in ("train", "test"):
        for name in ("input", "label"):
            assert np.array_equal(getattr(first, part)[name], getattr(second, part)[name])


@all_datasets
def test_train_and_test_share_no_example(make):
    dataset = make()
    train = {row.tobytes() for row in dataset.train["input"]}
    assert not any(row.tobytes() in train for row in dataset.test["input"])


@all_datasets
def test_labels_can_be_learned(make):
    assert nearest_centre_accuracy(make()) > 0.85


@all_datasets
@pytest.mark.parametrize("scheme", [IID(), Shards(2), Dirichlet(0.3), Dirichlet(0.5, by="class"), "dirichlet:0.3"])
@pytest.mark.parametrize("validation", [None, 0.2])
def test_every_dataset_takes_every_partition(make, scheme, validation):
    dataset = make()
    clients = dataset.partition(scheme, clients=8, seed=0, validation=validation)
    assert clients.population == 8
    for i in range(8):
        data = clients.client(i)
        levels = [data] if validation is None else [data.lower, data.upper]
        for level in levels:
            assert level["input"].dtype == np.float32 and level["label"].dtype == np.int32
            assert len(level["input"]) == len(level["label"]) >= 1


# Digits


def test_digits_are_scikit_learns_scaled_and_all_there():
    from sklearn.datasets import load_digits

    pixels, label = load_digits(return_X_y=True)
    dataset = digits()
    image = np.concatenate([dataset.train["input"], dataset.test["input"]])
    assert image.shape == (1797, 64)
    assert image.max() == 1 and image.min() == 0
    ours = sorted((row * 16).astype(int).tolist() for row in image)
    assert ours == sorted(pixels.astype(int).tolist())
    both = np.concatenate([dataset.train["label"], dataset.test["label"]])
    assert np.array_equal(np.bincount(both), np.bincount(label))


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_digits_are_stratified(fraction):
    dataset = digits(test_fraction=fraction)
    test, train = (np.bincount(part["label"], minlength=10) for part in (dataset.test, dataset.train))
    assert np.abs(test - fraction * (test + train)).max() <= 0.5


def test_digits_do_not_move_with_the_seed_of_a_run():
    np.random.seed(1)
    first = digits().test["input"]
    np.random.seed(2)
    assert np.array_equal(first, digits().test["input"])


def test_scikit_learn_is_imported_only_when_needed():
    code = "import sys, rookery.data.datasets; assert not any(m.startswith('sklearn') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), "0.2", None])
def test_digits_refuse_a_fraction_outside_zero_and_one(fraction):
    with pytest.raises(ValueError, match=r"test_fraction: .* was given; a number strictly between 0 and 1"):
        digits(test_fraction=fraction)


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_digits_refuse_a_fraction_that_leaves_a_side_without_a_class(fraction):
    with pytest.raises(ValueError, match=f"test_fraction: {fraction} was given, .* of every class"):
        digits(test_fraction=fraction)


# Synthetic


def test_synthetic_shapes_and_balance():
    dataset = synthetic(examples=1003, features=30, classes=10, seed=0, test_examples=205)
    assert dataset.train["input"].shape == (1003, 30)
    assert dataset.test["input"].shape == (205, 30)
    for part in (dataset.train, dataset.test):
        counts = np.bincount(part["label"])
        assert counts.max() - counts.min() <= 1


def test_synthetic_has_mnists_shape_by_default():
    import inspect

    defaults = {name: p.default for name, p in inspect.signature(synthetic).parameters.items()}
    assert (defaults["examples"], defaults["features"], defaults["classes"]) == (60_000, 784, 10)
    assert synthetic(examples=600, features=3).test["input"].shape == (100, 3)
    assert synthetic(examples=2, features=3).test["input"].shape == (1, 3)


def test_synthetic_labels_come_in_random_order():
    label = synthetic(examples=1000, features=2, classes=10, seed=0).train["label"]
    assert np.mean(label[1:] == label[:-1]) < 0.2
    assert np.mean((label[1:] - label[:-1]) % 10 == 1) < 0.2


@pytest.mark.parametrize("features", [50, 784])
def test_synthetic_is_nearly_separable_whatever_the_number_of_features(features):
    accuracy = [nearest_centre_accuracy(synthetic(2000, features, seed=seed, test_examples=1000)) for seed in range(3)]
    assert 0.95 < np.mean(accuracy) < 1


def test_synthetic_seeds_differ():
    first, second = (synthetic(examples=50, features=5, seed=seed).train["input"] for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", ["examples", "features", "classes", "seed", "test_examples"])
@pytest.mark.parametrize("value", [-1, 2.5, "3"])
def test_synthetic_refuses(name, value):
    with pytest.raises(ValueError, match=f"{name}: .* was given; an integer of at least"):
        synthetic(**{"examples": 10, "features": 3, name: value})


# Partitioning


@pytest.mark.parametrize("clients", [1, 7])
def test_without_validation_clients_hold_what_the_partition_says(clients):
    dataset = numbered()
    parts = Dirichlet(0.3).assign(dataset.train["label"], clients, seed=4)
    federation = dataset.partition(Dirichlet(0.3), clients=clients, seed=4)
    for i, part in enumerate(parts):
        data = federation.client(i)
        assert numbers(data) == part.tolist()
        assert np.array_equal(data["label"], part % 4)


@pytest.mark.parametrize("validation", [0.01, 0.2, 0.5, 0.99])
def test_validation_splits_each_client_in_two(validation):
    dataset = numbered()
    whole = dataset.partition(Dirichlet(0.5, by="class", minimum=2), clients=9, seed=4)
    federation = dataset.partition(Dirichlet(0.5, by="class", minimum=2), clients=9, seed=4, validation=validation)
    for i in range(9):
        data, size = federation.client(i), len(whole.client(i)["label"])
        assert isinstance(data, Split)
        lower, upper = numbers(data.lower), numbers(data.upper)
        assert sorted(lower + upper) == sorted(numbers(whole.client(i)))
        assert len(lower) >= 1 and len(upper) >= 1
        assert len(upper) == np.clip(round(validation * size), 1, size - 1)
        for level in (data.lower, data.upper):
            assert np.array_equal(level["label"], level["input"][:, 0].astype(int) % 4)


def test_validation_is_a_random_part_of_the_client():
    # Each of 200 examples is set aside with probability 1/5: over 200 seeds, a binomial count of mean 40.
    counts = np.zeros(200, int)
    for seed in range(200):
        federation = numbered().partition(IID(), clients=4, seed=seed, validation=0.2)
        for i in range(4):
            counts[numbers(federation.client(i).upper)] += 1
    assert counts.sum() == 200 * 40
    assert abs(counts - 40).max() < 4.5 * np.sqrt(200 * 0.2 * 0.8)


def test_two_examples_give_one_to_each_side():
    federation = numbered(20).partition(IID(), clients=10, validation=0.2)
    for i in range(10):
        assert len(federation.client(i).lower["label"]) == len(federation.client(i).upper["label"]) == 1


def test_the_seed_decides_the_clients_and_the_split():
    def drawn(seed):
        federation = numbered().partition("shards:2", clients=5, seed=seed, validation=0.2)
        return [(numbers(federation.client(i).lower), numbers(federation.client(i).upper)) for i in range(5)]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_a_text_is_its_partition():
    by_text = numbered().partition("dirichlet-class:0.5", clients=5, seed=2)
    by_object = numbered().partition(Dirichlet(0.5, by="class"), clients=5, seed=2)
    assert [numbers(by_text.client(i)) for i in range(5)] == [numbers(by_object.client(i)) for i in range(5)]


def test_a_partition_of_ones_own():
    class Halves:
        def assign(self, labels, clients, seed):
            return np.array_split(np.arange(len(labels)), clients)

    federation = numbered(100).partition(Halves(), clients=2)
    assert numbers(federation.client(1)) == list(range(50, 100))
    # Its indices are sorted, and yet what is set aside is a random part of them.
    upper = numbers(numbered(100).partition(Halves(), clients=2, validation=0.5).client(1).upper)
    assert 5 < np.sum(np.array(upper) < 75) < 20


def test_weights_are_passed_on():
    federation = numbered(10).partition(IID(), clients=3, weights="size")
    assert np.allclose(federation.weights, [0.4, 0.3, 0.3])
    assert np.allclose(numbered(10).partition(IID(), clients=4).weights, [0.3, 0.3, 0.2, 0.2]), "by size"
    assert np.allclose(numbered(10).partition(IID(), clients=4, weights="equal").weights, 0.25)


def test_a_client_with_one_example_cannot_be_split():
    with pytest.raises(
        ValueError, match=r"validation: 0\.2 was given and client 5 has 1 example; every client needs two"
    ):
        numbered(15).partition(IID(), clients=10, validation=0.2)


@pytest.mark.parametrize("validation", [0, 1, 1.0, -0.5, float("nan"), "0.2"])
def test_validation_is_a_fraction(validation):
    with pytest.raises(ValueError, match=r"validation: .* was given; a number strictly between 0 and 1 is needed"):
        numbered().partition(IID(), clients=2, validation=validation)


@pytest.mark.parametrize("scheme", [3, None, IID, Dirichlet])
def test_scheme_is_a_partition_or_a_text(scheme):
    with pytest.raises(ValueError, match=r"scheme: .* was given; a partition such as"):
        numbered().partition(scheme, clients=2)


def test_scheme_texts_are_checked():
    with pytest.raises(ValueError, match=r"partition: 'dirichlt' is not known \(did you mean 'dirichlet'\?\)"):
        numbered().partition("dirichlt:0.2", clients=2)


def test_too_many_clients():
    with pytest.raises(ValueError, match="clients: 201 was given for 200 examples"):
        numbered().partition(IID(), clients=201)


def test_a_dataset_is_frozen_and_prints_no_arrays():
    dataset = numbered()
    assert repr(dataset) == "Dataset(name='numbered', classes=4)"
    with pytest.raises(FrozenInstanceError):
        cast(Any, dataset).name = "other"


def test_the_first_examples_of_a_dataset():
    whole = digits()
    part = whole.first(100, 50)
    assert part.train["input"].shape[0] == 100 and part.test["label"].size == 50
    assert np.array_equal(part.train["input"], whole.train["input"][:100])
    assert np.array_equal(part.test["label"], whole.test["label"][:50]) and part.classes == 10
    with pytest.raises(InputError, match="train: 2000 was given; digits has 1438 examples of that part"):
        whole.first(2000, 10)
    with pytest.raises(InputError, match="test: 0 was given; digits has 359 examples of that part"):
        whole.first(10, 0)
