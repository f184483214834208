"""`rk.compare` and `rk.tune`: what the command does, from Python."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.cli import main

CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 5.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
METHODS = {"FedAvg": rk.FedAvg(lr=0.1), "two steps": rk.FedAvg(lr=0.1, local_steps=2)}
GIVEN = {"metrics": lambda z: {"gap": jnp.abs(z.x - 2.75)}, "metric": "gap", "falling": True, "x": 0.0}


def compared(methods=METHODS, **options):
    return rk.compare(PROBLEM, methods, CLIENTS, **({"progress": False, "seeds": 2} | GIVEN | options))


def test_methods_on_a_problem_get_the_same_exchanges():
    found = compared(exchanges=7, target=1.0)
    assert [history["exchanges"][-1] for runs in found.histories.values() for history in runs] == [7] * 4
    table = found.table()
    assert table["method"].tolist() == ["FedAvg", "two steps"]
    np.testing.assert_allclose(table["final gap"], [2.75 * 0.9**7, 2.75 * 0.9**14], rtol=1e-5)
    assert table["reached"].tolist() == [0, 2] and table["exchanges to target"][1] == 5
    said, head, first, second, *_ = str(found).splitlines()
    assert said == "gap: lower is better (falling=True); 2 seeds: mean ± sample deviation"
    assert head.startswith("method     at 7 exchanges (final)") and second.startswith("two steps  0.6291 ± 0")
    assert len({line.index(word) for line, word in ((head, "at 7"), (first, "1.315"), (second, "0.629"))}) == 1
    assert "exchanges to 1" in head and "never" in first and "2 of 2" in second


@pytest.mark.parametrize(("axis", "spent"), {"megabytes": 24e-6 * 8, "gradients": 12}.items())
def test_or_the_same_bytes_or_gradients(axis, spent):
    found = compared(**{axis: spent, "seeds": 1})
    column = {
        "megabytes": lambda h: (h["bytes_up"] + h["bytes_down"])[-1] / 1e6,
        "gradients": lambda h: h["gradients"][-1],
    }
    totals = [column[axis](found.histories[name][0]) for name in METHODS]
    assert all(spent - 1e-12 <= total for total in totals)
    if axis == "gradients":
        assert totals == [12, 12] and [len(h[0]["round"]) for h in found.histories.values()] == [7, 4]


def test_a_folder_has_the_table_the_plot_the_report_and_the_runs(tmp_path):
    found = compared(exchanges=3, out=tmp_path / "out")
    there = {path.name for path in (tmp_path / "out").iterdir()}
    runs = {"FedAvg-seed0", "FedAvg-seed1", "two_steps-seed0", "two_steps-seed1"}
    assert there >= {"comparison.csv", "comparison.png", "report.html"} | runs
    assert "<html" in (tmp_path / "out" / "report.html").read_text() and len(found.folders) == 4
    again = rk.Result.load(tmp_path / "out" / "FedAvg-seed0")
    np.testing.assert_allclose(again.x, 2.75 * (1 - 0.9**3), rtol=1e-5)
    with pytest.raises(rk.InputError, match=r"out: .* is there already; give a new or empty folder"):
        compared(exchanges=3, out=tmp_path / "out")
    with pytest.raises(rk.InputError, match="report: the runs of this comparison were not kept"):
        compared(exchanges=2, seeds=1).report(tmp_path / "page.html")


def test_tuning_a_problem_finds_its_rate():
    """One step with rate 1 solves it: whatever it begins with, the grid is widened up to that."""
    found = rk.tune(PROBLEM, rk.FedAvg(lr=0.01), CLIENTS, budget=2 * 9 * 12, progress=False, **GIVEN)
    assert abs(np.log(found.method.lr["x"])) < np.log(1.8) and not found.edges
    table = compared({"FedAvg": rk.FedAvg(lr=0.01)}, exchanges=3, seeds=1, tune=True, tune_budget=2 * 9 * 12)
    assert table.tunings["FedAvg"].method.lr["x"] == found.method.lr["x"]
    assert table.table()["final gap"][0] < 0.3


def test_a_task_from_python_is_the_task_of_the_command(tmp_path, capsys):
    few = {"clients": 10, "cohort": 3, "exchanges": 4, "seeds": 1}
    methods = {"simfbo": rk.SimFBO(lr=rk.Rates(x=0.1, y=0.1, v=0.1))}
    python = rk.compare(rk.tasks.HyperRep(hidden=4), methods, progress=False, **few)
    command = ["compare", "hyperrep", "simfbo:lr.x=0.1,lr.y=0.1,lr.v=0.1", "--task.hidden", "4"]
    command += [word for name, value in few.items() for word in (f"--{name}", str(value))]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    there = rk.Table.from_csv(tmp_path / "out" / "comparison.csv")
    np.testing.assert_allclose(there["final accuracy"], python.table()["final accuracy"])
    capsys.readouterr()


def test_a_method_is_added_to_a_comparison(tmp_path, capsys):
    """Only the new one is run."""
    small = ["--task.hidden", "4", "--clients", "10", "--cohort", "3", "--exchanges", "3", "--seeds", "1"]
    out = ["--out", str(tmp_path / "out")]
    assert main(["compare", "hyperrep", "simfbo", *small, *out, "--tune"]) == 0
    before = (tmp_path / "out" / "simfbo-seed0" / "result.json").stat().st_mtime_ns
    assert main(["compare", "hyperrep", "fedbio", *small, *out, "--tune"]) == 0
    described = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (
        described["tunings"].keys() == {"simfbo", "fedbio"} and "server_lr.x" in described["tunings"]["simfbo"]["grid"]
    )
    assert (tmp_path / "out" / "simfbo-seed0" / "result.json").stat().st_mtime_ns == before
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["methods"] == ["simfbo", "fedbio"]
    assert rk.Table.from_csv(tmp_path / "out" / "comparison.csv")["method"].tolist() == ["simfbo", "fedbio"]
    assert main(["compare", "hyperrep", "simfbo", *small[:-2], "--seeds", "2", *out, "--tune"]) == 2
    assert "holds a comparison with other seeds" in capsys.readouterr().err


WRONG = {
    "no methods": ({"methods": {}}, "methods: {} was given; a mapping such as"),
    "a class": ({"methods": {"a": rk.FedAvg}}, "methods: 'a': <class .*> was given; a label and a method are needed"),
    "two budgets": ({"exchanges": 3, "gradients": 4}, "exchanges, gradients: all were given"),
    "no budget": ({"exchanges": 0}, "exchanges: 0 was given; a positive number from 1"),
    "no metrics": ({"metrics": None}, "metrics: none was given; methods are compared by one"),
    "an option of tasks": ({"partition": "iid"}, "options: 'partition' is not known"),
    "another metric": ({"metric": "loss"}, "metric: 'loss' was given; the metrics are gap"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name):
    options, sentence = WRONG[name]
    with pytest.raises(rk.InputError, match=sentence):
        compared(**options)


def test_a_task_has_its_own_metrics():
    with pytest.raises(rk.InputError, match="metrics: it was given with a task, which has its own"):
        rk.compare(rk.tasks.HyperRep(), {"a": rk.SimFBO(lr=rk.Rates(0.1))}, metrics=lambda z: {})
    with pytest.raises(rk.InputError, match="problem: 3 was given; a problem such as"):
        rk.compare(3, {"a": rk.SimFBO(lr=rk.Rates(0.1))})
