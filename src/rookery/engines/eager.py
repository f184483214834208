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

from rookery.data.federated import Level, Shard
from rookery.engines.base import Advance, Carry, Inputs, Setup, non_finite
from rookery.federation.client import Call, Record, Setting, answer
from rookery.federation.cohort import Cohort
from rookery.federation.keys import exchange_key, round_key, sampling_key
from rookery.federation.ledger import ORACLES, Ledger, site_of
from rookery.federation.sampling import Members
from rookery.federation.wire import Wire
from rookery.vectors import row


@dataclass(frozen=True)
class Eager:
    """Runs client by client in plain Python.

    Args:
      jit: compile each phase for the clients; False runs it operation by operation, so that a debugger can stop in it.
    """

    jit: bool = True

    def open(self, setup: Setup, ledger: Ledger) -> EagerSession:
        return EagerSession(setup, ledger, self.jit)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_answer(setting, phase, update, program, shard, call, record, message):
    return answer(setting, program, phase, update, shard, call, record, message)[0]


class RemoteClient:
    """One client: its own examples, its own record, its own copy of the method. Bytes in, bytes out."""

    def __init__(self, setting: Setting, program: Any, levels: Mapping[str, Level], index: int, wire: Wire, jit: bool):
        self.index = index
        self._setting = setting
        self._program = program
        self._shard = Shard({name: _own(level, index) for name, level in levels.items()})
        self._wire = wire
        self._jit = jit

    def receive(self, message: bytes, record: Record) -> tuple[bytes, Record]:
        """Runs the phase that the message asks for: the reply, and the client's new record."""
        arguments, header = self._wire.decode(message)
        facts, *arguments = arguments
        call = Call(
            np.int32(self.index),
            facts["weight"],
            facts["probability"],
            facts["round"],
            jax.random.wrap_key_data(facts["round_key"]),
            jax.random.wrap_key_data(facts["exchange_key"]),
        )
        with contextlib.nullcontext() if self._jit else jax.disable_jit():
            result = _compiled_answer(
                self._setting,
                header["phase"],
                header["update"],
                self._program,
                self._shard,
                call,
                record,
                arguments,
            )
        oracles = dict(zip(ORACLES, np.asarray(result.oracles).tolist()))
        return self._wire.encode(result.reply, {"oracles": oracles}), jax.device_get(result.record)


def _own(level: Level, index: int) -> Level:
    """One client's rows, repeated up to the size of the largest client so that clients share a compiled phase."""
    start, size = int(level.offset[index]), int(level.size[index])
    rows = start + np.arange(int(np.max(level.size))) % size
    return Level(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], level.rows), np.int32(0), np.int32(size))


class EagerSession:
    """A run in progress: the server's state here, each client's record in a store of its own."""

    def __init__(self, setup: Setup, ledger: Ledger, jit: bool):
        self.setting = setup.setting
        self.inputs: Inputs = setup.inputs
        self.ledger = ledger
        self.state = setup.carry.state
        self.wire = Wire([vector.tree for vector in _vectors(setup.carry)])
        self.store = [row(setup.carry.records, i) for i in range(self.setting.population)]
        self.clients = [
            RemoteClient(self.setting, setup.inputs.method, setup.inputs.levels, i, self.wire, jit)
            for i in range(self.setting.population)
        ]

    @property
    def carry(self) -> Carry:
        return Carry(self.state, jax.tree.map(lambda *rows: np.stack(rows), *self.store))

    def start(self) -> None:
        key = round_key(self.inputs.key, jnp.uint32(2**32 - 2))
        self.state = self.inputs.method.start(self.state, EagerCohort(self, self._members(key), key))

    def advance(self, rounds: int) -> Advance:
        for done in range(rounds):
            state, store, ledger = self.state, list(self.store), self.ledger.copy()
            self._round()
            broken = non_finite(self.carry)
            if broken:
                self.state, self.store = state, store
                self.ledger.__dict__.update(ledger.__dict__)
                return Advance(done, broken)
        return Advance(rounds)

    def _round(self) -> None:
        key = round_key(self.inputs.key, self.state.round)
        members = self._members(key)
        if int(members.present) == 0:
            self.state = self.state.next()
        else:
            self.state = self.inputs.method.round(self.state, EagerCohort(self, members, key))

    def _members(self, key: jax.Array) -> Members:
        return self.inputs.sampling.members(sampling_key(key), self.setting.population, self.setting.dtype)


def _vectors(carry: Carry) -> list[Any]:
    z = carry.state.z.merged(carry.records.local)
    return [z[name] for name in z.names]


def _share(factor: jax.Array | None, leaf: Any) -> jax.Array:
    return leaf * factor if factor is not None else jnp.zeros_like(leaf * 1.0)


class EagerCohort(Cohort):
    """A cohort that sends bytes to one client after the other and adds up what comes back."""

    def __init__(self, session: EagerSession, members: Members, key: jax.Array, counter: list[int] | None = None):
        self._session = session
        self._counter = [0] if counter is None else counter  # exchanges so far, one count for all views of a round
        self.problem = session.setting.problem
        self.members = members
        self.weights = jnp.asarray(session.inputs.weights)[members.index]
        self.round_key = key

    @property
    def population(self) -> int:
        return self._session.setting.population

    def repeat(self, times: Any, body: Callable[[Cohort, Any, Any], Any], carry: Any) -> Any:
        for t in range(int(times)):
            carry = body(self, jnp.int32(t), carry)
        return carry

    def _with(self, members: Members, always: bool) -> EagerCohort:
        return EagerCohort(self._session, members, self.round_key, self._counter)

    def _tick(self) -> int:
        self._counter[0] += 1
        return self._counter[0] - 1

    def _exchange(self, phase: str, message: tuple, factors: jax.Array, update: bool) -> Any:
        session, members = self._session, self.members
        key = exchange_key(self.round_key, self._tick())
        present = int(members.present)
        total, reply = None, None
        # With nobody there, one client is asked for the shape of a reply, and neither counted nor heard.
        for slot in range(max(present, 1)):
            index = int(members.index[slot])
            facts = {
                "weight": self.weights[slot],
                "probability": members.expected[slot],
                "round": session.state.round,
                "round_key": jax.random.key_data(self.round_key),
                "exchange_key": jax.random.key_data(key),
            }
            sent = session.wire.encode((facts, *message), {"phase": phase, "update": update})
            received, record = session.clients[index].receive(sent, session.store[index])
            reply, header = session.wire.decode(received)
            share = jax.tree.map(partial(_share, factors[slot] if slot < present else None), reply)
            total = share if total is None else jax.tree.map(jnp.add, total, share)
            if slot < present:
                session.store[index] = record
                for name, calls in header["oracles"].items():
                    session.ledger.oracles[name] += calls
        session.ledger.add_exchange(site_of(phase, message, reply), present)
        return total
