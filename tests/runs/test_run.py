"""Running: the example of the README, histories, stopping, continuing, saving, diverging, interrupting."""

from __future__ import annotations

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.runs.table import COST

CLIENTS = rk.federate([{"a": np.array([1.0]), "b": np.array([3.0])}, {"a": np.array([3.0]), "b": np.array([1.0])}])


def upper(x, y, e):
    return 0.5 * (y - 1) ** 2 + 0.25 * x**2


def lower(x, y, e):
    return 0.5 * e["a"] * y**2 - e["b"] * x * y


def metrics(z):
    return {"distance": jnp.abs(z.x - 2 / 3), "closeness": -jnp.abs(z.x - 2 / 3)}


PROBLEM = rk.Bilevel(upper=upper, lower=lower)
METHOD = rk.SimFBO(lr=rk.Rates(x=0.1, y=0.2, v=0.2))


def go(rounds=100, method=METHOD, **options):
    return rk.run(PROBLEM, method, CLIENTS, **({"x": 0.0, "y": 0.0, "precision": "float64"} | options), rounds=rounds)


def test_the_hypergradient_is_that_of_the_whole_federation():
    result = go(2000)
    assert abs(result.x - 2 / 3) < 1e-9  # averaging local hypergradients would give 30/91
    assert tuple(result.history) == COST and result.history.metrics == []
    assert result.history["round"][-1] == result.history["exchanges"][-1] == 2000
    assert len(result.history.rows) == 51
    assert isinstance(result.x, np.ndarray) and result.x.dtype == np.float64
    assert result.status == "done" and result.divergence is None


def test_evaluations_are_spaced_and_seen_by_callbacks():
    seen = []
    result = go(25, every=10, metrics=metrics, callbacks=[lambda round, row: seen.append((round, row["distance"]))])
    assert [round for round, _ in seen] == [0, 10, 20, 25] == result.history["round"].tolist()
    assert seen[-1][1] == result.history["distance"][-1] == abs(float(result.x) - 2 / 3)
    assert result.history["seconds"][0] == 0 and (np.diff(result.history["seconds"]) > 0).all()


def test_evaluation_does_not_touch_the_trajectory():
    assert go(60, every=1, metrics=metrics).x == go(60, every=60).x


def test_stop_ends_a_run_at_its_target():
    result = go(1000, every=5, metrics=metrics, stop={"closeness": -0.01})
    assert result.status == "stopped" and result.state.round < 1000
    assert result.history["closeness"][-1] >= -0.01 > result.history["closeness"][-2]
    by_function = go(1000, every=5, metrics=metrics, stop={"distance": lambda d: d <= 0.01})
    assert by_function.state.round == result.state.round


def test_a_run_continues_as_if_never_stopped(tmp_path):
    options = {"sampling": rk.Uniform(1), "seed": 4, "method": rk.FedBiOAcc(lr=rk.Rates(0.1), local_steps=2)}
    whole = go(30, **options)
    half = go(13, **options)
    on_engine = {"local": half.state, "eager": rk.Result.load(half.save(tmp_path / "half")).state}
    for engine, state in on_engine.items():
        rest = go(17, **(options | {"seed": 99, "engine": engine}), state=state)
        np.testing.assert_allclose([rest.x, rest.y], [whole.x, whole.y], atol=1e-14, rtol=0)
        assert rest.ledger == whole.ledger and rest.state.round == 30
    with pytest.raises(rk.InputError, match="state: it belongs to another problem, method, population or precision"):
        go(1, state=half.state)


