"""Sweeps: one program for a grid, every row its own run, a diverged row is data."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import jax
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference
from properties.table import bed
from rookery.runs.sweep import Sweep, _Lanes

EXACT = bed("E1")
START = jax.tree.map(lambda leaf: leaf + 0.3, EXACT.start(leaves=2))
OPTIONS = {"rounds": 12, "every": 4, "precision": "float64", "batch_size": 2} | START


def metrics(z):
    return {"x": z.x["a"][0]}


def sweep(method, over, **options):
    return rk.sweep(EXACT.problem, method, EXACT.clients, over=over, metrics=metrics, **(OPTIONS | options))


def own(method, **options):
    return rk.run(EXACT.problem, method, EXACT.clients, metrics=metrics, **(OPTIONS | options))


def test_every_row_is_its_own_run_also_across_structures():
    method = rk.SimFBO(lr=rk.Rates(0.02, x=0.01))
    table = sweep(method, {"lr.x": [0.01, 0.05], "local_steps": [1, 3], "batch_size": [1, None]})
    assert len(table.rows) == 8 and table["lr.x"].tolist() == [0.01] * 4 + [0.05] * 4
    for row, result in zip(table.rows, table.results):
        single = own(
            rk.SimFBO(lr=rk.Rates(0.02, x=row["lr.x"]), local_steps=row["local_steps"]),
            batch_size=None if row["batch_size"] == "None" else row["batch_size"],
        )
        assert difference(single, result) <= 1e-12
        assert single.ledger == result.ledger
        np.testing.assert_allclose(single.history["x"], result.history["x"], atol=1e-12)
        assert single.history["round"].tolist() == result.history["round"].tolist()
        assert row["x"] == result.history["x"][-1]


def test_one_structure_is_one_program(compilations):
    method = rk.SimFBO(lr=rk.Rates(0.02))
    sweep(method, {"lr.default": [0.01, 0.02, 0.03], "seed": [0, 1]})
    with compilations.counted():
        sweep(method, {"lr.default": [0.04, 0.05, 0.06], "seed": [2, 3]})
    assert compilations.count == 0


def test_a_grid_is_cut_to_fit_the_memory():
    method = rk.SimFBO(lr=rk.Rates(0.02))
    whole = sweep(method, {"seed": [0, 1, 2, 3, 4]})
    parts = sweep(method, {"seed": [0, 1, 2, 3, 4]}, memory=200)
    for a, b in zip(whole.results, parts.results):
        assert difference(a, b) <= 1e-12


def test_a_diverged_row_is_data_and_disturbs_no_other():
    method = rk.SimFBO(lr=rk.Rates(0.02))
    table = sweep(method, {"lr.y": [0.02, 1e60]}, rounds=40)
    assert table["status"].tolist() == ["done", "diverged"]
    with pytest.warns(rk.DivergenceWarning):
        single = own(rk.SimFBO(lr=rk.Rates(0.02, y=1e60)), rounds=40)
    result = table.results[1]
    assert result.divergence == single.divergence
    for a, b in zip(result.state.leaves, single.state.leaves):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert result.ledger == single.ledger
    assert difference(own(rk.SimFBO(lr=rk.Rates(0.02, y=0.02)), rounds=40), table.results[0]) <= 1e-12


def test_rows_stop_at_their_targets():
    table = sweep(
        rk.SimFBO(lr=rk.Rates(0.02)), {"lr.x": [0.5, 1e-6]}, rounds=40, stop={"x": lambda x: abs(x - 0.3) > 0.01}
    )
    assert table["status"].tolist() == ["stopped", "done"]
    assert table["round"][0] < 40 == table["round"][1]


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({}, "over: {} was given; a mapping such as"),
        ({"lr.x": []}, "over: 'lr.x' has no values"),
        ({"sead": [1]}, "over: 'sead' is not known (did you mean 'seed'?)"),
        ({"server_lr.x": [1]}, "over: 'server_lr.x' was given, and server_lr is None in this method"),
        ({"lr.w": [1.0]}, "lr: there is no sequence 'w'"),
        ({"method": ["fedavg"]}, "method: str was given"),
    ],
)
def test_bad_grids_are_refused(over, sentence):
    with pytest.raises(rk.InputError) as error:
        sweep(rk.SimFBO(lr=rk.Rates(0.02)), over)
    assert sentence in str(error.value)


@rk.method
class Warmed(rk.FedNest):
    """FedNest that begins with steps on y alone."""

    def start(self, state, cohort):
        return dataclasses.replace(state, z=state.z.replace(y=self.solve_lower(cohort, state.z.x, state.z.y)))


def test_a_start_runs_in_every_lane_and_is_counted():
    method = Warmed(lr=rk.Rates(0.05), lower_steps=2)
    table = sweep(method, {"lr.y": [0.05, 0.1], "seed": [0, 1]}, rounds=3, every=3)
    for row, result in zip(table.rows, table.results):
        single = own(Warmed(lr=rk.Rates(0.05, y=row["lr.y"]), lower_steps=2), seed=row["seed"], rounds=3, every=3)
        assert difference(single, result) <= 1e-12 and single.ledger == result.ledger
        assert result.history["exchanges"].tolist() == [2, 2 + 3 * 10]
        plain = own(rk.FedNest(lr=rk.Rates(0.05, y=row["lr.y"]), lower_steps=2), seed=row["seed"], rounds=3, every=3)
        assert difference(plain, result) > 1e-6


def test_runs_may_have_data_of_their_own():
    """A function of the seed gives the clients; lanes of equal shapes still share a program."""

    def clients(seed):
        draw = np.random.default_rng(seed)
        return rk.federate([{"a": draw.normal(size=4 + (i == 0) * (seed == 7))} for i in range(3)])

    problem, method = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), rk.FedAvg(lr=rk.Rates(0.3))
    options = {"x": 0.0, "rounds": 5, "batch_size": 2, "precision": "float64"}
    table = rk.sweep(problem, method, clients, over={"seed": [0, 1, 7], "lr.default": [0.1, 0.2]}, **options)
    for row, result in zip(table.rows, table.results):
        rates = rk.FedAvg(lr=rk.Rates(row["lr.default"]))
        single = rk.run(problem, rates, clients(row["seed"]), seed=row["seed"], **options)
        assert abs(single.x - result.x) < 1e-14


def distance(z, centre):
    return {"distance": abs(z.x - centre)}


def test_metrics_may_have_arrays_of_their_own(compilations):
    clients = rk.federate([{"a": np.array([1.0, 2.0])}])
    problem, method = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), rk.FedAvg(lr=rk.Rates(0.3))
    metric = lambda seed: rk.Metric(distance, centre=np.float32(seed))
    table = rk.sweep(problem, method, clients, over={"seed": [3, 5]}, x=0.0, rounds=4, own_metrics=metric)
    x = table.results[0].x
    assert table["distance"].tolist() == pytest.approx([3 - x, 5 - x], rel=1e-6)
    options = {"x": 0.0, "rounds": 4, "seed": 3}
    assert rk.run(problem, method, clients, metrics=metric(3), **options).history["distance"][-1] == pytest.approx(
        3 - x
    )
    with compilations.counted():
        rk.run(problem, method, clients, metrics=metric(9), **options)
    assert compilations.count == 0


@pytest.fixture
def interrupted(monkeypatch):
    """Makes Ctrl-C come after a number of evaluations of a sweep, and gives what the sweep raises."""
    signals = signal.signal(signal.SIGINT, signal.default_int_handler)

    def sweeping(after, over):
        record, calls = _Lanes.record, []

        def counted(lanes, rounds):
            record(lanes, rounds)
            calls.append(rounds)
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(_Lanes, "record", counted)
        with pytest.raises(KeyboardInterrupt) as caught:
            sweep(rk.SimFBO(lr=rk.Rates(0.02)), over)
        monkeypatch.setattr(_Lanes, "record", record)
        return caught.value

    yield sweeping
    signal.signal(signal.SIGINT, signals)


def test_an_interrupted_sweep_keeps_what_was_done(interrupted):
    """The first point has ended, the second is under way, and the third has not begun."""
    error = interrupted(6, {"batch_size": [1, 2, 3]})
    assert isinstance(error, rk.Interrupted) and str(error) == "interrupted after 2 runs of a sweep"
    table: Any = error.result
    assert isinstance(table, Sweep) and table["batch_size"].tolist() == [1, 2]
    assert table["status"].tolist() == ["done", "interrupted"] and table["round"].tolist() == [12, 4]
    for row, result in zip(table.rows, table.results):
        rounds = result.state.round
        single = own(rk.SimFBO(lr=rk.Rates(0.02)), batch_size=row["batch_size"], rounds=rounds)
        assert rounds == row["round"] and single.ledger == result.ledger
        assert difference(single, result) <= 1e-12
        np.testing.assert_allclose(result.history["x"], single.history["x"], atol=1e-12)


def test_an_interrupt_before_the_first_round_of_a_sweep_keeps_nothing(interrupted):
    assert type(interrupted(1, {"batch_size": [1, 2]})) is KeyboardInterrupt
