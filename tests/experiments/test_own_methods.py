"""Methods from outside, in a file of their own: first-class in run, compare, resume and report."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery.cli import main
from rookery.runs import folder as folder_module

# Without a future import, and with types by their qualified names: what a person writes who knows none of the house.
MINE = '''
import rookery as rk


@rk.struct
class Momentum(rk.State):
    m: rk.Sequences


@rk.method
class ClippedMomentum:
    """Server momentum with a clip.

    Args:
      beta: how much of the momentum is kept.
    """

    lr: rk.Rates
    beta: float = 0.9
    local_steps: rk.Steps = 1
    clip: float | None = None
    terms: int = 1
    loud: bool = rk.static(default=False)

    def init(self, problem, z):
        return Momentum(z, rk.first_round(), m=z.zeros())

    def round(self, state, cohort):
        m = self.beta * state.m + cohort.mean("steps", state.z)
        return state.next(z=cohort.project(state.z - self.lr.at(state.round) * m), m=m)

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), self.local_steps).q


class NoMethod:
    pass
'''

SMALL = ["--rounds", "6", "--clients", "6", "--cohort", "3", "--task.hidden", "4", "--every", "1"]


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_method_in_a_file_runs(mine, tmp_path, capsys):
    out = tmp_path / "run"
    options = ["--method.beta", "0.8", "--method.local-steps", "2e", "--method.lr.x", "0.05"]
    assert main(["run", "hyperrep", f"{mine}:ClippedMomentum", *SMALL, *options, "--out", str(out)]) == 0
    assert "ClippedMomentum" in capsys.readouterr().out
    config = json.loads((out / "config.json").read_text())
    assert config["method"] == {
        "class": "ClippedMomentum", "lr": {"class": "Rates", "x": 0.05, "y": 0.2, "v": 0.2}, "beta": 0.8,
        "local_steps": {"class": "Epochs", "low": 2, "high": None}, "clip": None, "terms": 1, "loud": False,
    }  # fmt: skip
    assert config["method_file"] == f"{mine}:ClippedMomentum" and len(config["method_source"]) == 64
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    assert "ClippedMomentum" in (tmp_path / "page.html").read_text()


def test_help_says_what_the_docstring_says(mine, capsys):
    with pytest.raises(SystemExit):
        main(["run", "hyperrep", f"{mine}:ClippedMomentum", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "how much of the momentum is kept" in shown and "--method.beta" in shown


def test_it_is_resumed_as_it_was_and_refused_as_another(mine, tmp_path, monkeypatch, capsys):
    real = folder_module.HistoryFile.__call__

    def call(self, number, row):
        real(self, number, row)
        if number == 3:
            raise KeyboardInterrupt

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = ["run", "hyperrep", f"{mine}:ClippedMomentum", *SMALL, "--checkpoint-every", "1"]
    assert main([*words, "--out", str(whole)]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(folder_module.HistoryFile, "__call__", call)
        assert main([*words, "--out", str(cut)]) == 130
    mine.write_text(MINE.replace("0.9", "0.95"))
    assert main(["resume", str(cut)]) == 2
    shown = capsys.readouterr()
    assert f"this runs the code in {mine}" in shown.out and "is not the file that this run was made with" in shown.err
    mine.write_text(MINE)
    assert main(["resume", str(cut)]) == 0
    one, two = (load_file(folder / "sequences.safetensors") for folder in (whole, cut))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_it_is_compared_with_others(mine, tmp_path, capsys):
    sizes = ["--clients", "6", "--cohort", "3", "--task.hidden", "4", "--exchanges", "4", "--seeds", "1"]
    words = ["compare", "hyperrep", "simfbo", f"{mine}:ClippedMomentum", f"{mine}:ClippedMomentum:beta=0.5", *sizes]
    assert main([*words, "--out", str(tmp_path / "both")]) == 0
    shown = capsys.readouterr().out
    assert "ClippedMomentum:beta=0.5" in shown and "simfbo" in shown
    assert main([*words, "--out", str(tmp_path / "both")]) == 0  # what is done is not done again
    names = [row["method"] for row in rk.Table.from_csv(tmp_path / "both" / "comparison.csv").rows]
    assert names == ["simfbo", "ClippedMomentum", "ClippedMomentum:beta=0.5"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("{mine}:NoMethod", "method: NoMethod was given, which is no method; make it one with @rk.method"),
        ("{mine}:ClipedMomentum", "has no class 'ClipedMomentum' (did you mean 'ClippedMomentum'?)"),
        ("{mine}x.py:A", "there is no such file"),
        ("simfboo", "method: 'simfboo' is not known (did you mean 'simfbo'?)"),
    ],
)
def test_what_is_no_method_is_refused(name, sentence, mine, tmp_path, capsys):
    assert main(["run", "hyperrep", name.format(mine=mine), *SMALL, "--out", str(tmp_path / "run")]) == 2
    assert sentence in capsys.readouterr().err
