"""Fair comparisons: every method tuned alike at its horizon, sample deviations, directions, divergence, and its text."""

from __future__ import annotations

import json
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.data.partitions import as_text, parse
from rookery.direction import lower_is_better
from rookery.experiments.api import _same_comparison
from rookery.experiments.compare import Comparison
from rookery.experiments.statistics import paired, summarise
from rookery.experiments.tune import Grid, Score, select
from rookery.runs.table import Table

CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 5.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
GAP = {"metrics": lambda z: {"gap": jnp.abs(z.x - 2.75)}, "x": 0.0}
ADAM = rk.FedAvg(lr=0.1, server=rk.ServerOptimiser(optax.adam, learning_rate=0.001))


def compared(methods, problem=PROBLEM, clients=CLIENTS, **options):
    return rk.compare(problem, methods, clients, **({"progress": False, "seeds": 2} | GAP | options))


def history(values, exchanges=1):
    rows = []
    for n, value in enumerate(values):
        row = {"round": n, "exchanges": n * exchanges, "bytes_up": n * 100, "bytes_down": n * 100}
        rows.append(row | {"gradients": n * 10, "seconds": n * 0.5, "accuracy": value})
    return Table(rows)


# What is tuned, and at which horizon.


def test_the_step_size_of_a_server_optimiser_is_tuned():
    grid = Grid.of(ADAM)
    assert list(grid.dimensions) == ["lr.default", "server.learning_rate"] and len(grid.places()) == 12
    assert grid.method((0.0, 1.0)).server.options["learning_rate"] == pytest.approx(0.003)
    found = compared({"FedAdam": ADAM}, exchanges=20, seeds=1, tune=True)
    assert found.tunings["FedAdam"].method.server.options["learning_rate"] > 0.005
    fixed = compared({"FedAdam": ADAM}, exchanges=20, seeds=1)
    assert found.table()["final gap"][0] < fixed.table()["final gap"][0] / 2


def test_server_optimisers_by_sequence_are_tuned():
    adam = lambda lr: rk.ServerOptimiser(optax.adam, learning_rate=lr)
    by_name = Grid.of(rk.SimFBO(lr=rk.Rates(0.1), server={"x": adam(0.1), "y": adam(0.2)}))
    assert by_name.dimensions["server.x.learning_rate"] == ("server.x.learning_rate",)
    assert by_name.dimensions["server.y.learning_rate"] == ("server.y.learning_rate",)
    each = Grid.of(rk.SimFBO(lr=rk.Rates(0.1), server=rk.EachSequence(adam(0.1))))
    place = tuple(float(name == "server.optimiser.learning_rate") for name in each.dimensions)
    assert each.method(place).server.optimiser.options["learning_rate"] == pytest.approx(0.3)


def test_server_lr_is_tuned_beside_lr():
    grid = Grid.of(rk.SimFBO(lr=rk.Rates(x=0.1, y=0.2, v=0.2), local_steps=2))
    assert list(grid.dimensions) == ["lr.x", "the other step sizes", "server_lr"]
    assert grid.method((1.0, 0.0, 0.0)).server_lr is None, "as it was given: the server steps with lr"
    moved = grid.method((1.0, 0.0, -1.0))
    assert moved.lr["x"] == pytest.approx(0.3) and moved.server_lr["x"] == pytest.approx(0.1)
    assert moved.lr["y"] == pytest.approx(0.2) and moved.server_lr["y"] == pytest.approx(0.2 / 3)
    given = Grid.of(rk.SimFBO(lr=rk.Rates(0.1), server_lr=rk.Rates(0.3), local_steps=2))
    assert given.method((1.0, 0.0)).server_lr["x"] == pytest.approx(0.9)  # the ratio to lr stays


def test_every_candidate_runs_to_the_horizon_of_the_comparison():
    methods = {"one": rk.FedAvg(lr=0.01), "three": rk.FedAvg(lr=0.01, local_steps=3)}
    found = compared(methods, exchanges=7, seeds=1, tune=True)
    assert {row["rounds"] for tuning in found.tunings.values() for row in tuning.table.rows} == {7}
    budgets = {tuning.budget for tuning in found.tunings.values()}
    assert len(budgets) == 1 and all(tuning.gradients <= tuning.budget for tuning in found.tunings.values())
    with pytest.raises(rk.InputError, match=r"tune_budget must be at least 168 .* for one: 12 candidates .*; got 100"):
        compared(methods, exchanges=7, seeds=1, tune_budget=100)


