"""Populations beyond memory: only the cohorts' data and records are on the device. Imports contracts and the compiled
engine.

Who takes part in a round is a function of the run's key, so the cohorts of the next rounds are known. Their clients'
data and records make a *window*: the local engine's program runs its rounds on it, while a thread reads the data of the
window after it. Records stay in a file and are written back when a window has been gone through.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import aligned, cast_rows
from rookery.data.levels import Level
from rookery.data.sources import rows_of
from rookery.engines.base import Advance, Carry, Inputs, PreparedRun, non_finite
from rookery.engines.local import Local, Program, advance, copied, start
from rookery.engines.records import RecordStore
from rookery.errors import InputError
from rookery.federation.client import Record
from rookery.federation.evaluation import ClientMetrics
from rookery.federation.keys import before_first_round_key, round_key
from rookery.federation.ledger import Ledger, Totals
from rookery.federation.steps import check_count
from rookery.vectors import Tree, Values

MOST_ROUNDS = 64  # of a window
GROWTH = 1.25  # by which a window that is too small grows, so that it does so rarely


@dataclass(frozen=True)
class Streamed:
    """Runs on this machine with only the cohorts' data and records on the device, read a few rounds ahead.

    Args:
      at_once: how many clients of a cohort are computed side by side, as in `rk.Local`.
      window: bytes of data and records that are on the device at a time, about; a round's are at least.
      folder: where the file with the clients' records is; None: the system's folder for temporary files.
    """

    at_once: int | None = None
    window: int = 2**26
    folder: str | Path | None = None

    streams = True  # takes clients whose examples are not in memory

    def open(self, prepared: PreparedRun, ledger: Ledger) -> StreamedSession:
        check_count("window", self.window)
        if self.folder is not None and not Path(self.folder).is_dir():
            raise InputError(f"folder: {str(self.folder)!r} was given; a folder that is there is needed")
        return StreamedSession(Local(self.at_once).program(prepared), prepared, ledger, self.window, self.folder)


class _Data(NamedTuple):
    """The examples of a window's clients on the host: who they are, those of each round from the first on, and their
    levels."""

    clients: np.ndarray
    first: int
    cohorts: list[np.ndarray]
    levels: dict[str, Level]

    @property
    def end(self) -> int:
        """The round after its last."""
        return self.first + len(self.cohorts)


class _At(NamedTuple):
    """Where a run stands. Replaced as a whole, since an interrupt may come at any moment."""

    carry: Carry  # with the records of the window's clients
    ledger: Ledger
    round: int
    data: _Data
    inputs: Inputs  # with the window's examples


class StreamedSession:
    """A run in progress, window by window.

    A call works on a copy, so that a call that diverges or is interrupted has changed nothing. The records of a window
    are those of the device until it has been gone through; writing them back twice does no harm.
    """

    def __init__(self, program: Program, prepared: PreparedRun, ledger: Ledger, window: int, folder: str | Path | None):
        self.program = program
        self.prepared = prepared
        self.store = RecordStore(prepared.carry.records, folder)
        self._inputs = jax.device_put(prepared.inputs._replace(levels={}))
        self._sizes = {name: np.asarray(level.size) for name, level in prepared.inputs.levels.items()}
        # The number of examples of every client, where all have as many.
        self._alike = {n: int(size[0]) if (size == size[0]).all() else None for n, size in self._sizes.items()}
        self._slots = prepared.inputs.sampling.slots(prepared.config.population)
        self._rounds = max(1, min(MOST_ROUNDS, window // max(1, self._slots * self._bytes_of_a_client())))
        self._room: dict[str, int] = {}  # rows, and clients, that a window has place for
        self._reader = ThreadPoolExecutor(1, "rookery-reader")
        first = int(prepared.carry.state.round)
        self._written = first  # the round up to which the store has all records
        self._next: tuple[int, Future] = self._read_ahead(first)
        self._at = self._enter(jax.device_put(prepared.carry.state), ledger, first)

    def _bytes_of_a_client(self) -> int:
        """About how much a client takes on the device."""
        examples = 0
        for name, level in self.prepared.inputs.levels.items():
            one = sum(int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize for leaf in jax.tree.leaves(level.rows))
            examples += int(one * self._sizes[name].mean())
        return examples + self.store.row_bytes

    # Windows.

    def _read_ahead(self, first: int) -> tuple[int, Future]:
        """Begins to read the window of the rounds from `first` on."""
        index, count = _cohorts(self.program, self._rounds, self._inputs, jnp.int32(first))
        cohorts = [own[times > 0] for own, times in zip(np.asarray(index), np.asarray(count))]
        return first, self._reader.submit(self._read, cohorts, first)

    def _read(self, cohorts: list[np.ndarray], first: int) -> _Data:
        """A window's examples, in the room that windows have; rows past the end are nobody's."""
        clients = np.unique(np.concatenate(cohorts))
        if not len(clients):  # nobody takes part: anybody's examples will do
            clients = np.zeros(1, np.int32)
        known = self.prepared.source
        if known is None:
            read: Mapping[str, Tree] = {n: rows_of(level, clients) for n, level in self.prepared.inputs.levels.items()}
        else:
            read = known.read(clients)
        seats = self._room_for(
            "clients", len(clients), min(self._rounds * self._slots, self.prepared.config.population)
        )
        padded = np.concatenate([clients, np.full(seats - len(clients), 2**31 - 1)]).astype(np.int32)
        levels = {name: self._level(name, rows, clients, seats) for name, rows in read.items()}
        return _Data(padded, first, cohorts, levels)

    def _level(self, name: str, rows: Tree, clients: np.ndarray, seats: int) -> Level:
        sizes, each = self._sizes[name][clients], self._alike[name]
        room = self._room_for(name, int(sizes.sum()), None if each is None else seats * each)

        def leaf(given: np.ndarray) -> np.ndarray:
            if given.dtype.kind == "f" and not np.isfinite(given).all():
                row = int(np.flatnonzero(~np.isfinite(given.reshape(len(given), -1)).all(axis=1))[0])
                client = clients[np.searchsorted(np.cumsum(sizes), row, side="right")]
                raise InputError(f"data: client {client} has a value that is NaN or infinite; all must be finite")
            held = cast_rows(given, self.program.config.dtype)
            made = aligned((room, *held.shape[1:]), held.dtype)
            made[: len(held)] = held
            made[len(held) :] = 0
            return made

        empty = np.zeros(seats - len(clients), np.int32)
        begins = np.concatenate([np.cumsum(sizes) - sizes, empty]).astype(np.int32)
        return Level(jax.tree.map(leaf, rows), begins, np.concatenate([sizes, empty + 1]).astype(np.int32))

    def _room_for(self, name: str, needed: int, exact: int | None) -> int:
        """The length of a window's arrays: the same for all windows, as far as that goes, since it is compiled."""
        if exact is not None and needed <= exact and self.prepared.inputs.sampling.always_full:
            self._room[name] = exact
        elif needed > self._room.get(name, 0):
            self._room[name] = int(needed * GROWTH) + 1
        return self._room[name]

    def _enter(self, state: Any, ledger: Ledger, round: int) -> _At:
        """The window that begins with a round, with its clients' records; and the one after it is begun to be read."""
        if self._next[0] != round:
            self._next = self._read_ahead(round)
        data: _Data = self._next[1].result()
        self._next = self._read_ahead(data.end)
        return _At(Carry(state, self._records(data)), ledger, round, data, self._with(data))

    def _with(self, data: _Data) -> Inputs:
        """The program's inputs with a window's examples."""
        return self._inputs._replace(levels=jax.device_put(data.levels), window=jax.device_put(data.clients))

    def _records(self, data: _Data) -> Record:
        return jax.device_put(self.store.read(np.minimum(data.clients, self.prepared.config.population - 1)))

    def _write_back(self) -> None:
        """Puts the records of the clients who took part since the last time into the store."""
        at = self._at
        cohorts = at.data.cohorts[self._written - at.data.first : at.round - at.data.first]
        if self.store.leaves and cohorts:
            own = np.unique(np.concatenate(cohorts))
            place = np.searchsorted(at.data.clients, own)
            self.store.write(own, jax.tree.map(lambda leaf: np.asarray(leaf)[place], at.carry.records))
        self._written = at.round

    # What a run asks for.

    @property
    def ledger(self) -> Ledger:
        return self._at.ledger

    @property
    def carry(self) -> Carry:
        self._write_back()
        return Carry(self._at.carry.state, self.store.all())

    @property
    def values(self) -> Values:
        """The sequences; those of clients, where there are any, as views of the file."""
        shared = self._at.carry.state.z.trees()
        if not self.program.config.problem.local:
            return Values(shared)
        return self.carry.values()

    def start(self) -> None:
        at, key = self._at, before_first_round_key(self._inputs.key)
        members = self.program.members(self._inputs, key, jnp.int32(at.round))
        everybody = np.asarray(members.index)[np.asarray(members.count) > 0]
        # A window of its own, of one round before the first.
        data = self._read([everybody], at.round - 1)
        inputs = self._with(data)
        carry, cost = start(self.program, inputs, Carry(at.carry.state, self._records(data)))
        self._at, self._written = _At(carry, _costing(at.ledger, cost), at.round, data, inputs), data.first
        self._write_back()
        self._at = self._enter(carry.state, self._at.ledger, at.round)

    def advance(self, rounds: int) -> Advance:
        done = 0
        while True:
            if self._at.round == self._at.data.end:
                self._write_back()
                self._at = self._enter(self._at.carry.state, self._at.ledger, self._at.round)
            some, broken = self._call(min(rounds - done, self._at.data.end - self._at.round))
            done += some
            if broken or done == rounds:
                return Advance(done, broken)

    def _call(self, rounds: int) -> tuple[int, tuple[str, ...]]:
        """Some rounds of the window: how many were good, and what is not finite after the next one."""
        at, broken = self._at, ()
        carry, cost, ran, finite = advance(self.program, at.inputs, copied(at.carry), jnp.int32(rounds))
        if not bool(finite):
            broken = non_finite(carry) or ("state",)
            rounds = int(ran) - 1
            carry, cost, ran, _ = advance(self.program, at.inputs, copied(at.carry), jnp.int32(rounds))
        jax.block_until_ready(carry)
        self._at = at._replace(carry=carry, ledger=_costing(at.ledger, cost), round=at.round + rounds)
        return rounds, broken

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        raise InputError("client_metrics: they were given, and clients are streamed; give metrics= instead")


def _costing(ledger: Ledger, cost: Totals) -> Ledger:
    total = ledger.copy()
    total.add(cost)
    return total


@partial(jax.jit, static_argnums=(0, 1))
def _cohorts(program: Program, rounds: int, inputs: Inputs, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Who takes part in some rounds from one on, and how often each is drawn."""

    def of(round: jax.Array) -> tuple[jax.Array, jax.Array]:
        members = program.members(inputs, round_key(inputs.key, round), round)
        return members.index, members.count

    return jax.vmap(of)(first + jnp.arange(rounds, dtype=jnp.int32))
