"""Step sizes that are measured: the closed forms of what is measured, and that runs with them solve and survive."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.cli.forms import parse_method, parse_options
from rookery.engines.local import Local
from rookery.federation.ledger import Ledger
from rookery.federation.measuring import BEYOND, WAIT, curvature_of
from rookery.runs.prepare import precision_context, prepare
from rookery.tasks.registry import TASKS

BEDS = {
    "bilevel": lambda seed: rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=seed),
    "own lower": lambda seed: rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 3), seed=seed, local=True),
    "compositional": lambda seed: rk.exact.LinearComposition.random(clients=3, dims=(2, 3, 2), seed=seed),
    "minimax": lambda seed: rk.exact.QuadraticMinimax.random(clients=3, dims=(2, 3), seed=seed),
    "single": lambda seed: rk.exact.QuadraticConsensus.random(clients=3, dims=3, weights="random", seed=seed),
}


def found(bed, precision="float64", problem=None, measuring=None):
    """The mean of the clients' curvatures."""
    with precision_context(precision):
        options = {"sampling": rk.All(), "batch_size": None, "seed": 0, "precision": precision}
        problem = problem or bed.problem
        prepared = prepare(problem, measuring or curvature_of(problem), bed.clients, **bed.start(), **options)
        session = Local().open(prepared, Ledger())
        session.advance(1)
        return {name: float(mean) for name, mean in session.carry.state.mean.items()}


def largest(matrix):
    return np.abs(np.linalg.eigvalsh(matrix)).max()


def own(bed, name):
    """A matrix of every client, the mean over its examples."""
    return [np.mean(bed.clients.client(i)[name], axis=0) for i in range(bed.clients.population)]


@pytest.mark.parametrize("seed", range(5))
def test_own_curvatures_are_the_largest_eigenvalues(seed):
    bed = BEDS["single"](seed)
    matrices, weights = own(bed, "A"), np.asarray(bed.clients.weights)
    expected = float(np.dot(weights / weights.sum(), [largest(matrix) for matrix in matrices]))
    measured = found(bed)["x"]
    assert 0.93 * expected < measured <= expected * (1 + 1e-12)
    rates = rk.run(bed.problem, rk.FedAvg(lr="auto"), bed.clients, **bed.start(), rounds=1, precision="float64").rates
    most = max(largest(matrix) for matrix in matrices)
    assert 0.93 * expected < 1 / rates["x"] <= max(expected, 2**0.25 * most / BEYOND) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_outer_curvature_is_that_of_the_hypergradient(seed):
    bed, expected = BEDS["own lower"](seed), []
    for record in bed.records:  # its hypergradient at x = 0, with y and v its own, and how that changes with x
        a, b, e, r = (np.mean(record[name], axis=0) for name in "ABER")
        ed, re = (np.mean(np.einsum("kij,kj->ki", record[m], record[w]), axis=0) for m, w in ("Ed", "Re"))
        y = np.linalg.solve(a, np.mean(record["c"], axis=0))
        gradient = b.T @ np.linalg.solve(a, e @ y - ed) - re
        j = np.linalg.solve(a, b)
        expected.append(max(largest(r + j.T @ e @ j), np.abs(gradient).max()))
    measured = found(bed)["x"] / np.mean(expected)
    assert 3 * 0.93 < measured < WAIT * 1.03  # two sequences to go through, and what is late of their answer


