"""Populations beyond memory: a window of cohorts gives the numbers of the local engine, from every kind of source."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines import records
from rookery.engines.records import RecordStore
from rookery.engines.streamed import StreamedSession, _cohorts
from rookery.federation.client import Record
from rookery.federation.ledger import Ledger
from rookery.runs import checkpoint, segments
from rookery.runs.prepare import prepare
from rookery.runs.segments import replay, write_changed
from rookery.vectors import Sequences

RNG = np.random.default_rng(0)
SIZES = np.asarray([2, 5, 3, 4, 1, 6, 2, 3, 4, 5, 2, 3])
DATA = [{"a": RNG.normal(size=(n, 3)), "b": RNG.normal(size=n)} for n in SIZES]
CLIENTS = rk.federate(DATA)
ROWS = {name: np.concatenate([client[name] for client in DATA]) for name in ("a", "b")}


def lower(x, y, e):
    return 0.5 * (e["a"] @ y - e["b"]) ** 2 + 0.5 * jnp.sum((y - x) ** 2)


def upper(x, y, e):
    return 0.5 * (e["a"] @ y - 1.0) ** 2 + 0.1 * jnp.sum(x**2)


SINGLE = rk.Single(lambda x, e: 0.5 * (e["a"] @ x - e["b"]) ** 2)
NUMBER = rk.Single(lambda x, e: 0.5 * (x - e) ** 2)
BILEVEL = rk.Bilevel(upper, lower)
START = {"x": np.zeros(3), "y": np.zeros(3)}
GIVEN = {"x": START["x"], "sampling": rk.Uniform(3), "batch_size": 2, "precision": "float64"}  # what a resumed run is
NARROW = 3000  # bytes: windows of a few rounds, so that records go out and come back


def ran(problem, method, clients=CLIENTS, engine="local", **options):
    start = START if problem is not SINGLE else {"x": START["x"]}
    given = {"rounds": 23, "sampling": rk.Uniform(3), "batch_size": 2, "precision": "float64", "every": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rk.AdviceWarning)
        return rk.run(problem, method, clients, engine=engine, **(start | given | options))


def assert_same(one, two):
    assert jax.tree.structure(one.sequences) == jax.tree.structure(two.sequences)
    for a, b in zip(jax.tree.leaves(one.sequences), jax.tree.leaves(two.sequences)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)
    for a, b in zip(one.state.leaves, two.state.leaves):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)
    assert one.ledger == two.ledger
    assert list(one.history["exchanges"]) == list(two.history["exchanges"])


def assert_same_state(one, two):
    for a, b in zip(one.state.leaves, two.state.leaves, strict=True):
        np.testing.assert_array_equal(a, b)


METHODS = {
    "fedavg": (SINGLE, rk.FedAvg(lr=0.05, local_steps=rk.Epochs(1)), {}),
    "scaffold": (SINGLE, rk.Scaffold(lr=0.05, local_steps=2), {}),
    "simfbo, control variates": (BILEVEL, rk.SimFBO(rk.Rates(0.05), local_steps=2, drift=rk.ControlVariates()), {}),
    "own lower levels": (
        rk.Bilevel(upper, lower, lower_scope="local"),
        rk.FedBiOLocal(rk.Rates(0.05), local_steps=2),
        {"y": lambda key, data: jnp.ones(3) * data["a"].mean()},
    ),
    "fedmsa": (BILEVEL, rk.FedMSA(rk.Rates(0.05), local_steps=2), {}),
    "with replacement": (SINGLE, rk.Scaffold(lr=0.05), {"sampling": rk.WithReplacement(5)}),
    "empty cohorts": (SINGLE, rk.Scaffold(lr=0.05), {"sampling": rk.Bernoulli(0.1)}),
    "everybody": (SINGLE, rk.FedADMM(lr=0.05, gamma=1.0), {"sampling": rk.All()}),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_window_gives_the_local_engines_numbers(name):
    problem, method, options = METHODS[name]
    assert_same(ran(problem, method, **options), ran(problem, method, engine=rk.Streamed(window=NARROW), **options))


@pytest.mark.parametrize("name", ["scaffold", "simfbo, control variates", "own lower levels", "with replacement"])
def test_large_records_are_moved_one_by_one(name, monkeypatch):
    problem, method, options = METHODS[name]
    monkeypatch.setattr(records, "LARGE", 1)
    assert_same(ran(problem, method, **options), ran(problem, method, engine=rk.Streamed(window=NARROW), **options))


def test_a_call_that_moves_a_part_is_made_again(monkeypatch):
    monkeypatch.setattr(records, "LARGE", 1)
    monkeypatch.setattr(records, "BUFFERS", 1)
    for name in ("preadv", "pwritev"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda file, parts, at, real=real: real(file, [parts[0][:5]], at))
    first = Record(Sequences({}), {"c": np.zeros((9, 3)), "d": np.zeros((9, 2), np.float32), "e": np.zeros((9, 0))})
    store = RecordStore(first)
    made = {"c": RNG.normal(size=(4, 3)), "d": RNG.normal(size=(4, 2)).astype(np.float32), "e": np.zeros((4, 0))}
    store.write(np.array([1, 7]), Record(Sequences({}), made), np.array([3, 0]))
    again = store.read(np.array([7, 0, 1])).state
    for key, value in made.items():
        np.testing.assert_array_equal(again[key][[0, 2]], value[[0, 3]])
        assert not again[key][1].any()


def load(client: int):
    return DATA[client]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name, rows in ROWS.items():
        np.save(folder / f"{name}.npy", rows)
    mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ROWS}
    return {
        "mapped": rk.data.Mapped(mapped, SIZES),
        "loaded": rk.data.Loaded(load, SIZES),
        "shards": rk.data.ShardFolder(rk.data.write_shards(folder / "shards", iter(DATA), per_shard=5)),
    }


@pytest.mark.parametrize("kind", ["mapped", "loaded", "shards"])
def test_every_source_gives_the_numbers_of_memory(sources, kind):
    assert isinstance(sources[kind], rk.data.Source)
    clients = rk.federate(sources[kind], weights="size")
    method = rk.Scaffold(lr=0.05, local_steps=2)
    assert clients.names[7] == "7"
    np.testing.assert_array_equal(clients.client(7)["b"], DATA[7]["b"])
    assert_same(ran(SINGLE, method, rk.federate(DATA, weights="size")), ran(SINGLE, method, clients))


def test_levels_have_their_own_examples(tmp_path):
    split = [rk.Split(lower=client, upper={"a": client["a"][:1], "b": client["b"][:1]}) for client in DATA]
    folder = rk.data.write_shards(tmp_path / "shards", split, per_shard=4)
    method = rk.SimFBO(rk.Rates(0.05), local_steps=2)
    clients = rk.federate(rk.data.ShardFolder(folder))
    assert_same(ran(BILEVEL, method, rk.federate(split)), ran(BILEVEL, method, clients))


def test_offsets_go_beyond_32_bits(tmp_path):
    size, clients = 2**20, 2100  # 2.2e9 examples in a file without room on the disk
    rows = np.memmap(tmp_path / "rows", np.uint8, "w+", shape=(size * clients,))
    rows[-size:] = 3
    who = rk.federate(rk.data.Mapped(rows, np.full(clients, size)))
    last = rk.Weighted([1e-12] * (clients - 1) + [1.0])  # the last one alone
    result = rk.run(NUMBER, rk.FedAvg(lr=0.5, normalised=True), who, x=0.0, rounds=30, sampling=last, batch_size=2)
    assert float(result.x) == pytest.approx(3.0, abs=1e-5)


def test_records_go_beyond_32_bits():
    """Places in the file from 2^31 and from 2^32 on, of clients as they are drawn, in a file without room on the disk."""
    wide = 2**18  # 1 MiB a record
    store = RecordStore(Record(Sequences({}), {"c": np.broadcast_to(np.float32(0), (6000, wide))}))
    who = np.array([1, 2050, 2051, 4098, 5999], np.int32)
    put = np.repeat(np.arange(1, 6, dtype=np.float32)[:, None], wide, axis=1)
    store.write(who, Record(Sequences({}), {"c": put}))
    np.testing.assert_array_equal(store.read(who).state["c"], put)
    assert not store.read(np.array([2, 1903, 4097])).state["c"].any()


def test_a_diverging_run_keeps_the_last_good_state():
    method = rk.Scaffold(lr=1e30, local_steps=2)
    with pytest.warns(rk.DivergenceWarning):
        local = ran(SINGLE, method, precision="float32")
    with pytest.warns(rk.DivergenceWarning):
        streamed = ran(SINGLE, method, engine=rk.Streamed(window=NARROW), precision="float32")
    assert streamed.divergence == local.divergence
    assert_same(local, streamed)


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, sources):
    clients, method = rk.federate(sources["mapped"]), rk.Scaffold(lr=0.05, local_steps=2)
    whole = ran(SINGLE, method, clients)

    def interrupt(round, row):
        if round >= 15:
            raise KeyboardInterrupt

    folder = tmp_path / "checkpoints"
    given = {"checkpoints": rk.Checkpoints(folder, every=2), "callbacks": [interrupt]}
    with pytest.raises(KeyboardInterrupt):
        ran(SINGLE, method, clients, rk.Streamed(window=NARROW), **given)
    resumed = rk.resume(folder, SINGLE, method, clients, engine=rk.Streamed(window=NARROW), **GIVEN)
    assert_same_state(whole, resumed)
    kept = {path.name for path in (folder / "records").iterdir()}
    assert sum(len(np.load(folder / "records" / name / "clients.npy")) for name in kept) <= 4 * len(SIZES)


@pytest.mark.parametrize("last", ["streamed", "local"])
def test_engines_take_turns_at_a_folder_of_checkpoints(tmp_path, last):
    method, folder = rk.Scaffold(lr=0.05, local_steps=2), tmp_path / "checkpoints"
    ran(SINGLE, method, rounds=15, checkpoints=rk.Checkpoints(folder, every=2))
    rk.resume(folder, SINGLE, method, CLIENTS, rounds=17, engine="streamed", **GIVEN)
    resumed = rk.resume(folder, SINGLE, method, CLIENTS, rounds=23, engine=last, **GIVEN)
    assert_same_state(ran(SINGLE, method), resumed)


def test_an_interrupt_while_older_segments_are_removed_leaves_the_newest_checkpoint(tmp_path, monkeypatch):
    method, folder = rk.Scaffold(lr=0.05, local_steps=2), tmp_path / "checkpoints"
    real = segments.remove_folder

    def interrupt(path):  # a segment that a new and whole one has taken the place of
        real(path)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(segments, "remove_folder", interrupt)
    with pytest.raises(rk.Interrupted) as caught:
        ran(SINGLE, method, engine="streamed", checkpoints=rk.Checkpoints(folder, every=1, keep=1))
    reached = caught.value.result.state.round
    assert 1 < reached < 15 and checkpoint.latest_round(folder) == reached
    assert_same_state(ran(SINGLE, method), rk.resume(folder, SINGLE, method, CLIENTS, engine="streamed", **GIVEN))


def test_what_nobody_needs_any_more_is_removed(tmp_path):
    method, folder = rk.Scaffold(lr=0.05), tmp_path / "checkpoints"
    ran(SINGLE, method, engine="streamed", rounds=4, checkpoints=rk.Checkpoints(folder, every=2))
    (folder / "records" / ".rookery-aside-killed").mkdir()
    rk.resume(folder, SINGLE, method, CLIENTS, rounds=8, engine="streamed", **GIVEN)
    assert not list((folder / "records").glob(".*"))
    rk.resume(folder, SINGLE, method, CLIENTS, rounds=16, engine="local", **GIVEN)
    assert not (folder / "records").exists()


def test_a_damaged_segment_makes_a_checkpoint_damaged(tmp_path):
    method, folder = rk.Scaffold(lr=0.05), tmp_path / "checkpoints"
    ran(SINGLE, method, engine="streamed", rounds=4, checkpoints=rk.Checkpoints(folder, every=2))
    for path in (folder / "records").glob("*/rows.npy"):
        path.write_bytes(b"")
    with pytest.warns(rk.AdviceWarning, match="damaged"), pytest.raises(rk.InputError, match="all checkpoints"):
        rk.resume(folder, SINGLE, method, CLIENTS, engine="streamed", **GIVEN)


def test_checkpoints_write_what_changed(tmp_path):
    many = rk.federate([DATA[i % 12] for i in range(600)])
    folder = tmp_path / "checkpoints"
    checkpoints = rk.Checkpoints(folder, every=4, keep=1)
    ran(SINGLE, rk.Scaffold(lr=0.05), many, rk.Streamed(), rounds=8, checkpoints=checkpoints)
    first, second = (np.load(folder / "records" / f"round-00000000{n}" / "clients.npy") for n in (4, 8))
    assert len(first) <= 12 and len(second) <= 12
    assert not np.array_equal(first, second)


def test_what_is_interrupted_says_the_round_that_it_has_cost(monkeypatch):
    method, entered = rk.Scaffold(lr=0.05), []
    real = StreamedSession._enter

    def interrupt(self, state, ledger, round):
        entered.append(round)
        if round > 9 and len(entered) > 2:  # in the middle of a call, after some of its windows
            monkeypatch.undo()
            raise KeyboardInterrupt
        return real(self, state, ledger, round)

    monkeypatch.setattr(StreamedSession, "_enter", interrupt)
    with pytest.raises(rk.Interrupted) as caught:
        ran(SINGLE, method, engine=rk.Streamed(window=NARROW), rounds=1000, every=1000)
    result = caught.value.result
    last = result.history.rows[-1]
    assert last["round"] == result.state.round == last["exchanges"] == result.ledger.exchanges > 9
    assert_same_state(ran(SINGLE, method, rounds=last["round"]), result)


def test_a_short_run_reads_little_and_leaves_no_thread_behind():
    read = []

    def slow(client: int):
        read.append(client)
        time.sleep(0.001)
        return {"a": np.ones((2, 3)), "b": np.zeros(2)}

    clients = rk.federate(rk.data.Loaded(slow, np.full(100_000, 2)))
    read.clear()
    ran(SINGLE, rk.FedAvg(lr=0.1), clients, rounds=1, sampling=rk.Uniform(20))
    assert len(read) <= 3 * 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rookery")]


def test_a_reader_that_was_interrupted_before_it_began_ends(monkeypatch):
    ready = prepare(
        NUMBER,
        rk.FedAvg(lr=0.1),
        rk.federate([np.ones(2)]),
        x=0.0,
        sampling=rk.All(),
        batch_size=1,
        seed=0,
        precision="float32",
    )
    session = rk.Streamed().open(ready, Ledger())

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session._read_ahead(1, 1)
    session._reader.end()


def test_a_process_ends_while_a_window_is_read():
    code = "import time, jax.numpy as jnp, numpy as np, rookery as rk\n"
    code += "load = lambda i: (time.sleep(0 if i < 60 else 1e6), {'a': np.ones((1, 3)), 'b': np.ones(1)})[1]\n"
    code += "clients = rk.federate(rk.data.Loaded(load, np.ones(100, int)))\n"
    code += "problem = rk.Single(lambda x, e: (e['a'] @ x - e['b']) ** 2)\n"
    code += "sampling = rk.Bernoulli(lambda t: jnp.where((t == 0) == (jnp.arange(100) < 60), 1.0, 0.0))\n"
    code += "rk.run(problem, rk.FedAvg(lr=0.1), clients, x=np.zeros(3), rounds=1, sampling=sampling)\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("kind", ["weighted", "bernoulli"])
def test_cohorts_are_drawn_one_after_another(kind):
    n = 50_000
    sampling = {"weighted": rk.Weighted(np.full(n, 100 / n)), "bernoulli": rk.Bernoulli(100 / n)}[kind]
    clients = rk.federate(rk.data.Mapped(np.zeros(n), 1))
    ready = prepare(
        NUMBER, rk.FedAvg(lr=0.1), clients, x=0.0, sampling=sampling, batch_size=1, seed=0, precision="float32"
    )
    given = (rk.Local().program(ready), 64, ready.inputs._replace(levels={}), 0, 64)
    took = _cohorts.lower(*given).compile().memory_analysis()
    assert took is not None
    assert took.temp_size_in_bytes + took.output_size_in_bytes < (64 * 2 * 4 + 100) * sampling.slots(n) + 100 * 4 * n


def test_a_checkpoint_leaves_the_records_in_their_file(tmp_path, monkeypatch):
    method, folder = rk.Scaffold(lr=0.05), tmp_path / "checkpoints"
    ran(SINGLE, method, engine="streamed", rounds=4, checkpoints=rk.Checkpoints(folder, every=2))
    called, made, real = [], [], RecordStore.all
    monkeypatch.setattr(RecordStore, "all", lambda self: (called.append(self), real(self))[1])
    real_file = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *a, **k: (made.append(k["dir"]), real_file(*a, **k))[1])
    engine = rk.Streamed(folder=tmp_path)
    resumed = rk.resume(folder, SINGLE, method, CLIENTS, rounds=12, engine=engine, **GIVEN)
    assert len(called) == 2  # of the file of the segments, and for the result
    assert made == [tmp_path, tmp_path]
    monkeypatch.undo()
    assert_same_state(ran(SINGLE, method, rounds=12), resumed)


@pytest.fixture
def full_disk():
    """Makes the operating system refuse to write beyond some bytes of a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_disk_without_room_for_records_is_told_in_a_sentence(tmp_path, full_disk):
    engine = rk.Streamed(window=NARROW, folder=tmp_path)
    fill = lambda round, row: full_disk(30) if round else None
    with pytest.raises(rk.StorageError, match=r"folder: clients' records cannot be written to .*: File too large"):
        ran(SINGLE, rk.Scaffold(lr=0.05), engine=engine, rounds=1000, callbacks=[fill])


