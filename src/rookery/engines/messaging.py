"""A server program over a transport: every message through bytes, clients elsewhere. Imports contracts only.

The server has the method's state and knows of each client its place, weight and inclusion probability. What a client
must answer, and in which shape, comes from tracing its phase, never from asking it. Replies are added up in the order
of clients, so sums do not depend on who was first. Whose message fails is dealt with by the policy, `OnFailure`.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.batches import Shard
from rookery.engines.base import Advance, Carry, Inputs, PreparedRun, non_finite
from rookery.engines.transport import Outcome, Request, Transport
from rookery.engines.versions import Attempt
from rookery.engines.worker import MEASURE, PHASE, compiled_answer
from rookery.errors import InputError, MessageError
from rookery.federation.client import Call, Record
from rookery.federation.cohort import Cohort
from rookery.federation.delivered import Audience, Delivered, vectors
from rookery.federation.keys import before_first_round_key, exchange_key, round_key, sampling_key
from rookery.federation.ledger import ORACLES, Ledger
from rookery.federation.method import next_state
from rookery.federation.sampling import Members
from rookery.federation.scaled import summands
from rookery.federation.wire import Wire
from rookery.vectors import Vector

POLICIES = ("wait", "drop", "abort")


@dataclass(frozen=True)
class OnFailure:
    """What a server does when a client does not answer, or not as it must.

    Args:
      policy: "wait": ask it again until it answers; "drop": go on without it, for the rest of the round; "abort": end.
      deadline: seconds that an exchange may take, and, with "wait", until another try; None: as long as it takes.
      minimum: with "drop", how many must answer; with fewer the round is undone everywhere, and tried again. Over those
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
        if self.deadline is not None and not 0 < float(self.deadline) < float("inf"):
            raise InputError(f"deadline: {self.deadline!r} was given; a positive number of seconds is needed, or None")
        for name in ("minimum", "tries"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)!r} was given; a whole number from 1 is needed")


class ClientsFailed(RuntimeError):
    """Clients did not answer, and the policy does not go on without them; `failures` says who and why."""

    def __init__(self, failures: Mapping[int, str]):
        who, why = next(iter(failures.items()))
        more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        super().__init__(f"client {who} did not answer: {why}{more}")
        self.failures = dict(failures)


class _TooFew(Exception):
    """Fewer than the minimum answered: the round is undone."""


@dataclass
class Missing:
    """Who was missing in a round, and why."""

    round: int
    client: int
    why: str


