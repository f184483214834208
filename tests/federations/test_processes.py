"""Clients in processes of their own: the same numbers as on one machine, and what may happen to them."""

from __future__ import annotations

import json
import shutil
import struct

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

import rookery as rk
from federations.conftest import SITES, alone, exact
from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.experiments.experiment import Experiment, Options
from rookery.experiments.federation import serve
from rookery.runs.result import describe
from rookery.tasks.registry import find_task

RATES = rk.Rates(0.05)
CASES = {
    "E1 simfbo": ("E1", rk.SimFBO(lr=RATES, local_steps=2)),
    "E1 shrofbo": ("E1", rk.ShroFBO(lr=RATES, local_steps=2)),
    "E1 fedbioacc": ("E1", rk.FedBiOAcc(lr=RATES)),
    "E2 fedmsa": ("E2", rk.FedMSA(lr=RATES)),
    "E1 fednest": ("E1", rk.FedNest(lr=RATES, neumann_step=0.1, lower_steps=2)),
    "E1 aggitd": ("E1", rk.AggITD(lr=RATES, neumann_step=0.1, lower_steps=2)),
    "E1a fedvra": ("E1a", rk.FedVRA(lr=0.05, gamma=0.2, a=0.5, local_steps=3)),
    "E1a scaffold": ("E1a", rk.Scaffold(lr=0.05, local_steps=3)),
    "E5 fedbiolocal": ("E5", rk.FedBiOLocal(lr=rk.Rates(x=0.05, y=0.05))),
    "E1 drift control": ("E1", rk.SimFBO(lr=RATES, local_steps=2, drift=rk.ControlVariates())),
    "E3 simfbo": ("E3", rk.SimFBO(lr=RATES)),
    "E4 fedavg": ("E4", rk.FedAvg(lr=RATES, local_steps=1)),
    "E6 simfbo": ("E6", rk.SimFBO(lr=RATES)),
    "E7 simfbo": ("E7", rk.SimFBO(lr=RATES)),
    "E8 simfbo": ("E8", rk.SimFBO(lr=RATES)),
}


def made(task, **options):
    return find_task(task)(**options)


def same(found, expected, tolerance=1e-12):
    for name in found.sequences:
        for a, b in zip(jax.tree.leaves(found.sequences[name]), jax.tree.leaves(expected.sequences[name])):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert found.ledger == expected.ledger


def owned(run, expected):
    """What is the clients' own is with them, and is what it would have been on one machine."""
    for client, own in enumerate(expected.local):
        arrays: dict[str, np.ndarray] = {}
        for name, tree in own.items():
            describe(tree, name, arrays)
        found = safetensors.load_file(run / "sites" / SITES[client % 3] / f"own-{client}.safetensors")
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_three_processes_give_the_numbers_of_one_machine(name, pool, tmp_path):
    experiment = exact(*CASES[name])
    found, expected = pool.solve(experiment, tmp_path), alone(experiment)
    same(found, expected)
    owned(tmp_path, expected)
    for a, b in zip(found.history.rows, expected.history.rows):
        assert set(a) == set(b) and all(np.isclose(a[k], b[k], rtol=1e-12) for k in a if k != "seconds")


UP = {"stages": "topk:0.5+quantise:8", "errors": "error-feedback:topk:0.5", "differences": "ef21:topk:0.5"}


@pytest.mark.parametrize("up", UP.values(), ids=UP)
def test_channels_give_the_numbers_of_one_machine(up, pool, tmp_path):
    experiment = exact(*CASES["E1 fedbioacc"], rounds=6, up=up, down="quantise:8")
    same(pool.solve(experiment, tmp_path), alone(experiment))


def test_what_channels_keep_survives_a_kill_and_a_new_server(pool, tmp_path):
    """A site is killed after it answered, the run ends there and goes on: shifts at both ends are those of one run."""
    experiment = exact(*CASES["E1 fedbioacc"], rounds=6, up="ef21:topk:0.5", checkpoint_every="1")
    with pytest.raises(ClientsFailed, match="its process ended"):
        pool.solve(experiment, tmp_path, OnFailure("abort"), faults=[(1, "die after", 5)])
    same(pool.solve(experiment, tmp_path, OnFailure("abort")), alone(experiment))


