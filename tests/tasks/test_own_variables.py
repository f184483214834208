"""Tasks whose clients have variables of their own: pseudo-labels and memberships."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.tasks.registry import TASKS

ADAPTED = [rk.FedAvg, rk.FedProx, rk.Scaffold, rk.FedDyn]


def solve(name, method, rounds, clients=10, **options):
    task = TASKS[name](**options)
    parts = task.assemble(rk.Dirichlet(0.5), clients=clients, seed=0)
    return rk.run(
        parts.problem, method, parts.clients, x=parts.x, y=parts.y, rounds=rounds, every=rounds, sampling=rk.Uniform(5),
        batch_size=task.batch_size, metrics=parts.metrics,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:FedVRAU")
def test_pseudo_labels_are_found_and_stay_on_the_simplex():
    epochs = {"local_steps": rk.Epochs(2), "client_steps": rk.Epochs(1)}
    result = solve("semisupervised", rk.FedVRAU(lr=0.2, gamma=0.1, a=5.0, d=2.0, client_lr=8.0, **epochs), rounds=80)
    assert result.history["accuracy"][-1] > 0.65 > 0.2 > result.history["accuracy"][0]
    assert result.history["pseudo_labels"][-1] > 0.6
    for own in result.local:
        np.testing.assert_allclose(own["y"].sum(axis=-1), 1, atol=1e-5)
        assert own["y"].min() >= 0
    network = sum(leaf.size for leaf in jax.tree.leaves(result.x))
    assert result.ledger.floats_up == 80 * 5 * (network + 2)  # nothing of y; a and d


def test_hidden_labels_are_drawn_once_and_not_used():
    task = TASKS["semisupervised"]()
    first, again = (task.assemble(rk.IID(), clients=10, seed=3).clients for _ in range(2))
    other = task.assemble(rk.IID(), clients=10, seed=4).clients
    hidden = [clients.level("both").rows["hidden"] for clients in (first, again, other)]
    np.testing.assert_array_equal(hidden[0], hidden[1])
    assert (hidden[0] != hidden[2]).any() and 0.88 < hidden[0].mean() < 0.91
    parts = task.assemble(rk.IID(), clients=2, seed=0)
    records = [parts.clients.client(i) for i in range(2)]
    scrambled = [dict(r, label=np.where(r["hidden"] > 0, (r["label"] + 1) % 10, r["label"])) for r in records]
    method = rk.FedAvg(lr=rk.Rates(**task.rates), local_steps=3)
    results = [
        rk.run(parts.problem, method, rk.federate(data), x=parts.x, y=parts.y, rounds=3, batch_size=8)
        for data in (records, scrambled)
    ]
    for a, b in zip(*(jax.tree.leaves(result.x) for result in results)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", ADAPTED)
def test_adapted_methods_run_beside(method):
    rates = TASKS["semisupervised"]().rates
    result = solve("semisupervised", method(lr=rk.Rates(**rates), local_steps=5), rounds=20)
    assert result.status == "done" and result.history["accuracy"][-1] > 0.2


def test_clusters_are_pure():
    method = rk.FedVRAU(lr=1.0, gamma=0.02, a=0.5, client_lr=8.0, local_steps=10, client_steps=10)
    result = solve("clustering", method, rounds=60, clusters=20)
    assert result.history["purity"][-1] > 0.75 > 0.6 > result.history["purity"][0]
