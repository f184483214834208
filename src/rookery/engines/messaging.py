"""A server program over a transport: every message through bytes, clients elsewhere. Imports contracts only.

The server has the method's state and knows of each client its place, weight and inclusion probability. What a client
must answer, and in which shape, comes from tracing its phase, never from asking it. Replies are added up in the order
of clients, so sums do not depend on who was first. Whose message fails is dealt with by the policy, `OnFailure`.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.batches import Shard
from rookery.engines.base import OF_CLIENTS, Advance, Carry, PreparedRun, ServerInputs, broken, non_finite
from rookery.engines.replies import DIGITS, check_said, refusal_of
from rookery.engines.transport import LATE, Outcome, Request, Seat, Transport
from rookery.engines.versions import Attempt
from rookery.engines.worker import JOIN, MEASURE, NEWER, PHASE, REFUSED, compiled_answer
from rookery.errors import InputError, MessageError, cleaned
from rookery.federation.channels import map_vectors, pack_vector
from rookery.federation.client import Call, Record, received
from rookery.federation.cohort import Cohort
from rookery.federation.delivered import Audience, Delivered, vectors
from rookery.federation.graphs import Mixing
from rookery.federation.keys import before_first_round_key, exchange_key, round_key, sampling_key
from rookery.federation.ledger import ORACLES, Ledger
from rookery.federation.method import next_state
from rookery.federation.sampling import Members
from rookery.federation.scaled import summands
from rookery.federation.wire import Wire
from rookery.vectors import Vector, row, zeros

POLICIES = ("wait", "drop", "abort")
PAUSE, LONGEST = 0.05, 10.0  # seconds before who did not answer is asked again, where there is no deadline
SPARED = 32  # rounds at most that a client is not asked in, after it was late again and again
NAMES = 3  # how often a process takes another name at most because of one client
LARGE = 1000.0  # a reply whose norm is so many times the median of the others' is named in a warning


@dataclass(frozen=True)
class OnFailure:
    """What a server does when a client does not answer, or not as it must.

    Args:
      policy: "wait": ask it again until it answers; "drop": go on without it, for the rest of the round; "abort": end.
      deadline: seconds that an exchange may take, and, with "wait", until another try; None: as long as it takes.
      minimum: with "drop", how many must answer; with fewer the round is undone everywhere, and drawn again. Over those
        who answered, factors are scaled up to what all had: means stay means, and sums stay as large.
      tries: with "wait", how often a client is asked at most; with "drop", how often a round is tried; then it ends.
    """

    policy: str = "abort"
    deadline: float | None = None
    minimum: int = 1
    tries: int = 10

    def __post_init__(self):
        if self.policy not in POLICIES:
            raise InputError(f"policy: {self.policy!r} was given; allowed are {', '.join(POLICIES)}")
        if self.deadline is not None and not (
            isinstance(self.deadline, Real) and 0 < float(self.deadline) < float("inf")
        ):
            raise InputError(f"deadline: {self.deadline!r} was given; a positive number of seconds is needed, or None")
        for name in ("minimum", "tries"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)!r} was given; a whole number from 1 is needed")


class ClientsFailed(RuntimeError):
    """Clients did not answer, and the policy does not go on without them; `failures` says who and why."""

    def __init__(self, failures: Mapping[str, str]):
        who, why = next(iter(failures.items()))
        more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        super().__init__(f"client {who} did not answer: {why}{more}")
        self.failures = dict(failures)
        self.missing: list[dict[str, Any]] = []  # who was, in all rounds so far


class _TooFew(Exception):
    """Fewer than the minimum answered: the round is undone."""


class _Renamed(Exception):
    """This process had to take another name: what was asked is asked again with it."""


class _First(Exception):
    """What a round asks first, where nothing else of it is wanted."""

    def __init__(self, question: Question):
        super().__init__()
        self.question = question


class _Late(NamedTuple):
    """A client that was late: in how many rounds without a reply between, the last of these, and when it is asked
    again."""

    rounds: int = 0
    last: int = -1
    again: int = 0


@dataclass
class Missing:
    """Who was missing in a round, and why."""

    round: int
    client: str
    why: str


@dataclass(frozen=True)
class Question:
    """What some clients are asked in one exchange.

    Args:
      clients: who, in their order.
      body: the message to one of them; the flag says that nothing may be left out because it was sent before.
      like: what an answer must be like; None: anything.
      echo: what the header of an answer must repeat.
      counted: whether it is part of a round: an answer says what it cost, and enough must answer.
      facts: What the event of this exchange says of it: its kind, its round and its phase.
    """

    clients: Sequence[int]
    body: Callable[[int, bool], bytes]
    like: Any
    echo: Mapping[str, Any]
    counted: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)

    def key(self, client: int) -> Any:
        """What tells one message from all others."""
        return client, tuple(self.echo["attempt"]), self.echo["exchange"]


Note = Callable[..., Any]  # called with the kind of an event and its facts


def ignore(kind: str, **facts: Any) -> None:
    """A `Note` that keeps nothing."""


Answers = dict[int, tuple[Any, dict[str, Any]]]  # by client, what it answers and the header of that


class MessageSession(ABC):
    """A run in progress over a transport: the server's state here, clients' records with them.

    Args:
      seats: where each client is.
      shapes: of one client's examples, and of its record.
      names: who the clients are, for sentences.
      run: the name of the run, which every message says.
      traces: whether phases can be traced; what clients must answer is known then.
      note: Called with the kind and the facts of every event of the run.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        ledger: Ledger,
        transport: Transport,
        wire: Wire,
        *,
        seats: Sequence[Seat],
        shapes: tuple[Shard, Record],
        names: Sequence[str] = (),
        run: str = "",
        on_failure: OnFailure | None = None,
        traces: bool = True,
        note: Note = ignore,
    ):
        self.config = prepared.config
        self.inputs: ServerInputs = prepared.inputs.server
        self.ledger = ledger
        self.state = prepared.carry.state
        self.transport = transport
        self.wire = wire
        self.on_failure = on_failure or OnFailure()
        self.traces = traces
        self.missing: list[Missing] = []
        self.bytes_sent = self.bytes_received = 0  # as they really travelled, beside the ledger's
        self.present: set[int] = set()  # who has answered in the attempt of now
        self.gone: set[int] = set()  # and who has failed in it, in whichever exchange
        self.last: dict[int, Attempt] = {}  # by client, the last attempt that counted and that it was part of
        self.back: int | None = None  # the round that the server may have to go back to; None: to none
        self.elsewhere: set[str] = set()  # what clients say is not finite in their records
        self.goes_on = False  # whether another round follows, as far as is known
        self.unmeasured: list[int] = []  # who did not answer when all were last asked to measure
        self._seats = seats
        self._sites = list(transport.sites)
        self._names = names or [str(i) for i in range(len(seats))]
        self._note = note
        self._entries: dict[int, dict[str, Any]] = {}  # by client, what the event of this exchange says of it
        self._away: set[int] = set()  # clients whose last request failed
        self._large: set[tuple[int, str]] = set()  # clients and phases whose last reply was named as too large
        self._not_finite: list[int] = []  # clients whose replies in this round were not finite
        self._run = run
        self._shapes = shapes
        self._given_up = 0  # attempts of this process that did not count
        self._tried = 0  # how often the round of now was undone
        self._late: dict[int, _Late] = {}  # by client that was late when it was last asked
        self._names_taken: dict[int, int] = {}  # by client, how many other names this process took because of it
        self._expected: dict[Any, Any] = {}  # what a phase answers, by what it is asked
        self._along: Question | None = None  # what is to go along with the messages that are sent next
        self._ahead: dict[Any, bytes] = {}  # what was answered to messages that went along with others
        self._asking_ahead = False  # whether a round is tried to see what it asks first
        if prepared.versions is not None:
            self.last = {int(client): Attempt.of(last) for client, last in prepared.versions["last"].items()}
            self.missing = [Missing(**each) for each in prepared.versions["missing"]]
            self.bytes_sent, self.bytes_received = prepared.versions["bytes"]
        self.shifts: dict[int, Any] = {}  # by client, what the channel of its replies keeps at this end
        if self.config.up is not None and self.config.up.shifts:
            channels = prepared.carry.records.channels
            self.shifts = {i: row(channels, i) for i in range(self.config.population)}
        self._session = _later_than(attempt.session for attempt in self.last.values())

    # What the engine's contract asks for.

    @property
    @abstractmethod
    def carry(self) -> Carry:
        """The server's state, with as much of the clients' records as is here."""

    @property
    def versions(self) -> dict[str, Any]:
        """Which version of its record each client is at, and who was missing: what a checkpoint has of clients."""
        return {
            "last": {str(client): list(attempt) for client, attempt in self.last.items()},
            "missing": [vars(each) for each in self.missing],
            "bytes": [self.bytes_sent, self.bytes_received],
        }

    def start(self) -> None:
        self._transact(0, self._started)

    def _started(self, attempt: Attempt) -> Any:
        key = before_first_round_key(self.inputs.key)
        cohort = MessageCohort(self, self._members(key), _Round(key, attempt))
        return self.inputs.method.start(_renewed(self.state), cohort)

    def advance(self, rounds: int) -> Advance:
        for done in range(rounds):
            before = self.state, self.ledger.copy(), dict(self.last), dict(self.shifts)
            try:
                self._transact(int(self.state.round) + 1, self._round)
                broken = self.broken()
            except BaseException:  # an interrupt in the middle of a round: there is no half a round
                self.state, self.ledger, self.last, self.shifts = before
                self._given_up += 1
                raise
            if broken:
                self.state, self.ledger, self.last, self.shifts = before
                self._given_up += 1
                return Advance(done, broken, tuple(self._names[client] for client in self._not_finite))
        return Advance(rounds)

    def broken(self) -> tuple[str, ...]:
        """What is not finite."""
        names = [name for name in self.config.problem.names if name in self.elsewhere]
        return non_finite(self.carry, [*names, *(self.elsewhere & set(OF_CLIENTS))])

    # Rounds as transactions.

    def _transact(self, place: int, program: Callable[[Attempt], Any]) -> None:
        """One round, or what comes before the first, tried until enough answer; it happens for all or for nobody."""
        self._tried = 0
        while True:
            if self._tried:
                time.sleep(min(PAUSE * 2**self._tried, LONGEST))
            attempt = Attempt(place, self._given_up, self._session)
            before, shifts = self.ledger.copy(), dict(self.shifts)
            self.present, self.gone, self.elsewhere, self._not_finite = set(), set(), set(), []
            begun = time.monotonic()
            try:
                self.state = program(attempt)
                if self.config.up is not None and self.config.up.keeps:
                    # Who failed half-way may have worked on, and keeps more of it then: for it this round was none.
                    self.present -= self.gone
                    self.shifts |= {client: shifts[client] for client in self.gone if client in shifts}
                self.last |= dict.fromkeys(self.present, attempt)
                counts = {"replied": len(self.present), "failed": len(self.gone), "exchanges": self.ledger.exchanges}
                self._note("round", round=place, seconds=round(time.monotonic() - begun, 6), **counts)
                return
            except _Renamed:
                self.ledger, self.shifts = before, shifts
            except _TooFew:
                self.ledger, self.shifts = before, shifts
                self._given_up += 1
                self._tried += 1
                if self._tried == self.on_failure.tries:
                    raise ClientsFailed({each.client: each.why for each in self.missing[-1:]}) from None
                self._note("undone", round=place)

    def _round(self, attempt: Attempt) -> Any:
        key = round_key(self.inputs.key, self.state.round)
        members = self._members(key)
        if int(members.present) == 0:
            return self.state.skip()
        cohort = MessageCohort(self, members, _Round(key, attempt, gone=self._spared(members)))
        return next_state(self.inputs.method, _renewed(self.state), cohort)

    def _spared(self, members: Members) -> set[int]:
        """Clients that are not asked in this round: after two late rounds a client is spared for one, then for two,
        four and so on. One that sends a byte now and then would cost a whole deadline in every round."""
        round, cohort = int(self.state.round), set(np.asarray(members.index)[: int(members.present)].tolist())
        spared = cohort & self._not_asked(round)
        if len(cohort - spared) < self.on_failure.minimum:
            return set()
        if not self._asking_ahead:
            why = "it is not asked: it was late in {} rounds, and is asked again in round {}"
            for client in sorted(spared):
                late = self._late[client]
                name: Any = self._names[client]
                self.missing.append(Missing(round, name, why.format(late.rounds, late.again)))
        return spared

    def _not_asked(self, round: int) -> set[int]:
        return {client for client, late in self._late.items() if round < late.again}

    def _note_late(self, client: int, round: int) -> None:
        """Counts the rounds in which a client was late, one after another."""
        before = self._late.get(client, _Late())
        if round > before.last:
            rounds = before.rounds + 1
            again = round + 1 + (min(2 ** (rounds - 2), SPARED) if rounds > 1 else 0)
            self._late[client] = _Late(rounds, round, again)

    def _members(self, key: jax.Array) -> Members:
        own = sampling_key(key)
        if self._tried:  # a round that was undone is drawn again
            own = jax.random.fold_in(own, self._tried)
        return self.inputs.sampling.at(self.state.round).members(own, self.config.population, self.config.dtype)

    # Messages.

    def header(self, asked: str, attempt: Attempt, client: int, **more: Any) -> dict[str, Any]:
        """What every message to a client says beside its arrays."""
        back = attempt.base - 1 if self.back is None else self.back
        return {
            "asked": asked,
            "run": self._run,
            "client": client,
            "attempt": list(attempt),
            "builds_on": list(self.last[client]) if client in self.last else None,
            "back": back,
            "exchange": -1,
            **more,
        }

    def ask(self, question: Question, round: int) -> Answers:
        """Asks clients, again where the policy says so; gives the answers of those who gave one, in their order. The
        caller records them with `record`; an exchange that ends the round or the run is recorded here."""
        if self._asking_ahead:
            raise _First(question)
        self._entries = {client: self._entry(client) for client in question.clients}
        try:
            return self._asked(question, round)
        except BaseException:
            self.record(question, {})
            raise

    def _entry(self, client: int) -> dict[str, Any]:
        """What an event says of one client in one exchange, before it is asked."""
        who = {"client": self._names[client], "site": self._site(client)}
        came = {"asked": 0, "answered": False, "seconds": None, "sent": 0, "received": 0}
        return who | came | {"norm": None, "finite": None, "failure": None}

    def _site(self, client: int) -> str:
        """The name of a client's site."""
        return self._sites[self._seats[client].site]

    def record(self, question: Question, replies: Mapping[int, tuple[Any, Sequence[str]]]) -> None:
        """Records an exchange as an event, with the norm of every reply, and names replies that stand out.

        Args:
          replies: For each client that replied, the reply as the server uses it, and the names of what the client says
            is not finite in its own state.
        """
        facts = dict(question.facts)
        entries, self._entries = self._entries, {}
        norms = {client: _norm(value) for client, (value, _) in replies.items()}
        for client, norm in norms.items():
            finite = bool(np.isfinite(norm)) and not replies[client][1]
            known = norm if np.isfinite(norm) else None
            entries[client] |= {"norm": known, "finite": finite}
        seconds = [entry["seconds"] for entry in entries.values() if entry["seconds"] is not None]
        self._note(facts.pop("kind"), **facts, seconds=max(seconds, default=None), clients=list(entries.values()))
        for client in (client for client in replies if not entries[client]["finite"]):
            self._not_finite += [client] * (client not in self._not_finite)
            self._note("not finite", **facts, client=self._names[client], site=self._site(client))
        for client, norm in norms.items():
            others = [other for i, other in norms.items() if i != client and np.isfinite(other)]
            median, place = float(np.median(others)) if others else 0.0, (client, str(facts.get("phase")))
            if np.isfinite(norm) and 0 < LARGE * median < norm:
                if place not in self._large:  # once, until it is as large as the others again
                    more = {"norm": norm, "median": median}
                    self._note("large reply", **facts, client=self._names[client], site=self._site(client), **more)
                self._large.add(place)
            else:
                self._large.discard(place)

    def _asked(self, question: Question, round: int) -> Answers:
        policy, answered = self.on_failure, {}
        left, failures, begun = list(question.clients), {}, 0.0
        for tried in range(policy.tries if policy.policy == "wait" else 1):
            if tried:
                self._pause(tried, begun)
            begun = time.monotonic()
            found, failures = self._asked_once(question, left)
            answered |= found
            for client in found:
                self._entries[client] |= {"answered": True, "failure": None}
            for client in sorted(self._away & set(found)):
                self._away.discard(client)
                who = {"client": self._names[client], "site": self._site(client)}
                self._note("returned", round=question.facts["round"], **who)
            left = [client for client in left if client not in answered]
            if not left:
                break
            for client in left:
                self._entries[client]["failure"] = failures[client]
                who = {"client": self._names[client], "site": self._site(client)}
                self._note("failed", round=question.facts["round"], **who, failure=failures[client])
            self._away |= set(left)
        self.missing += [Missing(round, self._names[client], failures[client]) for client in left]
        for client in question.clients if policy.policy == "drop" else ():
            if client in answered:
                self._late.pop(client, None)
            elif failures[client] == LATE:
                self._note_late(client, round)
        if left and policy.policy != "drop":
            raise ClientsFailed({self._names[client]: failures[client] for client in left})
        if left and question.counted and len(answered) < policy.minimum:
            raise _TooFew
        return {client: answered[client] for client in sorted(answered)}

    def _pause(self, tried: int, begun: float) -> None:
        """Waits before somebody is asked again: to the end of the deadline, or a little longer every time."""
        deadline = self.on_failure.deadline
        time.sleep(
            min(PAUSE * 2**tried, LONGEST) if deadline is None else max(PAUSE, begun + deadline - time.monotonic())
        )

    def _asked_once(self, question: Question, clients: Sequence[int]) -> tuple[Answers, dict[int, str]]:
        """What is answered, and why not; who needs something first, is given it and asked once more."""
        whole = dict.fromkeys(clients, self.transport.slow)
        found, failures, needs = self._sent(question, whole)
        if needs:
            if joining := [client for client, need in needs.items() if need == JOIN]:
                try:
                    self.join(joining)
                except (ClientsFailed, InputError) as error:  # a failure of theirs, for the policy to deal with
                    failures |= dict.fromkeys(joining, str(error))
                    needs = {client: need for client, need in needs.items() if client not in joining}
            more, failed, needs = self._sent(question, dict.fromkeys(needs, True))
            found |= more
            failures = {client: why for client, why in (failures | failed).items() if client not in more}
        return found, failures

    def join(self, clients: Sequence[int]) -> None:  # noqa: B027, of most there is nothing to tell
        """Tells clients what they are part of, when they say that they do not know it."""

    def _sent(self, question: Question, whole: Mapping[int, bool]) -> tuple[Answers, dict[int, str], dict[int, str]]:
        """What comes of one message to each: the answers, the failures, and what some of those who failed need."""
        asked = sorted(whole)
        outcome = self._carried(question, asked, whole)
        found, failures, needs = {}, {}, {}
        for place, client in enumerate(asked):
            if place not in outcome.replies:
                failures[client] = cleaned(outcome.failures.get(place, "nothing came back"))
                continue
            data = outcome.replies[place]
            try:
                found[client] = self._opened(data, client, question)
            except MessageError as error:
                failures[client] = str(error)
                if (need := getattr(error, "need", None)) is not None:
                    needs[client] = need
        later = {i: need for i, need in needs.items() if re.fullmatch(NEWER, need) and need > self._session}
        if later := {i: need for i, need in later.items() if self._names_taken.get(i, 0) < NAMES}:
            # A server process of which no checkpoint tells was asking before this one, by a clock that ran ahead.
            self._session = _later_than(later.values())
            self._names_taken |= {client: self._names_taken.get(client, 0) + 1 for client in later}
            raise _Renamed
        return found, failures, needs

    def _carried(self, question: Question, clients: Sequence[int], whole: Mapping[int, bool]) -> Outcome:
        """What comes of a message to each; who was asked ahead has answered already, and on a slow transport what the
        next round asks first goes along."""
        ahead, self._ahead = self._ahead, {}
        replies = {i: ahead[key] for i, client in enumerate(clients) if (key := question.key(client)) in ahead}
        left = [i for i in range(len(clients)) if i not in replies]
        along, self._along = self._along, None
        later = () if along is None else along.clients
        sent = [Request(self._seats[clients[i]], question.body(clients[i], whole[clients[i]])) for i in left]
        sent += [Request(self._seats[client], along.body(client, True)) for client in later if along is not None]
        if not sent:
            return Outcome(replies)
        self.bytes_sent += sum(len(request.body) for request in sent)
        begun = time.monotonic()
        for n, i in enumerate(left):
            entry = self._entries[clients[i]]
            entry |= {"asked": entry["asked"] + 1, "sent": entry["sent"] + len(sent[n].body)}
        outcome = self.transport.ask(sent, self.on_failure.deadline)
        for n, i in enumerate(left):
            entry, seconds = self._entries[clients[i]], outcome.seconds.get(n, time.monotonic() - begun)
            entry["seconds"] = round((entry["seconds"] or 0.0) + seconds, 6)
            entry["received"] += len(outcome.replies.get(n, b""))
        self.bytes_received += sum(map(len, outcome.replies.values()))
        own = {i: outcome.replies[n] for n, i in enumerate(left) if n in outcome.replies}
        failed = {i: outcome.failures[n] for n, i in enumerate(left) if n in outcome.failures}
        for n, client in enumerate(later, len(left)):
            if along is not None and n in outcome.replies:
                self._ahead[along.key(client)] = outcome.replies[n]
        return Outcome(replies | own, failed)

    def _first_question(self) -> Question | None:
        """What the next round asks first: the round is tried as far as there."""
        attempt, before = Attempt(int(self.state.round) + 1, self._given_up, self._session), self.ledger.copy()
        self._asking_ahead, self._tried = True, 0
        try:
            self._round(attempt)
        except _First as first:
            return first.question
        finally:
            self._asking_ahead, self.ledger = False, before
        return None

    def _opened(self, data: bytes, client: int, question: Question) -> tuple[Any, dict[str, Any]]:
        """An answer that is as it must be."""
        opened = self.wire.open(data)
        if REFUSED in opened.header:
            raise refusal_of(opened.header)
        if any(opened.header.get(name) != value for name, value in {**question.echo, "client": client}.items()):
            raise MessageError("message: it answers another question")
        tree, header = self.wire.decode(opened, like=question.like)
        if question.counted:
            check_said(header, (*self.config.problem.names, *OF_CLIENTS))
        if self.on_failure.policy == "drop" and broken(tree):
            raise MessageError("message: it has numbers that are not finite")
        if self.on_failure.policy == "drop" and question.counted and header["broken"]:
            raise MessageError(f"message: the client's {header['broken'][0]} is not finite")
        return tree, header

    def expected(self, phase: str, update: bool, calls: Call, message: tuple) -> Any:
        """What a client's answer to a phase must be like, from tracing the phase; `calls` are those of all slots."""
        shard, record = self._shapes
        key = (phase, update, jax.tree.structure(message), tuple(map(_shape, jax.tree.leaves(message))))
        if key not in self._expected:
            own = ("index", "weight", "probability", "times")
            call = calls._replace(**{name: getattr(calls, name)[0] for name in own})
            shaped = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(*_shape(leaf)), (call, record, list(message)))
            given = (self.config, phase, update, self.inputs.method, shard, *shaped)
            self._expected[key] = compiled_answer.eval_shape(*given).reply
        return self._expected[key]

    def measured(self, names: list[str]) -> dict[str, np.ndarray]:
        """What every client measures on its own test examples, by metric: one exchange that is not counted. Of who does
        not answer, and the policy is to go on, NaN."""
        found = None
        while found is None:
            with contextlib.suppress(_Renamed):
                found = self._measured(names)
        unknown, everybody = dict.fromkeys(names, np.nan), range(self.config.population)
        self.unmeasured = [client for client in everybody if client not in found]
        rows = [found[client][0] if client in found else unknown for client in everybody]
        return {name: np.asarray([float(row[name]) for row in rows]) for name in names}

    def _measured(self, names: list[str]) -> Answers:
        attempt = Attempt(int(self.state.round) + 1, self._given_up, self._session)
        body = lambda client, whole: self.wire.encode(self.state.z, self.header(MEASURE, attempt, client))
        like = {name: jax.ShapeDtypeStruct((), self.config.dtype) for name in names}
        echo = {"attempt": list(attempt), "exchange": -1}
        everybody = range(self.config.population)
        asked = sorted({*everybody} - self._not_asked(int(self.state.round))) or everybody
        facts = {"kind": "measurement", "round": int(self.state.round)}
        question = Question(asked, body, like, echo, counted=False, facts=facts)
        if self.transport.slow and self.goes_on:
            self._along = self._first_question()
        answers = self.ask(question, int(self.state.round))
        self.record(question, {})
        return answers


