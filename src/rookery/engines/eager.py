"""The reference engine: the server program in plain Python, client by client, every message through bytes.

It is what a remote federation does, on one machine: phases are found by name on each client's own copy of the method,
a client holds its own examples and its own record, and only bytes pass between it and the server.
Imports contracts only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.batches import Shard
from rookery.data.federated import Level, cast
from rookery.engines.base import Advance, Carry, Inputs, PreparedRun, non_finite
from rookery.federation import counts
from rookery.federation.client import Call, ProgramConfig, Record, answer
from rookery.federation.cohort import Cohort
from rookery.federation.delivered import Audience, Delivered, vectors
from rookery.federation.evaluation import TEST, ClientMetrics, compiled_evaluation
from rookery.federation.keys import before_first_round_key, exchange_key, round_key, sampling_key
from rookery.federation.ledger import ORACLES, Ledger
from rookery.federation.method import next_state
from rookery.federation.sampling import Members
from rookery.federation.scaled import summands
from rookery.federation.wire import Wire
from rookery.vectors import Vector, row


@dataclass(frozen=True)
class Eager:
    """Runs client by client in plain Python.

    Args:
      jit: compile each phase for the clients; False runs it operation by operation, so that a debugger can stop in it.
    """

    jit: bool = True

    def open(self, prepared: PreparedRun, ledger: Ledger) -> EagerSession:
        return EagerSession(prepared, ledger, self.jit)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_answer(config, phase, update, program, shard, call, record, message):
    return answer(config, program, phase, update, shard, call, record, message)[0]


class RemoteClient:
    """One client: its own examples, its own record, its own copy of the method. Bytes in, bytes out."""

    def __init__(
        self, config: ProgramConfig, program: Any, levels: Mapping[str, Level], index: int, wire: Wire, jit: bool
    ):
        self.index = index
        self._config = config
        self._program = program
        self._shard = Shard({name: _own(level, index) for name, level in levels.items()})
        self._wire = wire
        self._jit = jit
        self._kept: dict[int, Vector] = {}  # the vectors of the round that it has been sent
        self._round: Any = None  # the one that they are of

    def receive(self, message: bytes, record: Record) -> tuple[bytes, Record]:
        """Runs the phase that the message asks for: the reply, and the client's new record."""
        header = self._wire.header(message)
        if header["round"] != self._round:
            self._round, self._kept = header["round"], {}
        (facts, *arguments), _ = self._wire.decode(message, self._kept)
        call = Call(
            np.int32(self.index),
            facts["weight"],
            facts["probability"],
            facts["times"],
            facts["round"],
            facts["first"],
            jax.random.wrap_key_data(facts["round_key"]),
            jax.random.wrap_key_data(facts["exchange_key"]),
        )
        with contextlib.nullcontext() if self._jit else jax.disable_jit():
            result = _compiled_answer(
                self._config,
                header["phase"],
                header["update"],
                self._program,
                self._shard,
                call,
                record,
                arguments,
            )
        oracles = dict(zip(ORACLES, counts.whole(result.oracles)))
        return self._wire.encode(result.reply, {"oracles": oracles}), jax.device_get(result.record)


def _own(level: Level, index: int) -> Level:
    """One client's rows, repeated up to the size of the largest client so that clients share a compiled phase."""
    start, size = int(level.offset[index]), int(level.size[index])
    rows = start + np.arange(int(np.max(level.size))) % size
    return Level(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], level.rows), np.int32(0), np.int32(size))


