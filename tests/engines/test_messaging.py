"""Clients that fail: rounds happen for everybody or for nobody, and what comes of a run is what its policy promises."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open

import rookery as rk
from rookery.engines import messaging
from rookery.engines.eager import EagerSession
from rookery.engines.messaging import ClientsFailed, MessageCohort, OnFailure
from rookery.engines.replies import AHEAD
from rookery.engines.transport import Outcome, Request, Transport
from rookery.engines.versions import Attempt, Owner, Version, Versions
from rookery.errors import MessageError

RNG = np.random.default_rng(0)
DATA = [{"a": RNG.normal(size=(n, 2)), "b": RNG.normal(size=n)} for n in (3, 5, 4, 2)]
WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])
CLIENTS = rk.federate(DATA, WEIGHTS)
BILEVEL = rk.Bilevel(
    upper=lambda x, y, e: 0.5 * (e["a"] @ y - e["b"]) ** 2 + 0.1 * x @ x,
    lower=lambda x, y, e: 0.5 * (e["a"] @ (y - x) - e["b"]) ** 2 + 0.5 * y @ y,
)
SINGLE = rk.Single(lambda x, e: 0.5 * (e["a"] @ x - e["b"]) ** 2)
METHODS = {
    "simfbo": (BILEVEL, rk.SimFBO(lr=rk.Rates(0.1), local_steps=2)),
    "control variates": (BILEVEL, rk.SimFBO(lr=rk.Rates(0.05), local_steps=2, drift=rk.ControlVariates())),
    "fednest": (BILEVEL, rk.FedNest(lr=rk.Rates(0.1), neumann_step=0.1, lower_steps=2)),
    "scaffold": (SINGLE, rk.Scaffold(lr=0.1, local_steps=3)),
}
MORE = {
    "aggitd": (BILEVEL, rk.AggITD(lr=rk.Rates(0.1), neumann_step=0.1, lower_steps=2)),
    "lfednest": (BILEVEL, rk.LFedNest(lr=rk.Rates(0.1), neumann_step=0.1, lower_steps=2)),
    "fedbioacc": (BILEVEL, rk.FedBiOAcc(lr=rk.Rates(0.1))),
    "fedmsa": (BILEVEL, rk.FedMSA(lr=rk.Rates(0.1))),
}


@dataclass
class Faulty:
    """A transport on which something happens to some requests: by their number, what."""

    inside: Transport
    faults: dict[int, str] = field(default_factory=dict)
    asked: int = 0
    slow: bool = False
    sites: tuple[str, ...] = ()

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        replies: dict[int, bytes] = {}
        failures: dict[int, str] = {}
        for place, request in enumerate(requests):
            fault = self.faults.get(self.asked, "")
            self.asked += 1
            if fault == "request lost":
                failures[place] = "no answer"
                continue
            one = self.inside.ask([request], deadline)
            if fault == "reply lost":
                failures[place] = "no answer"
                continue
            if fault == "asked twice":
                one = self.inside.ask([request], deadline)
            if 0 in one.replies:
                replies[place] = change(one.replies[0], fault)
            else:
                failures[place] = one.failures[0]
        return Outcome(replies, failures)

    def close(self) -> None: ...


def change(body: bytes, fault: str) -> bytes:
    match fault:
        case "cut":
            return body[: len(body) // 2]
        case "changed":
            return body[:-1] + bytes([body[-1] ^ 1])
        case "nothing":
            return b""
    return body


@dataclass(frozen=True)
class Engine:
    """The reference engine with a policy, on a transport with faults."""

    on_failure: OnFailure
    faults: dict[int, str]
    opened: list[Any] = field(default_factory=list)

    def open(self, prepared, ledger):
        session = EagerSession(prepared, ledger, True, self.on_failure)
        session.transport = Faulty(session.transport, self.faults)
        self.opened.append(session)
        return session


def solved(name, engine="eager", rounds=4, **options):
    problem, method = (METHODS | MORE)[name]
    start = {"x": np.zeros(2)} | ({"y": np.zeros(2)} if problem is BILEVEL else {})
    return rk.run(problem, method, CLIENTS, rounds=rounds, engine=engine, precision="float64", **start, **options)


def same(one, other):
    for a, b in zip(*(jax.tree.leaves(result.sequences) for result in (one, other))):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(one.state.leaves, other.state.leaves):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "asked twice", "cut", "changed", "nothing"])
@pytest.mark.parametrize("name", METHODS)
def test_who_waits_ends_with_the_numbers_it_would_have_had(name, fault):
    """Also where an answer was lost on its way, and the client had done its work already."""
    engine = Engine(OnFailure("wait", tries=3), dict.fromkeys((0, 3, 7, 8, 21), fault))
    found = solved(name, engine)
    same(found, solved(name))
    assert bool(engine.opened[0].missing) is False, "who answered in the end was not missing"


def test_who_never_answers_ends_a_run_that_waits():
    engine = Engine(OnFailure("wait", tries=3), dict.fromkeys(range(5, 500), "request lost"))
    with pytest.raises(ClientsFailed, match="client 1 did not answer: no answer"):
        solved("simfbo", engine)


def test_a_run_that_aborts_says_who_did_not_answer_and_why():
    with pytest.raises(ClientsFailed, match="client 2 did not answer: message: it was cut or changed on its way"):
        solved("simfbo", Engine(OnFailure("abort"), {6: "cut"}))


def test_a_mean_over_those_who_answered_stays_a_mean():
    """FedAvg, one step, client 2 lost in the first round: the step is along the others' mean, weights scaled to sum 1."""
    engine = Engine(OnFailure("drop"), {2: "request lost"})
    result = rk.run(SINGLE, rk.FedAvg(lr=0.1), CLIENTS, x=np.ones(2), rounds=1, engine=engine, precision="float64")
    gradient = lambda own: own["a"].T @ (own["a"] @ np.ones(2) - own["b"]) / len(own["b"])
    left = [0, 1, 3]
    step = sum(WEIGHTS[i] * gradient(DATA[i]) for i in left) / WEIGHTS[left].sum()
    np.testing.assert_allclose(result.x, np.ones(2) - 0.1 * step, rtol=1e-12)
    (missing,) = engine.opened[0].missing
    assert (missing.round, missing.client, missing.why) == (0, "2", "no answer")
    assert result.missing.rows == [{"round": 0, "client": "2", "why": "no answer"}]


