"""Counts in two limbs against Python's integers, and runs whose rounds cost more than 32 bits hold."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.federation import counts
from rookery.federation.meter import Meter


def value(limbs):
    (number,) = counts.whole(np.asarray(limbs).reshape(2, 1))
    return number


EDGES = [0, 1, 2, 2**15 - 1, 2**15, 2**30 - 1, 2**30, 2**31 - 1]


def test_counts_are_pythons_integers():
    draw = random.Random(0)
    numbers = EDGES + [draw.randrange(2**31) for _ in range(30)]
    product = jax.jit(lambda a, b: counts.times(counts.count(a), b))
    added = jax.jit(lambda a, b: counts.plus(counts.count(a), counts.count(b)))
    for a in numbers:
        assert value(counts.count(a)) == value(jax.jit(counts.count)(a)) == a
        for b in numbers:
            if a * b < 2**61:
                assert value(product(a, b)) == a * b
            assert value(added(a, b)) == a + b
    assert value(counts.count(3 * 2**45 + 7)) == 3 * 2**45 + 7
    assert value(counts.times(counts.count(3 * 2**40 + 2**30 - 1), 12345)) == (3 * 2**40 + 2**30 - 1) * 12345


@pytest.mark.parametrize("rows", [1, 2, 1000, 2**15, 2**15 + 1, 100_000])
def test_many_clients_add_up(rows):
    numbers = np.random.default_rng(rows).integers(0, 2**31, (rows, 3))
    stacked = counts.count(jnp.asarray(numbers, jnp.int32))
    assert counts.whole(counts.total(stacked)) == [int(n) for n in numbers.sum(axis=0)]


@pytest.mark.parametrize("engine", ["local", "eager", rk.Local(at_once=2)])
def test_samples_of_one_round_do_not_wrap(engine):
    """60,000 examples in each of 40,000 steps, of two clients: 4.8e9 samples in a round."""
    clients = rk.federate([np.zeros((60_000,), np.int8)] * 2)
    problem = rk.Single(lambda x, e: 0.5 * x**2 * (1 + 0 * e))
    with pytest.MonkeyPatch.context() as patch:  # the gradient does not look at the examples: nobody waits for them
        patch.setattr(rk.Single, "direction", lambda self, z, batches: type(z)(x=z.x))
        problem = rk.Single(lambda x, e: 0.5 * x**2 * (2 + 0 * e))
        result = rk.run(problem, rk.FedAvg(lr=0.1, local_steps=40_000), clients, x=1.0, rounds=2, engine=engine)
    assert result.ledger.samples == 2 * 2 * 60_000 * 40_000
    assert result.ledger.gradients == 2 * 2 * 40_000
    assert result.history["samples"][-1] == result.ledger.samples


def test_loops_in_loops_and_exchanges_in_loops_do_not_wrap():
    """FedNest's exchanges in loops, and LFedNest's series inside of steps, as many samples as 32 bits do not hold."""
    exact = rk.exact.QuadraticBilevel.random(clients=2, dims=(1, 1), seed=0)
    options = {"rounds": 1, "batch_size": 2**20, **exact.start()}
    for method in (
        rk.FedNest(lr=rk.Rates(1e-9), lower_rounds=300, neumann_terms=300, lower_steps=3),
        rk.LFedNest(lr=rk.Rates(1e-9), upper_steps=300, neumann_terms=5, lower_rounds=700, lower_steps=2),
    ):
        few = rk.run(exact.problem, method, exact.clients, **(options | {"batch_size": 1})).ledger
        assert few.samples * 2**20 > 2**31
        with pytest.MonkeyPatch.context() as patch:  # count a million for every one that is drawn
            real = Meter.take
            patch.setattr(Meter, "take", lambda self, draw, times=1: _counted(real, self, draw, times))
            many = rk.run(exact.problem, method, exact.clients, **(options | {"batch_size": 2})).ledger
        assert many.samples == few.samples * (2 + 2**20)


def _counted(real, meter, draw, times):
    real(meter, draw, times)
    meter.calls["samples"] += 2**20 * times
