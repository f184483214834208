"""Every task on embedded data is learned, with the defaults that the command has."""

from __future__ import annotations

import os
from typing import Any, cast

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.data.partitions import LongTail
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.models import CNN
from rookery.tasks.registry import TASKS


def learn(name, method=rk.SimFBO, rounds=100, partition=None, clients=100, cohort=10, seed=0, rates=None, **options):
    """A run with the command's defaults; `steps` are the method's own options, all others the task's."""
    steps = options.pop("steps", {})
    task = TASKS[name](**options)
    parts = task.assemble(partition or rk.IID(), clients=clients, seed=seed)
    moved = ("x", "y") if method in (rk.FedBiOLocal, rk.FedBiOAccLocal) else tuple(task.rates)
    rates = {name: rate for name, rate in {**task.rates, **(rates or {})}.items() if name in moved}
    return rk.run(
        parts.problem, method(lr=rk.Rates(**rates), **steps), parts.clients, x=parts.x, y=parts.y, start=parts.start,
        rounds=rounds, every=rounds, sampling=rk.Uniform(cohort) if cohort else rk.All(), batch_size=task.batch_size,
        metrics=parts.metrics, seed=seed,
    )  # fmt: skip


def ends(result, metric):
    return result.history[metric][0], result.history[metric][-1]


def test_hyperrep_learns():
    first, last = ends(
        learn("hyperrep", partition=rk.Dirichlet(0.2), clients=50, seed=1, steps={"local_steps": 5}), "accuracy"
    )
    assert last > 0.85 > 0.3 > first


@pytest.mark.parametrize("head", [1, 2])
def test_hyperrep_learns_with_a_lenet_and_either_split(head):
    result = learn("hyperrep", model="lenet", head=head, rounds=60, steps={"local_steps": 3})
    assert len(result.y) == head and len(result.x) == 5 - head
    assert result.history["accuracy"][-1] > 0.7 > 0.3 > result.history["accuracy"][0]


