"""Populations beyond memory: only the cohorts' data and records are on the device. Imports contracts and the compiled
engine.

Who takes part in a round is a function of the run's key, so the cohorts of the next rounds are known. Their clients'
data and records make a *window*: the local engine's program runs its rounds on it, while a thread reads the data of the
window after it. The first window is of one round, and each is of twice as many as the one before, as far as there is
room. Records stay in a file and are written back when a window has been gone through.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import aligned, cast_rows
from rookery.data.levels import Level
from rookery.data.sources import read_checked, rows_of
from rookery.engines.base import Advance, Carry, Inputs, PreparedRun, non_finite
from rookery.engines.local import Local, Program, advance, copied, start
from rookery.engines.records import RecordStore
from rookery.errors import InputError
from rookery.federation.client import Record
from rookery.federation.evaluation import ClientMetrics
from rookery.federation.keys import before_first_round_key, round_key
from rookery.federation.ledger import Ledger
from rookery.federation.steps import check_count
from rookery.vectors import Tree, Values

MOST_ROUNDS = 64  # of a window
MOST_DRAWN = 2**22  # places in all cohorts of a window; where everybody may come, each has one for the whole population
GROWTH = 1.25  # by which a window that is too small grows, so that it does so rarely
PART = 256  # clients that are read in one go: a run that ends waits for no more
PATIENCE = 1.0  # seconds that it waits at most
COUNTED = 2**31 - 1  # examples that a device can count


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
        if self.folder is not None and not (isinstance(self.folder, str | Path) and Path(self.folder).is_dir()):
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


class _Reader:
    """Reads the examples of windows, each in a thread of its own. It holds no session, with which it ends."""

    def __init__(self, prepared: PreparedRun, most: int, window: int, record: int):
        self._levels, self._source, self._config = prepared.inputs.levels, prepared.source, prepared.config
        self._most, self._window, self._record = most, window, record  # rounds; bytes; bytes of a record
        self._slots = prepared.inputs.sampling.slots(self._config.population)
        self._sizes = {name: np.asarray(level.size) for name, level in self._levels.items()}
        # The number of examples of every client, where all have as many.
        self._alike = {n: int(size[0]) if (size == size[0]).all() else None for n, size in self._sizes.items()}
        self._room: dict[str, int] = {}  # rows, and clients, that a window has place for
        self._growing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, first: int, drawn: tuple[jax.Array, jax.Array], rounds: int) -> Future:
        """Begins to read the window of some rounds from `first` on, by who is drawn in each and how often."""
        future: Future = Future()
        before = self._thread

        def work() -> None:
            try:
                if before is not None:  # one window after another
                    before.join()
                index, count = (np.asarray(part)[:rounds] for part in drawn)
                future.set_result(self.window([own[times > 0] for own, times in zip(index, count)], first))
            except BaseException as error:  # for who waits for the window
                future.set_exception(error)

        self._thread = threading.Thread(target=work, name="rookery-reader", daemon=True)
        self._thread.start()
        return future

    def end(self) -> None:
        """Stops reading; what a user's function is at may go on for a while, and nobody waits for that."""
        self._ended.set()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(PATIENCE)

    def window(self, cohorts: list[np.ndarray], first: int) -> _Data:
        """As many of these rounds as a window has room for, one at least, with their clients' examples."""
        examples = {n: np.cumsum([size[own].sum(dtype=np.int64) for own in cohorts]) for n, size in self._sizes.items()}
        taken = np.cumsum([len(own) for own in cohorts]) * self._record
        for name, total in examples.items():
            if total[0] > COUNTED:
                when = f"of round {first}" if first >= 0 else "before the first round"
                raise InputError(
                    f"sampling: the cohort {when} has {total[0]} examples, of which a device counts "
                    f"{COUNTED} at most; draw fewer clients"
                )
            taken = taken + total * _bytes_of_an_example(self._levels[name])
        fit = (taken <= self._window) & np.all([total <= COUNTED for total in examples.values()], axis=0)
        rounds = max(1, int(fit.sum()))
        cohorts = cohorts[:rounds]
        clients = np.unique(np.concatenate(cohorts))
        if not len(clients):  # nobody takes part: anybody's examples will do
            clients = np.zeros(1, np.int32)
        whole = max(rounds, min(self._most, rounds * self._window // max(1, int(taken[rounds - 1]))))
        share = whole / rounds  # a window of as many rounds as it can have needs this much more
        seats = self._room_for("clients", len(clients), share, min(whole * self._slots, self._config.population))
        padded = np.concatenate([clients, np.full(seats - len(clients), 2**31 - 1)]).astype(np.int32)
        return _Data(padded, first, cohorts, self._read(clients, seats, share))

    def _room_for(self, name: str, needed: int, share: float, most: int) -> int:
        """The length of a window's arrays: the same for all windows, as far as that goes, since it is compiled."""
        with self._growing:
            if needed > self._room.get(name, 0):
                self._room[name] = max(needed, min(most, int(needed * share * GROWTH) + 1))
            return self._room[name]

    def _read(self, clients: np.ndarray, seats: int, share: float) -> dict[str, Level]:
        """Examples in the room that windows have; rows past the end are nobody's."""
        made, ends, empty = {}, dict.fromkeys(self._levels, 0), np.zeros(seats - len(clients), np.int32)
        for name, level in self._levels.items():
            sizes, each = self._sizes[name][clients], self._alike[name]
            most = int(self._sizes[name].sum(dtype=np.int64)) if each is None else seats * each
            room = self._room_for(name, int(sizes.sum(dtype=np.int64)), share, min(most, COUNTED))
            rows = jax.tree.map(lambda leaf, room=room: aligned((room, *leaf.shape[1:]), leaf.dtype), level.rows)
            begins = np.concatenate([np.cumsum(sizes) - sizes, empty]).astype(np.int32)
            made[name] = Level(rows, begins, np.concatenate([sizes, empty + 1]).astype(np.int32))
        for own in np.split(clients, range(PART, len(clients), PART)):
            if self._ended.is_set():
                raise CancelledError
            for name, given in self._given(own).items():
                begin, ends[name] = ends[name], ends[name] + int(self._sizes[name][own].sum(dtype=np.int64))
                for place, leaf in zip(jax.tree.leaves(made[name].rows), jax.tree.leaves(given)):
                    _check_finite(np.asarray(leaf), own, self._sizes[name])
                    place[begin : ends[name]] = cast_rows(np.asarray(leaf), self._config.dtype)
        for name, level in made.items():
            for leaf in jax.tree.leaves(level.rows):
                leaf[ends[name] :] = 0
        return made

    def _given(self, clients: np.ndarray) -> dict[str, Tree]:
        if self._source is None:
            return {name: rows_of(level, clients) for name, level in self._levels.items()}
        return read_checked(self._source, clients, {name: size[clients] for name, size in self._sizes.items()})


def _bytes_of_an_example(level: Level) -> int:
    return sum(int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize for leaf in jax.tree.leaves(level.rows))


def _check_finite(rows: np.ndarray, clients: np.ndarray, sizes: np.ndarray) -> None:
    if rows.dtype.kind in "fc" and not np.isfinite(rows).all():
        row = int(np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1))[0])
        client = clients[np.searchsorted(np.cumsum(sizes[clients]), row, side="right")]
        raise InputError(f"data: client {client} has a value that is NaN or infinite; all must be finite")


