"""Epochs: every example once, in a fresh order, in minibatches, inside the program."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.data.federated import Split

SIZES = (7, 3, 10)


@rk.method
class Visits:
    """Counts how often each example is visited, weighted as in the batch's mean, and the steps taken."""

    lr: rk.Rates
    local_steps: rk.Epochs = rk.Epochs(1)

    def round(self, state, cohort):
        seen = cohort.sum("go", state.z)
        return state.next(z=state.z.replace(x=state.z.x + seen))

    def go(self, client, z):
        def step(carry, k, key):
            d = client.direction(z, client.sample(key)).x  # the mean over the batch of one-hot rows
            return carry + d

        return client.loop(self.local_steps, step, z.x.zeros()) * (1 / client.weight)


def _row(x, e):
    return jnp.vdot(x, e["row"])


def visits_of(epochs, batch, engine="local", rounds=1, seed=0, sizes=SIZES):
    rows = np.eye(sum(sizes))
    ends = np.cumsum(sizes)
    clients = rk.federate([{"row": rows[end - n : end]} for n, end in zip(sizes, ends)])
    return rk.run(
        rk.Single(_row), Visits(0.1, epochs), clients, x=np.zeros(len(rows)), rounds=rounds, batch_size=batch, engine=engine,
        precision="float64", seed=seed,
    )  # fmt: skip


def test_an_epoch_visits_every_example_once():
    result = visits_of(rk.Epochs(1), 1)
    np.testing.assert_allclose(result.x, np.ones(20))
    assert result.ledger.samples == 20 and result.ledger.oracles["gradients"] == 20
    assert visits_of(rk.Epochs(3), 1).ledger.samples == 60


def test_the_last_minibatch_is_the_mean_of_its_own_examples():
    x = np.asarray(visits_of(rk.Epochs(1), 4).x)
    for own in (x[:7], x[7:10], x[10:]):
        full, rest = divmod(own.size, 4)
        expected = [1 / 4] * (4 * full) + ([1 / rest] * rest if rest else [])
        np.testing.assert_allclose(np.sort(own), np.sort(expected))
    result = visits_of(rk.Epochs(2), 4)
    assert result.ledger.samples == 40 and result.ledger.oracles["gradients"] == 2 * (2 + 1 + 3)


def test_all_examples_at_once_is_one_step():
    result = visits_of(rk.Epochs(2), None)
    assert result.ledger.oracles["gradients"] == 6 and result.ledger.samples == 40


def test_orders_are_fresh():
    """Which examples fall into the last, smaller minibatch changes between rounds, clients' epochs and seeds."""
    first = [np.asarray(visits_of(rk.Epochs(1), 4, seed=seed).x) for seed in range(3)]
    assert not np.allclose(first[0], first[1]) and not np.allclose(first[1], first[2])
    two = np.asarray(visits_of(rk.Epochs(1), 4, rounds=2).x)
    assert not np.allclose(two, 2 * first[0])
    epochs = np.asarray(visits_of(rk.Epochs(2), 4).x)
    assert len(np.unique(epochs.round(9))) > len(np.unique(first[0].round(9)))


def test_engines_agree():
    for epochs in (rk.Epochs(2), rk.Epochs(1, 4)):
        results = [
            visits_of(epochs, 4, engine, rounds=3)
            for engine in ("local", "eager", rk.Local(at_once=2), rk.Local(at_once=3))
        ]
        for other in results[1:]:
            np.testing.assert_allclose(results[0].x, other.x, atol=1e-13)
            assert results[0].ledger == other.ledger


def test_numbers_of_epochs_are_drawn_per_client_and_round(compilations):
    result = visits_of(rk.Epochs(1, 4), 1, rounds=30)
    epochs = result.ledger.samples / 20
    assert 1.8 * 30 < epochs < 3.2 * 30
    with compilations.counted():
        visits_of(rk.Epochs(2, 3), 1, rounds=20)
    assert compilations.count == 0


def test_a_shorter_set_of_examples_is_gone_through_again():
    """Lower 6, upper 2 examples in minibatches of 2: three steps an epoch, the upper set three times."""
    clients = rk.federate([Split(lower={"a": np.arange(6.0)}, upper={"b": np.arange(2.0)})])
    problem = rk.Bilevel(lambda x, y, e: x * y * e["b"], lambda x, y, e: y**2 + y * x * e["a"])
    method = rk.SimFBO(lr=rk.Rates(0.01), local_steps=rk.Epochs(2))
    result = rk.run(problem, method, clients, x=1.0, y=1.0, rounds=1, batch_size=2)
    assert result.ledger.oracles["hvps"] == 6 and result.ledger.samples == 2 * (6 + 3 * 2)


@pytest.mark.parametrize(
    "method", [rk.FedAvg, rk.FedProx, rk.FedNova, rk.Scaffold, rk.FedDyn, rk.FedADMM, rk.FedVRA, rk.FedPD]
)
def test_the_family_works_in_epochs(method):
    rng = np.random.default_rng(0)
    clients = rk.federate([{"a": rng.normal(size=n)} for n in SIZES])
    problem = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
    result = rk.run(problem, method(lr=0.05, local_steps=rk.Epochs(1, 2)), clients, x=0.0, rounds=5, batch_size=4)
    assert np.isfinite(result.x) and 5 * 20 <= result.ledger.samples <= 10 * 20


def test_tables_of_coefficients_need_a_number_of_steps():
    clients = rk.federate([{"a": np.ones(3)}])
    method = rk.SimFBO(lr=0.1, local_steps=rk.Epochs(1), coefficients=[1.0, 2.0])
    with pytest.raises(rk.InputError, match="coefficients: a table was given, and epochs have no fixed number"):
        rk.run(rk.Single(lambda x, e: x * e["a"]), method, clients, x=0.0, rounds=1)