MEASURED = {
    "E1": exact("E1", rk.SimFBO(lr="auto", local_steps=2, drift=rk.ControlVariates()), up="ef21:topk:0.5"),
    "E7, own sequences": exact("E7", rk.SimFBO(lr=rk.Rates("auto", y=0.05))),
}


@pytest.mark.parametrize("name", MEASURED)
def test_rates_are_measured_where_the_clients_are(name, pool, tmp_path):
    found, expected = pool.solve(MEASURED[name], tmp_path), alone(MEASURED[name])
    same(found, expected)
    assert found.rates == pytest.approx(expected.rates, rel=1e-12) and found.ledger.exchanges_of["look"] == 1


@pytest.mark.parametrize("at", [0, 7])
def test_measured_rates_survive_a_kill_and_a_new_server(at, pool, tmp_path):
    """A site is killed while it measures, or later; the run ends there, goes on, and measures once."""
    experiment = exact("E1", rk.SimFBO(lr="auto"), rounds=10, checkpoint_every="1")
    with pytest.raises(ClientsFailed, match="its process ended"):
        pool.solve(experiment, tmp_path, OnFailure("abort"), faults=[(1, "die after", at)])
    same(pool.solve(experiment, tmp_path, OnFailure("abort")), alone(experiment))


@pytest.mark.parametrize("at", [0, 7])
def test_a_site_that_comes_back_knows_the_measured_rates(at, pool, tmp_path):
    experiment = exact("E1", rk.SimFBO(lr="auto"), rounds=10)
    same(pool.solve(experiment, tmp_path, OnFailure("wait"), faults=[(1, "die before", at)]), alone(experiment))
    assert pool.happened()


DIGITS = {
    "simfbo": rk.SimFBO(lr=rk.Rates(0.2)),
    "shrofbo": rk.ShroFBO(lr=rk.Rates(0.2)),
    "fedbioacc": rk.FedBiOAcc(lr=rk.Rates(0.2)),
    "fedmsa": rk.FedMSA(lr=rk.Rates(0.2)),
    "fednest": rk.FedNest(lr=rk.Rates(0.2), neumann_step=0.1, lower_steps=2),
    "aggitd": rk.AggITD(lr=rk.Rates(0.2), neumann_step=0.1, lower_steps=2),
    "drift control": rk.SimFBO(lr=rk.Rates(0.2), local_steps=2, drift=rk.ControlVariates()),
}
SHORT = ("simfbo", "aggitd")


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.full) for name in DIGITS]
)
def test_digits_too_with_several_clients_a_site_and_cohorts(name, precision, pool, tmp_path):
    options = Options(clients=7, cohort=3, rounds=5, precision=precision, partition="dirichlet:0.5")
    experiment = Experiment("hyperrep", made("hyperrep", hidden=16, examples=400), name, DIGITS[name], options)
    same(pool.solve(experiment, tmp_path), alone(experiment), 1e-12 if precision == "float64" else 1e-5)


# What may happen.

SCAFFOLD, NEST = exact(*CASES["E1a scaffold"]), exact(*CASES["E1 fednest"], rounds=2)


@pytest.fixture(scope="module")
def whole():
    return {id(experiment): alone(experiment) for experiment in (SCAFFOLD, NEST)}


@pytest.mark.parametrize(
    "kind",
    ["die before", "die after", "hang", "truncated", "huge", "shape", "dtype", "structure"]
    + ["stale", "name", "twice", "raise", "disk full"],
)
def test_who_waits_has_the_numbers_it_would_have_had(kind, pool, tmp_path, whole):
    policy = OnFailure("wait", deadline=10.0 if kind == "hang" else None)
    found = pool.solve(SCAFFOLD, tmp_path, policy, faults=[(1, kind, 2)])
    assert pool.happened()
    same(found, whole[id(SCAFFOLD)])
    assert not found.missing.rows, "who answered in the end was not missing"


