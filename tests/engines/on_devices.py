"""Tests of the mesh in a process with eight devices, which `test_mesh.py` starts: JAX counts them when it starts."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

import rookery as rk
from engines.grids import numbers, own_data, same_numbers, uneven
from engines.test_engines import SCHEMES, Everything
from properties.checks import difference, run
from properties.table import CASES, bed, by_name
from rookery.engines.lanes import Spread
from rookery.engines.mesh import Layout
from rookery.federation.ledger import Ledger
from rookery.runs import sweep as sweeps
from rookery.runs.prepare import prepare

FEW = ("simfbo controlled", "fedbioacc own I=2")
EVERY = [pytest.param(case, marks=[pytest.mark.full] * (case.name not in FEW), id=by_name(case)) for case in CASES]


def same(one: rk.Result, other: rk.Result, tolerance: float = 1e-12) -> None:
    """The same numbers: sequences, everybody's records, ledgers."""
    assert difference(one, other) <= tolerance
    assert one.ledger == other.ledger
    for a, b in zip(one.state.leaves, other.state.leaves, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0)


def test_there_are_eight():
    assert jax.device_count() == 8


@pytest.mark.parametrize("case", EVERY)
def test_every_method_has_the_local_engines_numbers(case):
    """On two devices, one of which has more clients, and on eight, most of which have none."""
    method = case.make(rk.Rates(0.02))
    local = run(bed(case.beds[0]), method, rounds=8, seed=5, **case.noisy)
    for devices in (2, 8):
        same(local, run(bed(case.beds[0]), method, rounds=8, seed=5, engine=rk.Mesh(devices), **case.noisy))


@pytest.mark.parametrize(
    "name", ["bernoulli", *(pytest.param(name, marks=pytest.mark.full) for name in ("uniform", "with-replacement"))]
)
def test_the_whole_contract_holds(name):
    """Start, loops of exchanges, `select`, `when`, states, and rounds in which nobody takes part."""
    method, options = Everything(lr=rk.Rates(0.02)), {"sampling": SCHEMES[name], "batch_size": 2, "seed": 2}
    local = run(bed("E1"), method, rounds=8, **options)
    for engine in (rk.Mesh(2), rk.Mesh(3, at_once=2)):
        same(local, run(bed("E1"), method, rounds=8, engine=engine, **options))


@pytest.mark.parametrize("at_once", [None, pytest.param(2, marks=pytest.mark.full)])
def test_in_order_it_is_the_same_to_the_last_bit_on_any_number_of_devices(at_once):
    method = rk.Scaffold(lr=rk.Rates(0.05), local_steps=2)
    on = lambda devices: rk.Mesh(devices, at_once=at_once, ordered=True)
    results = [run(bed("E1a"), method, rounds=8, batch_size=2, engine=on(devices)) for devices in (1, 2, 3, 8)]
    for other in results[1:]:
        same(results[0], other, tolerance=0.0)


def test_a_run_goes_on_on_another_number_of_devices(tmp_path):
    exact, method = bed("E1a"), rk.Scaffold(lr=rk.Rates(0.05), local_steps=2)
    options = {"sampling": rk.Uniform(2), "batch_size": 2, "precision": "float64", **exact.start(leaves=2)}
    begun = {"rounds": 4, "checkpoints": rk.Checkpoints(tmp_path / "run", every=2), "engine": rk.Mesh(8)}
    rk.run(exact.problem, method, exact.clients, **begun, **options)
    whole = rk.run(exact.problem, method, exact.clients, rounds=10, **options)
    for engine in (rk.Mesh(3), "local", rk.Mesh()):
        rounds = {rk.Mesh(3): 6, "local": 8}.get(engine, 10)
        last = rk.resume(
            tmp_path / "run", exact.problem, method, exact.clients, rounds=rounds, engine=engine, **options
        )
    same(whole, last)


def test_a_run_that_diverges_keeps_the_last_good_state():
    with pytest.warns(rk.DivergenceWarning):
        local = run(bed("E1a"), rk.FedAvg(lr=rk.Rates(1e3)), rounds=500)
    with pytest.warns(rk.DivergenceWarning):
        mesh = run(bed("E1a"), rk.FedAvg(lr=rk.Rates(1e3)), rounds=500, engine="mesh")
    assert mesh.divergence is not None and mesh.divergence == local.divergence and mesh.divergence.round > 1
    assert mesh.state.round == local.state.round


def test_client_metrics_and_own_sequences_are_in_the_order_of_clients():
    exact = bed("E1-local")
    method = rk.FedBiOLocal(lr=rk.Rates(0.02), hypergradient=rk.Tracked())
    local, mesh = (run(exact, method, rounds=3, engine=engine) for engine in ("local", rk.Mesh(2)))
    for a, b in zip(local.local, mesh.local, strict=True):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)