class MessageSession(ABC):
    """A run in progress over a transport: the server's state here, clients' records with them."""

    def __init__(
        self,
        prepared: PreparedRun,
        ledger: Ledger,
        transport: Transport,
        wire: Wire,
        *,
        shapes: tuple[Shard, Record],
        on_failure: OnFailure | None = None,
        traces: bool = True,
    ):
        self.config = prepared.config
        self.inputs: Inputs = prepared.inputs
        self.ledger = ledger
        self.state = prepared.carry.state
        self.transport = transport
        self.wire = wire
        self.on_failure = on_failure or OnFailure()
        self.traces = traces  # whether phases can be traced: what clients must answer is known then
        self.missing: list[Missing] = []
        self.bytes_sent = self.bytes_received = 0  # as they really travelled, beside the ledger's
        self.undone: dict[int, int] = {}  # of the rounds that were tried more than once, which attempt counts
        self.present: set[int] = set()  # who has answered in the attempt of now
        self.last: dict[int, int] = {}  # by client, the place of the last round that it was part of
        self._shapes = shapes  # of one client's examples, and of its record
        self._session = uuid.uuid4().hex
        self._expected: dict[Any, Any] = {}  # what a phase answers, by what it is asked

    # What the engine's contract asks for.

    @property
    @abstractmethod
    def carry(self) -> Carry:
        """The server's state, with as much of the clients' records as is here."""

    def start(self) -> None:
        key = before_first_round_key(self.inputs.key)
        members = self._members(key)
        self._transact(0, lambda attempt: self._started(key, members, attempt))

    def _started(self, key: jax.Array, members: Members, attempt: Attempt) -> Any:
        cohort = MessageCohort(self, members, _Round(key, attempt))
        return self.inputs.method.start(_renewed(self.state), cohort)

    def advance(self, rounds: int) -> Advance:
        for done in range(rounds):
            before = self.state, self.ledger.copy(), dict(self.last)
            place = int(self.state.round) + 1
            try:
                self._transact(place, self._round)
                broken = self.broken()
            except BaseException:  # an interrupt in the middle of a round: there is no half a round
                self.state, self.ledger, self.last = before
                self._give_up(place)
                raise
            if broken:
                self.state, self.ledger, self.last = before
                self._give_up(place)
                return Advance(done, broken)
        return Advance(rounds)

    def broken(self) -> tuple[str, ...]:
        """What is not finite."""
        return non_finite(self.carry)

    # Rounds as transactions.

    def _transact(self, place: int, tried: Callable[[Attempt], Any]) -> None:
        """One round, or what comes before the first, tried until enough answer; it happens for all or for nobody."""
        for _ in range(self.on_failure.tries):
            before = self.ledger.copy()
            try:
                self.present = set()
                self.state = tried(Attempt(place, self.undone.get(place, 0), self._session))
                self.last |= dict.fromkeys(self.present, place)
                return
            except _TooFew:
                self.ledger = before
                self._give_up(place)
        raise ClientsFailed({each.client: each.why for each in self.missing[-1:]})

    def _give_up(self, place: int) -> None:
        """An attempt does not count; the next one has another number, by which clients tell."""
        self.undone[place] = self.undone.get(place, 0) + 1

    def _round(self, attempt: Attempt) -> Any:
        key = round_key(self.inputs.key, self.state.round)
        members = self._members(key)
        if int(members.present) == 0:
            return self.state.skip()
        cohort = MessageCohort(self, members, _Round(key, attempt))
        return next_state(self.inputs.method, _renewed(self.state), cohort)

    def _members(self, key: jax.Array) -> Members:
        return self.inputs.sampling.at(self.state.round).members(
            sampling_key(key), self.config.population, self.config.dtype
        )

    # Messages.

    def header(self, asked: str, attempt: Attempt, **more: Any) -> dict[str, Any]:
        """What every message says beside its arrays."""
        undone = {str(place): number for place, number in self.undone.items() if place < attempt.base}
        return {"asked": asked, "attempt": list(attempt), "undone": undone, **more}

    def ask(self, bodies: Mapping[int, bytes], like: Any, round: int) -> dict[int, tuple[Any, dict[str, Any]]]:
        """Asks clients, again where the policy says so; gives the decoded replies of those who answered, in the order
        of clients."""
        policy, answered = self.on_failure, {}
        left, failures = dict(bodies), {}
        for _ in range(policy.tries if policy.policy == "wait" else 1):
            begun = time.monotonic()
            self.bytes_sent += sum(map(len, left.values()))
            outcome = self.transport.ask([Request(*each) for each in sorted(left.items())], policy.deadline)
            found, failures = self._opened(outcome, left, like)
            answered |= found
            left = {client: body for client, body in left.items() if client not in answered}
            if not left:
                break
            if policy.policy == "wait" and policy.deadline is not None:
                time.sleep(max(0.0, policy.deadline - (time.monotonic() - begun)))
        self.missing += [Missing(round, client, why) for client, why in failures.items()]
        if left and policy.policy != "drop":
            raise ClientsFailed(failures)
        if left and len(answered) < policy.minimum:
            raise _TooFew
        return {client: answered[client] for client in sorted(answered)}

    def _opened(
        self, outcome: Outcome, asked: Mapping[int, bytes], like: Any
    ) -> tuple[dict[int, tuple[Any, dict[str, Any]]], dict[int, str]]:
        """The replies that are as they must be, and the others' faults."""
        found, failures = {}, dict(outcome.failures)
        for client in asked:
            if client not in outcome.replies:
                failures.setdefault(client, "nothing came back")
                continue
            data = outcome.replies[client]
            self.bytes_received += len(data)
            try:
                found[client] = self.wire.decode(data, like=like)
            except MessageError as error:
                failures[client] = str(error)
        return found, {client: why for client, why in failures.items() if client in asked and client not in found}

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

    def measured(self, names: list[str], clients: list[int]) -> dict[str, np.ndarray]:
        """What every client measures on its own test examples, by metric: one exchange that is not counted."""
        attempt = Attempt(int(self.state.round) + 1, self.undone.get(int(self.state.round) + 1, 0), self._session)
        body = self.wire.encode(self.state.z, self.header(MEASURE, attempt))
        like = {name: jax.ShapeDtypeStruct((), self.config.dtype) for name in names}
        found = self.ask(dict.fromkeys(clients, body), like, int(self.state.round))
        return {name: np.asarray([float(tree[name]) for tree, _ in found.values()]) for name in names}