def _later_than(sessions: Iterable[str]) -> str:
    """A name for this server process that sorts after those of the processes before it, whatever the clock says."""
    newest = max((int(name[:DIGITS]) for name in sessions), default=0)
    return f"{max(time.time_ns(), newest + 1):0{DIGITS}d}-{uuid.uuid4().hex[:8]}"


def _shape(leaf: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(np.shape(leaf)), leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)


@dataclass
class _Round:
    """What all cohorts of one attempt at a round share: its key, its exchanges so far, what clients have been sent."""

    key: jax.Array
    attempt: Attempt
    exchanges: int = 0
    delivered: Delivered = field(default_factory=Delivered)
    packed: dict[int, Vector] = field(default_factory=dict)  # vectors as they travel, by number
    gone: set[int] = field(default_factory=set)  # who failed in this round, and is out of it


class MessageCohort(Cohort):
    """A cohort that sends bytes to its clients and adds up what comes back."""

    def __init__(self, session: MessageSession, members: Members, round: _Round, within: Audience = ()):
        self._session = session
        self._round = round
        self._audience = round.delivered.audience(within)
        self.problem = session.config.problem
        self.members = members
        self.all_weights = jnp.asarray(session.inputs.weights)
        self.weights = self.all_weights[members.index]
        self.round_key = round.key

    @property
    def population(self) -> int:
        return self._session.config.population

    def repeat(self, times: Any, body: Callable[[Cohort, Any, Any], Any], carry: Any) -> Any:
        for t in range(int(times)):
            carry = body(self, jnp.int32(t), _renewed(carry))
        return _renewed(carry)

    def _with(self, members: Members, always: bool) -> MessageCohort:
        return MessageCohort(self._session, members, self._round, self._audience)

    def _tick(self) -> int:
        self._round.exchanges += 1
        return self._round.exchanges - 1

    @property
    def _whole(self) -> bool:
        return super()._whole and int(self.members.present) == self.population

    def _exchange(self, phase: str, message: tuple, factors: jax.Array, update: bool) -> Any:
        session = self._session
        answered = self._answered(phase, message, update)
        answers, reply = answered.answers, answered.reply
        factors = _scaled(factors, answered.everybody, set(answers))
        total, shares = None, np.asarray(factors)
        for client, value in answers.items():
            share = _share(value, shares[answered.everybody[client]])
            total = share if total is None else jax.tree.map(np.add, total, share)
        if total is None:  # nobody is there
            value, _ = _received(session.config, phase, zeros(reply), next(iter(session.shifts.values()), ()))
            terms = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf * factors[0], summands(value)))
            total = zeros(terms)
        total = jax.tree.map(jnp.asarray, total)
        session.ledger.add_exchange(phase, answered.sent, reply, len(answers))
        return total

    def _mix(self, mixing: Mixing, give: str, take: str) -> Any:
        population, weights = self.population, mixing.matrix(self.population)
        mixing.check_channel(self._session.config.up)
        given = self._answered(give, (), update=True)
        self._refuse_missing(given)
        values = [given.answers[i] for i in range(population)]
        for _ in range(mixing.times):  # neighbour by neighbour, in their order
            terms = lambda i, values: [_share(values[j], float(weights[i, j])) for j in np.flatnonzero(weights[i])]
            values = [jax.tree.map(_added, *terms(i, values)) for i in range(population)]
        taken = self._answered(take, (), update=True, own=values)
        self._refuse_missing(taken)
        self._session.ledger.add_mixing(give, given.reply, population, mixing.messages(population))
        seen = [_share(taken.answers[i], 1 / population) for i in range(population)]
        return jax.tree.map(lambda *terms: jnp.asarray(_added(*terms)), *seen)

    def _refuse_missing(self, answered: _Answered) -> None:
        """Ends the run where a client is missing among neighbours, whatever the policy: nobody stands in for it."""
        missing = [client for client in range(self.population) if client not in answered.answers]
        if missing:
            raise ClientsFailed({str(client): "its neighbours wait for it" for client in missing})

    def _answered(self, phase: str, message: tuple, update: bool, own: Sequence[Any] | None = None) -> _Answered:
        """What the clients of the cohort answer in a phase; beside the message each gets its entry of `own`."""
        session, members, delivered = self._session, self.members, self._round.delivered
        number = self._tick()
        key = exchange_key(self.round_key, number)
        index, present = np.asarray(members.index), int(members.present)
        everybody = {int(client): slot for slot, client in enumerate(index[:present])}
        slots = {client: slot for client, slot in everybody.items() if client not in self._round.gone}
        if everybody and not slots:
            raise _TooFew
        known = {delivered.number(part) for part in vectors(message) if delivered.knows(self._audience, part)}
        travels = map_vectors(self._packed, message)
        sent = [self._packed(part) for part, _ in delivered.send(self._audience, message)]
        attempt = self._round.attempt
        calls = self._calls(key)
        traced = session.traces or not slots
        whole_of = lambda client: travels if own is None else (*travels, own[client])
        reply = session.expected(phase, update, calls, whole_of(0)) if traced else None
        shared = {name: np.asarray(getattr(calls, name)) for name in ("round", "first")}
        shared |= {
            name: np.asarray(jax.random.key_data(getattr(calls, name))) for name in ("round_key", "exchange_key")
        }
        each = {name: np.asarray(getattr(calls, name)) for name in ("weight", "probability", "times")}

        def body(client: int, whole: bool) -> bytes:
            facts = {name: values[slots[client]] for name, values in each.items()} | shared
            names = partial(self._named, set() if whole else set(known))
            header = session.header(PHASE, attempt, client, phase=phase, update=update, exchange=number)
            return session.wire.encode((facts, *whole_of(client)), header, names)

        facts = {"kind": "exchange", "round": attempt.base, "exchange": number, "phase": phase}
        echo = {"attempt": list(attempt), "exchange": number}
        question = Question(sorted(slots), body, reply, echo, facts=facts)
        answers = session.ask(question, int(session.state.round)) if slots else {}
        session.present |= set(answers)
        self._round.gone |= set(slots) - set(answers)
        session.gone |= self._round.gone
        values = {}
        for client in sorted(answers, key=everybody.__getitem__):
            tree, said = answers[client]
            value, kept = _received(session.config, phase, tree, session.shifts.get(client, ()))
            if session.shifts:
                session.shifts[client] = jax.device_get(kept)
            values[client] = jax.tree.map(np.asarray, value)
            reply = tree if reply is None else reply
            session.elsewhere |= set(said["broken"])
            for name in ORACLES:
                session.ledger.oracles[name] += said["oracles"][name]
        if slots:
            session.record(question, {client: (values[client], answers[client][1]["broken"]) for client in values})
        return _Answered(values, everybody, sent, reply)

    def _packed(self, part: Any) -> Any:
        """A part of a message as it travels; the same vector is the same object then, too."""
        if self._session.config.down is None or not isinstance(part, Vector):
            return part
        number = self._round.delivered.number(part)
        if number not in self._round.packed:
            self._round.packed[number] = _pack_vector(self._session.config.down, part)
        return self._round.packed[number]

    def _named(self, known: set[int], vector: Vector) -> tuple[int, bool]:
        """A vector's number, and whether the receiver knows it; then it does."""
        packed = {id(each): number for number, each in self._round.packed.items()}
        number = packed[id(vector)] if id(vector) in packed else self._round.delivered.number(vector)
        had = number in known
        known.add(number)
        return number, had

    def _calls(self, key: jax.Array) -> Call:
        """The facts of an exchange, those of every slot stacked."""
        members, state = self.members, self._session.state
        return Call(
            index=members.index,
            weight=self.weights,
            probability=members.expected,
            times=jnp.maximum(members.count, 1).astype(members.expected.dtype),
            round=state.round,
            first=state.round == state.empty,
            round_key=self.round_key,
            exchange_key=key,
        )


