"""Comparisons: what is made equal is equal, tuning sees no test set and spends its budget, done runs stay done."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.experiments.compare import Budget, Comparison, compare_in_folder, run_cell
from rookery.experiments.experiment import Experiment, Options
from rookery.experiments.tune import Cost, Grid, Tuning, choose, probe, settings, tune
from rookery.runs.table import Table
from rookery.tasks import base
from rookery.tasks.hyperrep import HyperRep

FEW = Options(clients=10, cohort=3)
EIGHT = Budget("exchanges", 8)


def of(method, name="simfbo"):
    return Experiment("hyperrep", HyperRep(hidden=4), name, method, FEW)


SIMFBO = of(rk.SimFBO(lr=rk.Rates(x=0.2, y=0.2, v=0.2)))
FEDBIOACC = of(rk.FedBiOAcc(lr=rk.Rates(x=0.2, y=0.2, v=0.2)), "fedbioacc")


def history(values, exchanges=1, bytes=100, gradients=10):
    rows = []
    for n, value in enumerate(values):
        row = {"round": n, "exchanges": n * exchanges, "bytes_up": n * bytes, "bytes_down": n * bytes}
        rows.append(row | {"gradients": n * gradients, "seconds": n * 0.5, "accuracy": value})
    return Table(rows)


def test_costs_to_a_target_and_values_at_equal_costs():
    slow, quick = history([0.1, 0.4, 0.9, 0.95]), history([0.1, 0.9, 0.8], exchanges=2, bytes=500, gradients=2)
    never = history([0.1, 0.2, 0.3, 0.4])
    comparison = Comparison("accuracy", False, {"a": [slow, never], "b": [quick, quick]}, target=0.85)
    assert (comparison.common("exchanges"), comparison.common("megabytes"), comparison.common("gradients")) == (
        3,
        6e-4,
        4,
    )
    a, b = comparison.table().rows
    assert (a["exchanges to target"], a["reached"], a["seconds to target"]) == (2, 1, 1.0)
    assert (b["exchanges to target"], b["reached"], b["megabytes to target"]) == (2, 2, 1e-3)
    assert a["final accuracy"] == pytest.approx((0.95 + 0.4) / 2)
    assert a["final accuracy spread"] == pytest.approx((0.95 - 0.4) / math.sqrt(2))  # of a sample: n - 1
    assert b["at equal exchanges"] == 0.9  # after two exchanges: four would be more than all have had
    assert b["at equal megabytes"] == 0.1 and a["at equal megabytes"] == pytest.approx((0.95 + 0.4) / 2)
    assert a["at equal gradients"] == pytest.approx(0.1) and b["at equal gradients"] == 0.8
    falling = Comparison("accuracy", True, {"a": [slow]}, target=0.05).table().rows[0]
    assert falling["reached"] == 0 and math.isnan(falling["exchanges to target"])


def test_a_probe_measures_a_round_that_is_not_the_first(tmp_path):
    assert (probe(SIMFBO).exchanges, probe(SIMFBO).gradients) == (1, 3 * 5)
    first = run_cell(dataclasses.replace(FEDBIOACC, options=dataclasses.replace(FEW, rounds=3)), tmp_path / "a").history
    assert probe(FEDBIOACC).exchanges == 2
    assert probe(FEDBIOACC).gradients == first["gradients"][3] - first["gradients"][2] != first["gradients"][1]


def test_measured_rates_are_compared_and_not_tuned():
    auto = of(rk.SimFBO(lr=rk.Rates("auto")))
    assert probe(auto) == probe(SIMFBO)  # of a round: the measuring comes before it
    rows = rk.compare(HyperRep(hidden=4), {"auto": auto.method}, exchanges=4, seeds=1, progress=False).table().rows
    assert rows[0]["method"] == "auto"
    with pytest.raises(rk.InputError, match="tune: SimFBO has rates that are no numbers"):
        tune(auto, 1000)


def test_candidates_scale_the_rates():
    grid = Grid.of(SIMFBO.method)
    places = grid.places()
    assert list(grid.dimensions) == ["lr.x", "the other step sizes", "server_lr"] and len(places) == 12
    assert grid.method((0.0, 0.0, 0.0)).lr["x"] == 0.2 and (0.0, 0.0, 0.0) in places
    numbers = {"lr.x": 0.2 / 9, "lr.y": 0.2 / 3, "lr.v": 0.2 / 3}
    of_server = {name.replace("lr", "server_lr"): value for name, value in numbers.items()}
    assert pytest.approx(grid.numbers(places[0])) == numbers | of_server
    assert all(method.lr["y"] == method.lr["v"] for method in map(grid.method, places))
    alone = Grid.of(rk.FedAvg(lr=rk.Rates(x=0.1)))
    found = sorted(alone.method(place).lr["x"] for place in alone.places())
    assert len(found) == 12 and found[0] == pytest.approx(0.1 / 32) and found[-1] == pytest.approx(1.6)
    own = Grid.of(rk.FedVRAU(lr=rk.Rates(x=0.1), client_lr=3.0))
    assert {round(own.method(place).client_lr, 9) for place in own.places()} == {1.0, 3.0, 9.0}
    with pytest.raises(rk.InputError, match="tune: SimFBO has rates that are no numbers"):
        Grid.of(rk.SimFBO(lr=rk.Rates(lambda round: 0.1)))


def test_what_a_field_marks_as_a_scale_is_tuned():
    nested = Grid.of(rk.FedNest(lr=rk.Rates(x=0.1, y=0.1), neumann_step=0.3))
    assert list(nested.dimensions) == ["lr.x", "lr.y", "neumann_step"] and len(nested.places()) == 12
    assert nested.method((0.0, 1.0, -1.0)).neumann_step == pytest.approx(0.1)
    own = Grid.of(rk.FedBiOLocal(lr=rk.Rates(x=0.1, y=0.1), hypergradient=rk.Neumann(5, 0.2)))
    assert list(own.dimensions)[-1] == "hypergradient.step"
    assert own.method((0.0, 0.0, 1.0)).hypergradient.step == pytest.approx(0.6)


class Valley:
    """A subject whose best is far from where its grid begins."""

    method_name, method, options = "valley", rk.SimFBO(lr=rk.Rates(x=1.0, y=1.0)), FEW

    def assemble(self, tuning=False):
        exact = rk.exact.QuadraticBilevel.random(clients=2, dims=(1, 1), seed=0)
        return base.Assembly(exact.problem, exact.clients, 0.0, main_metric="loss", falling=True)

    def arguments(self, assembly):
        return {"problem": assembly.problem, "clients": assembly.clients, "x": np.zeros(1), "y": np.zeros(1)}


@pytest.mark.parametrize(("depth", "found"), [(4, True), (40, False)])
def test_a_grid_is_widened_until_its_best_is_inside(monkeypatch, depth, found):
    budget = 24 * 4
    power = lambda method, name: math.log(method.lr[name]) / math.log(3)

    def tried(experiment, assembly, methods, rounds, every):
        depths = [(power(m, "x") - depth) ** 2 + (power(m, "y") + 3) ** 2 for m in methods]
        ledger = lambda: type("Ledger", (), {"gradients": rounds})()
        return [
            type("Result", (), {"history": Table([{"loss": depth}]), "status": "done", "ledger": ledger()})()
            for depth in depths
        ]

    monkeypatch.setattr("rookery.experiments.tune._try", tried)
    monkeypatch.setattr("rookery.experiments.tune.probe", lambda *_, **__: Cost(1, 1, 1))
    said = []
    best = tune(Valley(), budget, say=said.append)
    assert best.gradients <= budget
    if found:
        assert (round(power(best.method, "x")), round(power(best.method, "y"))) == (4, -3) and not best.edges
        assert any("the best is on the edge in lr.x, which is widened" in text for text in said)
    else:
        assert best.edges and "the budget ended with the best at the edge of what was tried in lr.x" in said[-1]


def test_tuning_keeps_to_its_budget_and_takes_the_best():
    found = tune(SIMFBO, budget=24 * 15 * 4)
    assert 12 * 15 * 4 <= found.gradients <= 24 * 15 * 4
    assert {row["rounds"] for row in found.table.rows} == {4}
    assert sum(row["stage"] == "grid" for row in found.table.rows) == 12
    highest = max(row["accuracy"] for row in found.table.rows)
    chosen = [row for row in found.table.rows if all(row[name] == value for name, value in found.chosen.items())]
    assert [row["accuracy"] for row in chosen] == [highest] and found.method.lr["x"] == found.chosen["lr.x"]
    with pytest.raises(rk.InputError, match="tune_budget must be at least 360 gradient evaluations for simfbo"):
        tune(SIMFBO, budget=100)


def test_tuning_never_sees_the_test_set(monkeypatch):
    honest = tune(SIMFBO, budget=3 * 15 * 36)
    monkeypatch.setattr("rookery.tasks.hyperrep.find_dataset", without_test_set)
    assert tune(SIMFBO, budget=3 * 15 * 36).table.rows == honest.table.rows


@pytest.mark.filterwarnings("ignore:the run diverged")
def test_when_every_candidate_diverges_it_is_said():
    wild = dataclasses.replace(SIMFBO, method=rk.SimFBO(lr=rk.Rates(1e30)))
    with pytest.raises(rk.InputError, match="tune: every candidate of simfbo diverged"):
        tune(wild, budget=3 * 15 * 100)


def test_a_choice_is_of_the_setting_that_is_best_all_along():
    method = lambda rate, steps=1: rk.SimFBO(lr=rk.Rates(rate), local_steps=steps)
    slow, good, wild = method(1e-6), method(0.2), method(1e30)
    found = choose(SIMFBO, [slow, wild, good, method(1e-6, steps=2)], exchanges=6)
    assert found.method is good and [row["rounds"] for row in found.table.rows] == [6] * 4
    curve = tried(good)["accuracy"][1:]
    row = next(row for row in found.table.rows if row["setting"] == settings(good))
    assert row["accuracy"] == pytest.approx(float(np.mean(curve)))
    lost = next(row for row in found.table.rows if row["setting"] == settings(wild))
    assert math.isnan(lost["accuracy"]) and found.gradients > 6 * 15 * 2
    with pytest.raises(rk.InputError, match="tune: every setting of simfbo diverged; give smaller rates"):
        choose(SIMFBO, [wild], exchanges=3)
    again = Tuning.from_json(json.loads(json.dumps(found.to_json())))
    assert settings(again.method) == settings(good) and again.gradients == found.gradients


def tried(method):
    """What one setting gives alone, on the data for tuning."""
    assembly = SIMFBO.assemble(tuning=True)
    return rk.run(method=method, rounds=6, every=1, **SIMFBO.arguments(assembly)).history


def test_a_choice_never_sees_the_test_set(monkeypatch):
    methods = [rk.SimFBO(lr=rk.Rates(rate)) for rate in (0.05, 0.2)]
    honest = choose(SIMFBO, methods, exchanges=4)
    monkeypatch.setattr("rookery.tasks.hyperrep.find_dataset", without_test_set)
    assert choose(SIMFBO, methods, exchanges=4).table.rows == honest.table.rows


def without_test_set(name, tuning=False, table=None):
    """The dataset for tuning as it is, and the other with a test set of zeros."""
    dataset = base.find_dataset(name, tuning, table)
    if tuning:
        return dataset
    return dataclasses.replace(dataset, test={key: np.zeros_like(array) for key, array in dataset.test.items()})


def test_settings_are_named_where_they_are_not_the_usual_ones():
    assert settings(rk.SimFBO(lr=rk.Rates(x=0.3, y=0.1, v=0.1))) == "lr 0.3 (x), 0.1 (y), 0.1 (v)"
    drifting = rk.FedBiO(lr=rk.Rates(0.1), local_steps=5, drift=rk.ControlVariates())
    falling = rk.FedBiO(lr=rk.Rates(0.1, x=rk.Decay(0.2)))
    assert settings(falling).startswith("lr 0.1 (default), Decay(rate=0.2, scale=1.0, power=0.333")
    assert settings(drifting) == "lr 0.1 (default); local_steps 5; drift ControlVariates()"


def test_a_comparison_is_gone_on_with(tmp_path):
    calls = []
    outcome = compare_in_folder({"a": SIMFBO, "b": FEDBIOACC}, tmp_path, budget=EIGHT, seeds=2, target=0.2)
    assert sorted(path.name for path in outcome.folders) == ["a-seed0", "a-seed1", "b-seed0", "b-seed1"]
    assert outcome.common("exchanges") >= 8
    assert [h["exchanges"][-1] for h in outcome.histories["b"]] == [8, 8]
    again = compare_in_folder(
        {"a": SIMFBO, "b": FEDBIOACC}, tmp_path, budget=EIGHT, seeds=2, target=0.2,
        callbacks=lambda folder: [lambda round, row: calls.append(round)],
    )  # fmt: skip
    assert not calls and again.table().rows[0]["final accuracy"] == outcome.table().rows[0]["final accuracy"]
    other = dataclasses.replace(SIMFBO, options=dataclasses.replace(FEW, partition="shards:2"))
    with pytest.raises(rk.InputError, match=r"out: .*a-seed0' holds a run with another partition; give another folder"):
        compare_in_folder({"a": other}, tmp_path, budget=EIGHT, seeds=1)


def test_cells_of_another_length_are_refused(tmp_path):
    run_cell(dataclasses.replace(SIMFBO, options=dataclasses.replace(FEW, rounds=2)), tmp_path / "cell")
    often = dataclasses.replace(FEW, rounds=2, checkpoint_every="1", tensorboard=True)  # on which no number depends
    run_cell(dataclasses.replace(SIMFBO, options=often), tmp_path / "cell")
    with pytest.raises(rk.InputError, match="holds a run with another rounds"):
        run_cell(dataclasses.replace(SIMFBO, options=dataclasses.replace(FEW, rounds=3)), tmp_path / "cell")


def test_the_command_compares_tunes_and_writes(tmp_path, capsys):
    small = ["--clients", "10", "--cohort", "3", "--task.hidden", "4", "--exchanges", "10", "--seeds", "2"]
    command = ["compare", "hyperrep", "simfbo", "simfbo:local-steps=2,lr.x=0.1", *small, "--target", "0.15", "--tune"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "tuned on validation data with" in shown and "exchanges to 0.15" in shown and "2 of 2" in shown
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files >= {"comparison.csv", "comparison.png", "report.html", "simfbo-seed0", "simfbo-seed1", "tuning"}
    assert Table.from_csv(tmp_path / "out" / "comparison.csv")["method"].tolist() == [
        "simfbo",
        "simfbo:local-steps=2,lr.x=0.1",
    ]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "12 candidates" not in capsys.readouterr().out  # what was found is kept
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html")]) == 0
    assert "<html" in (tmp_path / "page.html").read_text()


@pytest.mark.filterwarnings("ignore:the run diverged")
def test_a_run_that_diverges_spoils_no_comparison(tmp_path):
    wild = of(rk.SimFBO(lr=rk.Rates(1e30)), "wild")
    outcome = compare_in_folder({"a": SIMFBO, "wild": wild}, tmp_path, budget=EIGHT, seeds=1)
    a, b = outcome.table().rows
    assert (a["diverged"], b["diverged"]) == (0, 1) and outcome.common("exchanges") == 8
    assert math.isnan(b["final accuracy"]) and not math.isnan(a["at equal exchanges"])


def test_ties_go_to_the_loss_and_then_to_the_methods_own_rates(monkeypatch):
    class Same(HyperRep):
        def assemble(self, *arguments, **named):
            return dataclasses.replace(super().assemble(*arguments, **named), metrics=lambda z: {"accuracy": 0.5})

    found = tune(dataclasses.replace(SIMFBO, task=Same(hidden=4)), budget=3 * 15 * 36)
    assert found.method.lr["x"] == 0.2 and found.method.lr["y"] == 0.2
    with pytest.raises(rk.InputError, match="tune_budget must be a positive number of gradient evaluations; got nan"):
        tune(SIMFBO, budget=math.nan)