class StreamedSession:
    """A run in progress, window by window.

    A call works on a copy, so that a call that diverges or is interrupted has changed nothing. The records of a window
    are those of the device until it has been gone through; writing them back twice does no harm.
    """

    def __init__(self, program: Program, prepared: PreparedRun, ledger: Ledger, window: int, folder: str | Path | None):
        self.program = program
        self.store = RecordStore(prepared.carry.records, folder)
        self._inputs = jax.device_put(prepared.inputs._replace(levels={}))
        self._most = max(1, min(MOST_ROUNDS, MOST_DRAWN // prepared.inputs.sampling.slots(program.config.population)))
        self._reader = _Reader(prepared, self._most, window, self.store.row_bytes)
        weakref.finalize(self, self._reader.end)
        first = int(prepared.carry.state.round)
        self._written = first  # the round up to which the store has all records
        self._next: tuple[int, Future] = self._read_ahead(first, 1)
        self._at = self._enter(jax.device_put(prepared.carry.state), ledger, first)

    # Windows.

    def _read_ahead(self, first: int, rounds: int) -> tuple[int, Future]:
        """Begins to read the window of the rounds from `first` on."""
        drawn = _cohorts(self.program, self._most, self._inputs, jnp.int32(first), jnp.int32(rounds))
        return first, self._reader.begin(first, drawn, rounds)

    def _enter(self, state: Any, ledger: Ledger, round: int) -> _At:
        """The window that begins with a round, with its clients' records; and the one after it is begun to be read."""
        if self._next[0] != round:
            self._next = self._read_ahead(round, 1)
        data: _Data = self._next[1].result()
        self._next = self._read_ahead(data.end, min(2 * len(data.cohorts), self._most))
        return _At(Carry(state, self._records(data)), ledger, round, data, self._with(data))

    def _with(self, data: _Data) -> Inputs:
        """The program's inputs with a window's examples."""
        return self._inputs._replace(levels=jax.device_put(data.levels), window=jax.device_put(data.clients))

    def _records(self, data: _Data) -> Record:
        return jax.device_put(self.store.read(np.minimum(data.clients, self.program.config.population - 1)))

    def _put_back(self, data: _Data, cohorts: list[np.ndarray], records: Record) -> None:
        """Puts the records of a window's clients who took part in some cohorts into the store."""
        if self.store.leaves and cohorts:
            own = np.unique(np.concatenate(cohorts))
            self.store.write(own, records, np.searchsorted(data.clients, own))

    def _write_back(self) -> None:
        """The same of those who took part since the last time."""
        at = self._at
        cohorts = at.data.cohorts[self._written - at.data.first : at.round - at.data.first]
        self._put_back(at.data, cohorts, at.carry.records)
        self._written = at.round

    # What a run asks for.

    @property
    def ledger(self) -> Ledger:
        return self._at.ledger

    @property
    def carry(self) -> Carry:
        return Carry(self.in_memory.state, self.store.all())

    @property
    def in_memory(self) -> Carry:
        """The carry without the records, all of which are in the store."""
        self._write_back()
        return Carry(self._at.carry.state, None)  # type: ignore[arg-type]

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
        data = self._reader.window([everybody], at.round - 1)  # of its own, of one round before the first
        carry, cost = start(self.program, self._with(data), Carry(at.carry.state, self._records(data)))
        self._put_back(data, data.cohorts, carry.records)
        self._at = at._replace(carry=Carry(carry.state, self._records(at.data)), ledger=at.ledger.plus(cost))

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
        self._at = at._replace(carry=carry, ledger=at.ledger.plus(cost), round=at.round + rounds)
        return rounds, broken

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        raise InputError("client_metrics: they were given, and clients are streamed; give metrics= instead")


@partial(jax.jit, static_argnums=(0, 1))
def _cohorts(program: Program, most: int, inputs: Inputs, first: jax.Array, rounds: jax.Array) -> Any:
    """Who takes part in some rounds from one on, and how often each is drawn, in arrays with room for `most` rounds.
    One round after another, since a draw may take several vectors of the population's length."""

    def of(round: jax.Array) -> tuple[jax.Array, jax.Array]:
        members = program.members(inputs, round_key(inputs.key, round), round)
        return members.index, members.count

    def add(k: jax.Array, drawn: tuple) -> tuple:
        return jax.tree.map(lambda all, one: all.at[k].set(one), drawn, of(first + k))

    empty = jax.tree.map(lambda one: jnp.zeros((most, *one.shape), one.dtype), jax.eval_shape(of, first))
    return jax.lax.fori_loop(0, rounds, add, empty)
