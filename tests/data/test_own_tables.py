"""Tables of one's own on the command line and from Python: label, categories, missing values, scaling."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.data.own_tables import KNOWN_LABELS, choose_label
from rookery.tasks.base import OnData
from rookery.tasks.registry import TASKS

HEADER = "age,bp,{label},flag"


def write_site(path, label="diagnosis", rows=40, seed=0, swap=None):
    """A csv file whose last column is a flag and not the label."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 80, rows)
    lines = [f"{a},{rng.normal():.3f},{int(a > 50)},{int(rng.integers(2))}" for a in age]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADER.format(label=label), *lines]) + "\n")
    return path


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", [*KNOWN_LABELS, "Outcome", "Class"])
def test_one_known_name_is_the_label_wherever_it_stands(name):
    assert choose_label([name, "age", "flag"]) == name


def test_a_given_label_wins_over_a_known_name():
    assert choose_label(["label", "age", "flag"], "flag") == "flag"


@pytest.mark.parametrize(
    ("columns", "label", "sentence"),
    [
        (["age", "bp", "flag"], "", "label must be named: no column of age, bp, flag is called label, target,"),
        (["target", "age", "y"], "", "label must be named: target and y could both be it"),
        (["age", "bp"], "agee", "label: 'agee' is not known (did you mean 'age'?); allowed are age, bp"),
    ],
)
def test_an_unclear_label_is_refused_with_a_remedy(columns, label, sentence):
    with pytest.raises(rk.InputError) as raised:
        choose_label(columns, label)
    assert sentence in str(raised.value)
    assert label or "--task.label NAME" in str(raised.value)


def test_the_command_does_not_take_the_last_column_as_the_label(tmp_path, capsys):
    data = write_site(tmp_path / "a.csv", label="sick")
    command = ["run", "classify", "fedavg", "--task.data", f"csv:{data}", "--rounds", "1", "--clients", "2"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "age, bp, sick, flag" in said and "--task.label NAME" in said
    assert main([*command, "--task.label", "sick", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "label 'sick', classes 0, 1; 3 inputs: age, bp, flag" in said
    about = {"label": "sick", "classes": ["0", "1"], "inputs": ["age", "bp", "flag"]}
    assert config_of(tmp_path / "out")["data"].items() >= about.items()
    assert rk.Result.load(tmp_path / "out").data.items() >= about.items()
    assert "label 'sick'" in repr(rk.Result.load(tmp_path / "out"))


def test_a_known_label_in_the_first_column_is_learnt(tmp_path):
    write_site(tmp_path / "a.csv")
    dataset = rk.data.load(f"csv:{tmp_path}/a.csv")
    assert dataset.label == "diagnosis" and dataset.columns == ("age", "bp", "flag")
    assert rk.data.load(f"csv:{tmp_path}/a.csv", label="flag").columns == ("age", "bp", "diagnosis")


def test_a_label_for_data_without_columns_is_refused(capsys):
    assert main(["run", "classify", "fedavg", "--task.label", "x", "--rounds", "1"]) == 2
    assert "label: 'x' was given with digits; it is for tables of your own (csv:...)" in capsys.readouterr().err


def test_data_shows_the_label_of_a_table(tmp_path, capsys):
    write_site(tmp_path / "a.csv", label="sick")
    assert main(["data", f"csv:{tmp_path}/a.csv", "--clients", "2"]) == 2
    assert "--label NAME" in capsys.readouterr().err
    assert main(["data", f"csv:{tmp_path}/a.csv", "--clients", "2", "--label", "sick"]) == 0
    assert "label 'sick', classes 0, 1" in capsys.readouterr().out


def test_results_in_python_state_label_and_inputs():
    tables = {"A": {"age": [1.0, 2, 3], "ill": [0, 1, 1]}, "B": {"age": [5.0, 6, 7], "ill": [0, 1, 1]}}
    clients = rk.federate(tables, label="ill", standardise=True)
    result = rk.run(rk.Single(squared), rk.FedAvg(lr=0.1), clients, x=np.zeros(1), rounds=1)
    assert result.data["label"] == "ill" and result.data["inputs"] == ["age"] and result.data["classes"] == ["0", "1"]
    assert "label 'ill', classes 0, 1; 1 input: age" in repr(result)


def squared(x, e):
    return 0.5 * (e["input"] @ x - e["label"]) ** 2


ON_DATA = [name for name, task in TASKS.items() if issubclass(task, OnData)]


@pytest.mark.parametrize("name", ON_DATA)
def test_every_task_on_data_reads_tables_by_its_options(name, tmp_path):
    data = f"csv:{write_site(tmp_path / 'a.csv', label='sick')}"
    assemble = lambda **options: TASKS[name](data=data, **options).assemble(rk.IID(), 2, 0)
    with pytest.raises(rk.InputError, match="label must be named"):
        assemble()
    with pytest.raises(rk.InputError, match=r"task.label: 'sic' is not known .did you mean 'sick'"):
        assemble(label="sic")


def test_only_one_task_has_no_data():
    assert set(TASKS) - set(ON_DATA) == {"riskaverse"}