def test_results_are_saved_and_loaded(tmp_path):
    exact = rk.exact.QuadraticMeta.random(clients=3, dims=2, seed=5)
    result = rk.run(
        exact.problem, rk.SimFBO(lr=rk.Rates(0.1)), exact.clients, rounds=5, every=2,
        metrics=lambda z: {"norm": jnp.sum(jnp.stack(jax.tree.leaves(z.x)) ** 2)}, **exact.start(leaves=2),
    )  # fmt: skip
    folder = result.save(tmp_path / "deep" / "result")
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.csv",
        "result.json",
        "sequences.safetensors",
        "state.safetensors",
    ]
    back = rk.Result.load(folder)
    assert jax.tree.structure(back.sequences) == jax.tree.structure(result.sequences)
    jax.tree.map(np.testing.assert_array_equal, back.sequences, result.sequences)
    jax.tree.map(np.testing.assert_array_equal, back.local, result.local)
    assert back.history.rows == result.history.rows
    assert back.ledger == result.ledger and back.status == result.status
    with open(folder / "history.csv") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "2", "4", "5"]
    with pytest.raises(rk.InputError, match="is there already; give a new or empty folder"):
        result.save(folder)
    with pytest.raises(rk.InputError, match="holds no result"):
        rk.Result.load(tmp_path)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["result"]


def test_nothing_half_written_stays_on_disk(tmp_path, monkeypatch):
    result = go(3)
    monkeypatch.setattr(rk.Table, "to_csv", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        result.save(tmp_path / "result")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_a_diverging_run_keeps_the_last_good_state(engine):
    explode = rk.SimFBO(lr=rk.Rates(x=0.1, y=1e30, v=0.2))
    with pytest.warns(rk.DivergenceWarning, match=r"y not finite after round \d+"):
        result = go(500, explode, engine=engine, x=1.0, every=100)
    assert result.status == "diverged" and result.divergence is not None
    assert result.divergence.sequences[0] in ("x", "y", "v") and "y" in result.divergence.sequences
    assert result.state.round == result.divergence.round - 1
    assert all(np.isfinite(tree).all() for tree in result.sequences.values())
    with pytest.warns(rk.DivergenceWarning, match="y grew to"):  # finite, since it ends in time
        same = go(result.state.round, explode, engine=engine, x=1.0)
    assert same.status == "diverged"
    assert [float(tree) for tree in same.sequences.values()] == [float(tree) for tree in result.sequences.values()]
    assert same.ledger == result.ledger
    assert result.history["round"][-1] == result.state.round


def test_initial_values_may_be_functions_of_the_key():
    start = lambda key: jax.random.normal(key, dtype=jnp.float32)
    first, again, other = (go(1, x=start, seed=seed, method=rk.SimFBO(lr=rk.Rates(0.0))) for seed in (1, 1, 2))
    assert first.x == again.x != other.x


def test_local_initial_values_see_the_clients_data():
    clients = rk.federate([{"a": np.array([1.0, 3.0])}, {"a": np.array([5.0])}])
    problem = rk.Joint(lambda x, y, e: 0.5 * (y - e["a"]) ** 2 + 0.5 * (x - y) ** 2)
    result = rk.run(
        problem, rk.SimFBO(lr=rk.Rates(0.0)), clients, x=0.0, y=lambda key, data: data["a"].mean(), rounds=1
    )
    assert [float(own.y) for own in result.local] == [2.0, 5.0]
    assert result.y.tolist() == [2.0, 5.0]


def test_joint_problems_project_each_clients_block():
    clients = rk.federate([{"a": np.array([[2.0, 0.0]])}, {"a": np.array([[0.0, 0.4]])}])
    problem = rk.Joint(
        lambda x, y, e: 0.5 * jnp.sum((y - e["a"]) ** 2) + 0.5 * jnp.sum((x - y) ** 2),
        client_set=rk.Simplex(),
        server_set=rk.Box(-0.1, 0.6),
    )
    result = rk.run(
        problem, rk.SimFBO(lr=rk.Rates(0.2)), clients, x=np.zeros(2), y=np.zeros(2), rounds=400,
        precision="float64",
    )  # fmt: skip
    assert [abs(own.y.sum() - 1) < 1e-12 and own.y.min() >= 0 for own in result.local] == [True, True]
    # At the solution every y_i is the projection of (a_i + x)/2, and x the clipped mean of the y_i.
    for own, a in zip(result.local, ([2.0, 0.0], [0.0, 0.4])):
        np.testing.assert_allclose(own.y, rk.Simplex().project((jnp.array(a) + result.x) / 2), atol=1e-6)
    np.testing.assert_allclose(result.x, np.clip(result.y.mean(axis=0), -0.1, 0.6), atol=1e-6)
    assert result.x.max() == 0.6


def test_further_sequences_start_where_they_are_told():
    field = rk.Field(lambda z, e: {"x": z.x - z.u, "u": z.u - e["a"]}, ["x", "u"])
    clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([3.0])}])
    method = rk.SimFBO(lr=rk.Rates(0.5))
    result = rk.run(field, method, clients, x=0.0, start={"u": 10.0}, rounds=1)
    assert (float(result.sequences.x), float(result.sequences.u)) == (5.0, 6.0)
    assert abs(float(rk.run(field, method, clients, x=0.0, start={"u": 10.0}, rounds=60).x) - 2.0) < 1e-6


