"""Data with clients of its own: hospitals, files, the values of a column."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.data.catalogue import load


def test_heart_is_as_the_public_benchmark_has_it():
    """FLamby's centres have 303, 261, 46 and 130 patients, and 13 features with the first of each code left out."""
    tables = rk.data.heart()
    assert {name: len(table["ill"]) for name, table in tables.items()} == {
        "cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 130,
    }  # fmt: skip
    clients = rk.federate(tables, label="ill", categories=["cp", "restecg"], test=0.34, standardise="client")
    assert clients.names == ("cleveland", "hungarian", "switzerland", "va") and clients.classes == (0, 1)
    assert len(clients.columns) == 13 + 2 and clients.columns[2] == "cp=1"
    np.testing.assert_allclose(clients.client(0)["input"].mean(axis=0), 0, atol=1e-12)


def test_natural_clients_are_the_datas_own():
    heart = load("heart")
    clients = heart.partition("natural", clients=7)
    assert clients.names == ("cleveland", "hungarian", "switzerland", "va")
    assert clients.sizes.sum() == len(heart.train["label"]) == 740 - len(heart.test["label"])
    tuning = heart.for_tuning().partition("natural", clients=1)
    assert tuning.names == clients.names and tuning.sizes.sum() < clients.sizes.sum()
    with pytest.raises(rk.InputError, match="partition: natural was given, and digits has no clients of its own"):
        load("digits").partition("natural", clients=3)


def write_tables(folder):
    rng = np.random.default_rng(0)
    folder.mkdir()
    lines = ["site,age,bp,target"]
    for name, size in (("north", 30), ("south", 20)):
        rows = [f"{rng.integers(20, 80)},{rng.normal():.3f},{label}" for label in rng.integers(0, 2, size)]
        (folder / f"{name}.csv").write_text("age,bp,target\n" + "\n".join(rows) + "\n")
        lines += [f"{name},{row}" for row in rows]
    (folder.parent / "all.csv").write_text("\n".join(lines) + "\n")


def test_tables_of_ones_own(tmp_path, capsys):
    write_tables(tmp_path / "sites")
    one, each = load(f"csv:{tmp_path}/all.csv#site"), load(f"csv:{tmp_path}/sites")
    for dataset in (one, each):
        assert dataset.owners == ("north", "south") and dataset.columns == ("age", "bp") and dataset.classes == 2
        assert dataset.partition("natural", clients=1).names == ("north", "south")
    np.testing.assert_array_equal(one.train["input"], each.train["input"])
    alone = load(f"csv:{tmp_path}/sites/north.csv")
    assert alone.owner is None and alone.partition("iid", clients=3).population == 3
    command = ["run", "classify", "fedavg", "--task.data", f"csv:{tmp_path}/sites", "--partition", "natural"]
    assert main([*command, "--rounds", "2", "--out", str(tmp_path / "out")]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main([*command, "--cohort", "3", "--rounds", "2", "--out", str(tmp_path / "more")]) == 2
    assert "cohort: 3 was given for 2 clients" in capsys.readouterr().err


WRONG = {
    "csv:nowhere": "data: 'csv:nowhere' was given; csv:FOLDER, a csv file per client, or csv:FILE#COLUMN is needed",
    "csv:{folder}#site": "a column is named of one file, and .* is a folder",
    "csv:{folder}/../all.csv#sites": "by: 'sites' was given, and the table has no such column",
    "csv:{folder}/../all.csv": "column 'site' holds 'north' in 50 rows",
    "csv:{folder}/../empty": "holds no csv file; one per client is needed",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_refused(name, tmp_path):
    write_tables(tmp_path / "sites")
    (tmp_path / "empty").mkdir()
    with pytest.raises(rk.InputError, match=WRONG[name]):
        load(name.format(folder=tmp_path / "sites"))


def test_a_cohort_is_at_most_all_clients(tmp_path, capsys):
    command = ["run", "classify", "fedavg", "--clients", "5", "--rounds", "1", "--out", str(tmp_path / "five")]
    assert main(command) == 0
    assert rk.Result.load(tmp_path / "five").ledger.replies == 5
    assert (
        main(["run", "classify", "fedavg", "--clients", "12", "--rounds", "1", "--out", str(tmp_path / "twelve")]) == 0
    )
    assert rk.Result.load(tmp_path / "twelve").ledger.replies == 10
    capsys.readouterr()


def test_the_commands_on_tables_that_the_page_prints_run(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "your-own-problem.md").read_text()
    commands = re.findall(r"^rookery run .*csv:.*$", page, re.MULTILINE)
    assert len(commands) == 2
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "hospitals")
    text = (tmp_path / "all.csv").read_text()
    (tmp_path / "all.csv").write_text(text.replace("site,", "hospital,", 1))
    for command in commands:
        assert main([*shlex.split(command)[1:], "--rounds", "1"]) == 0, capsys.readouterr().err