class _Answered(NamedTuple):
    """What came of a phase: what the server has of replies, by client in the order of slots; everybody's slot; what was
    sent, and what travels of one reply."""

    answers: dict[int, Any]
    everybody: dict[int, int]
    sent: list[Any]
    reply: Any


def _share(reply: Any, factor: Any) -> Any:
    """What a reply adds to a sum, with its factor."""
    return jax.tree.map(lambda leaf: leaf * factor, summands(reply))


def _norm(value: Any) -> float:
    """The Euclidean norm of all floating-point numbers of a reply; NaN where one is not finite."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(summands(value))]
    parts = [leaf.astype(np.float64).ravel() for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    sizes = [float(np.max(np.abs(part))) for part in parts if part.size]
    if not np.isfinite(sizes).all():
        return float("nan")
    largest = max(sizes, default=0.0)  # squares of large numbers overflow
    return largest * float(np.sqrt(sum(np.vdot(part / largest, part / largest) for part in parts))) if largest else 0.0


def _added(*terms: np.ndarray) -> np.ndarray:
    """The sum of terms in their order."""
    return sum(terms[1:], terms[0])


def _scaled(factors: jax.Array, slots: Mapping[int, int], answered: set[int]) -> jax.Array:
    """The factors over those who answered: scaled up by what all others of the cohort had, in whichever exchange of the
    round they failed, so that a mean stays a mean."""
    if answered == set(slots):
        return factors
    every = sum(float(factors[slot]) for slot in slots.values())
    left = sum(float(factors[slot]) for client, slot in slots.items() if client in answered)
    return factors * (every / left) if left > 0 else factors


_pack_vector = jax.jit(pack_vector, static_argnums=0)
_received = jax.jit(received, static_argnums=(0, 1))


def _renewed(tree: Any) -> Any:
    """The same numbers as new arrays: what a round or an iteration begins with, no client has been sent."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def stacked(records: list[Any]) -> Any:
    """Records of all clients, or parts of them, as a carry has them."""
    return jax.tree.map(lambda *rows: np.stack(rows), *records)