def test_batch_sizes_may_differ_between_levels():
    result = go(10, batch_size=rk.Split(lower=3, upper=None))
    assert result.ledger.samples == 10 * 2 * (3 + 1)


def test_an_interrupt_gives_what_was_done():
    def interrupt(round, row):
        if round == 20:
            raise KeyboardInterrupt

    with pytest.raises(rk.Interrupted) as interrupted:
        go(100, every=10, callbacks=[interrupt])
    result = interrupted.value.result
    assert result.status == "interrupted" and result.state.round == 20
    assert result.history["round"].tolist() == [0, 10, 20]
    assert result.x == go(20).x


def test_schedules_of_step_sizes_follow_the_round():
    """x <- x - eta_r (x - 1) with eta_r = 1/(r+2): the running mean of zero and ones."""
    clients = rk.federate([{"a": np.array([1.0])}])
    problem = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
    method = rk.SimFBO(lr=rk.Rates(lambda r: 1.0 / (r + 2)))
    result = rk.run(problem, method, clients, x=0.0, rounds=9, precision="float64")
    assert abs(float(result.x) - (1 - 1 / 10)) < 1e-12


def test_tables_read_like_mappings():
    table = rk.Table([{"a": 1, "b": 0.5}, {"a": 2, "c": "x"}])
    assert table["a"].tolist() == [1, 2] and np.isnan(table["b"][1])
    assert dict(table).keys() == {"a", "b", "c"}
    assert repr(table).splitlines()[0].split() == ["a", "b", "c"]
    with pytest.raises(KeyError, match="there is no column 'd'"):
        table["d"]


def doubling(**options):
    """x doubles in every round, and single precision ends after 127 of them."""
    clients = rk.federate([{"a": np.array([1.0])}])
    problem = rk.Single(lambda x, e: -0.5 * x**2 * e["a"])
    return (
        problem,
        rk.FedAvg(lr=1.0),
        clients,
        {"x": 1.0, "rounds": 300, "metrics": lambda z: {"size": jnp.abs(z.x)}} | options,
    )


@pytest.mark.parametrize("every", [1, 7, 100, 300])
@pytest.mark.parametrize("engine", ["local", "eager", "sweep"])
def test_a_target_that_is_met_before_a_run_diverges_ends_it_on_every_engine(engine, every):
    """The last good state is what counts, whether the rounds after it were run in the same chunk or not."""
    *given, options = doubling(every=every, stop={"size": 1e38})
    if engine == "sweep":
        (result,) = rk.sweep(*given, over={"seed": [0]}, **options).results
    else:
        result = rk.run(*given, engine=engine, **options)
    assert (result.status, result.divergence) == ("stopped", None)
    assert result.x >= 1e38


@pytest.mark.parametrize("engine", ["local", "eager", "sweep"])
@pytest.mark.filterwarnings("ignore::rookery.DivergenceWarning")
def test_a_target_that_is_not_met_does_not_hide_a_divergence(engine):
    *given, options = doubling(every=100, stop={"size": 3.3e38})
    if engine == "sweep":
        (result,) = rk.sweep(*given, over={"seed": [0]}, **options).results
    else:
        result = rk.run(*given, engine=engine, **options)
    assert result.status == "diverged" and result.divergence is not None and result.divergence.round == 128
