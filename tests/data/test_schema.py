"""Schemas: written from one table, read back as they were, and checked without revealing anything of the data."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from typing import Any

import numpy as np
import pytest

import rookery as rk
from data.test_own_tables import write_folder
from federations.test_sites import CLASSIFY, sites_of
from rookery.cli import main
from rookery.data.schema import RULES, Column, Schema, SchemaError, parse_schema, read_schema, schema_of, write_schema
from rookery.experiments.experiment import Experiment
from rookery.experiments.federation import serve
from rookery.tasks.registry import find_task

SCHEMA = Schema(
    "ill",
    (0, 1),
    (Column("age", 0, 120, whole=True), Column("bp", 50.5, 250.0), Column("cp", values=(1, 2, 3, 4)), Column("sex", values=("f", "m"))),
    "reviewed",
)  # fmt: skip
GOOD = {
    "age": [40, 50, 60, 70],
    "bp": [100.0, 120.5, 130, 80],
    "cp": [1, 2, 3, 3],
    "sex": ["f", "m", "m", "f"],
    "ill": [0, 1, 1, 0],
    "reviewed": [0, 1, 0, 0],
    "name": ["Ann", "Bob", "Cem", "Dan"],
}


def test_a_schema_is_read_as_it_was_written():
    assert parse_schema(write_schema(SCHEMA)) == SCHEMA
    assert parse_schema(write_schema(dataclasses.replace(SCHEMA, checked=""))).checked == ""


HOSTILE = [
    'a"b', "a\\", "a\nlabel = \"x\"", "]]\n[[column]]", "# no comment", "'''", '"""', "\t", "\x00", "\x7f", "\x1b[31m", "\u202ename",
    "\u2028", "😀", "é", " ", "a.b", "=", "\r\n", "\\u0041", "\ufeffx", "\x85",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_texts_come_back_as_they_were(name):
    given = Schema(
        name, (name, "other"), (Column(name + "2", values=(name,)), Column(name + "3", low=-1e300)), name + "4"
    )
    text = write_schema(given)
    assert parse_schema(text) == given
    assert all(character.isprintable() or character == "\n" for character in text), "nothing acts on a terminal"


def test_random_texts_come_back_as_they_were():
    rng = np.random.default_rng(0)
    points = np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x110000)])
    for _ in range(300):
        name = "".join(map(chr, rng.choice(points, rng.integers(1, 12)))) + "".join(rng.choice(list('"\\\n#=[]x'), 5))
        given = Schema(name, (0, 1), (Column("x" + name, float(rng.normal() * 10.0 ** rng.integers(-300, 300))),))
        assert parse_schema(write_schema(given)) == given


def test_half_a_character_is_refused():
    with pytest.raises(rk.InputError, match="holds half a character"):
        write_schema(dataclasses.replace(SCHEMA, label="\ud800"))


def test_a_table_that_keeps_all_rules_passes():
    assert SCHEMA.failures(GOOD) == []
    SCHEMA.check(GOOD)


