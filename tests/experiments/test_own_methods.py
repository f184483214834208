"""Methods from outside, in a file of their own: first-class in run, compare, resume and report."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery import own_code
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


# Files beside the method's.

BESIDE = MINE.replace(
    "import rookery as rk", "import rookery as rk\nimport scaling_of_mine\nfrom parts_of_mine.more import HALF"
).replace("m = self.beta * state.m +", "m = HALF * 2 * scaling_of_mine.FACTOR * self.beta * state.m +")


@pytest.fixture
def beside(tmp_path):
    """A method's file, and two that it imports from its folder, one through the other."""
    (tmp_path / "code" / "parts_of_mine").mkdir(parents=True)
    path = tmp_path / "code" / "mine_beside.py"
    path.write_text(BESIDE)
    (tmp_path / "code" / "scaling_of_mine.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "code" / "parts_of_mine" / "__init__.py").write_text("")
    (tmp_path / "code" / "parts_of_mine" / "more.py").write_text(
        "import scaling_of_mine\nHALF = scaling_of_mine.FACTOR / 2\n"
    )
    kept = dict(own_code._LOADED), set(own_code._LATE), list(own_code._FOLDERS), list(sys.path)
    yield path
    for name in own_code._LOADED.keys() - kept[0].keys():
        sys.modules.pop(name, None)
    own_code._LOADED.clear()
    own_code._LOADED.update(kept[0])
    own_code._LATE.intersection_update(kept[1])
    own_code._FOLDERS[:], sys.path[:] = kept[2:]


def reached(folder):
    return load_file(folder / "sequences.safetensors")


def test_a_method_imports_the_files_beside_it(beside, mine, tmp_path, capsys):
    run = lambda name, out: main(["run", "hyperrep", name, *SMALL, "--out", str(tmp_path / out)])
    assert run(f"{beside}:ClippedMomentum", "one") == 0 and run(f"{mine}:ClippedMomentum", "plain") == 0
    one, plain = reached(tmp_path / "one"), reached(tmp_path / "plain")
    assert all(np.array_equal(one[name], plain[name]) for name in plain)
    (beside.parent / "scaling_of_mine.py").write_text("FACTOR = 0.5\n")  # in the same process, as in a notebook
    assert main(["resume", str(tmp_path / "one")]) == 2
    said = capsys.readouterr().err
    assert "is not the file that this run was made with" in said and f"remove or rename '{tmp_path / 'one'}'" in said
    assert run(f"{beside}:ClippedMomentum", "two") == 0
    two = reached(tmp_path / "two")
    assert any(not np.array_equal(two[name], plain[name]) for name in plain)


def test_files_beside_it_travel_with_a_federations_configuration(beside, tmp_path):
    """The sites are other processes, which have the configuration's folder alone."""
    words = ["hyperrep", f"{beside}:ClippedMomentum", *SMALL, "--rounds", "2", "--clients", "2", "--cohort", "0"]
    assert main(["federate", *words, "--sites", "2", "--out", str(tmp_path / "two")]) == 0
    kept = sorted(path.relative_to(tmp_path / "two/own").as_posix() for path in (tmp_path / "two/own").rglob("*.py"))
    assert kept == [
        "method/mine_beside.py", "method/parts_of_mine/__init__.py", "method/parts_of_mine/more.py",
        "method/scaling_of_mine.py",
    ]  # fmt: skip


def factor(path):
    return own_code.load_class(f"{path}:ClippedMomentum", "method").factor


def test_each_file_has_the_files_beside_it(beside, tmp_path):
    """Two folders with files of the same names in one process, one of them a copy that is changed then."""
    beside.write_text(f"{beside.read_text()}\nClippedMomentum.factor = scaling_of_mine.FACTOR\n")
    other = tmp_path / "other" / beside.name
    shutil.copytree(beside.parent, other.parent)
    first = own_code.load_class(f"{beside}:ClippedMomentum", "method")
    assert factor(other) == 1.0
    (other.parent / "scaling_of_mine.py").write_text("FACTOR = 0.25\n")
    assert (factor(other), factor(beside), first.factor) == (0.25, 1.0, 1.0)
    third = tmp_path / "third" / beside.name  # of which the package alone is as it was
    shutil.copytree(other.parent, third.parent)
    third.write_text(third.read_text() + "ClippedMomentum.factor = HALF\n")
    assert factor(third) == 0.125
    assert not list(tmp_path.rglob("*.pyc")), "which of two files written in one second it is of cannot be told"


def test_an_import_inside_a_function_of_a_module_that_changed_is_refused(beside):
    """It would find the new module, and the run would compute with half of the old code."""
    beside.write_text(f"{beside.read_text()}\n\ndef later():\n    import scaling_of_mine\n")
    assert own_code.load_class(f"{beside}:ClippedMomentum", "method")
    (beside.parent / "scaling_of_mine.py").write_text("FACTOR = 0.25\n")
    with pytest.raises(
        rk.InputError, match=r"mine_beside.py imports 'scaling_of_mine', and another version of it is load"
    ):
        own_code.load_class(f"{beside}:ClippedMomentum", "method")


def test_a_file_of_the_working_folder_is_not_taken_for_the_one_beside(beside, tmp_path, monkeypatch):
    (tmp_path / "scaling_of_mine.py").write_text("FACTOR = 7.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(rk.InputError, match=r"instead of the file beside it; rename one of them"):
        own_code.load_class(f"{beside}:ClippedMomentum", "method")


def test_installed_modules_come_before_files_beside(tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError\n")
    (tmp_path / "json.py").write_text("raise RuntimeError\n")
    (tmp_path / "plain.py").write_text("import json, numpy\nclass Plain: number = numpy.float64(json.loads('2'))\n")
    assert own_code.neighbours(tmp_path / "plain.py") == {}
    assert own_code.load_class(f"{tmp_path / 'plain.py'}:Plain", "method").number == 2


def test_a_run_of_a_comparison_with_other_code_says_what_to_remove(mine, tmp_path, capsys):
    words = ["compare", "hyperrep", f"{mine}:ClippedMomentum", "--exchanges", "3", "--seeds", "1", "--clients", "4"]
    words += ["--task.hidden", "4", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    mine.write_text(mine.read_text() + "\n# changed\n")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "holds a run with another code of the method" in said and "remove or rename that folder" in said


@pytest.mark.parametrize("command", ["federate", "run"])
def test_help_shows_the_usage_of_its_command(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "hyperrep", "simfbo", "--help"])
    assert f"usage: rookery {command} hyperrep simfbo" in capsys.readouterr().out
