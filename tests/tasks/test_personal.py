"""What is whose: heads of one's own, newcomers, and forms of one task side by side."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.data.catalogue import load
from rookery.data.partitions import deal_like, parse
from rookery.tasks.personalised import FORMS


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_personalised_learning_learns(form):
    task = rk.tasks.Personalised(form=form, hidden=16)
    parts = task.assemble(rk.Dirichlet(0.1), 20, seed=0)
    method = rk.SimFBO if form == "nested" else rk.FedAvg
    result = rk.run(
        parts.problem, method(lr=rk.Rates(**task.rates), local_steps=5), parts.clients, x=parts.x, y=parts.y,
        rounds=40, every=40, batch_size=16, client_metrics=parts.client_metrics,
    )  # fmt: skip
    assert result.history["accuracy mean"][-1] > 0.8 > 0.3 > result.history["accuracy mean"][0]
    assert (result.ledger.bytes_up == 0) == (form == "alone")


def test_bad_options_are_refused():
    for task, sentence in [
        (rk.tasks.Personalised(form="own"), "task.form: 'own' was given; heads, nested, shared or alone is needed"),
        (rk.tasks.Personalised(ridge=0.0), "task.ridge: 0.0"),
    ]:
        with pytest.raises(rk.InputError, match=sentence):
            task.assemble(rk.IID(), 4, seed=0)
    with pytest.raises(rk.InputError, match="clients: 400 share the 359 test examples of digits, and client"):
        rk.tasks.Personalised().assemble(rk.IID(), 400, seed=0)


# Learning alone, and newcomers, in closed form.

NUMBERS = [{"a": np.array([1.0, 2.0])}, {"a": np.array([5.0])}, {"a": np.array([-3.0, 0.0, 3.0])}]


def test_alone_every_client_finds_its_own_minimum():
    alone = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2, scope="local")
    for engine in ("local", "eager"):
        result = rk.run(
            alone, rk.FedAvg(lr=0.5, local_steps=4), rk.federate(NUMBERS), x=0.0, rounds=20, engine=engine,
            precision="float64",
        )  # fmt: skip
        np.testing.assert_allclose(result.x, [1.5, 5.0, 0.0], atol=1e-12)
        assert result.ledger.bytes_up == result.ledger.bytes_down == 0
    with pytest.raises(rk.InputError, match="scope of x: 'own' is not known"):
        rk.Single(lambda x, e: x, scope="own")


JOINT = rk.Joint(lambda x, y, e: 0.5 * (x + y - e["a"]) ** 2 + 0.05 * y**2)  # y* = (mean - x) / 1.1
NESTED = rk.Bilevel(
    upper=lambda x, y, e: 0.5 * (x + y - e["a"]) ** 2, lower=JOINT.loss, lower_scope="local"
)  # fmt: skip


@pytest.mark.parametrize("problem", [JOINT, NESTED], ids=["joint", "nested"])
def test_newcomers_get_their_own_and_leave_what_is_shared(problem):
    clients = rk.federate([{"a": np.array([7.0])}, {"a": np.array([1.0, 3.0])}])
    found = rk.newcomers(problem, {"x": 2.0}, clients, lr=0.5, rounds=100, y=0.0, precision="float64")
    assert float(found.x) == 2.0, "what is shared was moved"
    np.testing.assert_allclose(found.y, [5.0 / 1.1, 0.0], atol=1e-12)
    learnt = rk.run(JOINT, rk.FedAvg(lr=rk.Rates(0.3)), rk.federate(NUMBERS), x=0.0, y=0.0, rounds=5)
    again = rk.newcomers(JOINT, learnt, clients, lr=rk.Rates(y=0.5), rounds=100, y=0.0)
    np.testing.assert_allclose(again.y, (np.array([7.0, 2.0]) - float(learnt.x)) / 1.1, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"problem": 3}, "problem: int was given"),
        ({"problem": rk.Single(lambda x, e: x)}, "in this single problem clients have nothing of their own"),
        ({"learnt": 3}, "learnt: int was given"),
        ({"learnt": {"y": 0.0}}, "learnt: it has no x, which this joint problem shares"),
        ({"x": 1.0}, "x: a value was given, and x is shared; it stays as it was learnt"),
    ],
)
def test_newcomers_refuse_what_is_wrong(given, sentence):
    arguments = {"problem": JOINT, "learnt": {"x": 0.0}, "clients": rk.federate(NUMBERS), "lr": 0.1, "rounds": 1}
    with pytest.raises(rk.InputError, match=sentence):
        rk.newcomers(**(arguments | {"y": 0.0} | given))


# Test examples of one's own.


def test_test_examples_go_where_training_examples_went():
    rng = np.random.default_rng(0)
    labels, others = rng.integers(0, 5, 300), rng.integers(0, 5, 90)
    parts = rk.Dirichlet(0.2).assign(labels, 20, seed=1)
    tests = deal_like(labels, parts, others)
    assert sorted(np.concatenate(tests)) == list(range(90)) and min(map(len, tests)) >= 1
    for part, test in zip(parts, tests):
        assert set(others[test]) <= set(labels[part]), "a client is judged by a class that it does not have"
    share = np.array([[np.sum(others[test] == c) for c in range(5)] for test in tests])
    exact = np.array([[np.sum(labels[part] == c) / np.sum(labels == c) for c in range(5)] for part in parts])
    assert np.abs(share - exact * np.bincount(others)).max() <= 2


def test_a_classes_examples_that_nobody_has_are_dealt_to_nobody():
    labels, others = np.array([0, 0, 1]), np.array([0, 1, 2, 2, 0])
    tests = deal_like(labels, [np.array([0, 2]), np.array([1])], others)
    assert sorted(np.concatenate(tests)) == [0, 1, 4]


def test_hospitals_keep_their_own_test_patients():
    heart = load("heart")
    clients = heart.partition("natural", clients=4, own_test=True)
    assert heart.test_owner is not None and clients.test is not None
    assert clients.test.size.tolist() == np.bincount(heart.test_owner).tolist() and clients.test.size.sum() == 149
    tuning = heart.for_tuning()
    assert tuning.partition("natural", clients=4, own_test=True).names == clients.names


def test_a_column_says_whose_a_row_is(tmp_path, capsys):
    by_sex = load("heart").partition("natural:sex", clients=9)
    assert by_sex.names == ("sex=0", "sex=1") and by_sex.sizes.sum() == 591
    with pytest.raises(rk.InputError, match=r"partition: natural: 'sexx' is not known .did you mean 'sex'"):
        load("heart").partition("natural:sexx", clients=9)
    with pytest.raises(rk.InputError, match="partition: 'natural:' was given; allowed is natural:COLUMN"):
        parse("natural:")
    rows = [f"{site},{i % 7},{i % 2}" for i, site in enumerate(["north", "south", "north"] * 20)]
    (tmp_path / "all.csv").write_text("site,age,ill\n" + "\n".join(rows) + "\n")
    data = f"csv:{tmp_path}/all.csv"
    command = ["run", "classify", "fedavg", "--rounds", "2", "--task.data", data, "--partition", "natural:site"]
    command += ["--task.label", "ill"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["partition"] == "natural:site"
    capsys.readouterr()
    assert main(["data", data, "--partition", "natural:site", "--label", "ill"]) == 0
    assert "north (32), south (16)" in capsys.readouterr().out


# Forms of a task side by side.


def test_forms_are_compared_by_the_command_and_from_python(tmp_path, capsys):
    out = tmp_path / "out"
    shared = ["--exchanges", "4", "--seeds", "1"]
    assert main(["compare", "trust", "simfbo", "fedavg@plain", *shared, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "fedavg@plain" in said and "accuracy weighted" in said
    configs = [json.loads(path.read_text()) for path in sorted(out.glob("*/config.json"))]
    assert {(config["method_name"], config["task"]["form"]) for config in configs} == {
        ("simfbo", "nested"), ("fedavg@plain", "plain"),
    }  # fmt: skip
    assert all(config["partition"] == "natural" for config in configs), "the task's own default"
    methods = {
        "simfbo": rk.SimFBO(lr=rk.Rates(**rk.tasks.Trust().rates)),
        "fedavg@plain": (rk.tasks.Trust(form="plain"), rk.FedAvg(lr=rk.Rates(x=0.5))),
    }
    found = rk.compare(rk.tasks.Trust(), methods, exchanges=4, seeds=1, out=out, progress=False)
    assert "fedavg@plain" in found.histories and len(list(out.glob("*/config.json"))) == 2, "runs were not taken over"
    csv = (out / "simfbo-seed0" / "clients.csv").read_text().splitlines()
    assert csv[0].startswith("client,examples,weight,test examples,accuracy") and len(csv) == 5
    assert "trust" in csv[0].split(",")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trust", "fedavg@plane"], "the form in 'fedavg@plane': 'plane' is not known .did you mean 'plain'"),
        (["hyperrep", "simfbo@plain"], "method: 'simfbo@plain' was given, and the task has one form"),
    ],
)
def test_forms_that_are_not_there_are_refused(words, sentence, capsys):
    assert main(["compare", *words]) == 2
    assert sentence.replace(" .did", " (did") in capsys.readouterr().err.replace("\n", " ")


def test_a_pair_has_the_same_task():
    with pytest.raises(rk.InputError, match="a method, or a pair of the same Trust in another form and a method"):
        rk.compare(rk.tasks.Trust(), {"a": (rk.tasks.HyperRep(), rk.FedAvg(lr=0.1))}, progress=False)
    with pytest.raises(rk.InputError, match="a pair of the same Trust in another form"):
        other = rk.tasks.Trust(form="plain", ridge=3.0)
        rk.compare(rk.tasks.Trust(), {"a": (other, rk.FedAvg(lr=0.1))}, progress=False)


def test_rates_are_those_of_the_task_as_it_is_set(tmp_path, capsys):
    command = ["run", "trust", "fedavg", "--task.form", "plain", "--rounds", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "'x': 0.5" in str(config["method"]) and "10.0" not in str(config["method"])
    assert "cleveland" in capsys.readouterr().out, "the table of clients is shown"


# Clients' metrics in sweeps, by which tasks are tuned.


def test_a_sweep_measures_what_clients_do():
    data = {name: {"a": np.arange(3.0) + k} for k, name in enumerate("ABC")}
    tests = [{"a": np.arange(float(size))} for size in (2, 5, 3)]
    clients = rk.federate(data, weights=[0.5, 0.3, 0.2], test=tests)
    given = {
        "problem": JOINT, "clients": clients, "x": 0.0, "y": lambda key, own: jnp.mean(own["a"]), "rounds": 4,
        "every": 2, "metrics": lambda z: {"x": z.x}, "precision": "float64",
        "client_metrics": lambda z, e: {"loss": (z.x + z.y - e["a"]) ** 2, "own": z.y},
    }  # fmt: skip
    table = rk.sweep(method=rk.FedAvg(lr=rk.Rates(0.1)), over={"lr": [rk.Rates(0.1), rk.Rates(0.2)]}, **given)
    for rate, swept in zip((0.1, 0.2), table.results):
        alone = rk.run(method=rk.FedAvg(lr=rk.Rates(rate)), **given)
        assert set(swept.history.columns) == set(alone.history.columns)
        for name in alone.history.metrics:
            np.testing.assert_allclose(swept.history[name], alone.history[name], rtol=1e-12, err_msg=name)


def test_a_task_of_clients_metrics_is_tuned():
    tuning = rk.tune(
        rk.tasks.Trust(form="plain"), rk.FedAvg(lr=rk.Rates(0.5)), budget=2000, batch_size=0, progress=False
    )
    assert "accuracy weighted" in tuning.table.columns and tuning.gradients <= 2000


def test_seeds_of_a_sweep_may_have_clients_of_other_sizes():
    """Lanes share a program: it must hold the largest test set of any seed."""
    sizes = {0: (4, 4), 1: (1, 7)}
    make = lambda seed: rk.federate(
        [{"a": np.ones(2)}, {"a": np.ones(2)}], test=[{"a": np.arange(float(n))} for n in sizes[seed]]
    )
    given = {
        "problem": rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), "method": rk.FedAvg(lr=0.1), "x": 0.0, "rounds": 1,
        "client_metrics": lambda z, e: {"m": e["a"]},
    }  # fmt: skip
    table = rk.sweep(clients=make, over={"seed": [0, 1]}, **given)
    for seed, result in enumerate(table.results):
        alone = rk.run(clients=make(seed), seed=seed, **given)
        assert result.history["m mean"][-1] == alone.history["m mean"][-1]


def test_methods_are_compared_by_what_clients_measure():
    data = {name: {"a": np.arange(6.0) + k} for k, name in enumerate("AB")}
    found = rk.compare(
        rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), {"a": rk.FedAvg(lr=0.1), "b": rk.FedAvg(lr=0.3)},
        rk.federate(data, test=0.34), x=0.0, exchanges=5, seeds=1, metric="loss mean", falling=True,
        client_metrics=lambda z, e: {"loss": 0.5 * (z.x - e["a"]) ** 2}, progress=False,
    )  # fmt: skip
    assert found.metric == "loss mean" and found.table()["final loss mean"][1] < found.table()["final loss mean"][0]


def test_who_sends_nothing_is_compared_and_has_no_budget_of_bytes(tmp_path, capsys):
    task = rk.tasks.Personalised
    pair = {form: (task(form=form, hidden=8), rk.FedAvg(lr=rk.Rates(0.2))) for form in ("heads", "alone")}
    found = rk.compare(task(hidden=8), pair, 10, exchanges=4, seeds=1, progress=False)
    table = found.table()
    assert found.common("megabytes") > 0 and table["at equal megabytes"][0] == table["final accuracy mean"][0]
    with pytest.raises(rk.InputError, match="megabytes: 1 were given, and a method spends none; give exchanges"):
        rk.compare(task(hidden=8), {"alone": pair["alone"]}, 10, megabytes=1, seeds=1, progress=False)
    with pytest.raises(rk.InputError, match="target: 90 was given; accuracy mean is a part of 1"):
        rk.compare(task(hidden=8), pair, 10, exchanges=4, seeds=1, target=90, progress=False)


def test_a_folders_name_may_have_an_at_sign(tmp_path, capsys):
    (tmp_path / "x@y").mkdir()
    assert main(["compare", "trust", f"{tmp_path}/x@y/mine.py:Mine"]) == 2
    assert "there is no such file" in capsys.readouterr().err.replace("\n", " ")


def test_a_metrics_lists_are_arrays():
    metric = rk.Metric(lambda z, a: {"m": a.mean()}, a=[1.0, 2.0])
    assert float(metric(None)["m"]) == 1.5  # type: ignore[arg-type]