def test_what_was_tuned_is_printed_and_stored(tmp_path):
    found = compared(
        {"FedAvg": rk.FedAvg(lr=0.1), "FedAdam": ADAM}, exchanges=3, seeds=1, tune=True, out=tmp_path / "o"
    )
    said = str(found)
    assert "FedAdam: lr.default" in said and "server.learning_rate" in said and "candidates" in said
    stored = json.loads((tmp_path / "o" / "comparison.json").read_text())
    tried = stored["tunings"]["FedAdam"]["grid"]["server.learning_rate"]
    assert len(tried) >= 3 and stored["tunings"]["FedAdam"]["rounds"] == 3
    assert stored["tunings"]["FedAvg"]["chosen"].keys() == {"lr.default"}
    assert (stored["metric"], stored["falling"], stored["direction"]) == ("gap", True, "inferred from the name")


# Which finalist.


def test_of_finalists_that_differ_by_rounding_the_farthest_from_divergence_is_taken():
    lost = Score(math.inf, 0.0)
    scores = {(-1.0,): Score(0.3, 0), (0.0,): Score(5e-16, 0), (1.0,): Score(1e-16, 0), (2.0,): lost}
    assert select(scores, tolerance=1e-13) == (0.0,)
    assert select(scores, tolerance=0.0) == (1.0,)
    assert select(dict(reversed(scores.items())), tolerance=1e-13) == (0.0,), "whatever the order"
    flat = {(float(n),): Score(0.5, 0.0) for n in range(-2, 3)}
    assert select(flat, tolerance=1e-13) == (0.0,), "where nothing is worse, the method's own step sizes"


def test_tuning_takes_the_stable_step_of_a_plateau():
    """Two steps with any lr from 0.9 to 1.1 solve this to rounding; the search is the same every time."""
    options = {"progress": False, "budget": 24 * 60 * 2, "rounds": 60, "precision": "float64"} | GAP
    found = rk.tune(PROBLEM, rk.FedAvg(lr=0.4), CLIENTS, **options)
    best = min(found.table["gap"])
    chosen = next(row for row in found.table.rows if row["lr.default"] == found.chosen["lr.default"])
    assert chosen["gap"] <= best + 1e-12
    plateau = [row["lr.default"] for row in found.table.rows if row["gap"] <= best + 1e-12]
    assert len(plateau) > 1 and found.chosen["lr.default"] == min(plateau)


# Spreads, intervals and paired differences.


def test_spreads_are_sample_deviations_with_intervals():
    found = summarise(np.array([1.0, 2.0, 4.0]))
    assert found.spread == pytest.approx(np.std([1, 2, 4], ddof=1))
    half = 4.302652729911275 * found.spread / math.sqrt(3)  # Student's t for 2 degrees of freedom
    assert (found.low, found.high) == (pytest.approx(7 / 3 - half), pytest.approx(7 / 3 + half))
    one = summarise(np.array([1.0]))
    assert one.mean == 1.0 and math.isnan(one.spread) and math.isnan(one.low)
    assert math.isnan(summarise(np.array([])).mean)


def test_differences_are_paired_by_seed():
    pairs = paired(np.array([0.1, 0.5, 0.9]), np.array([0.0, 0.4, 0.7]))
    assert pairs.mean == pytest.approx(0.4 / 3) and pairs.spread == pytest.approx(np.std([0.1, 0.1, 0.2], ddof=1))
    a, b = ([history([0, value]) for value in values] for values in ((0.1, 0.5, 0.9), (0.0, 0.4, 0.7)))
    comparison = Comparison("accuracy", False, {"a": a, "b": b}, diverged={"b": [False, True, False]})
    (row,) = comparison.differences("b").rows
    assert (row["method"], row["minus"], row["pairs"], row["better"]) == ("a", "b", 2, 2)
    assert row["difference"] == pytest.approx(0.15) and row["low"] < 0.15 < row["high"]
    with pytest.raises(rk.InputError, match="against must be one of"):
        comparison.differences("c")


def test_one_seed_has_no_spread():
    comparison = Comparison("accuracy", False, {"a": [history([0.1, 0.5])]})
    assert math.isnan(comparison.table().rows[0]["final accuracy spread"])
    assert "±" not in str(comparison) and "1 seed, so there is no spread" in str(comparison)


