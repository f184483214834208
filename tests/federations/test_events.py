"""What a federation records of its exchanges, and which replies it names."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import rookery as rk
from federations.conftest import SITES, exact
from federations.test_processes import CASES
from rookery.engines.messaging import ClientsFailed, OnFailure

SCAFFOLD = exact(*CASES["E1a scaffold"])


def of(run, kind):
    return [event for event in rk.read_events(run / "server") if event["event"] == kind]


def test_every_exchange_is_recorded_with_what_each_site_did(pool, tmp_path):
    found = pool.solve(SCAFFOLD, tmp_path)
    exchanges = of(tmp_path, "exchange")
    assert len(exchanges) == found.ledger.exchanges and len(of(tmp_path, "round")) == 4
    assert [event["round"] for event in exchanges] == [1, 2, 3, 4] and {event["exchange"] for event in exchanges} == {0}
    for event in exchanges:
        assert [entry["site"] for entry in event["clients"]] == list(SITES)
        for entry in event["clients"]:
            assert (entry["asked"], entry["answered"], entry["finite"], entry["failure"]) == (1, True, True, None)
            assert 0 < entry["seconds"] <= event["seconds"] and entry["norm"] > 0
            assert entry["sent"] > 100 < entry["received"]
    sent = sum(entry["sent"] for event in exchanges for entry in event["clients"])
    assert sent == found.state.versions["bytes"][0]


def test_the_norm_is_that_of_the_change_that_the_server_makes(pool, tmp_path):
    """FedAvg with one client: the reply is the change of x, and the server adds it to x."""
    experiment = exact("E1a", rk.FedAvg(lr=0.05, local_steps=1), rounds=1, cohort=1)
    start = np.asarray(experiment.assemble().x)
    found = pool.solve(experiment, tmp_path)
    (event,) = of(tmp_path, "exchange")
    (entry,) = event["clients"]
    weight = float(np.asarray(experiment.assemble().clients.weights)[int(entry["client"])])
    moved = np.linalg.norm(found.x - start) / (3 * weight)  # the mean divides by the probability to take part, 1/3
    np.testing.assert_allclose(entry["norm"], moved, rtol=1e-9)


def test_a_site_that_fails_and_returns_is_named(pool, tmp_path):
    said = []
    pool.solve(SCAFFOLD, tmp_path, OnFailure("wait"), faults=[(1, "truncated", 2)], say=said.append)
    (failed,), (returned,) = of(tmp_path, "failed"), of(tmp_path, "returned")
    assert (failed["site"], failed["round"], returned["site"], returned["round"]) == ("site-2", 3, "site-2", 3)
    entry = of(tmp_path, "exchange")[2]["clients"][1]
    assert entry["asked"] == 2 and entry["answered"] and entry["failure"] is None
    assert "round 3: no reply from client 1 at site-2: message: it was cut or changed on its way" in said
    assert "round 3: client 1 at site-2 replies again" in said


def test_a_site_that_is_left_out_has_its_reason(pool, tmp_path):
    pool.solve(SCAFFOLD, tmp_path, OnFailure("drop"), faults=[(1, "die before", 2)])
    entry = of(tmp_path, "exchange")[2]["clients"][1]
    assert not entry["answered"] and "its process ended" in entry["failure"] and entry["norm"] is None
    assert of(tmp_path, "round")[2]["failed"] == 1 and [event["round"] for event in of(tmp_path, "returned")] == [4]


def test_an_exchange_that_ends_the_run_is_recorded(pool, tmp_path):
    with pytest.raises(ClientsFailed):
        pool.solve(SCAFFOLD, tmp_path, OnFailure("abort"), faults=[(1, "truncated", 2)])
    assert of(tmp_path, "exchange")[-1]["clients"][1]["failure"].startswith("message: it was cut")
    (ended,) = of(tmp_path, "ended")
    assert ended["status"] == "clients failed" and list(ended["failures"]) == ["1"]
    pool.solve(SCAFFOLD, tmp_path, OnFailure("abort"))
    (resumed,) = of(tmp_path, "resumed")
    assert resumed["round"] == 2 and of(tmp_path, "ended")[-1]["status"] == "done"


@pytest.mark.parametrize("policy", ["wait", "abort"])
def test_a_reply_that_is_not_finite_is_named(policy, pool, tmp_path):
    said = []
    with pytest.warns(rk.DivergenceWarning, match="the replies of 2 were not finite"):
        found = pool.solve(SCAFFOLD, tmp_path, OnFailure(policy), faults=[(2, "nan", 1)], say=said.append)
    assert found.status == "diverged" and found.divergence.clients == ("2",)
    assert rk.Result.load(tmp_path / "server").divergence == found.divergence
    (event,) = of(tmp_path, "not finite")
    assert (event["site"], event["round"]) == ("site-3", 2)
    assert any("reply of client 2 at site-3" in line and "not finite" in line for line in said)
    entries = of(tmp_path, "exchange")[1]["clients"]
    assert [entry["finite"] for entry in entries] == [True, True, False] and entries[2]["norm"] is None


def test_a_reply_a_thousand_times_the_others_is_named_once_until_it_is_small_again(pool, tmp_path):
    said = []
    pool.solve(SCAFFOLD, tmp_path / "honest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool.solve(SCAFFOLD, tmp_path, OnFailure("wait"), faults=[(0, "large", 1)], say=said.append)
    honest = of(tmp_path / "honest", "exchange")[1]["clients"][0]["norm"]
    np.testing.assert_allclose(of(tmp_path, "exchange")[1]["clients"][0]["norm"], 1e6 * honest, rtol=1e-9)
    (event,) = of(tmp_path, "large reply")
    assert (event["client"], event["site"], event["round"]) == ("0", "site-1", 2)
    assert event["norm"] > 1000 * event["median"] > 0
    assert sum("warning: the reply of client 0 at site-1" in line for line in said) == 1
