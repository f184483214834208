"""Replies of a hostile client: each field of a header is bounded and checked, and a client excludes itself alone."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engines.test_messaging import Faulty, OnDisk, same, solved
from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.engines.replies import AHEAD
from rookery.engines.transport import LATE, Outcome
from rookery.errors import cleaned
from rookery.federation.wire import Wire, seal


@dataclass
class Forging(Faulty):
    """A transport on which one client's replies are forged: `forge(body)` makes another of its reply."""

    client: int = 1
    forge: Any = None
    times: int = 10**9
    forged: int = 0

    def ask(self, requests, deadline):
        outcome = super().ask(requests, deadline)
        replies = dict(outcome.replies)
        for place, request in enumerate(requests):
            if request.seat.client == self.client and self.asked > 4 and self.forged < self.times and place in replies:
                replies[place], self.forged = self.forge(replies[place]), self.forged + 1
        return Outcome(replies, outcome.failures)


@dataclass(frozen=True)
class Hostile(OnDisk):
    """An engine with one forging client."""

    forge: Any = None
    times: int = 10**9

    def open(self, prepared, ledger):
        session = super().open(prepared, ledger)
        session.transport = Forging(session.transport, {}, forge=self.forge, times=self.times)
        return session


def refusal(**header):
    return lambda body: Wire().encode((), {"refused": "x"} | header)


def changed(**more):
    """Forges fields in the header of a true reply."""

    def forge(body):
        wire = Wire()
        opened = wire.open(body)
        return seal(json.dumps({"header": opened.header | more, "tree": opened.tree}).encode(), opened.arrays)

    return forge


NEEDS = {
    "too long": "9" * 21 + "-",
    "the last name there is": "9" * 20 + "-",
    "a century ahead": f"{time.time_ns() + 10 * AHEAD:020d}-0123abcd",
    "other digits": "\u0661" * 20 + "-0123abcd",
    "a line": f"{time.time_ns():020d}-\n",
    "a number": 7,
    "a list": ["join"],
}


@pytest.mark.parametrize("policy", ["wait", "drop"])
@pytest.mark.parametrize("need", NEEDS.values(), ids=NEEDS)
def test_a_forged_need_excludes_the_site_that_forges_it_and_no_other(policy, need, tmp_path):
    """Before, it made the server take a name that no honest site could follow, also after a restart."""
    engine = Hostile(OnFailure(policy, tries=6), {}, folder=tmp_path, forge=refusal(need=need), times=3)
    first = solved("scaffold", engine, rounds=2)
    session = engine.opened[0]
    assert {missing.client for missing in session.missing} <= {"1"}
    later = OnDisk(OnFailure(), {}, folder=tmp_path, blank=True)
    found = solved("scaffold", later, rounds=2, state=first.state)  # the server was started again
    assert np.isfinite(found.x).all() and later.opened[0].missing == session.missing
    if policy == "wait":
        same(found, solved("scaffold", rounds=4))


def test_a_site_that_asks_for_later_names_for_ever_delays_and_ends_nothing(tmp_path):
    """Names that could be, in every reply: each site has its own few."""
    ahead = lambda body: refusal(need=f"{time.time_ns() + AHEAD // 2:020d}-0123abcd")(body)
    engine = Hostile(OnFailure("drop"), {}, folder=tmp_path, forge=ahead)
    found = solved("scaffold", engine, rounds=3)
    assert found.state.round == 3 and {missing.client for missing in engine.opened[0].missing} == {"1"}
    assert engine.opened[0]._session > f"{time.time_ns() + AHEAD // 4:020d}"


FIELDS = {
    "a million million million calls": {"oracles": {"samples": 10**18, "gradients": 0, "hvps": 0, "crosses": 0}},
    "4,300 digits": {"oracles": {"samples": 10**4299, "gradients": 0, "hvps": 0, "crosses": 0}},
    "no calls": {"oracles": [1, 2, 3, 4]},
    "a fraction": {"oracles": {"samples": 0.5, "gradients": 0, "hvps": 0, "crosses": 0}},
    "unknown and broken": {"broken": ["x\x1b[2J"]},
    "broken": {"broken": ["client state"]},
    "broken twice": {"broken": ["client state"] * 1000},
    "broken numbers": {"broken": [1]},
}