class EagerSession:
    """A run in progress: the server's state here, each client's record in a store of its own."""

    def __init__(self, prepared: PreparedRun, ledger: Ledger, jit: bool):
        self.config = prepared.config
        self.inputs: Inputs = prepared.inputs
        self.ledger = ledger
        self.state = prepared.carry.state
        self._tests: list[Shard] = []  # each client's own test examples, when they are first asked for
        self.wire = Wire(prepared.carry)
        self.store = [row(prepared.carry.records, i) for i in range(self.config.population)]
        self.clients = [
            RemoteClient(self.config, prepared.inputs.method, prepared.inputs.levels, i, self.wire, jit)
            for i in range(self.config.population)
        ]

    @property
    def carry(self) -> Carry:
        return Carry(self.state, jax.tree.map(lambda *rows: np.stack(rows), *self.store))

    def start(self) -> None:
        key = before_first_round_key(self.inputs.key)
        cohort = EagerCohort(self, self._members(key), _Round(key))
        self.state = self.inputs.method.start(_renewed(self.state), cohort)

    def advance(self, rounds: int) -> Advance:
        for done in range(rounds):
            before = self.state, list(self.store), self.ledger.copy()
            try:
                self._round()
                broken = non_finite(self.carry)
            except BaseException:  # an interrupt in the middle of a round: there is no half a round
                self.state, self.store, self.ledger = before
                raise
            if broken:
                self.state, self.store, self.ledger = before
                return Advance(done, broken)
        return Advance(rounds)

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        if not self._tests:
            held = cast({TEST: test}, self.config.dtype)[TEST]
            self._tests = [Shard({TEST: _own(held, client.index)}) for client in self.clients]
        largest = int(np.max(test.size))
        found = [
            compiled_evaluation(self.config, function, largest, own, self.state.z, record)
            for own, record in zip(self._tests, self.store)
        ]
        return {name: np.asarray([float(each[name]) for each in found]) for name in found[0]}

    def _round(self) -> None:
        key = round_key(self.inputs.key, self.state.round)
        members = self._members(key)
        if int(members.present) == 0:
            self.state = self.state.skip()
        else:
            cohort = EagerCohort(self, members, _Round(key))
            self.state = next_state(self.inputs.method, _renewed(self.state), cohort)

    def _members(self, key: jax.Array) -> Members:
        return self.inputs.sampling.at(self.state.round).members(
            sampling_key(key), self.config.population, self.config.dtype
        )


def _share(factor: jax.Array | None, leaf: Any) -> jax.Array:
    return leaf * factor if factor is not None else jnp.zeros_like(leaf * 1.0)


class _Round:
    """What all cohorts of one round share: its key, its exchanges so far, what clients have been sent."""

    def __init__(self, key: jax.Array):
        self.key = key
        self.exchanges = 0
        self.delivered = Delivered()


class EagerCohort(Cohort):
    """A cohort that sends bytes to one client after the other and adds up what comes back."""

    def __init__(self, session: EagerSession, members: Members, round: _Round, within: Audience = ()):
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

    def _with(self, members: Members, always: bool) -> EagerCohort:
        return EagerCohort(self._session, members, self._round, self._audience)

    def _tick(self) -> int:
        self._round.exchanges += 1
        return self._round.exchanges - 1

    def _exchange(self, phase: str, message: tuple, factors: jax.Array, update: bool) -> Any:
        session, members, delivered = self._session, self.members, self._round.delivered
        key = exchange_key(self.round_key, self._tick())
        present = int(members.present)
        known = {delivered.number(part) for part in vectors(message) if delivered.knows(self._audience, part)}
        sent = [part for part, _ in delivered.send(self._audience, message)]
        total, reply = None, None
        # With nobody there, one client is asked for the shape of a reply, which is neither counted nor added.
        for slot in range(max(present, 1)):
            index = int(members.index[slot])
            facts = {
                "weight": self.weights[slot],
                "probability": members.expected[slot],
                "times": jnp.maximum(members.count[slot], 1).astype(members.expected.dtype),
                "round": session.state.round,
                "first": session.state.round == session.state.empty,
                "round_key": jax.random.key_data(self.round_key),
                "exchange_key": jax.random.key_data(key),
            }
            header = {"phase": phase, "update": update, "round": np.asarray(facts["round_key"]).tolist()}
            names = partial(_named, delivered, set(known) if present else set())
            said = session.wire.encode((facts, *message), header, names)
            received, record = session.clients[index].receive(said, session.store[index])
            reply, header = session.wire.decode(received)
            share = jax.tree.map(partial(_share, factors[slot] if slot < present else None), summands(reply))
            total = share if total is None else jax.tree.map(jnp.add, total, share)
            if slot < present:
                session.store[index] = record
                for name, calls in header["oracles"].items():
                    session.ledger.oracles[name] += calls
        session.ledger.add_exchange(phase, sent, reply, present)
        return total


def _named(delivered: Delivered, known: set[int], vector: Vector) -> tuple[int, bool]:
    """A vector's number, and whether the receiver knows it; then it does."""
    number = delivered.number(vector)
    had = number in known
    known.add(number)
    return number, had


def _renewed(tree: Any) -> Any:
    """The same numbers as new arrays: what a round or an iteration begins with, no client has been sent."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)