@pytest.mark.parametrize("at", [0, 3, 5, pytest.param(None, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["die before", "die after"])
def test_a_site_that_is_killed_in_any_phase_changes_no_number(kind, at, pool, tmp_path, whole):
    """FedNest's rounds have phases that build on one another, with vectors that were sent before."""
    exchanges = range(NEST.options.rounds and whole[id(NEST)].ledger.exchanges) if at is None else [at]
    for number in exchanges:
        found = pool.solve(NEST, tmp_path / str(number), OnFailure("wait"), faults=[(number % 3, kind, number)])
        assert pool.happened()
        same(found, whole[id(NEST)])


@pytest.mark.parametrize("policy", ["wait", "drop", "abort"])
def test_a_site_that_lost_its_disk_says_so_and_the_policy_decides(policy, pool, tmp_path):
    run = lambda: pool.solve(SCAFFOLD, tmp_path, OnFailure(policy, tries=2), faults=[(1, "die and lose", 2)])
    if policy != "drop":
        lost = "its process ended" if policy == "abort" else "client 1: its record of the last round .* is lost"
        with pytest.raises(ClientsFailed, match=f"client 1 did not answer: {lost}"):
            run()
        return
    found = run()
    assert {row["client"] for row in found.missing.rows} == {"1"} and np.isfinite(found.x).all()
    assert (tmp_path / "server" / "missing.csv").read_text().startswith("round,client,why")


def test_who_has_nothing_to_lose_loses_nothing(pool, tmp_path):
    experiment = exact(*CASES["E1 simfbo"])
    found = pool.solve(experiment, tmp_path, OnFailure("wait"), faults=[(1, "die and lose", 2), (2, "die after", 1)])
    same(found, alone(experiment))


def test_numbers_that_are_none_are_left_out_or_end_the_run(pool, tmp_path):
    found = pool.solve(SCAFFOLD, tmp_path / "drop", OnFailure("drop"), faults=[(2, "nan", 1)])
    assert found.missing.rows == [{"round": 1, "client": "2", "why": "message: it has numbers that are not finite"}]
    assert np.isfinite(found.x).all()
    with pytest.warns(rk.DivergenceWarning):
        found = pool.solve(SCAFFOLD, tmp_path / "wait", OnFailure("wait"), faults=[(2, "nan", 1)])
    assert found.status == "diverged" and found.state.round == 1 and np.isfinite(found.x).all()


def test_below_the_minimum_the_round_is_undone_at_all_sites(pool, tmp_path, whole):
    faults = [(0, "truncated", 1), (1, "truncated", 1)]
    found = pool.solve(SCAFFOLD, tmp_path, OnFailure("drop", minimum=2), faults=faults)
    same(found, whole[id(SCAFFOLD)])
    assert len(found.missing.rows) == 2


def test_a_run_that_aborts_says_who_and_why_and_can_go_on(pool, tmp_path, whole):
    with pytest.raises(
        ClientsFailed, match="client 1 did not answer: site site-2: it failed, with ValueError; its log says why"
    ):
        pool.solve(SCAFFOLD, tmp_path, OnFailure("abort"), faults=[(1, "raise", 2)])
    same(pool.solve(SCAFFOLD, tmp_path, OnFailure("abort")), whole[id(SCAFFOLD)])
    for path in [*(tmp_path / "server").rglob("*"), *pool.transport.seen]:
        content = path if isinstance(path, bytes) else path.read_bytes() if path.is_file() else b""
        assert b"4711" not in content, "what the client's own code said is with the server"
    assert "4711" in "".join(path.read_text() for path in pool.folder.glob("*.log"))


def test_a_site_with_another_configuration_is_refused(pool, tmp_path):
    pool.solve(SCAFFOLD, tmp_path / "one")
    pool.use(tmp_path / "one")
    for path, part in (("method", "method"), ("task", "task"), ("seed", "set of options")):
        config = json.loads((tmp_path / "one" / "server" / "config.json").read_text())
        other = tmp_path / path
        (other / "theirs" / "own").mkdir(parents=True)
        config = config | ({path: 7} if path == "seed" else {})
        if path == "method":
            config["method"]["lr"] = 0.01
        if path == "task":
            config["task"]["problem"] = "E1"
        shutil.copytree(tmp_path / "one" / "server" / "own", other / "theirs" / "own", dirs_exist_ok=True)
        (other / "theirs" / "config.json").write_text(json.dumps(config))
        pool.use(other)
        told = json.loads((other / "sites" / "site-2" / "site.json").read_text())
        (other / "sites" / "site-2" / "site.json").write_text(
            json.dumps(told | {"configuration": str(other / "theirs")})
        )
        with pytest.raises(rk.InputError, match=f"site site-2: the server has another {part} than this site"):
            serve(other / "server", pool.transport, SCAFFOLD)


# What the server learns.

PLANTED = 8675309.125


@pytest.fixture
def hospitals(tmp_path):
    rng = np.random.default_rng(0)
    for i, name in enumerate(SITES):
        rows = [
            f"{rng.normal():.6f},{rng.normal() * 3:.6f},{j % 2},{int(rng.random() < 0.5)}" for j in range(20 + 5 * i)
        ]
        rows[3] = f"{PLANTED + i},1.0,1,1"
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(["age,marker,audited,label", *rows]) + "\n")
    return tmp_path / "data"


def test_sites_with_their_own_files_give_the_numbers_of_one_machine_and_no_row_reaches_the_server(
    pool, tmp_path, hospitals, capfd
):
    method, options = (
        rk.SimFBO(lr=rk.Rates(x=10.0, y=0.05, v=0.05)),
        Options(partition="natural", rounds=4, precision="float64"),
    )
    task = made("trust", data=f"csv:{hospitals}", checked="audited", form="records")
    local = Experiment("trust", task, "simfbo", method, options)
    sources = {name: f"csv:{hospitals / name}.csv" for name in SITES}
    found, expected = pool.solve(local, tmp_path, sources=sources), alone(local)
    for name in ("y", "v"):
        for a, b in zip(jax.tree.leaves(found.sequences[name]), jax.tree.leaves(expected.sequences[name])):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    assert "x" not in found.sequences and [row["client"] for row in found.clients.rows] == list(SITES)
    for mine, theirs in zip(found.clients.rows, expected.clients.rows):
        assert all(np.isclose(mine[key], theirs[key], rtol=1e-9) for key in mine if key != "client")
    whole = b"".join(pool.transport.seen) + "".join(capfd.readouterr()).encode()
    whole += b"".join(path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())
    for i in range(3):
        for form in (
            struct.pack("<d", PLANTED + i),
            struct.pack("<f", PLANTED + i),
            f"{PLANTED + i}".encode(),
            b"8675309",
        ):
            assert form not in whole
    own = safetensors.load_file(tmp_path / "sites" / "site-1" / "own-0.safetensors")
    secret = own["x.record"].tobytes()
    assert secret not in whole and np.abs(own["x.record"]).max() > 0


def test_sites_learn_shared_trust_and_the_choice_without_a_row_leaving_them(pool, tmp_path, hospitals):
    task = made("trust", data=f"csv:{hospitals}", checked="audited")
    options = Options(partition="natural", rounds=4, precision="float64")
    local = Experiment("trust", task, "simfbo", rk.SimFBO(lr=rk.Rates(x=10.0, y=0.05, v=0.05)), options)
    found, expected = (
        pool.solve(local, tmp_path, sources={name: f"csv:{hospitals / name}.csv" for name in SITES}), alone(local)
    )  # fmt: skip
    for name in ("site", "loss", "variance"):
        np.testing.assert_allclose(found.x[name], expected.x[name], rtol=1e-9, atol=1e-12)
    assert found.x["loss"].min() > 0 and found.x["site"].shape == (3,)
    assert found.history["chosen"][-1] in (0, 1, 2) and "auc" not in found.history
    assert (tmp_path / "server" / "conclusion.txt").read_text().startswith("chosen: ")


def test_a_row_that_cannot_be_read_is_told_to_its_site_alone(pool, tmp_path, hospitals):
    path = hospitals / "site-2.csv"
    path.write_text(path.read_text().replace(f"{PLANTED + 1}", "Smith"))
    options = Options(partition="natural", rounds=2)
    task = made("trust", data=f"csv:{hospitals}", checked="audited")
    experiment = Experiment("trust", task, "simfbo", rk.SimFBO(lr=rk.Rates(0.1)), options)
    with pytest.raises(rk.InputError, match="site site-2: it failed, with InputError; its log says why"):
        pool.solve(experiment, tmp_path, sources={name: f"csv:{hospitals / name}.csv" for name in SITES})
    assert b"Smith" not in b"".join(pool.transport.seen) and not (tmp_path / "server").exists()
    assert "client '0', column 'age' holds" in (pool.folder / "site-2.log").read_text()
