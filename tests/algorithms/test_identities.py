"""Methods against each other and against closed forms: where two must be the same, they are."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from rookery.problems.exact import QuadraticBilevel, QuadraticConsensus, QuadraticMeta

NOISY = {"sampling": rk.Uniform(2), "batch_size": 2, "seed": 3}


@pytest.mark.parametrize("name", ["E1", "E2", "E3"])
def test_shrofbo_is_simfbo_at_equal_steps(name):
    options = {"lr": rk.Rates(0.02), "server_lr": rk.Rates(0.05), "local_steps": 3}
    assert (
        difference(run(bed(name), rk.ShroFBO(**options), **NOISY), run(bed(name), rk.SimFBO(**options), **NOISY))
        <= 1e-12
    )


@pytest.mark.parametrize("name", ["E1", "E2", "E3"])
def test_fedbio_is_simfbo_with_equal_rates(name):
    options = {"lr": rk.Rates(0.02), "local_steps": rk.FixedSteps([1, 3, 2])}
    assert (
        difference(run(bed(name), rk.FedBiO(**options), **NOISY), run(bed(name), rk.SimFBO(**options), **NOISY))
        <= 1e-12
    )


def test_fedavg_normalised_is_unbiased_form_at_full_participation():
    options = {"lr": rk.Rates(0.02), "local_steps": 3}
    whole = run(bed("E1"), rk.FedAvg(**options), batch_size=2)
    assert difference(whole, run(bed("E1"), rk.FedAvg(**options, normalised=True), batch_size=2)) <= 1e-12
    sampled = [run(bed("E1"), rk.FedAvg(**options, normalised=flag), **NOISY) for flag in (False, True)]
    assert difference(*sampled) > 1e-6


@pytest.mark.parametrize("steps", [1, 4, rk.FixedSteps([1, 2, 5, 3])])
@pytest.mark.parametrize("method", [rk.FedAvg, rk.SimFBO, rk.FedBiO])
def test_fixed_points_of_local_steps_are_the_closed_form(method, steps):
    exact = QuadraticConsensus.random(clients=4, dims=3, weights="random", seed=4)
    point = rk.fixed_point(exact.problem, method(lr=0.1, local_steps=steps), exact.clients, **exact.start(leaves=2))
    counts = steps.steps if isinstance(steps, rk.FixedSteps) else steps
    np.testing.assert_allclose(point.flat("x"), exact.fedavg_solution(0.1, counts), atol=1e-12)
    assert point.radius < 1


def test_shrofbo_with_unequal_steps_has_fednovas_fixed_point():
    exact = QuadraticConsensus.random(clients=4, dims=3, weights="random", seed=4)
    steps = [1, 2, 5, 3]
    method = rk.ShroFBO(lr=0.1, local_steps=rk.FixedSteps(steps))
    point = rk.fixed_point(exact.problem, method, exact.clients, **exact.start())
    np.testing.assert_allclose(point.flat("x"), exact.fednova_solution(0.1, steps), atol=1e-12)


def test_two_step_sizes_shrink_the_drift_with_the_local_one_alone():
    exact, truth = bed("E1"), bed("E1").solution()

    def error(local):
        method = rk.SimFBO(lr=rk.Rates(local), server_lr=rk.Rates(0.05), local_steps=5)
        point = rk.fixed_point(exact.problem, method, exact.clients, **exact.start())
        return np.abs(point.flat("x") - truth).max()

    assert abs(error(0.002) / error(0.001) - 2) < 0.05


def test_runs_reach_what_the_harness_predicts():
    exact = bed("E1")
    method = rk.SimFBO(lr=rk.Rates(0.05), local_steps=3)
    point = rk.fixed_point(exact.problem, method, exact.clients, **exact.start(leaves=2))
    result = run(exact, method, rounds=int(40 / -np.log10(point.radius)))
    np.testing.assert_allclose(flat(result.x), point.flat("x"), atol=1e-9)


def test_the_harness_refuses_a_field_that_is_not_linear():
    clients = rk.federate([{"a": np.ones(2)}])
    with pytest.raises(rk.InputError, match="needs a linear field"):
        rk.fixed_point(rk.Single(lambda x, e: e["a"] * x**4), rk.FedAvg(lr=0.1), clients, x=1.0)


LOCAL = {
    "E1-local": lambda: QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=1, local=True),
    "E5": lambda: QuadraticMeta.random(clients=3, dims=2, weights="random", seed=5),
}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("method", [rk.SimFBO, rk.ShroFBO, rk.FedBiO, rk.FedAvg])
def test_local_lower_levels_are_exact_and_never_exchanged(method, name):
    exact = LOCAL[name]()
    point = rk.fixed_point(exact.problem, method(lr=rk.Rates(0.1)), exact.clients, **exact.start(leaves=2))
    np.testing.assert_allclose(point.flat("x"), exact.solution(), atol=1e-10)
    optimum = exact.optimum()
    for row in range(3):  # each client's own y and v, too
        own = jax.tree.map(lambda leaf: leaf[row], {"y": point.sequences.y, "v": point.sequences.v})
        np.testing.assert_allclose(flat(own["y"]), optimum["y"][row], atol=1e-10)
        np.testing.assert_allclose(flat(own["v"]), optimum["v"][row], atol=1e-10)
    result = run(exact, method(lr=rk.Rates(0.02), local_steps=2), rounds=4, sampling=rk.Uniform(2))
    extra = 1 if method is rk.ShroFBO else 0
    dim_x = flat(result.x).size
    assert result.ledger.floats_up == 4 * 2 * (dim_x + extra)
    assert result.ledger.floats_down == 4 * 2 * dim_x


def test_absent_clients_keep_their_local_sequences():
    exact = LOCAL["E1-local"]()
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    result = rk.run(
        exact.problem, rk.SimFBO(lr=rk.Rates(0.1)), exact.clients, rounds=1, sampling=rk.Uniform(1),
        precision="float64", **start,
    )  # fmt: skip
    moved = [np.abs(flat(own.y) - 0.3).max() > 0 for own in result.local]
    assert sum(moved) == 1


def test_local_upper_level_data_cleaning_moves_the_right_way():
    """E7: per-sample weights stay on their clients; noisy samples lose weight, clean ones keep theirs."""
    exact = rk.exact.DataCleaning.random(clients=3, seed=0)
    result = rk.run(
        exact.problem, rk.SimFBO(lr=rk.Rates(x=2.0, y=0.2, v=0.2)), exact.clients, rounds=3000,
        precision="float64", **exact.start(),
    )  # fmt: skip
    assert result.sequences.x.shape[0] == 3 and len(result.local) == 3
    assert exact.value(result.x) < exact.value(np.zeros_like(result.x))
    assert exact.auc(result.x) > 0.9
    dim = flat(result.y).size * 2
    assert result.ledger.floats_up == 3000 * 3 * dim


def test_midrange_by_projected_minimax():
    """E4: the fair point is the midrange of the clients' targets, not their mean."""
    exact = rk.exact.Midrange.random(clients=4, seed=2)
    result = rk.run(
        exact.problem, rk.SimFBO(lr=rk.Rates(x=0.05, y=0.005)), exact.clients, rounds=20_000, precision="float64",
        **exact.start(),
    )  # fmt: skip
    assert abs(float(np.ravel(result.x)[0]) - float(np.ravel(exact.solution())[0])) < 1e-4
    assert abs(flat(result.y).sum() - 1) < 1e-12 and flat(result.y).min() >= 0


@pytest.mark.parametrize(
    ("exact", "rates", "rounds"),
    [
        (rk.exact.RidgePenalties.random(clients=3, seed=1), rk.Rates(x=0.5, y=0.3, v=0.3), 20_000),
        (rk.exact.LossTuning.random(clients=3, seed=1), rk.Rates(x=0.1, y=0.5, v=0.5), 20_000),
    ],
    ids=["E6", "E8"],
)
def test_hyperparameters_are_recovered(exact, rates, rounds):
    """E6: ridge penalties; E8: logit adjustment, rediscovered. x is centred for E8, whose Hessian has the null vector 1."""
    result = rk.run(
        exact.problem, rk.SimFBO(lr=rates), exact.clients, rounds=rounds, precision="float64", **exact.start()
    )
    x, truth = flat(result.x), np.ravel(exact.solution())
    if isinstance(exact, rk.exact.LossTuning):
        x = x - x.mean()
    np.testing.assert_allclose(x, truth, atol=1e-5)