def test_who_fails_between_two_exchanges_is_out_of_the_round_and_in_the_next():
    """FedNest's rounds have many exchanges: the second one loses client 0, which is asked again in the next round."""
    engine = Engine(OnFailure("drop"), {4: "request lost"})
    asked: list[int] = []

    class Watching(Faulty):
        def ask(self, requests, deadline):
            asked.extend(request.seat.client for request in requests)
            return super().ask(requests, deadline)

    class Watched(Engine):
        def open(self, prepared, ledger):
            session = EagerSession(prepared, ledger, True, self.on_failure)
            session.transport = Watching(session.transport, self.faults)
            self.opened.append(session)
            return session

    watched = Watched(engine.on_failure, engine.faults)
    sums: list[float] = []
    scaled = messaging._scaled

    def watching(factors, slots, answered):
        found = scaled(factors, slots, answered)
        sums.append(sum(float(found[slot]) for client, slot in slots.items() if client in answered))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messaging, "_scaled", watching)
        result = solved("fednest", watched, rounds=2)
    assert np.isfinite(result.x).all()
    np.testing.assert_allclose(sums, 1.0, rtol=1e-12, err_msg="a mean over those who are left is none")
    per_round = solved("fednest", rounds=1).ledger.exchanges
    assert asked.count(0) == 2 + per_round, "it is asked twice in the first round, and always in the second"
    assert all(asked.count(client) == 2 * per_round for client in (1, 2, 3))


def test_below_the_minimum_a_round_is_undone_everywhere_and_tried_again():
    """Three of four are lost in an exchange of the second round: nobody keeps anything of it."""
    faults = dict.fromkeys((5, 6, 7), "request lost")
    for name in ("control variates", "scaffold"):
        engine = Engine(OnFailure("drop", minimum=2), faults)
        found = solved(name, engine)
        whole = solved(name)
        assert np.array_equal(found.x, whole.x), "what an undone round did was kept"
        assert found.ledger.exchanges == whole.ledger.exchanges
        assert "1" in {missing.client for missing in engine.opened[0].missing}


def test_a_round_that_never_has_enough_ends_the_run():
    engine = Engine(OnFailure("drop", minimum=2, tries=3), dict.fromkeys(range(4, 500), "request lost"))
    with pytest.raises(ClientsFailed):
        solved("simfbo", engine)


def test_bytes_that_really_travelled_are_counted():
    engine = Engine(OnFailure(), {})
    result = solved("simfbo", engine)
    session = engine.opened[0]
    assert session.bytes_sent > result.ledger.bytes_down and session.bytes_received > result.ledger.bytes_up