@pytest.mark.parametrize("kind", BEDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_with_measured_rates_are_contractions(kind, seed):
    bed = BEDS[kind](seed)
    rates = rk.run(bed.problem, rk.SimFBO(lr="auto"), bed.clients, **bed.start(), rounds=1, precision="float64").rates
    for steps in (1, 5):
        method = rk.SimFBO(lr=rk.Rates(**rates), local_steps=steps, drift=rk.ControlVariates())
        assert rk.fixed_point(bed.problem, method, bed.clients, **bed.start()).radius < 0.999


@pytest.mark.parametrize(
    "kind, method",
    [
        ("bilevel", rk.SimFBO(lr="auto", local_steps=3, drift=rk.ControlVariates())),
        ("bilevel", rk.FedBiO(lr=rk.Rates("auto", x=0.02))),
        ("single", rk.FedAvg(lr="auto")),
        ("single", rk.Scaffold(lr="auto", local_steps=4)),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_runs_reach_the_solution(kind, method):
    bed = BEDS[kind](1)
    result = rk.run(bed.problem, method, bed.clients, **bed.start(), rounds=2500, precision="float64")
    assert np.abs(result.x - bed.solution()).max() < 1e-8
    assert result.ledger.exchanges == 2501 and result.ledger.exchanges_of["look"] == 1
    assert ("x" in result.rates) == (method.lr == "auto") and all(rate > 0 for rate in result.rates.values())


def test_every_engine_and_a_sweep_measure_the_same():
    bed = BEDS["single"](0)
    given = {"clients": bed.clients, "rounds": 3, "precision": "float64", "sampling": rk.Uniform(2), **bed.start()}
    results = {e: rk.run(bed.problem, rk.Scaffold(lr="auto"), engine=e, **given) for e in ("local", "eager")}
    results["sweep"] = rk.sweep(bed.problem, rk.Scaffold(lr="auto"), over={"seed": [0, 1]}, **given).results[0]
    for result in results.values():
        assert result.rates == pytest.approx(results["local"].rates, rel=1e-12)
        assert np.abs(result.x - results["local"].x).max() < 1e-12
        assert result.ledger.row() == results["local"].ledger.row()
    assert "step sizes, measured: x" in repr(results["local"])


def test_a_sequence_with_a_number_need_not_be_curved():
    problem = rk.Minimax(lambda x, y, e: x * e["b"] * y + 0.5 * x * x)
    given = {"clients": rk.federate([{"b": np.ones(2)}, {"b": 2 * np.ones(2)}]), "x": 1.0, "y": 1.0, "rounds": 1}
    assert set(rk.run(problem, rk.SimFBO(lr=rk.Rates("auto", y=0.1)), **given).rates) == {"x"}
    with pytest.raises(rk.InputError, match=r"lr\.y: 'auto' was given"):
        rk.run(problem, rk.SimFBO(lr=rk.Rates("auto", x=0.1)), **given)


def test_rounds_that_nobody_is_part_of_measure_nothing():
    bed = BEDS["single"](0)
    given = {"clients": bed.clients, "rounds": 1, **bed.start()}
    lots = {"sampling": rk.Bernoulli(0.3), "seed": 2}  # the first two rounds are empty
    every = {e: rk.run(bed.problem, rk.FedAvg(lr="auto"), engine=e, **lots, **given) for e in ("local", "eager")}
    every["mesh"] = rk.run(bed.problem, rk.FedAvg(lr="auto"), engine="mesh", **lots, **given)
    every["sweep"] = rk.sweep(bed.problem, rk.FedAvg(lr="auto"), over={"seed": [2]}, **lots | given).results[0]
    for result in every.values():
        assert result.rates == pytest.approx(every["local"].rates, rel=1e-6)
        assert result.ledger.exchanges_of["look"] == 1
        assert result.ledger.row() == every["local"].ledger.row()
    late = rk.Bernoulli(lambda t: jnp.where(t < 3, 0.0, 1.0))
    assert rk.run(bed.problem, rk.FedAvg(lr="auto"), sampling=late, **given).ledger.exchanges_of["look"] == 1
    with pytest.raises(rk.InputError, match="nobody was there to measure in any of 1000 rounds"):
        rk.run(bed.problem, rk.FedAvg(lr="auto"), sampling=rk.Bernoulli(lambda t: 0.0 * t), **given)


def rates_of(bed, method, **options):
    return rk.run(bed.problem, method, bed.clients, **bed.start(), rounds=1, precision="float64", **options).rates


@pytest.mark.parametrize(
    "kind, plain, method, name",
    [
        ("single", rk.FedAvg(lr="auto"), rk.FedAvg(lr="auto", weight_decay=10.0), "x"),
        ("single", rk.Scaffold(lr="auto"), rk.Scaffold(lr="auto", local_steps=3, weight_decay=10.0), "x"),
        (
            "bilevel",
            rk.SimFBO(lr="auto"),
            rk.SimFBO(lr="auto", local_steps=5, drift=rk.Duals(rk.Rates(1.0, y=10.0))),
            "y",
        ),
    ],
    ids=["FedAvg", "Scaffold", "Duals"],
)
def test_what_a_method_adds_to_the_direction_is_curvature_too(kind, plain, method, name):
    bed = BEDS[kind](0)
    without, rates = rates_of(bed, plain), rates_of(bed, method)
    assert 1 / without[name] + 10 / BEYOND - 1e-9 <= 1 / rates[name] <= 1 / without[name] + 10 + 1e-9
    result = rk.run(bed.problem, method, bed.clients, **bed.start(), rounds=300, precision="float64")
    assert result.status == "done" and np.abs(result.x).max() < 10


def test_coefficients_of_steps_divide_the_rates():
    bed = BEDS["single"](0)
    without = rates_of(bed, rk.SimFBO(lr="auto"))["x"]
    table = [1.0, -5.0, 100.0]  # of which two are reached
    assert rates_of(bed, rk.SimFBO(lr="auto", local_steps=2, coefficients=table))["x"] == pytest.approx(without / 5)
    with pytest.raises(rk.InputError, match="coefficients: a function was given"):
        rates_of(bed, rk.SimFBO(lr="auto", coefficients=lambda k, i, t: 5.0))


def test_a_linear_loss_with_weight_decay_is_curved():
    clients = rk.federate([{"a": np.ones(2)}])
    problem, given = rk.Single(lambda x, e: x * e["a"]), {"x": 1.0, "rounds": 50}
    result = rk.run(problem, rk.FedAvg(lr="auto", weight_decay=2.0), clients, **given)
    assert result.rates["x"] == pytest.approx(0.5) and result.x == pytest.approx(-0.5)


@pytest.mark.parametrize("sampling", [rk.Uniform(1), rk.Uniform(3)], ids=str)
def test_clients_who_count_for_more_than_they_are_drawn(sampling):
    clients = rk.federate([{"a": np.ones((2, 3))}] * 10, weights=[0.91] + [0.01] * 9)
    problem = rk.Single(lambda x, e: 0.5 * jnp.sum((x - e["a"]) ** 2))
    given = {"clients": clients, "x": np.zeros(3), "rounds": 200, "sampling": sampling}
    factor = 0.91 * 10 / sampling.m
    for seed in (0, 1):  # whether the large client is among those who measure or not
        result = rk.run(problem, rk.SimFBO(lr="auto"), seed=seed, **given)
        assert factor / BEYOND * 0.99 < 1 / result.rates["x"] < factor / BEYOND * 2**0.25 * 1.01
        assert np.abs(result.x - 1).max() < 1e-3
        assert rk.run(problem, rk.FedAvg(lr="auto", normalised=True), seed=seed, **given).rates["x"] == pytest.approx(1)


def test_a_penalty_moves_its_lower_sequences_alike():
    bed = BEDS["bilevel"](0)
    problem = dataclasses.replace(bed.problem, by=rk.Penalty((1.0, 2.0)))
    options = {"rounds": 1, "precision": "float64", **bed.start()}
    rates = rk.run(problem, rk.SimFBO(lr="auto"), bed.clients, **options).rates
    assert rates["y"] == rates["y2"] == rates["w"] != rates["x"]


@jax.custom_vjp
def apart(x, y):
    """||x - y||^2 with gradients of its own, and nothing more."""
    return jnp.sum((x - y) ** 2)


def same(v):
    return jax.pure_callback(lambda v: v, v, v, vmap_method="sequential")


apart.defvjp(lambda x, y: (apart(x, y), x - y), lambda v, g: (2 * g * v, -2 * g * v))
opaque = jax.custom_vjp(lambda v: jnp.sum(v**2))
opaque.defvjp(lambda v: (opaque(v), v), lambda v, g: (2 * g * same(v),))


def test_losses_with_gradients_alone_are_measured_under_a_penalty():
    clients = rk.federate([{"a": np.ones((2, 3))}, {"a": np.zeros((2, 3))}])
    given, rates = {"x": jnp.zeros(3), "y": jnp.zeros(3), "rounds": 1}, []
    for lower in (lambda x, y, e: apart(x, y), lambda x, y, e: jnp.sum((x - y) ** 2)):
        upper = lambda x, y, e: jnp.sum((y - e["a"]) ** 2) + jnp.sum(x**2)
        problem = rk.Bilevel(upper, lower, by=rk.Penalty(10.0))
        rates.append(rk.run(problem, rk.SimFBO(lr="auto"), clients, **given).rates)
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)
    with pytest.raises(rk.InputError, match="the directions cannot be differentiated forwards, with ValueError"):
        single = rk.Single(lambda x, e: opaque(x - e["a"]))
        rk.run(single, rk.SimFBO(lr="auto"), clients, x=jnp.zeros(3), rounds=1)


@pytest.mark.parametrize("lam", [1.0, 100.0, 1e4, (10.0, 20.0)])
def test_differences_of_directions_are_as_good_as_derivatives(lam):
    bed = BEDS["bilevel"](0)
    problem = dataclasses.replace(bed.problem, by=rk.Penalty(lam))
    single = found(bed, "float32", problem)
    assert curvature_of(problem).differences
    exact = found(bed, "float64", problem, dataclasses.replace(curvature_of(problem), differences=False))
    assert single == pytest.approx(exact, rel=0.04)


def test_a_run_goes_on_with_the_rates_it_had(tmp_path):
    bed = BEDS["bilevel"](0)
    given = {"sampling": rk.Uniform(2), "batch_size": 1, **bed.start()}
    method = rk.SimFBO(lr="auto")
    whole = rk.run(bed.problem, method, bed.clients, rounds=8, **given)
    rk.run(bed.problem, method, bed.clients, rounds=4, checkpoints=rk.Checkpoints(tmp_path / "c", every=2), **given)
    went_on = rk.resume(tmp_path / "c", bed.problem, method, bed.clients, rounds=8, **given)
    first = rk.run(bed.problem, method, bed.clients, rounds=4, **given)
    saved = rk.Result.load(first.save(tmp_path / "r"))
    again = rk.run(bed.problem, method, bed.clients, rounds=4, state=saved.state, **given)
    for result in (went_on, again):
        assert np.array_equal(result.x, whole.x) and result.rates == whole.rates
        assert result.ledger.exchanges == whole.ledger.exchanges == 9
    with pytest.raises(rk.InputError, match="is of a run with another method"):
        rk.resume(tmp_path / "c", bed.problem, rk.SimFBO(lr=rk.Rates(0.1)), bed.clients, rounds=8, **given)
    numbers = rk.run(bed.problem, rk.SimFBO(lr=rk.Rates(0.1)), bed.clients, rounds=4, **given)
    with pytest.raises(rk.InputError, match="no measured step sizes of x, y, v"):
        rk.run(bed.problem, method, bed.clients, rounds=4, state=numbers.state, **given)


def test_what_cannot_be_measured_is_refused():
    bed, one = BEDS["bilevel"](0), BEDS["single"](0)
    with pytest.raises(rk.InputError, match=r"lr.default: 'auto' was given where nothing measures it"):
        rk.run(one.problem, rk.FedProx(lr="auto", mu=1.0), one.clients, **one.start(), rounds=1)
    with pytest.raises(rk.InputError, match="'auto' was given where nothing measures it"):
        rk.fixed_point(bed.problem, rk.SimFBO(lr="auto"), bed.clients, **bed.start())
    with pytest.raises(rk.InputError, match="lr: 'fast' was given; a number, a schedule or 'auto' is needed"):
        rk.run(bed.problem, rk.SimFBO(lr="fast"), bed.clients, **bed.start(), rounds=1)
    for lr, sentence in ((rk.Rates("auto", z=0.1), "lr: there is no sequence 'z'"), (rk.Rates(x="auto"), "lr: .* y")):
        with pytest.raises(rk.InputError, match=sentence):
            rk.run(bed.problem, rk.SimFBO(lr=lr), bed.clients, **bed.start(), rounds=1)
    clients = rk.federate([{"a": np.ones(2)}])
    with pytest.raises(rk.InputError, match="the direction of x does not change along x where the run begins"):
        rk.run(rk.Single(lambda x, e: x * e["a"]), rk.FedAvg(lr="auto"), clients, x=1.0, rounds=1)


def test_the_shell_gives_the_word():
    task = TASKS["hyperrep"]()
    assert parse_method("simfbo:lr=auto,local-steps=5", task)[1].lr.entries() == dict.fromkeys("xyv", "auto")
    assert parse_method("simfbo:lr.x=auto", task)[1].lr.entries() == {"x": "auto", "y": 0.2, "v": 0.2}
    row = rk.algorithms.registry.find_method("simfbo")
    parsed = parse_options("hyperrep", TASKS["hyperrep"], row, ["--method.lr", "auto", "--rounds", "2"])
    assert parsed.method.lr["v"] == "auto" and parsed.run.rounds == 2
