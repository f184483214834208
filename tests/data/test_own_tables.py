"""Tables of one's own on the command line and from Python: label, categories, missing values, scaling."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.data.catalogue import load_with
from rookery.data.own_tables import KNOWN_LABELS, TableOptions, choose_label
from rookery.data.sites import Outline, read_holding
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
    task: Any = TASKS[name]
    assemble = lambda **options: task(data=data, **options).assemble(rk.IID(), 2, 0)
    with pytest.raises(rk.InputError, match="label must be named"):
        assemble()
    with pytest.raises(rk.InputError, match=r"task.label: 'sic' is not known .did you mean 'sick'"):
        assemble(label="sic")


def test_only_one_task_has_no_data():
    assert set(TASKS) - set(ON_DATA) == {"riskaverse"}


# Scaling.

WILD = 9_999_999.0


def two_sites(wild=0):
    """Inputs of two sites of different size, location and spread; some cells of the smaller one are wild."""
    rng = np.random.default_rng(3)
    large, small = rng.normal(50, 5, (80, 2)), rng.normal(10, 2, (20, 2))
    small[:wild, 0] = WILD
    label = lambda rows: (np.arange(len(rows)) % 2).tolist()
    return {
        name: {"a": rows[:, 0], "b": rows[:, 1], "label": label(rows)}
        for name, rows in (("large", large), ("small", small))
    }


def write_folder(folder, tables):
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        rows = zip(*(np.asarray(column).tolist() for column in table.values()))
        lines = [",".join(table), *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{folder}"


def inputs_of(dataset, owner):
    """A client's training inputs as a network sees them."""
    return np.asarray(dataset.scale(dataset.train["input"][dataset.owner == owner]), np.float64)


def test_true_stands_for_pooled_in_python_as_for_the_command():
    clients = rk.federate(two_sites(), label="label", standardise=True)
    both = np.concatenate([clients.client(i)["input"] for i in range(2)])
    np.testing.assert_allclose(both.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(both.std(axis=0), 1, atol=1e-12)
    same = rk.federate(two_sites(), label="label", standardise="pooled")
    np.testing.assert_array_equal(same.client(1)["input"], clients.client(1)["input"])
    assert clients.about["scaling"] == "pooled"
    assert rk.federate(two_sites(), label="label").about["scaling"] == "none"


def test_clients_scale_by_their_own_mean_on_request(tmp_path):
    clients = rk.federate(two_sites(), label="label", standardise="client")
    for i in range(2):
        np.testing.assert_allclose(clients.client(i)["input"].mean(axis=0), 0, atol=1e-12)
    dataset = rk.data.load(write_folder(tmp_path / "sites", two_sites()), standardise="client")
    for i in range(2):
        np.testing.assert_allclose(inputs_of(dataset, i).mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(inputs_of(dataset, i).std(axis=0), 1, atol=1e-5)
    raw = rk.data.load(f"csv:{tmp_path}/sites", standardise="none")
    assert inputs_of(raw, 0).mean() > 40 and raw.about["scaling"] == "none"


def test_wild_cells_at_a_small_site_change_no_other_site_under_robust_scaling(tmp_path):
    folders = [write_folder(tmp_path / str(wild), two_sites(wild)) for wild in (0, 2)]
    pooled = [rk.data.load(folder) for folder in folders]
    assert np.abs(inputs_of(pooled[0], 0) - inputs_of(pooled[1], 0)).max() > 0.3, "why it matters"
    robust = [rk.data.load(folder, standardise="robust") for folder in folders]
    np.testing.assert_array_equal(inputs_of(robust[0], 0), inputs_of(robust[1], 0))
    assert np.abs(inputs_of(robust[1], 1)).max() <= 10
    clean = np.ptp(inputs_of(robust[1], 1)[:, 1])
    assert 2 < clean < 8, "the other column is on its own scale"
    python = rk.federate(two_sites(2), label="label", standardise="robust")
    assert np.abs(python.client(1)["input"]).max() == 10 and abs(np.median(python.client(1)["input"])) < 0.2


def test_robust_width_of_a_column_that_is_mostly_constant_is_not_zero():
    from rookery.data.scaling import median_and_width

    normal = np.random.default_rng(0).normal(3, 2, 20_000)
    rare = np.where(np.arange(20_000) % 5 == 0, 7.0, 0.0)
    centre, width = median_and_width(np.stack([normal, rare, np.ones(20_000)], axis=1))
    np.testing.assert_allclose(centre, [3, 0, 1], atol=0.05)
    np.testing.assert_allclose(width, [2, 7 / 2.5631, 1], rtol=0.02)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("digits", {"standardise": "robust"}, "standardise: 'robust' was given with digits; it is for tables"),
        ("heart", {"standardise": "median"}, "standardise: 'median' is not known; allowed are pooled, client, robust"),
        ("csv:{}/a.csv", {"standardise": "client"}, "one table without clients of its own"),
    ],
)
def test_scaling_that_cannot_be_is_refused(name, options, sentence, tmp_path):
    write_site(tmp_path / "a.csv")
    with pytest.raises(rk.InputError, match=sentence):
        rk.data.load(name.format(tmp_path), **options)


