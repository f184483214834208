"""Numbers where they enter: what a program cannot hold is refused, and a whole number compiles no other program."""

from __future__ import annotations

import numpy as np
import optax
import pytest

import rookery as rk

CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
SADDLE = rk.exact.QuadraticBilevel.random(clients=2, dims=(1, 1), seed=0)


def run(method, **options):
    return rk.run(**({"problem": PROBLEM, "method": method, "clients": CLIENTS, "x": 0.0, "rounds": 1} | options))


BEYOND = {
    "steps": (lambda: rk.FedAvg(lr=0.1, local_steps=2**32 + 1), "local_steps: 4294967297 was given; a whole number of at most 2147483647, rk.FixedSteps"),
    "steps that wrap to none": (lambda: rk.FedAvg(lr=0.1, local_steps=2**31), "local_steps: 2147483648 was given"),
    "steps of clients": (lambda: rk.FedAvg(lr=0.1, local_steps=rk.FixedSteps([1, 2**32 + 1])), "local_steps: 4294967297 was given; numbers of steps are whole, from 1 to"),
    "random steps": (lambda: rk.FedAvg(lr=0.1, local_steps=rk.RandomSteps(1, 2**31)), "RandomSteps(1, 2147483648) was given"),
    "epochs": (lambda: rk.FedAvg(lr=0.1, local_steps=rk.Epochs(2**31)), "Epochs(2147483648) was given"),
    "epochs of many steps": (lambda: rk.FedAvg(lr=0.1, local_steps=rk.Epochs(2**30, 2**31 - 1)), "which is 4294967294 steps of client 0"),
    "a rate": (lambda: rk.FedAvg(lr=1e39), "method.lr: 1e+39 was given; numbers from 1.18e-38 to 3.4e+38 and 0 are held in float32"),
    "a rate that is lost": (lambda: rk.FedAvg(lr=1e-50), "method.lr: 1e-50 was given; numbers from"),
    "a float": (lambda: rk.FedAvg(lr=0.1, weight_decay=10**400), "weight_decay: "),
    "an amount": (lambda: rk.FedVRA(lr=0.1, gamma=1e39), "method.gamma: 1e+39 was given"),
    "rates of clients": (lambda: rk.FedVRA(lr=rk.PerClient([0.1, 1e39])), "method.lr"),
    "an optimiser's": (lambda: rk.FedAvg(lr=0.1, server=rk.ServerOptimiser(optax.sgd, learning_rate=1e39)), "learning_rate=1e+39"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.filterwarnings("ignore::rookery.AdviceWarning")
def test_what_a_program_cannot_hold_is_refused(name):
    make, sentence = BEYOND[name]
    with pytest.raises(rk.InputError) as error:
        run(make(), batch_size=1)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (rk.FedNest(lr=rk.Rates(0.1), lower_rounds=2**31), "lower_rounds: 2147483648 was given"),
        (rk.FedNest(lr=rk.Rates(0.1), neumann_terms=2**40), "neumann_terms: "),
        (rk.FedMSA(lr=rk.Rates(0.1), local_steps=2**33), "local_steps: "),
        (rk.FedBiOAcc(lr=rk.Rates(0.1), local_steps=2**33), "local_steps: "),
        (rk.FedBiOAcc(lr=rk.Rates(0.1), first_batch=2**33), "first_batch: "),
    ],
)
def test_counts_of_nested_methods_are_refused(method, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        rk.run(SADDLE.problem, method, SADDLE.clients, rounds=1, **SADDLE.start())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounds": 2**31}, "rounds: 2147483648 was given"),
        ({"rounds": 5, "every": 2**31}, "every: 2147483648 was given"),
        ({"batch_size": 2**31}, "batch_size: 2147483648 was given"),
        ({"seed": 2**32}, "seed: 4294967296 was given"),
    ],
)
def test_options_are_refused(options, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        run(rk.FedAvg(lr=0.1), **options)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_data_that_would_wrap_is_refused(precision):
    for value in (2**31, -(2**33)):
        clients = rk.federate([np.array([1, 2]), np.array([value])])
        with pytest.raises(rk.InputError, match=f"data: it has the number {value}, beyond 2147483647; whole numbers"):
            run(rk.FedAvg(lr=0.1), clients=clients, problem=rk.Single(lambda x, e: x * e), precision=precision)


def test_data_that_single_precision_does_not_hold_is_refused():
    clients, problem = rk.federate([np.array([1e300])]), rk.Single(lambda x, e: x * (e * 1e-300))
    with pytest.raises(rk.InputError, match=r'beyond 3.402823466e.38; float32; precision="float64" holds more'):
        run(rk.FedAvg(lr=0.1), clients=clients, problem=problem)
    assert run(rk.FedAvg(lr=0.1), clients=clients, problem=problem, precision="float64").x == -0.1


def test_a_large_whole_rate_is_that_rate():
    with pytest.warns(rk.DivergenceWarning, match="x grew to"):
        assert run(rk.FedAvg(lr=2**33)).x == np.float32(2**33 * 2.25)


def test_a_schedule_that_is_none_is_refused():
    for schedule, sentence in (
        (lambda t: np.ones(3), r"lr\.default: the schedule gives .* of a round; one number is needed"),
        (lambda t: 0.1 if t < 5 else 0.2, r"lr\.default: the schedule, of a traced round, fails, with Tracer"),
        (lambda t: None, r"lr\.default: the schedule gives None of a round"),
        (lambda t: float("nan"), r"lr\.default: a schedule that gives nan at first was given"),
    ):
        with pytest.raises(rk.InputError, match=sentence):
            run(rk.FedAvg(lr=schedule))
    with pytest.raises(rk.InputError, match=r"coefficients: the function of .* fails, with"):
        run(rk.SimFBO(lr=0.1, coefficients=lambda k, client, round: 1.0 if round else 2.0))
    with pytest.raises(rk.InputError, match=r"coefficients: the function gives .*; one number is needed"):
        run(rk.SimFBO(lr=0.1, coefficients=lambda k, client, round: np.ones(2)))


def test_changing_a_number_compiles_nothing(compilations):
    """Whole or not, in a list or an array: every number of a method is traced, and of one type."""
    first = lambda **changes: rk.FedAvg(
        **({"lr": 0.1, "weight_decay": 0.5, "local_steps": rk.FixedSteps([2, 3])} | changes)
    )
    run(first())
    with compilations.counted():
        run(first(lr=1))
        run(first(lr=np.float32(0.3)))
        run(first(lr=rk.Rates(2)))
        run(first(lr=rk.Rates(np.int64(2))))
        run(first(weight_decay=0))
        run(first(local_steps=rk.FixedSteps((4, 1))))
        run(first(local_steps=rk.FixedSteps(np.array([1, 2]))))
        run(first(local_steps=rk.FixedSteps(np.array([1, 2], np.int8))))
    assert compilations.count == 0


def test_changing_a_number_of_a_part_compiles_nothing(compilations):
    made = lambda rate, gamma, a: rk.FedBiO(
        lr=rk.Rates(0.1), drift=rk.Duals(gamma, a), server=rk.ServerOptimiser(optax.sgd, learning_rate=rate)
    )
    options = {"rounds": 1, **SADDLE.start()}
    rk.run(SADDLE.problem, made(0.5, rk.Rates(1.5), 0.5), SADDLE.clients, **options)
    with compilations.counted():
        rk.run(SADDLE.problem, made(1, rk.Rates(1), 1), SADDLE.clients, **options)
    assert compilations.count == 0
