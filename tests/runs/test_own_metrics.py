"""Metrics of each client on its own test examples, and what a result shows of itself."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import rookery as rk

RNG = np.random.default_rng(0)
DATA = {name: {"a": RNG.normal(mean, 1.0, size)} for name, mean, size in (("A", 0.0, 4), ("B", 1.0, 9), ("C", 3.0, 5))}
TESTS = [{"a": RNG.normal(0.0, 1.0, size)} for size in (3, 1, 1500)]
CLIENTS = rk.federate(DATA, weights=[0.5, 0.3, 0.2], test=TESTS)
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)


def measured(z, e):
    return {"loss": 0.5 * (z.x - e["a"]) ** 2, "near": (jnp.abs(z.x - e["a"]) < 1) * 1.0}


def solved(engine="local", **options):
    given = {"x": 0.3, "rounds": 3, "every": 1, "client_metrics": measured, "precision": "float64"}
    return rk.run(PROBLEM, rk.FedAvg(lr=0.2), CLIENTS, engine=engine, **(given | options))


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_every_client_measures_on_its_own_test_examples(engine):
    result = solved(engine)
    assert result.clients is not None
    table = result.clients
    assert table["client"].tolist() == ["A", "B", "C"] and table["test examples"].tolist() == [3, 1, 1500]
    x = float(result.x)
    loss = [np.mean(0.5 * (x - test["a"]) ** 2) for test in TESTS]
    near = [np.mean(np.abs(x - test["a"]) < 1) for test in TESTS]
    np.testing.assert_allclose(table["loss"], loss, rtol=1e-12)
    np.testing.assert_allclose(table["near"], near, rtol=1e-12)
    last = result.history.rows[-1]
    np.testing.assert_allclose(last["loss mean"], np.mean(loss), rtol=1e-12)
    np.testing.assert_allclose(last["near weighted"], np.dot([0.5, 0.3, 0.2], near), rtol=1e-12)
    assert last["loss worst"] == pytest.approx(max(loss)) and last["near worst"] == pytest.approx(min(near))


def test_a_client_measures_with_its_own_sequences():
    problem = rk.Joint(lambda x, y, e: 0.5 * (x + y - e["a"]) ** 2)
    result = rk.run(
        problem, rk.FedAvg(lr=rk.Rates(0.1)), CLIENTS, x=0.0, y=lambda key, data: jnp.mean(data["a"]), rounds=1,
        client_metrics=lambda z, e: {"own": z.y, "both": z.x + z.y}, precision="float64",
    )  # fmt: skip
    assert result.clients is not None
    np.testing.assert_allclose(result.clients["own"], result.sequences.y, rtol=1e-12)
    np.testing.assert_allclose(result.clients["both"], result.x + result.sequences.y, rtol=1e-12)


def test_a_run_ends_when_the_worst_client_is_there():
    result = solved(rounds=50, stop={"loss worst": lambda value: value < 100})
    assert result.status == "stopped" and len(result.history.rows) == 1


def test_the_table_is_kept(tmp_path):
    result = solved()
    result.save(tmp_path / "mine")
    again = rk.Result.load(tmp_path / "mine")
    assert again.clients is not None and result.clients is not None and again.clients.rows == result.clients.rows


def test_measuring_costs_nothing_of_the_ledger():
    assert solved().ledger == solved(client_metrics=None).ledger


WRONG = {
    "no function": ({"client_metrics": 3}, "client_metrics: 3 was given; a function of the sequences and an example"),
    "no mapping": ({"client_metrics": lambda z, e: 1.0}, "client_metrics: the function gives .*; a mapping"),
    "no scalar": ({"client_metrics": lambda z, e: {"a": jnp.ones(2)}}, "client_metrics: 'a' of one example is"),
    "a cost": ({"client_metrics": lambda z, e: {"round": 1.0}}, "client_metrics: the name 'round' was given"),
    "fails": (
        {"client_metrics": lambda z, e: {"a": e["b"]}},
        "client_metrics: the function of the initial values and one",
    ),
    "a metric of that name": (
        {"metrics": lambda z: {"loss mean": 1.0}},
        "metrics: 'loss mean' is what client_metrics give",
    ),
    "a metric that is a cost": (
        {"metrics": lambda z: {"seconds": 1.0}},
        "metrics: the name 'seconds' was given, which every history has",
    ),
    "an unknown target": ({"stop": {"loss best": 1.0}}, "stop: there is no metric 'loss best'; there are loss mean"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_metrics_are_refused(name):
    options, sentence = WRONG[name]
    with pytest.raises(rk.InputError, match=sentence):
        solved(**options)


def test_clients_without_a_test_set_are_told_how_to_have_one():
    with pytest.raises(
        rk.InputError, match=r"these clients have no test examples of their own; give rk.federate a test="
    ):
        rk.run(PROBLEM, rk.FedAvg(lr=0.2), rk.federate(DATA), x=0.3, rounds=1, client_metrics=measured)


def test_a_result_shows_itself_in_a_few_lines(tmp_path):
    result = solved()
    shown = repr(result).splitlines()
    assert shown[0] == "Result: done after round 3" and shown[1].startswith("  loss mean ") and len(shown) == 5
    assert "loss worst ended at 0.637, worse than its first value 0.569" in shown[2]
    assert "3 exchanges" in shown[3] and shown[4] == "  sequences: x ()"
    assert result.plot(tmp_path / "plot.png", "near worst").is_file()
    with pytest.raises(rk.InputError, match="metric: 'nearer' is not known"):
        result.plot(tmp_path / "plot.png", "nearer")


def test_a_history_is_a_data_frame():
    history = solved().history
    for frame in (history.to_pandas(), pd.DataFrame(history)):
        assert list(frame.columns) == list(history.columns) and len(frame) == len(history.rows)
        np.testing.assert_array_equal(frame["loss mean"], history["loss mean"])
        assert frame["round"].tolist() == [0, 1, 2, 3]


def test_values_as_a_numpy_file(tmp_path):
    start = {"w": np.ones((2, 3)), "layers": [np.zeros(2), np.ones(1)]}
    problem = rk.Single(lambda x, e: jnp.sum(x["w"]) * 0.0 + e["a"])
    result = rk.run(problem, rk.FedAvg(lr=0.1), CLIENTS, x=start, rounds=1)
    found = np.load(result.to_npz(tmp_path / "values.npz"))
    assert sorted(found) == ["x.layers.0", "x.layers.1", "x.w"] and found["x.w"].shape == (2, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["values.npz"]
    with pytest.raises(rk.InputError, match=r"the name of an \.npz file in a folder that is there"):
        result.to_npz(tmp_path / "values")