def test_hyperrep_starts_from_one_network():
    """x and y are the layers of one network, by whichever split."""
    one, two = (HyperRep(model="lenet", head=head).assemble(rk.IID(), clients=2, seed=0) for head in (1, 2))
    key = jax.random.key(4)
    whole = [parts.x(key) | parts.y(key) for parts in (one, two)]
    assert list(whole[0]) == list(whole[1])
    for a, b in zip(*(jax.tree.leaves(w) for w in whole)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("options", [{}, {"model": "lenet", "augment": True}, {"data": "wine", "widths": (8,)}])
def test_classify_learns(options):
    clients = 10 if "data" in options else 100
    result = learn("classify", rk.FedAvg, rounds=150, clients=clients, decay=1e-4, steps={"local_steps": 2}, **options)
    assert result.history["accuracy"][-1] > 0.55 > 0.45 > result.history["accuracy"][0]
    row = result.history.rows[-1]
    assert row["worst_client"] <= row["mean_client"] and row["spread"] >= 0


def test_losstuning_is_better_with_tuning():
    """Against the same run with x held where it starts."""
    tuned = ends(learn("losstuning", rounds=200), "balanced")
    fixed = ends(learn("losstuning", rounds=200, rates={"x": 0.0}), "balanced")
    assert tuned[1] > 0.6 > 0.2 > tuned[0] and tuned[1] > fixed[1] + 0.03


def test_the_long_tail_is_the_papers():
    task = TASKS["losstuning"]()
    parts = task.assemble(rk.IID(), clients=10, seed=0)
    labels = np.concatenate([level.rows["label"] for level in parts.clients.levels.values()])
    counts = np.bincount(labels, minlength=10)
    stock = np.bincount(rk.data.digits().train["label"])
    assert (counts == np.minimum(stock, np.ceil(144 * 0.01 ** (np.arange(10) / 9)))).all()
    weights = np.array(cast(Any, parts.problem).upper.weights)
    assert abs(weights[labels].mean() - 1) < 1e-6 and np.allclose(weights * counts, labels.size / 10)


def test_cleaning_finds_the_wrong_labels_and_sends_no_weights():
    result = learn("cleaning", rounds=100)
    row, start = result.history.rows[-1], result.history.rows[0]
    assert row["accuracy"] > 0.85 > 0.3 > start["accuracy"] and row["f1"] > 0.85 and row["auc"] > 0.95
    assert start["f1"] == 0 and start["auc"] == 0.5
    model = sum(leaf.size for leaf in jax.tree.leaves(result.y))
    assert result.ledger.floats_up == result.ledger.floats_down == 100 * 10 * 2 * model  # y and v, nothing of x


def test_wrong_labels_are_drawn_once_and_validation_is_clean():
    task, plain = TASKS["cleaning"](), rk.data.digits()
    one, again, other = (task.assemble(rk.IID(), clients=10, seed=seed).clients for seed in (3, 3, 4))
    noisy = [clients.level("lower").rows["noisy"] for clients in (one, again, other)]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert (noisy[0] != noisy[2]).any() and 0.25 < noisy[0].mean() < 0.35
    clean = plain.partition(rk.IID(), clients=10, seed=3, validation=0.5)
    label = one.level("lower").rows["label"]
    np.testing.assert_array_equal(label != clean.level("lower").rows["label"], noisy[0] > 0)
    np.testing.assert_array_equal(one.level("upper").rows["label"], clean.level("upper").rows["label"])
    shift = (label - clean.level("lower").rows["label"])[noisy[0] > 0] % 10
    assert set(shift) == set(range(1, 10))  # uniformly over the other classes


def test_rows_past_a_clients_own_are_not_counted():
    task = TASKS["cleaning"]()
    parts = task.assemble(rk.Dirichlet(0.5, by="class", minimum=4), clients=6, seed=0)
    sizes = parts.clients.level("lower").size
    rows = parts.x.size
    assert rows == sizes.max() > sizes.min()
    past = np.arange(rows)[None] >= sizes[:, None]
    rng = np.random.default_rng(0)
    x = rng.normal(size=past.shape).astype(np.float32)
    evaluate = parts.metrics
    assert evaluate is not None
    metric = lambda x: {k: float(v) for k, v in evaluate(values(x, parts)).items()}
    values = lambda x, parts: rk.Sequences.of({"x": x, "y": parts.y(jax.random.key(0))}).trees()
    assert metric(x) == metric(np.where(past, 100.0, x).astype(np.float32)) != metric(-x)


def test_fairness_lifts_the_worst_client_above_fedavg():
    """One class a client in a long tail: the average forgets the rare ones. Same network, rounds, batches and steps."""
    same = {"partition": LongTail(0.05, rk.Shards(1)), "clients": 20, "cohort": 0, "rounds": 200}
    average = learn("classify", rk.FedAvg, widths=(), **same).history.rows[-1]
    fair = learn("fairness", rk.SimFBO, rates={"y": 0.003}, **same)
    row = fair.history.rows[-1]
    assert row["worst_client"] > average["worst_client"] + 0.3 and row["accuracy"] > average["accuracy"]
    assert abs(fair.y.sum() - 1) < 1e-5 and fair.y.min() >= 0


def test_fairness_with_equal_weights_is_plain_learning():
    """With y held at 1/n, x moves as FedAvg's does on equal weights."""
    same = {"clients": 10, "cohort": 0, "rounds": 5}
    fair = learn("fairness", rates={"y": 0.0}, **same)
    plain = learn("classify", rk.FedAvg, widths=(), **same)
    for a, b in zip(*(jax.tree.leaves(r.x) for r in (fair, plain))):
        np.testing.assert_allclose(a, b, atol=1e-3)


def test_regularisation_learns():
    result = learn("regularisation", rounds=200, clients=20)
    row, start = result.history.rows[-1], result.history.rows[0]
    assert row["accuracy"] > 0.93 and row["loss"] < 0.2 < start["loss"]
    fixed = learn("regularisation", rounds=200, clients=20, rates={"x": 0.0}).history.rows[-1]
    assert row["loss"] < fixed["loss"]


@pytest.mark.parametrize(
    ("method", "steps"),
    [(rk.SimFBO, {"local_steps": 3}), (rk.FedBiOLocal, {"local_steps": 3}), (rk.FedBiOAccLocal, {"local_steps": 2})],
)
def test_metalearn_adapts(method, steps):
    result = learn("metalearn", method, rounds=150, partition=rk.Shards(2), steps=steps)
    row, start = result.history.rows[-1], result.history.rows[0]
    assert row["accuracy"] > 0.75 > 0.3 > start["accuracy"] and row["accuracy"] > row["unadapted"]
    assert start["accuracy"] == start["unadapted"]  # every y_i starts at x
    dims = sum(leaf.size for leaf in jax.tree.leaves(result.x))
    up = 2 if method is rk.FedBiOAccLocal else 1
    assert result.ledger.floats_up == 150 * 10 * up * dims  # only x


DATA = os.environ.get("ROOKERY_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ROOKERY_DATA names no folder with MNIST and CIFAR-10")


@needs_data
@pytest.mark.parametrize(
    ("name", "options", "rounds", "least"),
    [
        ("hyperrep", {"data": "mnist", "hidden": 200}, 40, 0.5),
        ("hyperrep", {"data": "mnist", "model": "lenet", "head": 2}, 3, 0.0),
        ("classify", {"data": "mnist", "widths": (200, 200)}, 40, 0.5),
        ("classify", {"data": "cifar10", "model": "cnn", "augment": True}, 2, 0.0),
        ("losstuning", {"data": "mnist", "widths": (200,)}, 3, 0.0),
        ("regularisation", {"data": "a9a"}, 40, 0.6),
    ],
)
def test_the_large_datasets_run(name, options, rounds, least):
    result = learn(name, rounds=rounds, **options)
    assert result.status == "done" and result.history["accuracy"][-1] > least


@needs_data
def test_the_long_tail_of_mnist_has_the_papers_size():
    parts = cast(Any, TASKS["losstuning"])(data="mnist").assemble(rk.IID(), clients=100, seed=0)
    assert parts.clients.sizes.sum() == 14_817


@needs_data
def test_the_network_on_cifar10_is_the_papers():
    parts = cast(Any, TASKS["classify"])(data="cifar10", model="cnn").assemble(rk.IID(), clients=100, seed=0)
    network = parts.problem.loss.network.network
    assert isinstance(network, CNN) and (network.channels, network.widths) == ((64, 64), (384, 192))
    assert parts.clients.level("all").rows["input"].dtype == np.uint8