BROKEN = {
    "column": ("bp", None),
    "missing": ("age", [40, None, 50, 60]),
    "number": ("bp", [100, "high", 90, 90]),
    "whole": ("age", [40.5, 50, 60, 70]),
    "range": ("bp", [100.0, 9999999, 9999999, 80]),
    "category": ("cp", [1, 2, 3, 9]),
    "class": ("ill", [1, 2, 2, 1]),
    "checked": ("reviewed", [0, 1, 2, 0]),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_fails_by_its_name_and_column_and_says_nothing_else(rule):
    column, cells = BROKEN[rule]
    table = {name: values for name, values in GOOD.items() if name != column} | (
        {} if cells is None else {column: cells}
    )
    assert SCHEMA.failures(table) == [(rule, column)]
    with pytest.raises(SchemaError) as raised:
        SCHEMA.check(table)
    assert str(raised.value) == f"schema: rule '{rule}' fails for column '{column}': {RULES[rule]}"


def test_empty_cells_are_no_failure_where_their_rows_are_dropped():
    table = GOOD | {"age": [40, None, 50, 60]}
    assert SCHEMA.failures(table, "drop") == []
    assert SCHEMA.failures(GOOD | {"age": [None, None, None, None]}, "drop") == [("rows", "ill")]
    assert set(RULES) == {*BROKEN, "rows"}


GOOD_TEXT = write_schema(SCHEMA)
WRONG = {
    "not toml": ("label = ", "must be toml"),
    "no label": (GOOD_TEXT.replace('label = "ill"', ""), "the schema must have 'label'"),
    "another key": (GOOD_TEXT.replace('label = "ill"', 'label = "ill"\nlable = 3'), "got 'lable'"),
    "another version": (GOOD_TEXT.replace("version = 1", "version = 2"), "version must be 1; got 2"),
    "a wrong type": (GOOD_TEXT.replace('label = "ill"', "label = 3"), "label of the schema has the wrong type"),
    "a range of true": (GOOD_TEXT.replace("low = 0", "low = true"), "low of .* has the wrong type"),
    "nan": (GOOD_TEXT.replace("low = 0", "low = nan"), "must be finite numbers; got nan"),
    "low above high": (GOOD_TEXT.replace("low = 0", "low = 500"), "low of column 'age' must be at most its high"),
    "one class": (GOOD_TEXT.replace("classes = [0, 1]", "classes = [0]"), "classes must be 2 or more, each once"),
    "a class twice": (GOOD_TEXT.replace("classes = [0, 1]", "classes = [0, 0]"), "classes must be 2 or more, each once"),
    "classes of two kinds": (GOOD_TEXT.replace("classes = [0, 1]", 'classes = [0, "1"]'), "texts, or whole numbers"),
    "a column twice": (GOOD_TEXT.replace('name = "bp"', 'name = "age"'), "column 'age' must be one of: input, label"),
    "the label as input": (GOOD_TEXT.replace('name = "bp"', 'name = "ill"'), "column 'ill' must be one of: input"),
    "no values": (GOOD_TEXT.replace("values = [1, 2, 3, 4]", "values = []"), "values of column 'cp' must be one or more"),
    "range and values": (GOOD_TEXT.replace("values = [1, 2, 3, 4]", "values = [1]\nlow = 0"), "it has both"),
    "a column without a name": (GOOD_TEXT.replace('name = "bp"', ""), "number 2 must have 'name'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schema_has_its_sentence(name):
    text, sentence = WRONG[name]
    with pytest.raises(rk.InputError, match=sentence):
        parse_schema(text + "\n")


def test_the_suggested_ranges_are_wider_than_the_data_and_rounded():
    table = {"a": [41, 67, 50], "b": [0.137, 2.613, 1.0], "flag": [0, 1, 1], "w": ["x", "y", "x"], "c": [3.0, 3.0, 3.0],
             "target": ["no", "yes", "no"]}  # fmt: skip
    found = {column.name: column for column in schema_of(table, "target").columns}
    assert found["a"] == Column("a", 20, 80, whole=True), "half of 26 on either side, outward to tens"
    assert found["b"] == Column("b", 0.0, 4.0), "not below 0, where nothing is"
    assert found["flag"] == Column("flag", 0, 1, whole=True) and found["w"] == Column("w", values=("x", "y"))
    low, high = found["c"].low, found["c"].high
    assert low is not None and high is not None and low < 3 < high
    assert schema_of(table, "target", categories=("a",)).columns[0].values == (41, 50, 67)
    schema_of(table, "target").check(table)


def test_every_suggested_schema_passes_its_own_table():
    rng = np.random.default_rng(0)
    for _ in range(200):
        scale, shift = 10.0 ** rng.integers(-12, 12), rng.normal() * 10.0 ** rng.integers(-12, 12)
        table = {
            "x": rng.normal(size=9) * scale + shift,
            "k": rng.integers(-(10**9), 10**9, 9),
            "y": rng.permutation(9) % 2,
        }
        found = schema_of(table, "y")
        assert parse_schema(write_schema(found)) == found and found.failures(table) == []


# The command.


def hospital(rows, seed, codes=(0, 1), wild=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(30, 80, rows)
    bp = rng.normal(120, 10, rows).round(1)
    bp[:wild] = 9999999
    ill = np.array(codes)[((age > 55) ^ (rng.random(rows) < 0.1)).astype(int)]
    return {
        "age": age,
        "bp": bp,
        "pain": rng.choice(["mild", "some"], rows),
        "ill": ill,
        "reviewed": rng.integers(0, 2, rows),
    }


def test_the_command_writes_and_checks_a_schema(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "sites", {"one": hospital(40, 0), "two": hospital(30, 1), "bad": hospital(20, 2, wild=2)})
    assert main(["schema", "sites/one.csv"]) == 2
    assert "--label NAME" in capsys.readouterr().err
    assert main(["schema", "sites/one.csv", "--label", "ill", "--checked", "reviewed"]) == 0
    assert "label 'ill', classes 0, 1; 3 inputs, categories: pain" in capsys.readouterr().out
    assert read_schema("schema.toml").checked == "reviewed" and tomllib.loads((tmp_path / "schema.toml").read_text())
    assert main(["schema", "sites/one.csv", "--label", "ill"]) == 2
    assert "'schema.toml' exists" in capsys.readouterr().err
    assert main(["schema", "sites/two.csv", "--check", "schema.toml"]) == 0
    assert capsys.readouterr().out == "passes\n"
    assert main(["schema", "sites/bad.csv", "--check", "schema.toml"]) == 1
    assert capsys.readouterr().out == "fails: rule 'range', column 'bp'\n"


def schema_file(folder):
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(write_schema(schema_of(hospital(40, 0), "ill", checked="reviewed")))
    return str(folder / "schema.toml")


def test_a_run_reads_its_tables_by_the_schema_and_keeps_it(tmp_path, capsys):
    data, schema = (
        write_folder(tmp_path / "sites", {"one": hospital(40, 0), "two": hospital(30, 1)}),
        schema_file(tmp_path),
    )
    command = ["run", "classify", "fedavg", "--task.data", data, "--partition", "natural", "--rounds", "2"]
    command += ["--task.schema", schema, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert "label 'ill', classes 0, 1; 4 inputs: age, bp, pain=mild, pain=some" in capsys.readouterr().out
    (tmp_path / "schema.toml").unlink()
    experiment = Experiment.from_json(json.loads((tmp_path / "out" / "config.json").read_text()))
    assert experiment.task.table.schema.checked == "reviewed", "the configuration has the schema itself"
    assert set(experiment.assemble().clients.client(0)) == {"input", "label", "checked"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"wild": 2}, "schema: client 'two': rule 'range' fails for column 'bp'"),
        ({"codes": (1, 2)}, "schema: client 'two': rule 'class' fails for column 'ill'"),
    ],
)
def test_a_run_on_tables_that_break_a_rule_is_refused(change, sentence, tmp_path, capsys):
    data = write_folder(tmp_path / "sites", {"one": hospital(40, 0), "two": hospital(30, 1, **change)})
    command = ["run", "classify", "fedavg", "--task.data", data, "--partition", "natural", "--rounds", "2"]
    assert main([*command, "--task.schema", schema_file(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_schema_gives_rk_federate_all_it_says(tmp_path):
    tables = {"one": hospital(40, 0), "two": hospital(30, 1)}
    clients = rk.federate(tables, schema=schema_file(tmp_path))
    assert clients.columns == ("age", "bp", "pain=mild", "pain=some") and clients.classes == (0, 1)
    np.testing.assert_array_equal(clients.client(1)["checked"], tables["two"]["reviewed"])
    with pytest.raises(rk.InputError, match="schema: client 'two': rule 'range' fails for column 'bp'"):
        rk.federate(tables | {"two": hospital(30, 1, wild=1)}, schema=schema_file(tmp_path))
    with pytest.raises(rk.InputError, match="label: 'age' was given, and the schema has 'ill'"):
        rk.federate(tables, schema=schema_file(tmp_path), label="age")
    with pytest.raises(rk.InputError, match="classes: it was given with a schema"):
        rk.federate(tables, schema=schema_file(tmp_path), classes=[0, 1])


# Federations.


def federation(tmp_path, second, **options):
    folder = write_folder(tmp_path / "sites", {"one": hospital(40, 0), "two": second})
    classify: Any = find_task("classify")
    task = classify(data="csv:x", **options)
    experiment = Experiment("classify", task, "m", rk.FedAvg(lr=rk.Rates(0.1)), CLASSIFY)
    sources = {name: f"{folder}/{name}.csv" for name in ("one", "two")}
    transport = sites_of(experiment, tmp_path, tuple(sources), sources)
    said = []
    return lambda: serve(tmp_path / "server", transport, experiment, told={"run": "r"}, say=said.append), said


def test_sites_read_by_a_schema_have_the_same_columns_whatever_they_hold(tmp_path):
    second = hospital(30, 1) | {"pain": np.array(["mild"] * 30), "ill": np.array([1] * 30)}
    solve, said = federation(tmp_path, second, schema=schema_file(tmp_path))
    result = solve()
    assert result.status == "done" and result.data["inputs"] == ["age", "bp", "pain=mild", "pain=some"]
    assert any("label 'ill', classes 0, 1" in sentence for sentence in said)
    config = json.loads((tmp_path / "server" / "config.json").read_text())
    assert config["data"]["label"] == "ill" and "[[column]]" in config["task"]["schema"]


@pytest.mark.parametrize(
    ("change", "rule", "column"), [({"wild": 2}, "range", "bp"), ({"codes": (1, 2)}, "class", "ill")]
)
def test_a_site_that_breaks_a_rule_tells_the_rule_and_the_column_alone(change, rule, column, tmp_path, capfd):
    solve, _ = federation(tmp_path, hospital(20, 1, **change), schema=schema_file(tmp_path))
    with pytest.raises(rk.InputError) as raised:
        solve()
    assert str(raised.value) == f"site two: schema: rule '{rule}' fails for column '{column}': {RULES[rule]}"


def test_sites_that_code_the_label_differently_are_refused_without_a_schema_too(tmp_path):
    solve, _ = federation(tmp_path, hospital(30, 1, codes=(1, 2)), label="ill", categories=("pain",))
    with pytest.raises(
        rk.InputError, match=r"the classes 0, 1 at 'one' and 1, 2 at 'two'. If both mean the same, code"
    ):
        solve()
    tables = {"one": hospital(40, 0), "two": hospital(30, 1, codes=(1, 2))}
    with pytest.raises(rk.InputError, match="column 'ill' has the classes 0, 1 at 'one' and 1, 2 at 'two'"):
        rk.federate(tables, label="ill", categories=["pain"])
    assert rk.federate(tables, label="ill", categories=["pain"], classes=[0, 1, 2]).classes == (0, 1, 2)


# Records whose labels were checked.


def test_checked_records_come_as_an_array_and_are_no_input(tmp_path):
    tables = {"one": hospital(40, 0), "two": hospital(30, 1)}
    clients = rk.federate(tables, label="ill", categories=True, checked="reviewed")
    assert clients.columns == ("age", "bp", "pain=mild", "pain=some")
    np.testing.assert_array_equal(clients.client(0)["checked"], tables["one"]["reviewed"])
    dataset = rk.data.load(
        write_folder(tmp_path / "sites", tables), label="ill", categories=["pain"], checked="reviewed"
    )
    assert dataset.train["checked"].sum() + dataset.test["checked"].sum() == sum(
        t["reviewed"].sum() for t in tables.values()
    )
    own = dataset.partition("natural", clients=2, validation=0.5).client(1)
    assert set(own.upper) == {"input", "label", "checked"}
    with pytest.raises(rk.InputError, match="checked: client 'one', column 'age' must hold 0 and 1"):
        rk.federate(tables, label="ill", categories=True, checked="age")
    with pytest.raises(rk.InputError, match=r"checked: 'reviewd' was given, .* .did you mean 'reviewed'"):
        rk.federate(tables, label="ill", categories=True, checked="reviewd")


def test_checked_records_of_a_site_stay_there(tmp_path):
    """The server's outline has blank ones in their place, and the run ends as it does without."""
    solve, _ = federation(tmp_path, hospital(30, 1), label="ill", categories=("pain",), checked="reviewed")
    assert solve().data["inputs"] == ["age", "bp", "pain=mild", "pain=some"]
