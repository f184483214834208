"""Experiments: what a folder holds makes the run again, a killed command goes on, and nothing half-written stays."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.cli import main
from rookery.cli.forms import parse_options
from rookery.experiments.codec import decode, encode
from rookery.experiments.experiment import Experiment, Options, launch, resume_folder
from rookery.runs import run as runs
from rookery.tasks.hyperrep import HyperRep

PARTS = [
    rk.SimFBO(lr=rk.Rates(x=0.1, y=0.2, v=0.3), drift=rk.Duals(rk.Rates(1.0), 0.5), local_steps=rk.RandomSteps(1, 3)),
    rk.SimFBO(lr=rk.Rates(0.1), local_steps=rk.FixedSteps([1, 2]), coefficients=(1.0, 0.5)),
    rk.FedVRAU(lr=0.1, gamma=0.1, a=1.0, client_lr=0.1, client_set=rk.Box(-1.0, 1.0)),
    rk.FedVRA(lr=rk.PerClient([0.1, 0.2]), local_steps=rk.Epochs(2, 5), d="equal-progress"),
    rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=rk.ConjugateGradient(4)),
    rk.FedAdam(lr=0.1),
    rk.FedBiO(lr=rk.Rates(0.1, x=rk.Decay(0.2, scale=10.0, power=0.5))),
    rk.SimFBO(lr=rk.Rates(0.1), server={"x": rk.FedAdam(lr=0.1).server}),
]


@pytest.mark.parametrize("method", PARTS, ids=lambda method: type(method).__name__)
def test_methods_come_back_from_json(method):
    again = decode(json.loads(json.dumps(encode(method))))
    assert jax.tree.structure(again) == jax.tree.structure(method)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(method), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_command_comes_back_from_json(name):
    method = parse_options("hyperrep", HyperRep, METHODS[name], []).method
    again = decode(json.loads(json.dumps(encode(method))))
    assert encode(again) == encode(method) and jax.tree.structure(again) == jax.tree.structure(method)


@pytest.mark.parametrize(("method", "cohort"), [("simfbo", rk.Uniform(10)), ("gossip", rk.All())])
def test_a_cohort_is_ten_clients_unless_the_method_needs_all(method, cohort):
    made = parse_options("hyperrep", HyperRep, METHODS[method], []).method
    experiment = Experiment("hyperrep", HyperRep(hidden=4), method, made, Options(clients=20))
    assert experiment.arguments(experiment.assemble())["sampling"] == cohort


def test_what_no_folder_can_hold_is_refused():
    with pytest.raises(rk.InputError, match=r"method.lr.x: <function .* was given; a run's folder can hold numbers"):
        encode(rk.SimFBO(lr=rk.Rates(0.1, x=lambda round: 0.1 / (1 + round))))


def experiment(**options):
    small = {"rounds": 12, "clients": 10, "cohort": 3, "every": 5, "checkpoint_every": "2", **options}
    method = rk.SimFBO(lr=rk.Rates(0.1), local_steps=2, drift=rk.ControlVariates())
    return Experiment("hyperrep", HyperRep(hidden=4), "simfbo", method, Options(**small))


def test_an_experiment_comes_back_from_its_folder(tmp_path):
    result, folder = launch(experiment(), tmp_path / "run")
    again = Experiment.from_json(json.loads((folder / "config.json").read_text()))
    assert encode(again.method) == encode(experiment().method)
    assert dataclasses.replace(again, method=None) == dataclasses.replace(experiment(), method=None)
    assert not (folder / "checkpoints").exists() and rk.resume(folder).status == "done"
    np.testing.assert_array_equal(rk.resume(folder).state.leaves[0], result.state.leaves[0])


class Stop(Exception):
    pass


def fail_after(round):
    def callback(now, row):
        if now >= round:
            raise Stop

    return lambda folder: [callback]


def test_a_run_that_failed_goes_on_bit_for_bit(tmp_path):
    with pytest.raises(Stop):
        launch(experiment(), tmp_path / "run", fail_after(10))
    there = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert there == ["checkpoints", "config.json", "events.jsonl", "history.csv"]
    assert rk.Table.from_csv(tmp_path / "run" / "history.csv")["round"].tolist() == [0, 5, 10]
    result, whole = rk.resume(tmp_path / "run"), launch(experiment(), tmp_path / "whole")[0]
    for a, b in zip(result.state.leaves, whole.state.leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    timeless = lambda table: [{k: v for k, v in row.items() if k != "seconds"} for row in table.rows]
    assert timeless(result.history) == timeless(whole.history) and result.ledger == whole.ledger
    assert timeless(rk.Result.load(tmp_path / "run").history) == timeless(whole.history)


def test_a_run_stopped_before_its_first_checkpoint_begins_again(tmp_path):
    launch(experiment(), tmp_path / "whole")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    assert resume_folder(tmp_path / "run")[0].history["round"].tolist() == [0, 5, 10, 12]


def test_a_killed_command_is_resumed_by_the_command(tmp_path, capsys):
    options = ["--rounds", "400", "--clients", "10", "--cohort", "3", "--task.hidden", "4", "--every", "50"]
    base = ["run", "hyperrep", "simfbo", *options]
    command = [sys.executable, "-m", "rookery.cli", *base, "--checkpoint-every", "1", "--out", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(Path(rk.__file__).parents[1])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while len(list((tmp_path / "run").glob("checkpoints/round-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "run" / "result.json").exists()
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert f"results in {tmp_path / 'run'}" in capsys.readouterr().out.replace("\n", "")
    assert main([*base, "--out", str(tmp_path / "whole")]) == 0
    resumed, whole = rk.Result.load(tmp_path / "run"), rk.Result.load(tmp_path / "whole")
    for a, b in zip(resumed.state.leaves, whole.state.leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    assert resumed.history["accuracy"].tolist() == whole.history["accuracy"].tolist()
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert "has ended; there is nothing to go on with" in capsys.readouterr().out.replace("\n", " ")


def test_pandas_reads_a_history_in_one_line(tmp_path):
    pandas = pytest.importorskip("pandas")
    result, folder = launch(experiment(), tmp_path / "run")
    assert pandas.DataFrame(dict(result.history))["accuracy"].tolist() == result.history["accuracy"].tolist()
    assert pandas.read_csv(folder / "history.csv").columns.tolist() == list(result.history)


def test_a_comparison_goes_nowhere_else(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["compare", "hyperrep", "simfbo", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    small = ["--clients", "10", "--cohort", "3", "--task.hidden", "4", "--exchanges", "3", "--seeds", "1"]
    assert main(["compare", "hyperrep", "simfbo", *small, "--out", str(tmp_path / "out")]) == 0
    assert main(["compare", "hyperrep", "fedbio", *small, "--out", str(tmp_path / "out")]) == 0
    there = rk.Table.from_csv(tmp_path / "out" / "comparison.csv")
    assert there["method"].tolist() == ["simfbo", "fedbio"]  # the one that was there stays part of it
    other = [*small[:-1], "2", "--out", str(tmp_path / "out")]
    assert main(["compare", "hyperrep", "fedbio", *other]) == 2
    assert "holds a comparison with other seeds" in capsys.readouterr().err.replace("\n", " ")
    page = str(tmp_path / "page.html")
    assert main(["report", "-o", page, str(tmp_path / "out")]) == 0 and Path(page).is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["resume"], "resume: the folder of one run is needed"),
        (["resume", "nowhere"], "run: 'nowhere' holds no config.json; the folder of a run is needed"),
        (["run", "hyperrep", "simfbo", "--checkpoint-every", "soon"], "checkpoint every: 'soon' was given"),
        (["run", "hyperrep", "simfbo", "--keep", "0"], "keep: 0 was given"),
        (["compare", "hyperrep"], "compare: a task and methods are needed"),
        (["compare", "hyperrep", "simfbo", "simfbo"], "compare: a method was given twice"),
        (
            ["compare", "hyperrep", "simfbo:5"],
            "method: 'simfbo:5' was given; options follow as in simfbo:local-steps=5",
        ),
        (
            ["compare", "hyperrep", "simfbo:local-stepz=5"],
            "method: 'simfbo:local-stepz=5' was given, and in it option: 'local-stepz'",
        ),
        (["compare", "hyperrep", "simfbo", "SimFBO"], "compare: a method was given twice"),
        (["compare", "hyperrep", "simfbo", "--tune-budget", "nan"], "tune budget: nan was given"),
        (["run", "hyperrep", "simfbo", "more"], "run: 'more' was given after the task and the method"),
        (["run", "hyperrep", "simfbo", "--target", "nan"], "target: nan was given"),
        (["run", "hyperrep", "simfbo", "--clients", "1", "--cohort", "2"], "cohort: 2 was given for 1 clients"),
        (["data", "digits", "--plot", "--out", "a.foo"], "out: 'a.foo' was given; the name of a png is needed"),
        (["compare", "hyperrep", "simfbo", "--seeds", "0"], "seeds: 0 was given; at least 1 is needed"),
        (["report"], "report: the folders of some runs are needed"),
        (["report", "nowhere"], "nowhere"),
        (["data"], "data: the name of one dataset is needed"),
        (["data", "digit"], "data: 'digit' is not known (did you mean 'digits'?)"),
        (["data", "digits", "--partition", "shard"], "partition: 'shard' is not known"),
    ],
)
def test_mistakes_get_a_sentence_and_leave_nothing(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert sentence in shown and "Traceback" not in shown
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_data_shows_and_draws_a_partition(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "digits", "--partition", "shards:2", "--clients", "20", "--plot"]) == 0
    shown = capsys.readouterr().out
    assert "1438 training and 359 test examples of 8 x 8 x 1, 10 classes" in shown and "plot in" in shown
    assert (tmp_path / "digits_shards-2.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_ctrl_c_removes_nothing_that_was_done(tmp_path, monkeypatch):
    """Ctrl-C in a round, and again while what was done is put together: the checkpoints stay, and it goes on."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def at_ten(round, row):
        if round == 10:
            interrupt()

    monkeypatch.setattr(runs._Loop, "interrupted", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch(experiment(), tmp_path / "run", lambda folder: [at_ten])
    monkeypatch.undo()
    assert rk.resume(tmp_path / "run").history["round"].tolist() == [0, 5, 10, 12]


def test_ctrl_c_before_the_first_round_leaves_nothing(tmp_path):
    def interrupt(round, row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(experiment(), tmp_path / "run", lambda folder: [interrupt])
    assert not (tmp_path / "run").exists()
