"""The command: what it writes, what it says, how it ends."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery.algorithms.parts import read_drift as parse_drift
from rookery.algorithms.parts import read_estimator as parse_estimator
from rookery.algorithms.parts import read_set as parse_set
from rookery.algorithms.registry import METHODS
from rookery.cli import main
from rookery.cli.forms import parse_options
from rookery.federation.server import read_server as parse_server
from rookery.federation.steps import parse_steps
from rookery.runs import folder as folder_module
from rookery.tasks.registry import TASKS

SMALL = ["--rounds", "6", "--clients", "20", "--cohort", "4", "--task.hidden", "8"]
FILES = [
    "config.json",
    "events.jsonl",
    "history.csv",
    "plot.png",
    "result.json",
    "sequences.safetensors",
    "state.safetensors",
]


def test_a_run_leaves_a_whole_folder(tmp_path, capsys):
    out = tmp_path / "mine"
    options = ["--method.lr.x", "0.05", "--partition", "dirichlet:0.2", "--seed", "3", "--out", str(out)]
    assert main(["run", "hyperrep", "simfbo", *SMALL, *options]) == 0
    shown = capsys.readouterr().out
    assert f"results in {out}" in shown and "accuracy" in shown and "exchanges" in shown
    assert sorted(path.name for path in out.iterdir()) == FILES
    config = json.loads((out / "config.json").read_text())
    assert config["method"]["lr"] == {"class": "Rates", "x": 0.05, "y": 0.2, "v": 0.2}
    assert (config["seed"], config["partition"], config["clients"]) == (3, "dirichlet:0.2", 20)
    assert config["versions"]["jax"] and config["versions"]["rookery"] == rk.__version__
    assert load_file(out / "sequences.safetensors")["x.dense0.w"].shape == (64, 8)
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")
    result = rk.Result.load(out)
    assert result.history["round"].tolist() == list(range(7))
    assert set(result.history) >= {"accuracy", "loss", "bytes_up"}


def test_the_default_folder_is_named_after_time_task_and_method(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["run", "hyperrep", "fedbio", *SMALL]) == 0
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(names) == 2 and all("_hyperrep_fedbio" in name for name in names)


def test_the_command_is_the_library(tmp_path):
    """The same run by hand gives the same parameters."""
    out = tmp_path / "run"
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--method.local-steps", "1..3", "--out", str(out)]) == 0
    task = cast(Any, TASKS["hyperrep"])(hidden=8)
    parts = task.assemble(rk.IID(), clients=20, seed=0)
    method = rk.SimFBO(lr=rk.Rates(**task.rates), local_steps=rk.RandomSteps(1, 3))
    result = rk.run(
        parts.problem, method, parts.clients, x=parts.x, y=parts.y, rounds=6, sampling=rk.Uniform(4),
        batch_size=task.batch_size,
    )  # fmt: skip
    np.testing.assert_array_equal(load_file(out / "sequences.safetensors")["x.dense0.w"], result.x["dense0"]["w"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_given_from_the_shell(name):
    uses = METHODS[name].method.uses
    own = "x" if isinstance(uses, tuple) and "y" not in uses else "y"  # the options are those of what it uses
    flags = [f"--method.lr.{own}", "0.5", "--cohort", "7"]
    options = parse_options("hyperrep", TASKS["hyperrep"], METHODS[name], flags)
    assert isinstance(options.method, METHODS[name].method)
    assert options.method.lr[own] == 0.5 and options.method.lr["x"] == (0.5 if own == "x" else 0.2)
    assert options.run.cohort == 7
    for steps in ("local_steps", "upper_steps"):  # where it has any
        assert getattr(options.method, steps, 1) == 1


def test_a_graph_is_given_from_the_shell():
    options = parse_options("hyperrep", TASKS["hyperrep"], METHODS["gossip"], ["--method.mixing", "torus:4x5"])
    assert options.method.mixing == rk.Mixing(rk.Torus(4, 5))


def test_server_rates_are_given_whole_or_not_at_all():
    row, task = METHODS["simfbo"], TASKS["hyperrep"]
    flags = [part for name in "xyv" for part in (f"--method.server-lr.{name}", "0.3")]
    assert parse_options("hyperrep", task, row, flags).method.server_lr["v"] == 0.3
    assert parse_options("hyperrep", task, row, []).method.server_lr is None
    with pytest.raises(rk.InputError, match="server_lr: no rate for y; give all of x, y, v, or none"):
        parse_options("hyperrep", task, row, flags[:2])


def test_steps_as_text():
    assert parse_steps("local_steps", "5") == 5
    assert parse_steps("local_steps", "1..10") == rk.RandomSteps(1, 10)
    assert parse_steps("local_steps", "1,2,4") == rk.FixedSteps([1, 2, 4])
    with pytest.raises(rk.InputError, match="local_steps: 'many' was given; allowed are a number"):
        parse_steps("local_steps", "many")


def test_epochs_as_text():
    assert parse_steps("local_steps", "2e", epochs=True) == rk.Epochs(2)
    assert parse_steps("local_steps", "1..5e", epochs=True) == rk.Epochs(1, 5)
    with pytest.raises(rk.InputError, match="local_steps: '2e' was given"):
        parse_steps("local_steps", "2e")


def test_components_as_text():
    assert parse_drift("drift", "none") is None and parse_drift("drift", "control-variates") == rk.ControlVariates()
    duals = parse_drift("drift", "duals:0.5:2")
    assert (duals.gamma["x"], duals.a, duals.d) == (0.5, 2.0, rk.Duals().d)
    assert parse_drift("drift", "duals:0.5:2:3").d == 3.0
    assert str(parse_server("server", "sgd:0.5:0.9")) == "ServerOptimiser(sgd, learning_rate=0.5, momentum=0.9)"
    assert parse_server("server", "none") is None
    assert parse_set("client_set", "simplex") == rk.Simplex() and parse_set("client_set", "box:-1:2") == rk.Box(-1, 2)
    for parse, text in ((parse_drift, "duals"), (parse_server, "adam"), (parse_server, "lion:1"), (parse_set, "ball")):
        with pytest.raises(rk.InputError, match=f"it: '{text}' was given; allowed are none"):
            parse("it", text)


def test_a_family_method_runs_from_the_shell_and_warns(tmp_path, capsys):
    options = ["--rounds", "3", "--clients", "6", "--cohort", "3", "--task.hidden", "8", "--out", str(tmp_path / "run")]
    method = ["--method.d", "2", "--method.a", "9", "--method.local-steps", "1e", "--method.client-lr", "8"]
    assert main(["run", "semisupervised", "fedvrau", *options, *method]) == 0
    assert "warning: FedVRAU: (a + d) eta gamma Q~ is" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"]["d"] == 2.0 and config["method"]["local_steps"] == {
        "class": "Epochs",
        "low": 1,
        "high": None,
    }


def test_drift_control_runs_from_the_shell(tmp_path):
    options = ["--method.local-steps", "2", "--method.drift", "duals:1:0.5", "--method.server", "adam:0.01"]
    assert main(["run", "hyperrep", "simfbo", *SMALL, *options, "--out", str(tmp_path / "run")]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"]["drift"]["gamma"] == {"class": "Rates", "default": 1.0}
    assert config["method"]["server"] == {"class": "ServerOptimiser", "optimiser": "adam", "learning_rate": 0.01}


def test_estimators_as_text():
    assert parse_estimator("hypergradient", "neumann:3:0.5") == rk.Neumann(3, 0.5)
    assert parse_estimator("hypergradient", "cg:4") == rk.ConjugateGradient(4)
    assert parse_estimator("hypergradient", "tracked") == rk.Tracked()
    for text in ("cg", "neumann:3", "cg:x", "newton"):
        with pytest.raises(rk.InputError, match=r"hypergradient: .* was given; allowed are neumann:TERMS:STEP"):
            parse_estimator("hypergradient", text)


@pytest.mark.parametrize("name", ["fednest", "aggitd", "lfednest", "fedmsa"])
def test_two_loop_methods_run_from_the_shell(name, tmp_path, capsys):
    assert main(["run", "hyperrep", name, *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert rk.Result.load(tmp_path / "run").status == "done"


def test_methods_that_do_not_fit_a_task_say_so(tmp_path, capsys):
    assert main(["run", "riskaverse", "fednest", "--rounds", "2", "--out", str(tmp_path / "run")]) == 2
    assert "FedNest: it solves bilevel problems, and this one is compositional" in capsys.readouterr().err


def test_a_falling_metric_stops_below_its_target(tmp_path):
    options = ["--rounds", "400", "--clients", "10", "--target", "0.5", "--out", str(tmp_path / "run")]
    assert main(["run", "riskaverse", "simfbo", *options]) == 0
    result = rk.Result.load(tmp_path / "run")
    assert result.status == "stopped" and result.history["distance"][-1] <= 0.5 < result.history["distance"][0]


def test_list_shows_what_there_is(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (*METHODS, *TASKS, "iid", "shards", "dirichlet", "dirichlet-class"):
        assert name in shown


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"]])
def test_help(arguments, capsys):
    assert main(arguments) == 0
    assert "rookery run TASK METHOD" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rum"], "command: 'rum' is not known (did you mean 'run'?)"),
        (["list", "all"], "list: 'all' was given; it takes no arguments"),
        (["run"], "run: a task and a method are needed"),
        (["run", "hyperep", "simfbo"], "task: 'hyperep' is not known (did you mean 'hyperrep'?)"),
        (["run", "hyperrep", "simfob"], "method: 'simfob' is not known (did you mean 'simfbo'?)"),
        (["run", "hyperrep", "simfbo", "--roundz", "3"], "option: '--roundz' is not known (did you mean '--rounds'?)"),
        (["run", "hyperrep", "simfbo", "--method.lr.z", "3"], "option: '--method.lr.z' is not known"),
        (["run", "hyperrep", "simfbo", "--rounds", "0"], "rounds: 0 was given; a whole number of at least 1 is needed"),
        (
            ["run", "hyperrep", "simfbo", "--cohort", "200"],
            "cohort: 200 was given for 100 clients; at most that many are allowed",
        ),
        (
            ["run", "hyperrep", "simfbo", "--partition", "dirchlet:1"],
            "partition: 'dirchlet' is not known (did you mean",
        ),
        (["run", "hyperrep", "simfbo", "--clients", "5000"], "clients"),
        (["run", "hyperrep", "simfbo", "--task.data", "mnits"], "task.data: 'mnits' is not known"),
        (["run", "hyperrep", "simfbo", "--method.lr.x", "nan"], "lr.x: nan was given"),
        (["run", "hyperrep", "simfbo", "--clients", "0"], "clients, cohort: 0, None were given"),
    ],
)
def test_mistakes_get_a_sentence_and_leave_nothing(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("rookery: ") and sentence in shown and shown.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_folder_that_is_taken_or_cannot_be_made_is_refused_at_once(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--out", str(taken)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--out", str(taken / "file" / "inside")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert [path.name for path in taken.iterdir()] == ["file"]


def test_a_diverging_run_says_so_and_keeps_its_folder(tmp_path, capsys):
    out = tmp_path / "run"
    assert (
        main(["run", "hyperrep", "simfbo", *SMALL, "--rounds", "200", "--method.lr.y", "1e30", "--out", str(out)]) == 1
    )
    assert "the run diverged:" in capsys.readouterr().out
    assert rk.Result.load(out).status == "diverged"


def test_a_target_ends_the_run(tmp_path):
    out = tmp_path / "run"
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--rounds", "200", "--target", "0.3", "--out", str(out)]) == 0
    result = rk.Result.load(out)
    assert result.status == "stopped" and result.history["accuracy"][-1] >= 0.3


def test_ctrl_c_leaves_a_valid_folder(tmp_path):
    out = tmp_path / "run"
    # A shell lets what it starts in the background ignore Ctrl-C, and that would be inherited.
    heed = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start = f"{heed}; from rookery.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-u", "-c", start, "run", "hyperrep", "simfbo", "--rounds", "100000000"]
    environment = os.environ | {"PYTHONPATH": str(Path(rk.__file__).parents[1]), "COLUMNS": "200", "FORCE_COLOR": "1"}
    process = subprocess.Popen([*command, "--every", "10", "--out", str(out)], stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        shown, end = b"", time.monotonic() + 120
        while b"rounds/s" not in shown and time.monotonic() < end:
            time.sleep(0.1)
            shown += process.stdout.read() or b""
        process.send_signal(signal.SIGINT)
        os.set_blocking(process.stdout.fileno(), True)
        rest, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, (shown + rest)[-2000:]
    assert b"interrupted after round" in rest
    assert sorted(path.name for path in out.iterdir()) == sorted(["checkpoints", *FILES])
    result = rk.Result.load(out)
    assert result.status == "interrupted" and 0 < result.state.round < 100000000


def test_ctrl_c_while_compiling_says_what_was_kept(tmp_path, monkeypatch, capsys):
    def stopped(self, rounds):
        raise KeyboardInterrupt

    monkeypatch.setattr("rookery.engines.local.LocalSession.advance", stopped)
    assert main(["run", "hyperrep", "simfbo", "--out", str(tmp_path / "run")]) == 130
    assert "interrupted before the first round was done; nothing was kept" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_results_are_written_loses_nothing(tmp_path, monkeypatch, capsys):
    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("rookery.experiments.experiment.finish", stopped)
    out = tmp_path / "run"
    assert main(["run", "hyperrep", "simfbo", "--rounds", "3", "--out", str(out)]) == 130
    assert (
        f"rookery resume {out} goes on" in capsys.readouterr().out.replace("\n", " ")
        and (out / "history.csv").is_file()
    )
    monkeypatch.undo()
    assert main(["resume", str(out)]) == 0


def test_what_is_wrong_is_said_before_anything_is_compiled(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for options, sentence in [
        (["--cohort", "200"], "cohort: 200 was given for 100 clients"),
        (["--method.lr.x", "-1"], "lr.x: -1.0 was given; a step size is not negative"),
        (["--target", "90"], "target: 90 was given; accuracy is a part of 1, such as 0.9"),
    ]:
        assert main(["run", "hyperrep", "simfbo", *options, "--out", str(tmp_path / "run")]) == 2
        said = capsys.readouterr()
        assert sentence in said.err and "compiling" not in said.out + said.err


def test_what_clients_weigh_is_said(tmp_path, capsys):
    assert main(["run", "hyperrep", "simfbo", "--rounds", "1", "--clients", "5", "--out", str(tmp_path / "a")]) == 0
    assert "5 clients, 1438 examples, 287 to 288 each, weights by size, 0.2 to 0.2" in capsys.readouterr().out
    assert main(["run", "trust", "simfbo", "--rounds", "1", "--out", str(tmp_path / "b")]) == 0
    assert "4 clients, 591 examples, 37 to 242 each, weights by size, 0.0626 to 0.409" in capsys.readouterr().out


def test_odd_numbers_are_said(tmp_path, capsys):
    """A minibatch larger than every client, and rates of nothing: the run goes on, with a sentence."""
    command = ["run", "hyperrep", "simfbo", "--rounds", "1", "--batch-size", "50", "--method.lr.x", "0"]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "warning: batch_size: 50 was given, and no client has more than 8 examples" in said
    assert "lr.x is 0; x stays where it is" in said
    assert main(["run", "hyperrep", "simfbo", "--rounds", "1", "--out", str(tmp_path / "b")]) == 0
    assert "warning" not in capsys.readouterr().out, "the task's own minibatch is nobody's mistake"


def test_a_narrow_terminal_cuts_no_number(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--out", str(tmp_path / "run")]) == 0
    shown, row = capsys.readouterr().out, rk.Result.load(tmp_path / "run").history.rows[-1]
    for cell in (
        "simfbo",
        str(row["samples"]),
        f"{row['accuracy']:.4f}",
        f"{row['loss']:.4f}",
        f"{row['seconds']:.2f}",
    ):
        assert cell in shown


def test_a_task_in_a_file_is_resumed_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "from dataclasses import dataclass\nfrom rookery.tasks.hyperrep import HyperRep\n\n\n"
    (tmp_path / "mine.py").write_text(text + '@dataclass(frozen=True)\nclass Mine(HyperRep):\n    """Mine."""\n')
    assert main(["run", "mine.py:Mine", "simfbo", *SMALL, "--out", "run"]) == 0
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["resume", "../run"]) == 0


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: (run / "config.json").write_text("{"), "config.json in"),
        (lambda run: (run / "result.json").write_text("{"), "result.json in"),
        (lambda run: (run / "state.safetensors").unlink(), "the result in"),
        (lambda run: _change(run / "config.json", clients="ten"), "it does not describe an experiment"),
    ],
)
def test_damaged_folders_get_a_sentence(damage, sentence, tmp_path, capsys):
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--out", str(tmp_path / "run")]) == 0
    damage(tmp_path / "run")
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")


def _change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# Folders that were stopped, damaged, or are somebody else's


def interrupted(tmp_path, monkeypatch, words=("hyperrep", "simfbo"), at=4):
    """A run that was interrupted after some rounds, with its checkpoints."""
    real = folder_module.HistoryFile.__call__

    def call(self, number, row):
        real(self, number, row)
        if number == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.HistoryFile, "__call__", call)
        out = tmp_path / "cut"
        assert main(["run", *words, *SMALL, "--every", "1", "--checkpoint-every", "2", "--out", str(out)]) == 130
    return out


def test_good_checkpoints_are_used_without_their_plan(tmp_path, monkeypatch, capsys):
    out = interrupted(tmp_path, monkeypatch)
    for damage in (Path.unlink, lambda path: path.write_text("{")):
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(out, copy)
        damage(copy / "checkpoints" / "run.json")
        assert main(["resume", str(copy)]) == 0
        assert rk.Result.load(copy).history["round"].tolist() == list(range(7))
    begun = [line for line in capsys.readouterr().out.split("\n") if "results in" in line]
    assert len(begun) == 3


def test_a_history_that_was_cut_is_mended(tmp_path, monkeypatch):
    out = interrupted(tmp_path, monkeypatch)
    text = (out / "history.csv").read_text()
    (out / "history.csv").write_text(text[:-30])
    assert main(["resume", str(out)]) == 0
    assert rk.Result.load(out).history["round"].tolist() == list(range(7))


def test_a_task_in_a_file_is_run_again_only_as_it_was(tmp_path, monkeypatch, capsys):
    text = "from dataclasses import dataclass\nfrom rookery.tasks.hyperrep import HyperRep\n\n\n"
    mine = tmp_path / "mine.py"
    mine.write_text(text + '@dataclass(frozen=True)\nclass Mine(HyperRep):\n    """Mine."""\n')
    out = interrupted(tmp_path, monkeypatch, (f"{mine}:Mine", "simfbo"))
    marker = tmp_path / "marker"
    mine.write_text(mine.read_text() + f"\nopen({str(marker)!r}, 'w').close()\n")
    capsys.readouterr()
    assert main(["resume", str(out)]) == 2
    shown = capsys.readouterr()
    assert f"this runs the code in {mine}, if its sha256 is the one that the run recorded" in shown.out
    assert "is not the file that this run was made with" in shown.err
    with pytest.raises(rk.InputError, match="is not the file that this run was made with"):
        rk.resume(out)
    _change(out / "config.json", task_source=None)
    assert main(["resume", str(out)]) == 2
    assert not marker.exists()
    mine.write_text(mine.read_text().split("\nopen(")[0] + "\n")
    _change(out / "config.json", task_source=hashlib.sha256(mine.read_bytes()).hexdigest())
    assert main(["resume", str(out)]) == 0


@pytest.mark.parametrize("file", ["sequences.safetensors", "state.safetensors", "history.csv"])
def test_damage_to_the_results_of_an_ended_run_is_noticed(file, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "hyperrep", "simfbo", *SMALL, "--out", str(out)]) == 0
    content = bytearray((out / file).read_bytes())
    content[-3] ^= 1
    (out / file).write_bytes(bytes(content))
    assert main(["resume", str(out)]) == 2
    assert f"{file} in" in capsys.readouterr().err
    with pytest.raises(rk.InputError, match=f"{file} in .* is damaged: it does not match its checksum"):
        rk.Result.load(out)


COMPARE = [
    "compare",
    "hyperrep",
    "simfbo",
    "--clients",
    "20",
    "--cohort",
    "4",
    "--task.hidden",
    "8",
    "--exchanges",
    "2",
]


def test_a_comparison_that_is_refused_leaves_nothing(tmp_path, capsys):
    out = tmp_path / "both"
    for wrong in (["--batch-size", "-3"], ["--partition", "nonsense"], ["--precision", "float64", "--seed", "-1"]):
        assert main([*COMPARE, "--seeds", "1", *wrong, "--out", str(out)]) == 2
        assert not out.exists()
    out.mkdir()
    assert main([*COMPARE, "--seeds", "1", "--batch-size", "-3", "--out", str(out)]) == 2
    assert list(out.iterdir()) == []
    assert main([*COMPARE, "--seeds", "1", "--out", str(out)]) == 0


@pytest.mark.parametrize(
    ("other", "what"),
    [(["--seed", "7"], "seed"), (["--partition", "shards:2"], "partition"), (["--task.ridge", "0.5"], "task options")],
)
def test_another_comparison_does_not_overwrite_a_table(other, what, tmp_path, capsys):
    out = tmp_path / "both"
    assert main([*COMPARE, "--seeds", "1", "--out", str(out)]) == 0
    before = (out / "comparison.csv").read_bytes()
    assert main([*COMPARE, "--seeds", "1", *other, "--out", str(out)]) == 2
    assert f"holds a comparison with other {what}" in capsys.readouterr().err
    assert (out / "comparison.csv").read_bytes() == before
    assert main([*COMPARE, "--seeds", "1", "--target", "0.5", "--out", str(out)]) == 0  # only what is shown


def test_what_the_machine_cannot_hold_is_refused(tmp_path, capsys):
    for words, sentence in (
        (
            ["hyperrep", "simfbo", "--batch-size", "2000000000"],
            "batch_size: 2000000000 was given; a minibatch of it takes",
        ),
        (["hyperrep", "simfbo", "--task.hidden", "2000000000"], "the network takes"),
        (["classify", "fedavg", "--task.widths", "99999999999", "4"], "the network takes"),
        (["riskaverse", "simfbo", "--task.dimension", "999999999"], "task.dimension: 999999999 was given"),
        (["riskaverse", "simfbo", "--task.examples", "9999999999999"], "task.examples: 9999999999999 was given"),
        (["hyperrep", "fedbioacc", "--method.first-batch", "2000000000"], "a minibatch of it takes"),
        (["hyperrep", "simfbo", "--method.local-steps", "9" * 5000], "local_steps: "),
    ):
        assert main(["run", *words, "--out", str(tmp_path / "run")]) == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("command", "option"), {"run": "--rounds", "compare": "--megabytes"}.items())
def test_options_are_shown_without_a_task(command, option, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert option in shown and "--cohort" in shown and "--help after them" in shown.replace("\n", " ")


def test_a_target_that_was_not_reached_is_said(tmp_path, capsys):
    small = ["--clients", "5", "--rounds", "2", "--out", str(tmp_path / "out")]
    assert main(["run", "classify", "fedavg", *small, "--target", "0.999"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "the target was not reached: accuracy 0.999 was asked for, and the best was 0." in said