def test_all_records_together_are_on_the_host_alone():
    """They are spread because no device has room for them."""
    exact, shared = bed("E1a"), {"sampling": rk.All(), "batch_size": None, "seed": 0, "precision": "float32"}
    ready = prepare(exact.problem, rk.Scaffold(lr=rk.Rates(0.05)), exact.clients, **shared, **exact.start(leaves=2))
    session = rk.Mesh(3).open(ready, Ledger())
    session.advance(2)
    kept, standing = jax.tree.leaves(session.carry.records), jax.tree.leaves(session.standing.records)
    assert kept and all(type(leaf) is np.ndarray for leaf in kept)
    for leaf, store in zip(kept, standing, strict=True):
        assert max(shard.data.shape[0] for shard in store.addressable_shards) == -(-len(leaf) // 3)


def test_clients_are_spread_evenly():
    rng = np.random.default_rng(0)
    for population, devices in ((1, 8), (7, 3), (100, 8), (1000, 7)):
        work = rng.lognormal(size=population)
        layout = Layout(devices, work)
        counts = np.bincount(layout.device, minlength=devices)
        assert counts.sum() == population and counts.max() <= layout.each == -(-population // devices)
        assert len(set(zip(layout.device.tolist(), layout.place.tolist()))) == population
        sums = np.bincount(layout.device, work, minlength=devices)
        if population >= 100:
            assert sums.max() - sums.min() <= work.max()


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(rk.InputError, match="devices: 9 was given; there are 8"):
        run(bed("E1a"), rk.FedAvg(lr=rk.Rates(0.1)), rounds=1, engine=rk.Mesh(9))
    with pytest.raises(rk.InputError, match="devices: 0 was given"):
        run(bed("E1a"), rk.FedAvg(lr=rk.Rates(0.1)), rounds=1, engine=dataclasses.replace(rk.Mesh(), devices=0))


@pytest.mark.parametrize("devices", [8, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3))])
def test_a_sweep_over_devices_has_the_local_ones_numbers(devices):
    """Also where a device has fewer runs than others, or none; one that diverges or has reached its target rests."""
    local, mesh = uneven("local"), uneven(rk.Mesh(devices))
    assert local["status"].tolist() == ["done", "diverged", "stopped", *["done"] * 8]
    same_numbers(numbers(local), numbers(mesh))
    assert local.columns == mesh.columns


def test_runs_with_data_and_metrics_of_their_own_are_spread():
    same_numbers(numbers(own_data("local")), numbers(own_data("mesh")))


def test_the_memory_of_a_sweep_is_that_of_each_device(monkeypatch):
    parts = []
    run_lanes = sweeps._Lanes.run
    monkeypatch.setattr(sweeps._Lanes, "run", lambda self, *a: parts.append(len(self.prepared)) or run_lanes(self, *a))
    whole, cut = uneven("mesh", rounds=8), uneven(rk.Mesh(4), rounds=8, memory=1)
    assert parts == [11, 4, 4, 3]
    same_numbers(numbers(whole), numbers(cut))


def test_every_device_has_its_own_runs_and_no_other():
    spread = Spread(rk.Mesh().device_mesh()).stacked(*({"a": np.full(3, i)} for i in range(11)))["a"]
    assert spread.shape == (16, 3)
    assert [np.asarray(shard.data)[:, 0].tolist() for shard in spread.addressable_shards] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 10], [10, 10], [10, 10]
    ]  # fmt: skip


def test_a_second_sweep_over_devices_compiles_nothing(compilations):
    exact, method = bed("E1"), rk.SimFBO(lr=rk.Rates(0.02))
    given = {"rounds": 3, "engine": "mesh", "metrics": lambda z: {"x": z.x["a"][0]}, **exact.start(leaves=2)}
    rk.sweep(exact.problem, method, exact.clients, over={"lr.default": [0.01, 0.02, 0.03]}, **given)
    with compilations.counted():
        rk.sweep(exact.problem, method, exact.clients, over={"lr.default": [0.04, 0.05, 0.06]}, **given)
    assert compilations.count == 0


def test_tuning_is_spread_too(monkeypatch):
    places = []
    run_lanes = sweeps._Lanes.run
    monkeypatch.setattr(sweeps._Lanes, "run", lambda self, *a: places.append(self.place) or run_lanes(self, *a))
    tunings = [tuned(engine) for engine in (rk.Mesh(4), "local")]
    assert {place.devices for place in places} == {1, 4}
    assert tunings[0].table.rows == tunings[1].table.rows


def tuned(engine) -> rk.Tuning:
    problem, clients = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), rk.federate([{"a": np.array([1.0, 2.0])}])
    options = {"x": 0.0, "metrics": lambda z: {"error": abs(z.x - 1.5)}, "falling": True, "progress": False}
    return rk.tune(problem, rk.FedAvg(lr=rk.Rates(0.1)), clients, budget=1000, engine=engine, **options)


def test_a_sweep_on_more_devices_than_there_are_is_refused():
    with pytest.raises(rk.InputError, match="devices: 9 was given; there are 8"):
        uneven(rk.Mesh(9))
    with pytest.raises(rk.InputError, match="at_once: 0 was given"):
        uneven(rk.Mesh(at_once=0))
    with pytest.raises(rk.InputError, match="engine: 'eager' was given; a sweep is one compiled program"):
        uneven("eager")
