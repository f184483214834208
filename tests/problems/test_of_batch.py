"""Losses of whole minibatches: a mean written as one is the mean, and a Cox likelihood is what its definition says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.reproduce.flamby_task import cox
from rookery.tasks.metrics import concordance

RNG = np.random.default_rng(0)
DATA = [{"a": RNG.normal(size=(n, 2)), "b": RNG.normal(size=n)} for n in (4, 7, 1)]


def lower(x, y, e):
    return 0.5 * (e["a"] @ y - e["b"]) ** 2 + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def upper(x, y, e):
    return 0.5 * (e["a"] @ y - 2 * e["b"]) ** 2 + 0.01 * jnp.sum(x**2)


def whole(loss):
    return rk.OfBatch(lambda *given: given[-1] @ jax.vmap(lambda e: loss(*given[:-2], e))(given[-2]))


CASES = {
    "single": (
        lambda of: rk.Single(of(lambda x, e: upper(x, x, e))), rk.FedAvg(lr=rk.Rates(0.1), local_steps=3), {"x": np.ones(2)},
    ),
    "joint": (
        lambda of: rk.Joint(of(lower)), rk.Scaffold(lr=rk.Rates(0.1), local_steps=2), {"x": np.zeros(2), "y": np.ones(2)},
    ),
    "simfbo": (
        lambda of: rk.Bilevel(of(upper), of(lower)), rk.SimFBO(lr=rk.Rates(0.1), local_steps=2),
        {"x": np.zeros(2), "y": np.ones(2)},
    ),
    "fednest": (
        lambda of: rk.Bilevel(of(upper), of(lower)), rk.FedNest(lr=rk.Rates(0.1), neumann_step=0.1),
        {"x": np.zeros(2), "y": np.ones(2)},
    ),
    "own lower levels": (
        lambda of: rk.Bilevel(of(upper), of(lower), lower_scope="local"), rk.FedBiOLocal(lr=rk.Rates(0.1)),
        {"x": np.zeros(2), "y": np.ones(2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_mean_written_as_a_loss_of_the_minibatch_is_the_mean(name, batch_size):
    make, method, start = CASES[name]
    runs = [
        rk.run(make(of), method, rk.federate(DATA), rounds=4, batch_size=batch_size, precision="float64", **start)
        for of in (lambda loss: loss, whole)
    ]
    for one, other in zip(*(jax.tree.leaves(run.sequences) for run in runs)):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_a_loss_of_the_minibatch_needs_one_that_is_not_walked_in_parts():
    clients = rk.federate([{"a": np.zeros((1025, 2)), "b": np.zeros(1025)}])
    problem = rk.Single(whole(lambda x, e: upper(x, x, e)))
    with pytest.raises(
        rk.InputError, match="batch_size: None was given, a client has 1025 examples, and loss is a loss"
    ):
        rk.run(problem, rk.FedAvg(lr=0.1), clients, x=np.zeros(2), rounds=1)
    assert rk.run(problem, rk.FedAvg(lr=0.1), clients, x=np.zeros(2), rounds=1, batch_size=8).status == "done"


def test_the_cox_likelihood_is_its_definition():
    """mean_i event_i log sum over j seen at least as long of exp(s_j - s_i), those of weight 0 left out."""
    rng = np.random.default_rng(1)
    n = 9
    patients = {
        "input": rng.normal(size=(n, 3)),
        "time": rng.permutation(n) * 1.0,
        "event": rng.integers(0, 2, n) * 1.0,
    }
    w = {"w": rng.normal(size=3), "b": np.array(0.7)}
    s = patients["input"] @ w["w"] + 0.7
    for present in (n, 6):
        weights = np.where(np.arange(n) < present, 1 / present, 0.0)
        seen = range(present)
        wanted = np.mean([
            patients["event"][i]
            * np.log(sum(np.exp(s[j] - s[i]) for j in seen if patients["time"][j] >= patients["time"][i]))
            for i in seen
        ])  # fmt: skip
        with jax.enable_x64(True):
            np.testing.assert_allclose(cox(w, patients, weights), wanted, rtol=1e-12)


def test_the_concordance_index_counts_pairs():
    risks, times, events = np.array([3.0, 2.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0, 3.0]), np.array([1, 1, 0, 1])
    # Compared: 0 before 1, 2, 3 (all agree); 1 before 2 (a tie) and 3 (agrees); 3 before 2, censored then (disagrees).
    assert float(concordance(risks, times, events)) == pytest.approx((3 + 0.5 + 1 + 0) / 6)
    assert float(concordance(risks, times, np.zeros(4))) == 0.5