def test_a_disk_without_room_for_a_segment_is_told_in_a_sentence(tmp_path, full_disk):
    first = Record(Sequences({}), {"c": np.broadcast_to(np.float64(0), (40, 1))})
    store = RecordStore(first)
    store.write(np.arange(40), Record(Sequences({}), {"c": np.ones((40, 1))}))
    whole = write_changed(tmp_path, 1, store, [])
    np.testing.assert_array_equal(replay(tmp_path, whole, first).state["c"], np.ones((40, 1)))
    full_disk(100)
    with pytest.raises(OSError, match="File too large"):
        write_changed(tmp_path, 2, store, [])
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["round-000000001"]


def test_records_that_began_as_something_else_are_found():
    first = Record(Sequences({}), {"c": np.broadcast_to(np.arange(3.0), (5, 3))})
    store = RecordStore(first)
    store.write(np.array([1, 3]), Record(Sequences({}), {"c": np.full((2, 3), 7.0)}))
    np.testing.assert_array_equal(store.read(np.array([3, 4])).state["c"], [[7, 7, 7], [0, 1, 2]])
    np.testing.assert_array_equal(store.all().state["c"][:, 2], [2, 7, 2, 7, 2])


def test_a_function_that_loads_is_called_by_one_thread_at_a_time():
    inside, met = [], []

    def slow(client):
        inside.append(client)
        met.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return DATA[client]

    source = rk.data.Loaded(slow, SIZES)
    readers = [threading.Thread(target=source.read, args=(np.arange(12),)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(met) == 1 + 3 * 12 and max(met) == 1


def test_a_source_may_be_copied():
    """As other processes and `copy` do it: the lock is its own."""
    source = pickle.loads(pickle.dumps(rk.data.Loaded(load, SIZES)))
    again = source.read(np.array([1]))["all"]
    np.testing.assert_array_equal(again["b"], DATA[1]["b"])


def test_what_was_done_before_a_client_cannot_be_read_is_kept(tmp_path):
    there = True

    def fragile(client):
        if not there:
            raise OSError("the cable is out")
        return DATA[client]

    def pull(round, row):
        nonlocal there
        there = round < 10

    folder, method = tmp_path / "checkpoints", rk.Scaffold(lr=0.05)
    clients = rk.federate(rk.data.Loaded(fragile, SIZES))
    given = {"engine": rk.Streamed(window=NARROW), "checkpoints": rk.Checkpoints(folder, every=1000)}
    with pytest.raises(rk.InputError, match=r"load: the function of client .* fails, with OSError: the cable") as error:
        ran(SINGLE, method, clients, rounds=1000, callbacks=[pull], **given)
    reached = error.value.result.state.round
    assert 10 <= reached < 1000 and error.value.result.status == "interrupted"
    assert (folder / f"round-{reached:09d}").is_dir()
    there = True
    resumed = rk.resume(folder, SINGLE, method, clients, rounds=300, engine=rk.Streamed(window=NARROW), **GIVEN)
    assert resumed.state.round == 300
    assert_same_state(ran(SINGLE, method, rounds=300), resumed)


class TestErrors:
    def test_another_engine(self, sources):
        with pytest.raises(rk.InputError, match="engine: 'eager' was given, and the clients' examples are not in mem"):
            ran(SINGLE, rk.FedAvg(lr=0.1), rk.federate(sources["mapped"]), engine="eager")

    def test_a_sweep(self, sources):
        with pytest.raises(rk.InputError, match="a sweep needs"):
            rk.sweep(
                SINGLE, rk.FedAvg(lr=0.1), rk.federate(sources["mapped"]), over={"seed": [0]}, x=START["x"], rounds=1
            )

    def test_a_fixed_point(self, sources):
        with pytest.raises(
            rk.InputError, match="clients: their examples are not in memory; fixed_point needs them in memory"
        ):
            rk.fixed_point(SINGLE, rk.FedAvg(lr=0.1), rk.federate(sources["mapped"]), x=START["x"])

    def test_a_process_without_a_device(self, monkeypatch):
        there = [SimpleNamespace(process_index=process, platform="cpu") for process in (0, 0, 1, 1)]
        monkeypatch.setattr(jax, "devices", lambda: there)
        with pytest.raises(rk.InputError, match="devices: 2 was given, which leaves process 1 without any"):
            rk.Mesh(2).device_mesh()

    def test_what_needs_memory(self, sources):
        with pytest.raises(rk.InputError, match="validation: it was given, and the examples are not in memory"):
            rk.federate(sources["mapped"], validation=0.2)

    def test_client_metrics(self, sources):
        with pytest.raises(rk.InputError, match="test"):
            ran(SINGLE, rk.FedAvg(lr=0.1), rk.federate(sources["mapped"]), client_metrics=lambda z, e: {"a": 0.0})

    def test_sizes_that_do_not_fit(self):
        with pytest.raises(rk.InputError, match="sizes: they sum to 5, and there are 40 examples"):
            rk.data.Mapped(ROWS, [2, 3])

    def test_a_client_that_is_not_as_was_said(self):
        source = rk.data.Loaded(load, np.where(np.arange(12) == 5, 1, SIZES))
        with pytest.raises(rk.InputError, match="load: client 5 gave"):
            ran(SINGLE, rk.FedAvg(lr=0.1), rk.federate(source), sampling=rk.All())

    @pytest.mark.parametrize(
        ("read", "said"),
        [
            (lambda own: np.full(2 * len(own), 5.0), r"examples of \(24,\) float64; .* \(48,\) float64 are needed"),
            (lambda own: np.full((4 * len(own), 1), 5.0), r"examples of \(48, 1\) float64"),
            (lambda own: np.full(4 * len(own), 5), r"examples of \(48,\) int64"),
            (lambda own: {"a": np.full(4 * len(own), 5.0)}, r"examples of {'a'"),
            (lambda own: 1 / 0, "fails, with ZeroDivisionError"),
        ],
    )
    def test_a_source_that_reads_something_else_than_it_says(self, read, said):
        one = jax.ShapeDtypeStruct((), np.float64)
        told = {"sizes": {"all": np.full(12, 4)}, "example": {"all": one}, "read": lambda own: {"all": read(own)}}
        clients = rk.federate(SimpleNamespace(**told))
        with pytest.raises(rk.InputError, match=f"data: (reading )?clients 0 to 11 .*{said}"):
            rk.run(NUMBER, rk.FedAvg(lr=0.5), clients, x=0.0, rounds=1)

    def test_a_cohort_beyond_what_a_device_counts(self):
        rows = np.broadcast_to(np.uint8(1), (3 * 2**30,))
        clients = rk.federate(rk.data.Mapped(rows, np.full(3, 2**30)))
        with pytest.raises(rk.InputError, match="sampling: the cohort of round 0 has 3221225472 examples, of which a"):
            rk.run(NUMBER, rk.FedAvg(lr=0.5), clients, x=0.0, rounds=1)

    def test_a_client_with_nan(self):
        broken = lambda i: {"a": DATA[i]["a"], "b": DATA[i]["b"] * (np.nan if i == 7 else 1.0)}
        with pytest.raises(rk.InputError, match="data: client 7 has a value that is NaN"):
            ran(SINGLE, rk.FedAvg(lr=0.1), rk.federate(rk.data.Loaded(broken, SIZES)), sampling=rk.All())

    def test_a_loader_that_raises(self):
        with pytest.raises(rk.InputError, match="load: the function of client 0"):
            rk.data.Loaded(lambda i: [][i], SIZES)

    def test_a_folder_without_shards(self, tmp_path):
        with pytest.raises(rk.InputError, match=r"has no shards\.json"):
            rk.data.ShardFolder(tmp_path)