@pytest.mark.parametrize("more", FIELDS.values(), ids=FIELDS)
def test_under_drop_a_reply_with_an_impossible_header_is_left_out_by_name(more):
    engine = Hostile(OnFailure("drop"), {}, forge=changed(**more))
    found = solved("scaffold", engine, rounds=3)
    assert found.status == "done" and np.isfinite(found.x).all()
    assert {row["client"] for row in found.missing.rows} == {"1"} and len(found.missing.rows) == 2
    assert max(found.ledger.oracles.values()) < 10**6


@pytest.mark.parametrize("more", [value for name, value in FIELDS.items() if name != "broken"])
def test_under_abort_an_impossible_header_ends_the_run_by_name(more):
    with pytest.raises(ClientsFailed, match="client 1 did not answer: message: "):
        solved("scaffold", Hostile(OnFailure("abort"), {}, forge=changed(**more)))


BAD = "bad \ud800\x1b[31m\r\n=1+1\u202e\x00" + "x" * 10_000


def test_text_of_a_client_reaches_no_terminal_and_no_file_as_it_is(tmp_path):
    """A lone surrogate made a run that had ended unable to write its result."""
    engine = Hostile(OnFailure("drop"), {}, forge=refusal(refused=BAD))
    found = solved("scaffold", engine, rounds=2)
    found.missing.to_csv(tmp_path / "missing.csv")
    for why in {row["why"] for row in found.missing.rows}:
        assert why.isprintable() and why.startswith("bad ?") and len(why) <= 500
        why.encode()
    with pytest.raises(ClientsFailed) as caught:
        solved("scaffold", Hostile(OnFailure("abort"), {}, forge=refusal(refused=BAD)))
    assert str(caught.value).isprintable()


def test_cleaned_text_is_safe_and_short():
    assert cleaned("Münster, site 1: it failed") == "Münster, site 1: it failed"
    for text in ("a\nb", "\x1b[0m", "\ud800", "\u2028", "\u200b", "\x00", "\x9b"):
        assert cleaned(text).isprintable() and "?" in cleaned(text)
    for text in ("=1+1", "+1", "-1", "@x", "\t=1", "\r=1"):
        made = cleaned(text)
        row = next(csv.reader(io.StringIO(made)))
        assert row[0][0] not in "=+-@\t\r"
    assert len(cleaned("x" * 10**6)) <= 500 and cleaned(None) == "None" and cleaned(["x"]) == "list"
    assert cleaned(10**5000) == "int"


@dataclass
class Dribbling(Faulty):
    """A transport on which one client is late in some of its requests, each of which costs a deadline."""

    client: int = 1
    late: range = range(10**6)
    rounds: list = field(default_factory=list)

    def ask(self, requests, deadline):
        outcome = super().ask(requests, deadline)
        place = next((i for i, request in enumerate(requests) if request.seat.client == self.client), None)
        if place is None:
            return outcome
        self.rounds.append(None)
        if len(self.rounds) - 1 not in self.late:
            return outcome
        replies = {i: body for i, body in outcome.replies.items() if i != place}
        return Outcome(replies, {**outcome.failures, place: LATE})


@dataclass(frozen=True)
class Slowed(OnDisk):
    late: range = range(10**6)
    asked: Any = None

    def open(self, prepared, ledger):
        session = super().open(prepared, ledger)
        session.transport = Dribbling(session.transport, {}, late=self.late, rounds=self.asked)
        return session


def test_a_client_that_is_late_in_every_round_does_not_cost_a_deadline_in_every_round():
    asked = []
    engine = Slowed(OnFailure("drop"), {}, asked=asked)
    found = solved("scaffold", engine, rounds=40)
    assert found.state.round == 40 and len(asked) == 7, "in rounds 0, 1, 3, 6, 11, 20 and 37"
    whys = [row["why"] for row in found.missing.rows]
    assert len(whys) == 40 and whys[2] == "it is not asked: it was late in 2 rounds, and is asked again in round 3"


def test_a_client_that_was_late_and_answers_again_takes_part_as_before():
    asked = []
    engine = Slowed(OnFailure("drop"), {}, late=range(2), asked=asked)
    found = solved("scaffold", engine, rounds=8)
    assert [row["round"] for row in found.missing.rows] == [0, 1, 2] and len(asked) == 7


@pytest.mark.parametrize("on_failure", [OnFailure("drop", minimum=4, tries=3), OnFailure("wait", tries=3)])
def test_a_client_that_is_needed_is_asked_again_however_late(on_failure):
    asked = []
    with pytest.raises(ClientsFailed, match="client 1 did not answer: it did not answer in time"):
        solved("scaffold", Slowed(on_failure, {}, asked=asked), rounds=8)
    assert len(asked) == 3