# What a worker is asked.


@pytest.fixture
def session():
    engine = Engine(OnFailure(), {})
    solved("control variates", engine, rounds=2)
    return engine.opened[0]


def test_a_worker_drops_what_was_given_up(session):
    """An attempt that was never built upon: a server that was killed in the middle of a round, and came back."""
    worker, counted = session.workers[0], session.last[0]
    tentative = worker.versions.all[-1]._replace(attempt=Attempt(3, 0, "a server that was killed"))
    worker.versions.replace(tentative)
    body = session.wire.encode(session.state.z, session.header("measure", Attempt(3, 0, "another server"), 0))
    with pytest.raises(MessageError, match="was given none to take"):
        worker.receive(body)
    assert [version.attempt for version in worker.versions.all] == [counted]


def test_a_worker_that_lost_what_the_server_builds_on_says_so(session):
    worker = session.workers[0]
    session.last[0] = Attempt(1, 7, "s")
    with pytest.raises(MessageError, match="client 0: its record of the last round that it was part of is lost"):
        worker.receive(session.wire.encode(session.state.z, session.header("measure", Attempt(3, 0, "s"), 0)))


def test_a_message_that_comes_a_second_time_when_its_round_is_over_changes_nothing(session):
    """The network may bring it again, minutes later; so may a server that was taken for dead."""
    worker = session.workers[0]
    before = list(worker.versions.all)
    for late in (Attempt(1, 0, session._session), Attempt(9, 0, "0 an older server")):
        header = session.header("phase", late, 0, exchange=0, update=True, phase="steps") | {"builds_on": None}
        with pytest.raises(MessageError, match="that is over"):
            worker.receive(session.wire.encode(session.state.z, header))
        assert worker.versions.all == before


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"attempt": None}, "which attempt at a round"),
        ({"attempt": [1, 2]}, "which attempt at a round"),
        ({"attempt": ["1", 2, "s"]}, "which attempt at a round"),
        ({"builds_on": [1]}, "which attempt at a round"),
        ({"client": 2}, "it is for client 2, and this is client 1"),
        ({"asked": "everything"}, "it asks for 'everything'; a phase or a measurement"),
        ({"back": "x"}, "which rounds the server may go back to"),
        ({"exchange": None}, "which exchange of its round"),
        ({"update": 1}, "which exchange of its round"),
        ({}, "the facts of its exchange"),
    ],
)
def test_what_is_not_asked_as_it_must_be_is_refused(session, changed, sentence):
    header = session.header("phase", Attempt(3, 0, "s"), 1, exchange=0, update=False, phase="steps")
    before = list(session.workers[1].versions.all)
    with pytest.raises(MessageError, match=sentence):
        session.workers[1].receive(session.wire.encode(session.state.z, header | changed))
    assert session.workers[1].versions.all[-1] is before[-1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"policy": "hope"}, "policy: 'hope' was given; allowed are wait, drop, abort"),
        ({"deadline": 0.0}, "deadline: 0.0 was given; a positive number of seconds"),
        ({"minimum": 0}, "minimum: 0 was given; a whole number from 1"),
        ({"tries": 1.5}, "tries: 1.5 was given"),
    ],
)
def test_policies_that_are_none_are_refused(given, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        OnFailure(**given)


def test_who_was_in_an_undone_attempt_alone_keeps_nothing_of_it():
    """Client 0 answers where the round is undone for want of others, and is lost in the attempt that counts."""
    faults = dict.fromkeys((5, 6, 7, 8), "request lost")
    engine = Engine(OnFailure("drop", minimum=2), faults)
    found = solved("scaffold", engine, rounds=2)
    before = solved("scaffold", rounds=1)
    session = engine.opened[0]
    once = Engine(OnFailure(), {})
    solved("scaffold", once, rounds=1)
    assert session.last[0].base == 1 and session.last[1].base == 2 and np.abs(found.x - before.x).max() > 0
    kept, alone = session.workers[0].record_of(session.last[0]), once.opened[0]
    jax.tree.map(np.testing.assert_array_equal, kept, alone.workers[0].record_of(alone.last[0]))


# Workers with a disk.


@dataclass(frozen=True)
class OnDisk(Engine):
    """Workers keep their records in folders, and one is killed before some requests, and comes back."""

    folder: Any = None
    deaths: dict[int, int] = field(default_factory=dict)  # request -> the client that is killed before it
    blank: bool = False  # whether workers begin with nothing but what is on their disks

    def open(self, prepared, ledger):
        if self.blank:
            records = jax.tree.map(np.zeros_like, prepared.carry.records)
            prepared = dataclasses.replace(prepared, carry=prepared.carry._replace(records=records))
        session = EagerSession(prepared, ledger, True, self.on_failure, self.folder)
        engine = self

        class Deadly(Faulty):
            def ask(self, requests, deadline):
                parts = []
                for request in requests:  # who is killed in the middle of an exchange
                    if self.asked in engine.deaths:
                        session.restart(engine.deaths[self.asked])
                    parts.append(super().ask([request], deadline))
                replies = {place: one.replies[0] for place, one in enumerate(parts) if one.replies}
                return Outcome(replies, {place: one.failures[0] for place, one in enumerate(parts) if one.failures})

        session.transport = Deadly(session.transport, self.faults)
        self.opened.append(session)
        return session


@pytest.mark.parametrize("name", ["control variates", "scaffold"])
def test_a_worker_that_was_killed_between_rounds_comes_back_with_its_record(name, tmp_path):
    engine = OnDisk(OnFailure("wait"), {}, folder=tmp_path, deaths={4: 0, 8: 2, 12: 3})
    same(solved(name, engine), solved(name))
    for i in range(4):
        kept = sorted(path.name for path in (tmp_path / str(i)).iterdir())
        assert len(kept) <= 2, kept  # what the last round builds on, and what it did


@pytest.mark.parametrize("fault", ["", "reply lost"])
@pytest.mark.parametrize("name", ["control variates", "scaffold", "fednest"])
def test_a_worker_that_is_killed_at_any_message_changes_no_number(name, fault, tmp_path):
    """Also where it had answered, and the answer was lost with it: it gives that answer again, and counts once."""
    whole, asked = solved(name, rounds=2), 40 if name == "fednest" else 8
    for request in range(0, asked, 3):
        killed = {request + 1: request % 4} if fault else {request: request % 4}
        engine = OnDisk(OnFailure("wait"), {request: fault}, folder=tmp_path / str(request), deaths=killed)
        same(solved(name, engine, rounds=2), whole)


def test_a_whole_run_is_taken_up_by_workers_that_were_all_killed(tmp_path):
    """The server stops after two rounds; both sides start again, the clients from their disks."""
    first = OnDisk(OnFailure(), {}, folder=tmp_path)
    half = solved("scaffold", first, rounds=2)
    again = OnDisk(OnFailure(), {}, folder=tmp_path, blank=True)
    found = solved("scaffold", again, rounds=2, state=half.state)
    same(found, solved("scaffold", rounds=4))


def test_a_damaged_version_is_as_good_as_lost(tmp_path):
    engine = OnDisk(OnFailure(), {}, folder=tmp_path)
    solved("scaffold", engine, rounds=3)
    record = engine.opened[0].workers[1].record_of(engine.opened[0].last[1])
    for path in (tmp_path / "1").iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    lost = Versions(record, tmp_path / "1", Owner("", 1))
    assert all("is damaged" in sentence for sentence in lost.refused) and lost.refused
    assert [each.attempt.base for each in lost.all] == [-1], "it begins anew, and has no round's record"


def flipped(path):
    """Flips one bit of the first number of a client's state, as a failing disk does."""
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    entries = {name: entry for name, entry in json.loads(content[8:begin]).items() if name.isdecimal()}
    content[begin + entries["0"]["data_offsets"][0]] ^= 1
    path.write_bytes(bytes(content))


WRONG = {
    "flipped": (lambda path, folder: flipped(path), "is damaged"),
    "of another client": (
        lambda path, folder: shutil.copy(folder / "2" / path.name, path),
        "is of client 2, and this is client 1",
    ),
    "an older version": (lambda path, folder: shutil.copy(min(path.parent.iterdir()), path), "holds 0000"),
    "of another run": (lambda path, folder: of_run(path, "another"), "is of another run"),
}


def of_run(path, run):
    with safe_open(path, "numpy") as file:
        attempt = Attempt.of(json.loads(file.metadata()["attempt"]))
        record = [file.get_tensor(str(i)) for i in range(len(file.keys()) - 1)]
    path.unlink()
    Versions(record, path.parent, Owner(run, 1)).replace(Version(attempt, record))


@pytest.mark.parametrize("how", WRONG)
def test_a_file_of_a_clients_state_that_is_not_its_own_is_refused_by_name(how, tmp_path):
    """A flipped bit, or another client's file, gave `done` and other numbers."""
    change, sentence = WRONG[how]
    first = OnDisk(OnFailure(), {}, folder=tmp_path)
    half = solved("scaffold", first, rounds=2)
    newest = max((tmp_path / "1").glob("*.record"))
    change(newest, tmp_path)
    with pytest.raises(ClientsFailed, match=f"client 1: its record .* is lost: .*{sentence}.*; restore the file"):
        solved("scaffold", OnDisk(OnFailure(), {}, folder=tmp_path, blank=True), rounds=2, state=half.state)
    assert list((tmp_path / "1").glob("*.refused")), "the file is kept, to be looked at"


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    engine = OnDisk(OnFailure(), {}, folder=tmp_path)
    monkeypatch.setattr(
        "rookery.engines.versions.fill_folder",
        lambda *given, **more: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(rk.InputError, match=r"record: .* cannot be written: No space left"):
        solved("scaffold", engine, rounds=1)


@pytest.mark.parametrize("policy", ["abort", "drop"])
def test_a_worker_that_lost_its_disk_says_so_and_the_policy_decides(policy, tmp_path):
    class Robbed(OnDisk):
        def open(self, prepared, ledger):
            session = super().open(prepared, ledger)
            faulty: Any = session.transport
            ask = faulty.ask

            def robbed(requests, deadline):
                if faulty.asked == 8:  # the third round begins
                    shutil.rmtree(tmp_path / "2")
                return ask(requests, deadline)

            faulty.ask = robbed
            return session

    engine = Robbed(OnFailure(policy), {}, folder=tmp_path, deaths={8: 2})
    if policy == "abort":
        with pytest.raises(ClientsFailed, match="client 2: its record of the last round that it was part of is lost"):
            solved("scaffold", engine)
    else:
        assert np.isfinite(solved("scaffold", engine).x).all()
        assert {missing.client for missing in engine.opened[0].missing} == {"2"}


# Where an exchange takes seconds.


@dataclass(frozen=True)
class Slow(Engine):
    """The reference engine on a transport that is slow."""

    def open(self, prepared, ledger):
        session = super().open(prepared, ledger)
        transport: Any = session.transport
        transport.slow = True
        ask, transport.exchanges = transport.ask, 0

        def counted(requests, deadline):
            transport.exchanges += 1
            return ask(requests, deadline)

        transport.ask = counted
        return session


TESTED = rk.federate(DATA, WEIGHTS, test=DATA)
ERROR = {"client_metrics": lambda z, e: {"error": (e["a"] @ z.x - e["b"]) ** 2}, "every": 1}


@pytest.mark.parametrize("fault", ["", "request lost", "reply lost"])
def test_on_a_slow_transport_what_is_measured_travels_with_the_next_round(fault):
    """Four rounds and five measurements are five exchanges; and the same numbers."""
    given = (SINGLE, rk.Scaffold(lr=0.1, local_steps=2), TESTED)
    options = {"x": np.ones(2), "rounds": 4, "precision": "float64", **ERROR}
    engine = Slow(OnFailure("wait"), {9: fault, 14: fault})
    found, plain = (rk.run(*given, engine=each, **options) for each in (engine, "eager"))
    same(found, plain)
    assert found.history.columns == plain.history.columns and found.ledger == plain.ledger
    for a, b in zip(found.history.rows, plain.history.rows):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    assert engine.opened[0].transport.exchanges == 5 + 2 * bool(fault)


def test_a_round_that_was_begun_ahead_and_never_came_leaves_nothing(tmp_path):
    """The run ends at its target, with the next round's answers on the table."""
    given = (SINGLE, rk.Scaffold(lr=0.1, local_steps=2), TESTED)
    options = {"x": np.ones(2), "precision": "float64", **ERROR, "stop": {"error mean": lambda value: True}}
    engine = Slow(OnFailure(), {})
    found = rk.run(*given, engine=engine, rounds=4, **options)
    assert found.state.round == 0 and found.status == "stopped"
    assert all(worker.record_of(None) is not None for worker in engine.opened[0].workers)
    same(found, rk.run(*given, engine="eager", rounds=4, **options))


@pytest.mark.parametrize("name", ["fednest", *MORE])
def test_no_method_has_phases_that_could_travel_together(name):
    """Every exchange of a round builds on what came of the one before: a NaN in that is in the next message."""
    engine, seen, poisoned = Engine(OnFailure(), {}), [], 0
    exchanges = solved(name, rounds=1).ledger.exchanges

    class Watching(MessageCohort):
        def _exchange(self, phase, message, factors, update):
            seen.append(any(np.isnan(np.asarray(leaf)).any() for leaf in jax.tree.leaves(message)))
            total = super()._exchange(phase, message, factors, update)
            return jax.tree.map(lambda leaf: leaf * np.nan, total) if len(seen) == poisoned + 1 else total

    for poisoned in range(exchanges - 1):
        seen.clear()
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", rk.DivergenceWarning)
            patch.setattr("rookery.engines.messaging.MessageCohort", Watching)
            solved(name, engine, rounds=1)
        assert seen[poisoned + 1], f"the exchange after {poisoned} could have travelled with it"


JOINT = rk.Joint(lambda x, y, e: 0.5 * (e["a"] @ (x + y) - e["b"]) ** 2 + 0.1 * y @ y)


@pytest.mark.parametrize("fault", ["", "reply lost", "cut"])
def test_what_is_measured_again_is_measured_where_the_run_stands(fault):
    """The next round was begun along with it: what that did to the client's own y is tentative, and not looked at."""
    metrics = lambda z, e: {"error": (e["a"] @ (z.x + z.y) - e["b"]) ** 2}
    options = {"x": np.ones(2), "y": np.ones(2), "rounds": 4, "precision": "float64", "every": 1}
    given = (JOINT, rk.FedAvg(lr=rk.Rates(0.1), local_steps=2), TESTED)
    engine = Slow(OnFailure("wait"), {8: fault, 9: fault, 18: fault})
    found, plain = (rk.run(*given, client_metrics=metrics, engine=each, **options) for each in (engine, "eager"))
    for a, b in zip(found.history.rows, plain.history.rows):
        assert a | {"seconds": 0} == b | {"seconds": 0}


def test_who_is_missing_at_an_evaluation_is_left_out_of_it():
    """Two of four, where three must answer in a round: the evaluation is of the other two."""
    engine = Engine(OnFailure("drop", minimum=3), dict.fromkeys((1, 2), "request lost"))
    options = {"x": np.ones(2), "rounds": 2, "precision": "float64", **ERROR}
    found = rk.run(SINGLE, rk.FedAvg(lr=0.1), TESTED, engine=engine, **options)
    values = [float(np.mean((own["a"] @ np.ones(2) - own["b"]) ** 2)) for own in DATA]
    weights = WEIGHTS[[0, 3]] / WEIGHTS[[0, 3]].sum()
    first = found.history.rows[0]
    np.testing.assert_allclose(first["error mean"], (values[0] + values[3]) / 2, rtol=1e-12)
    np.testing.assert_allclose(first["error weighted"], weights @ [values[0], values[3]], rtol=1e-12)
    assert len(found.missing.rows) == 2


@pytest.mark.parametrize("said", [{"oracles": None}, {"broken": 7}, {"broken": [1]}, {"oracles": {"gradients": -1}}])
def test_an_answer_whose_header_is_none_is_that_clients_failure(said):
    class Lying(Engine):
        def open(self, prepared, ledger):
            session = super().open(prepared, ledger)
            transport: Any = session.transport
            ask = transport.ask

            def lied(requests, deadline):
                outcome = ask(requests, deadline)
                tree, header = session.wire.decode(outcome.replies[1])
                return Outcome({**outcome.replies, 1: session.wire.encode(tree, header | said)}, outcome.failures)

            transport.ask = lied
            return session

    engine = Lying(OnFailure("drop"), {})
    found = solved("simfbo", engine)
    assert {missing.client for missing in engine.opened[0].missing} == {"1"} and np.isfinite(found.x).all()


def test_a_server_whose_clock_ran_back_takes_another_name():
    """A process that died before its first checkpoint has asked before, with a name that sorts after ours."""
    engine = Engine(OnFailure(), {})
    problem, method = METHODS["scaffold"]
    options = {"x": np.zeros(2), "rounds": 3, "precision": "float64"}

    class Ahead(Engine):
        def open(self, prepared, ledger):
            session = super().open(prepared, ledger)
            future = Attempt(5, 0, f"{time.time_ns() + AHEAD // 10:020d}-0123abcd")
            for worker in session.workers:
                worker._attempt = future
            return session

    found = rk.run(problem, method, CLIENTS, engine=Ahead(OnFailure(), {}), **options)
    same(found, rk.run(problem, method, CLIENTS, engine=engine, **options))
