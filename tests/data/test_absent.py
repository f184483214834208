"""Rows at other parties of a federation: every party builds the task, and holds no rows but its own."""

from __future__ import annotations

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.data.absent import Absent, PartyRows, absent
from rookery.data.levels import ABSENT
from rookery.data.sites import BYTES_A_ROW, Holding, Outline
from rookery.engines.worker import own_shard
from rookery.errors import MessageError
from rookery.experiments.experiment import Experiment, Options
from rookery.experiments.site import assembled
from rookery.tasks.registry import find_task

COLUMNS, HERE, ELSEWHERE = 40, 60, 300_000
FEDERATED = ("classify", "fairness", "hyperrep", "metalearn", "personalised", "regularisation", "trust")


def holding(rows: int, seed: int) -> Holding:
    rng = np.random.default_rng(seed)
    part = lambda count: {
        "input": rng.normal(size=(count, COLUMNS)).astype(np.float32),
        "label": (np.arange(count) % 2).astype(np.int32),
        "checked": (np.arange(count) % 4 == 0).astype(np.int32),
    }
    columns = tuple(f"c{place}" for place in range(COLUMNS))
    return Holding(part(rows), part(rows // 4), columns, (0, 1), "ill", "pooled", "checked")


def outline_of(sites: dict[str, Holding]) -> Outline:
    return Outline.of({name: own.facts() for name, own in sites.items()})


@pytest.fixture(scope="module")
def small() -> Holding:
    return holding(HERE, 0)


@pytest.fixture(scope="module")
def outline(small) -> Outline:
    """Two sites, one of which says that it has many rows."""
    facts = holding(HERE, 1).facts()
    grown = facts | {"train": ELSEWHERE, "test": ELSEWHERE // 4, "squares": [float(ELSEWHERE)] * COLUMNS}
    return Outline.of({"large": grown, "small": small.facts()})


@pytest.mark.parametrize("task", FEDERATED)
@pytest.mark.parametrize("party", ["server", "small"])
def test_no_party_allocates_the_rows_of_another(task, party, outline, small):
    options = {"data": "csv:somewhere"} | ({"checked": "checked"} if task == "trust" else {})
    data = find_task(task)(**options)
    experiment = Experiment(task, data, "fedavg", rk.FedAvg(lr=0.1), Options(partition="natural"))
    tracemalloc.start()
    assembly = assembled(experiment, outline, None if party == "server" else {"small": small})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    examples = sum(outline.train) + sum(outline.test)
    assert peak < BYTES_A_ROW * examples, f"{peak / examples:.0f} bytes for each example"
    clients = assembly.clients
    assert clients.sizes.tolist() == [ELSEWHERE, HERE] and not clients.streamed
    held = {name: np.asarray(level.rows["input"]) for name, level in clients.levels.items()}
    if party == "server":
        assert all(len(rows) == 1 and not rows.any() for rows in held.values())
    else:
        assert sum(len(rows) for rows in held.values()) == HERE
        together = np.sort(np.concatenate(list(held.values())), axis=0)
        np.testing.assert_array_equal(together, np.sort(small.train["input"], axis=0))


def test_absent_clients_keep_their_size_and_weight():
    rows = np.ones((4, 3), np.float32)
    clients = rk.federate([{"a": absent((6, 3), np.float32)}, {"a": rows}], weights="size")
    assert clients.sizes.tolist() == [6, 4] and clients.weights.tolist() == [0.6, 0.4]
    assert clients.levels["all"].offset.tolist() == [ABSENT, 0]
    assert isinstance(clients.client(0)["a"], Absent) and clients.client(0)["a"].shape == (6, 3)
    np.testing.assert_array_equal(clients.client(1)["a"], rows)
    np.testing.assert_array_equal(own_shard(clients.levels, 1).levels["all"].rows["a"], rows)
    with pytest.raises(MessageError, match="client 0: its rows are at another party"):
        own_shard(clients.levels, 0)


@pytest.mark.parametrize("engine", ["local", "eager", "mesh", rk.Streamed()], ids=str)
def test_a_run_of_absent_rows_is_refused(engine):
    """Their offset names no row: a program would read another client's."""
    clients = rk.federate({"north": {"a": absent((6, 3), np.float32)}, "south": {"a": np.ones((4, 3), np.float32)}})
    problem = rk.Single(lambda x, e: ((x - e["a"]) ** 2).sum())
    for call in (rk.run, rk.sweep) if engine in ("local", "mesh") else (rk.run,):
        options = {"over": {"seed": [0, 1]}} if call is rk.sweep else {}
        with pytest.raises(rk.InputError, match=r"clients: the rows of 'north' are at another party"):
            call(problem, rk.FedAvg(lr=0.1), clients, x=np.zeros(3), rounds=1, engine=engine, **options)
    with pytest.raises(rk.InputError, match=r"clients: the rows of 'north' are at another party"):
        rk.fixed_point(problem, rk.FedAvg(lr=0.1), clients, x=np.zeros(3))


def test_absent_rows_do_not_hide_which_client_has_a_value_that_is_not_finite():
    bad = np.array([[0.0], [np.nan]])
    with pytest.raises(rk.InputError, match="client 2 has a value that is NaN or infinite, in row 1, column 0"):
        rk.federate([{"a": np.zeros((3, 1))}, {"a": absent((9, 1), np.float64)}, {"a": bad}])


def test_rows_of_a_party_are_taken_as_from_an_array():
    own = np.arange(6.0).reshape(3, 2)
    rows, whole = PartyRows(own, 2, 7), np.zeros((7, 2))
    whole[2:5] = own
    np.testing.assert_array_equal(np.asarray(rows), whole)
    for index in ([2, 4], [4, 0, 3], slice(2, 5), np.arange(7) > 3, slice(None)):
        np.testing.assert_array_equal(np.asarray(rows[index]), whole[index])
    assert isinstance(rows[[0, 6]], Absent) and not isinstance(rows[[2]], Absent)
    np.testing.assert_array_equal(rows[:, 1], whole[:, 1])
    assert len(rows) == 7 and np.asarray(jnp.asarray(rows)).shape == (7, 2)