def test_scaling_and_weights_are_stated_by_every_run(tmp_path, capsys):
    data = write_folder(tmp_path / "sites", two_sites())
    command = ["run", "classify", "fedavg", "--task.data", data, "--partition", "natural", "--rounds", "1"]
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert "inputs scaled by mean and standard deviation over all clients" in said and "weights by size" in said
    assert main([*command, "--task.standardise", "robust", "--out", str(tmp_path / "two")]) == 0
    assert "each client's own median and interquartile range, clipped to 10" in capsys.readouterr().out
    for folder, kind in (("one", "pooled"), ("two", "robust")):
        assert config_of(tmp_path / folder)["data"]["scaling"] == kind
        assert rk.Result.load(tmp_path / folder).data["scaling"] == kind
        assert rk.Result.load(tmp_path / folder).data["weights"] == "size"


@pytest.mark.parametrize("kind", ["pooled", "client", "robust", "none"])
def test_a_site_scales_as_one_machine_does(kind, tmp_path):
    """The blank rows of other sites aside, a site's inputs are those of the same file on one machine."""
    wild = 0 if kind == "pooled" else 2  # pooled statistics refuse a site with wild cells
    data = write_folder(tmp_path / "sites", two_sites(wild))
    options = TableOptions(standardise=kind)
    alone = load_with(data, options)
    held = {name: read_holding(f"csv:{tmp_path}/sites/{name}.csv", options) for name in ("large", "small")}
    facts = {name: one.facts() for name, one in held.items()}
    assert all(("mean" in said) == (kind == "pooled") for said in facts.values()), "else nothing of values is told"
    outline = Outline.from_json(json.loads(json.dumps(Outline.of(facts).to_json())))
    for place, name in enumerate(held):
        found = outline.dataset("csv:x", {name: held[name]})
        np.testing.assert_allclose(inputs_of(found, place), inputs_of(alone, place), rtol=1e-5, atol=1e-5)
        assert found.about["scaling"] == kind
    with pytest.raises(rk.InputError, match=r"site 'small' (does not say its mean|must not give means)"):
        Outline.of(facts | {"small": facts["small"] | {"mean": [0.0]}})


def test_a_comparison_states_the_label_too(tmp_path, capsys):
    data = write_site(tmp_path / "a.csv", label="sick")
    command = ["compare", "classify", "fedavg", "--task.data", f"csv:{data}", "--clients", "2", "--exchanges", "2"]
    assert main([*command, "--seeds", "1", "--out", str(tmp_path / "out")]) == 2
    assert "--task.label NAME" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*command, "--seeds", "1", "--task.label", "sick", "--out", str(tmp_path / "out")]) == 0
    assert "label 'sick', classes 0, 1; 3 inputs: age, bp, flag" in capsys.readouterr().out