# The direction of a metric.


def test_directions_are_inferred_in_one_place():
    falling = ("loss", "upper_loss", "loss mean", "test error", "gap", "mse", "logloss", "distance worst")
    assert all(lower_is_better(name) is True for name in falling)
    assert all(
        lower_is_better(name) is False for name in ("accuracy", "accuracy weighted", "auc", "purity", "top 1 accuracy")
    )
    unknown = ("size", "accuracy gap", "negative loss", "1 - accuracy", "error_free", "losses", "score")
    assert all(lower_is_better(name) is None for name in unknown)


def test_a_loss_is_minimised_unless_the_user_says_otherwise():
    found = compared({"a": rk.FedAvg(lr=0.1)}, exchanges=7, target=1.0, seeds=1)
    assert found.falling and found.table()["reached"].tolist() == [0], "not at 0 exchanges"
    assert "gap: lower is better (inferred from the name)" in str(found)
    tuned = rk.tune(PROBLEM, rk.FedAvg(lr=0.01), CLIENTS, budget=24 * 8, progress=False, **GAP)
    assert tuned.method.lr["x"] > 0.1
    upwards = compared({"a": rk.FedAvg(lr=0.1)}, exchanges=2, seeds=1, falling=False)
    assert not upwards.falling and "gap: higher is better (falling=False)" in str(upwards)


def test_a_metric_without_a_known_direction_is_refused():
    metrics = lambda z: {"size": jnp.abs(z.x - 2.75)}
    with pytest.raises(rk.InputError, match="falling must be True or False for the metric 'size'"):
        compared({"a": rk.FedAvg(lr=0.1)}, metrics=metrics, exchanges=2)
    with pytest.raises(rk.InputError, match="falling must be True or False for the metric 'size'"):
        rk.tune(PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, budget=1000, progress=False, metrics=metrics, x=0.0)
    assert compared({"a": rk.FedAvg(lr=0.1)}, metrics=metrics, exchanges=2, falling=True, seeds=1).falling


# What is printed.


def test_equal_columns_are_printed_once_and_the_target_with_them():
    comparison = Comparison(
        "accuracy", False, {"a": [history([0.1, 0.9])] * 2, "b": [history([0.1, 0.5])] * 2}, target=0.8
    )
    head = next(line for line in str(comparison).splitlines() if line.startswith("method"))
    assert "at 1 exchanges (final)" in head and "final accuracy" not in head and "exchanges to 0.8" in head
    a = next(line for line in str(comparison).splitlines() if line.startswith("a "))
    b = next(line for line in str(comparison).splitlines() if line.startswith("b "))
    assert "2 of 2" in a and "never" in b
    longer = Comparison("accuracy", False, {"a": [history([0.1, 0.9])], "b": [history([0.1, 0.5, 0.7])]})
    assert "final accuracy" in str(longer)


# Divergence.


def exploding(lr, rounds=400, **options):
    return rk.run(PROBLEM, rk.FedAvg(lr=lr), CLIENTS, rounds=rounds, precision="float64", **GAP | options)


@pytest.mark.filterwarnings("ignore:the run diverged")
def test_a_run_that_ends_finite_and_exploded_is_diverged():
    result = exploding(3.0, 500)
    assert abs(result.x) > 1e100 and result.status == "diverged" and result.state.round == 500
    assert result.divergence is not None
    assert "x grew to" in str(result.divergence) and result.divergence.round == 500
    only_state = exploding(3.0, 500, metrics=None)
    assert only_state.status == "diverged"
    assert exploding(0.1).status == "done"
    both = rk.sweep(
        PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, over={"lr": [0.1, 3.0]}, rounds=500, precision="float64", **GAP
    )
    assert both["status"].tolist() == ["done", "diverged"]


def test_large_numbers_that_the_user_began_with_are_no_divergence():
    clients = rk.federate([{"a": np.array([1e14])}, {"a": np.array([3e14])}])
    result = rk.run(PROBLEM, rk.FedAvg(lr=0.1), clients, x=1e15, rounds=5, precision="float64")
    assert result.status == "done"


