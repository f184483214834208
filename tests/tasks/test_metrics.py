"""Metrics: against scikit-learn, and against their definitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn

import rookery as rk
from rookery.metric import Metric
from rookery.tasks.metrics import (
    CHUNK,
    Evaluation,
    auc,
    classification,
    client_accuracies,
    f1,
    label_mix,
    on_both,
    on_test,
    over_clients,
    predict,
)
from rookery.tasks.models import MLP
from rookery.vectors import Values

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("levels", [2, 5, 10_000])
@pytest.mark.parametrize("part", [0.03, 0.5])
def test_auc_and_f1_are_scikit_learns(levels, part):
    truth = RNG.random(3000) < part
    scores = np.floor(levels * np.clip(RNG.normal(0.4 + 0.2 * truth, 0.2), 0, 1)) / levels
    assert abs(float(auc(jnp.asarray(scores, jnp.float32), truth)) - sklearn.roc_auc_score(truth, scores)) < 1e-5
    assert abs(float(f1(scores > 0.5, truth)) - sklearn.f1_score(truth, scores > 0.5)) < 1e-6


def test_auc_and_f1_where_there_is_nothing_to_find():
    scores = jnp.asarray([0.1, 0.2])
    assert float(auc(scores, jnp.asarray([0, 0]))) == float(auc(scores, jnp.asarray([1, 1]))) == 0.5
    assert float(f1(jnp.asarray([0, 0]), jnp.asarray([0, 0]))) == 0
    assert float(f1(jnp.asarray([1, 1]), jnp.asarray([1, 1]))) == 1


def test_accuracies_are_scikit_learns():
    labels = RNG.choice(4, 500, p=[0.7, 0.2, 0.06, 0.04]).astype(np.int32)
    scores = RNG.normal(size=(500, 4)).astype(np.float32) + 1.5 * np.eye(4, dtype=np.float32)[labels]
    found, guess = classification(scores, labels, balanced=True), scores.argmax(axis=1)
    assert abs(float(found["accuracy"]) - sklearn.accuracy_score(labels, guess)) < 1e-6
    assert abs(float(found["balanced"]) - sklearn.balanced_accuracy_score(labels, guess)) < 1e-6
    probabilities = np.asarray(jax.nn.softmax(scores, axis=1))
    assert abs(float(found["loss"]) - sklearn.log_loss(labels, probabilities)) < 1e-5
    assert set(classification(scores, labels)) == {"accuracy", "loss"}


def test_a_clients_accuracy_is_that_of_its_own_mix():
    labels = RNG.integers(0, 3, 300).astype(np.int32)
    scores = RNG.normal(size=(300, 4)).astype(np.float32)  # class 3 is not in the test set
    mix = np.array([[1, 0, 0, 0], [0.2, 0.3, 0.5, 0], [0.4, 0, 0.1, 0.5]], np.float32)
    right = scores.argmax(axis=1) == labels
    expected = []
    for row in mix:
        weight = np.array([row[c] / (labels == c).sum() for c in labels])
        expected.append(weight @ right / weight.sum())
    found = client_accuracies(scores, labels, mix)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    summary = over_clients(found)
    assert abs(float(summary["spread"]) - np.std(expected)) < 1e-6
    assert abs(float(summary["worst_client"]) - min(expected)) < 1e-6
    assert abs(float(summary["mean_client"]) - np.mean(expected)) < 1e-6


def test_the_mix_of_labels_counts_both_levels():
    data = rk.data.digits()
    plain, split = (data.partition(rk.Dirichlet(0.3), clients=7, seed=2, validation=v) for v in (None, 0.3))
    mix = label_mix(plain, 10)
    np.testing.assert_allclose(mix, label_mix(split, 10))
    np.testing.assert_allclose(mix[3], np.bincount(plain.client(3)["label"], minlength=10) / plain.sizes[3], rtol=1e-6)


def test_many_examples_are_predicted_in_chunks():
    network = MLP(3, (5,), 2)
    params = network.init(jax.random.key(0))
    images = jnp.asarray(RNG.normal(size=(2 * CHUNK + 17, 3)), jnp.float32)
    whole = jax.vmap(lambda image: network(params, image))(images)
    np.testing.assert_allclose(predict(network, params, images), whole, atol=1e-6)
    np.testing.assert_allclose(predict(network, params, images[:10]), whole[:10], atol=1e-6)


def there(metric: Metric | None) -> Metric:
    """The metric of a dataset whose rows are all here."""
    assert metric is not None
    return metric


def test_equal_metrics_have_equal_functions():
    """What is compiled is the function; the examples are given to it."""
    data = rk.data.digits()
    make = lambda width: there(on_test(Evaluation(MLP(64, (width,), 10)), data)).function
    assert make(3) == make(3) and hash(make(3)) == hash(make(3)) and make(3) != make(4)


def test_the_accuracy_on_training_examples_is_measured_beside_that_on_the_test_set():
    dataset = rk.data.load("digits")
    network = MLP(64, (), 10)
    evaluation = Evaluation(network, parts=("x",))
    z = Values({"x": network.init(jax.random.key(0))})
    found, plain = there(on_both(evaluation, dataset))(z), there(on_test(evaluation, dataset))(z)
    assert {name: float(found[name]) for name in plain} == {name: float(value) for name, value in plain.items()}
    scores = predict(network, z.x, jnp.asarray(dataset.train["input"]))
    expected = np.mean(np.argmax(scores, axis=1) == dataset.train["label"])
    assert float(found["training_accuracy"]) == pytest.approx(float(expected), abs=1e-6)
    few = there(on_both(evaluation, dataset, most=100))(z)["training_accuracy"]
    assert float(100 * few) == pytest.approx(round(float(100 * few)), abs=1e-4)  # a share of 100 examples