def _shape(leaf: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(np.shape(leaf)), leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)


@dataclass
class _Round:
    """What all cohorts of one attempt at a round share: its key, its exchanges so far, what clients have been sent."""

    key: jax.Array
    attempt: Attempt
    exchanges: int = 0
    delivered: Delivered = field(default_factory=Delivered)
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

    def _exchange(self, phase: str, message: tuple, factors: jax.Array, update: bool) -> Any:
        session, members, delivered = self._session, self.members, self._round.delivered
        number = self._tick()
        key = exchange_key(self.round_key, number)
        index, present = np.asarray(members.index), int(members.present)
        slots = {int(client): slot for slot, client in enumerate(index[:present])}
        slots = {client: slot for client, slot in slots.items() if client not in self._round.gone}
        known = {delivered.number(part) for part in vectors(message) if delivered.knows(self._audience, part)}
        sent = [part for part, _ in delivered.send(self._audience, message)]
        header = session.header(PHASE, self._round.attempt, phase=phase, update=update, exchange=number)
        calls = self._calls(key)
        traced = session.traces or not slots
        reply = session.expected(phase, update, calls, message) if traced else None
        shared = {name: np.asarray(getattr(calls, name)) for name in ("round", "first")}
        shared |= {
            name: np.asarray(jax.random.key_data(getattr(calls, name))) for name in ("round_key", "exchange_key")
        }
        each = {name: np.asarray(getattr(calls, name)) for name in ("weight", "probability", "times")}
        bodies = {}
        for client, slot in slots.items():
            facts = {name: values[slot] for name, values in each.items()} | shared
            names = partial(_named, delivered, set(known))
            own = header | {"last": session.last.get(client)}
            bodies[client] = session.wire.encode((facts, *message), own, names)
        answers = session.ask(bodies, reply, int(session.state.round)) if bodies else {}
        session.present |= set(answers)
        factors = self._without(factors, slots, set(slots) - set(answers))
        total, shares = None, np.asarray(factors)
        for client, slot in sorted(slots.items(), key=lambda pair: pair[1]):
            if client not in answers:
                continue
            tree, said = answers[client]
            share = jax.tree.map(lambda leaf, slot=slot: leaf * shares[slot], summands(tree))
            total = share if total is None else jax.tree.map(np.add, total, share)
            reply = tree if reply is None else reply
            for name, spent in _costs(said).items():
                session.ledger.oracles[name] += spent
        if total is None:  # nobody is there
            terms = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf * factors[0], summands(_zeros(reply))))
            total = _zeros(terms)
        total = jax.tree.map(jnp.asarray, total)
        session.ledger.add_exchange(phase, sent, reply, len(answers))
        return total

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

    def _without(self, factors: jax.Array, slots: Mapping[int, int], gone: set[int]) -> jax.Array:
        """The factors over those who answered: scaled up by what the others had, so that a mean stays a mean. Who did
        not answer is out of the round."""
        if not gone:
            return factors
        self._round.gone |= gone
        every = sum(float(factors[slot]) for slot in slots.values())
        left = sum(float(factors[slot]) for client, slot in slots.items() if client not in gone)
        return factors * (every / left) if left > 0 else factors


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _costs(header: Mapping[str, Any]) -> dict[str, int]:
    """How often a client says that it called each oracle."""
    given = header.get("oracles")
    if not isinstance(given, dict) or not all(type(given.get(name)) is int and given[name] >= 0 for name in ORACLES):
        raise MessageError("message: it does not say what the answer cost")
    return {name: given[name] for name in ORACLES}


def _named(delivered: Delivered, known: set[int], vector: Vector) -> tuple[int, bool]:
    """A vector's number, and whether the receiver knows it; then it does."""
    number = delivered.number(vector)
    had = number in known
    known.add(number)
    return number, had


def _renewed(tree: Any) -> Any:
    """The same numbers as new arrays: what a round or an iteration begins with, no client has been sent."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def stacked(records: list[Record]) -> Record:
    """Records of all clients, as a carry has them."""
    return jax.tree.map(lambda *rows: np.stack(rows), *records)