@pytest.mark.filterwarnings("ignore:the run diverged")
def test_an_exploded_metric_is_a_divergence_and_a_worse_one_is_said():
    result = exploding(2.3, rounds=30)  # from 2.75 to 7e3: the state is small
    assert result.status == "diverged" and "gap went from 2.75 to" in str(result.divergence)
    mild = exploding(2.05, rounds=10)
    assert mild.status == "done" and mild.worse == {"gap": (2.75, pytest.approx(2.75 * 1.05**10))}
    assert "gap ended at 4.48, worse than its first value 2.75" in repr(mild)
    assert exploding(0.1, rounds=10).worse == {}


@pytest.mark.filterwarnings("ignore:the run diverged")
def test_an_exploded_result_says_so_when_it_is_read_and_resumed(tmp_path):
    result = exploding(3.0, 500, checkpoints=rk.Checkpoints(tmp_path / "c", every=100))
    again = rk.resume(tmp_path / "c", PROBLEM, rk.FedAvg(lr=3.0), CLIENTS, precision="float64", **GAP)
    assert again.status == "diverged" and str(again.divergence) == str(result.divergence)
    result.save(tmp_path / "saved")
    assert str(rk.Result.load(tmp_path / "saved").divergence) == str(result.divergence)


@pytest.mark.filterwarnings("ignore:the run diverged")
def test_diverged_runs_are_marked_and_in_no_mean():
    found = compared(
        {"good": rk.FedAvg(lr=0.1), "wild": rk.FedAvg(lr=3.0)}, exchanges=500, seeds=1, precision="float64"
    )
    assert found.table()["diverged"].tolist() == [0, 1] and math.isnan(found.table()["final gap"][1])
    wild = next(line for line in str(found).splitlines() if line.startswith("wild"))
    assert "diverged" in wild
    runs = [history([0.1, 0.5]), history([0.1, 0.7]), history([0.1, 0.0])]
    mixed = Comparison("accuracy", False, {"a": runs}, diverged={"a": [False, False, True]})
    assert mixed.table().rows[0]["final accuracy"] == pytest.approx(0.6)
    assert "2 of 3" in str(mixed)


def test_a_comparison_in_which_all_runs_diverged_is_printed():
    lost = Comparison("accuracy", False, {"a": [history([0.1, 0.5])]}, diverged={"a": [True]})
    head, row = str(lost).splitlines()[1:]
    assert "nan" not in head and "diverged" in row and lost.differences().rows == []


def test_a_damaged_list_of_methods_is_refused(tmp_path):
    (tmp_path / "compare.json").write_text(json.dumps({"methods": [{"a": 1}]}))
    with pytest.raises(rk.InputError, match="is damaged: methods must be a list of labels"):
        _same_comparison(tmp_path / "compare.json", {}, ["a"])


# Arguments that make a task.


def test_partitions_are_taken_as_objects(tmp_path):
    for given in (rk.IID(), rk.Shards(3), rk.Dirichlet(0.2), rk.Dirichlet(0.5, by="class"), rk.ClassHeterogeneity(0.5)):
        assert parse(as_text(given)) == given
    nested = rk.LongTail(0.1, rk.Shards(2))
    assert parse(as_text(nested)) == nested and as_text("iid") == "iid"
    task, methods = rk.tasks.HyperRep(hidden=4), {"a": rk.SimFBO(lr=rk.Rates(0.1))}
    few = {"clients": 5, "exchanges": 1, "seeds": 1, "progress": False}
    named = rk.compare(task, methods, partition="dirichlet:0.2", **few)
    found = rk.compare(task, methods, partition=rk.Dirichlet(0.2), out=tmp_path / "o", **few)
    assert found.table()["final accuracy"].tolist() == named.table()["final accuracy"].tolist()


WRONG = {
    "a partition that has no text": ({"partition": rk.Dirichlet(0.2, minimum=3)}, "partition: .* has no text form"),
    "clients that are data": ({"clients": CLIENTS}, "clients must be a positive int with a task"),
    "a channel": ({"up": [rk.TopK(0.1)]}, "up must be a str with a task; got "),
    "a seed": ({"seed": 1.5}, "seed must be an int with a task; got 1.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_a_task_cannot_take_are_refused(name):
    options, sentence = WRONG[name]
    with pytest.raises(rk.InputError, match=sentence):
        rk.compare(
            rk.tasks.HyperRep(hidden=4),
            {"a": rk.SimFBO(lr=rk.Rates(0.1))},
            **({"clients": 5, "progress": False} | options),
        )
