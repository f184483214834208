"""What every engine is given and gives back. Imports contracts only: no engine knows a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.levels import Level
from rookery.data.sources import Source
from rookery.federation.client import ProgramConfig, Record
from rookery.federation.evaluation import ClientMetrics
from rookery.federation.ledger import Ledger
from rookery.federation.sampling import Sampling
from rookery.vectors import Sequences, Values, row


class ServerInputs(NamedTuple):
    """What a server reads and never changes: nothing of anybody's data."""

    method: Any
    sampling: Sampling
    weights: Any
    key: Any  # of the run


class Seats(NamedTuple):
    """On which device every client's data and record are, and which they are of those on it."""

    device: Any
    place: Any


class Inputs(NamedTuple):
    """What the program of a run on one machine reads and never changes, everybody's data among it; all of it traced."""

    method: Any
    sampling: Sampling
    levels: Mapping[str, Level]
    weights: Any
    key: Any  # of the run
    seats: Seats | None = None  # None: everything is in one place, in the order of clients
    window: Any = None  # in order, the clients whose data and records are here, where that is not all of them

    def place(self, index: Any) -> Any:
        """Where a client's data and record are; of one that is not here, anywhere."""
        if self.seats is not None:
            return self.seats.place[index]
        if self.window is None:
            return index
        return jnp.minimum(jnp.searchsorted(self.window, index), self.window.shape[0] - 1).astype(jnp.int32)

    @property
    def server(self) -> ServerInputs:
        """The part that is not the clients'."""
        return ServerInputs(self.method, self.sampling, self.weights, self.key)


class Carry(NamedTuple):
    """What a run's program changes: the server's state, and every client's record, stacked over clients."""

    state: Any
    records: Record

    def values(self) -> Values:
        """All sequences by name; the local ones with a leading axis of clients."""
        return Values({**self.state.z.trees(), **self.records.local.trees()})


NO_RECORDS = Record(Sequences({}), ())  # of a server whose clients are elsewhere


@dataclass(frozen=True)
class PreparedRun:
    """A run made ready: its static side, traced inputs, and where it begins.

    Where clients are elsewhere, `record` is what the record of one of them is like, and, of a run that goes on,
    `versions` says which version of its record each of them is at. `source` has the examples that are not in memory.
    `rates` are the step sizes that were measured, by sequence. `data` states what is learnt from which inputs.
    """

    config: ProgramConfig
    inputs: Inputs
    carry: Carry
    record: Any = None
    versions: Mapping[str, Any] | None = None
    source: Source | None = None
    rates: Mapping[str, float] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def without_records(self) -> PreparedRun:
        """The same where clients keep their records to themselves, but for what channels keep at both ends."""
        records, up = self.carry.records, self.config.up
        known = NO_RECORDS._replace(channels=records.channels if up is not None and up.shifts else ())
        return replace(self, carry=Carry(self.carry.state, known), record=row(records, 0))


@dataclass(frozen=True)
class Advance:
    """The outcome of some rounds.

    Args:
      rounds: Number of rounds done.
      broken: Names of what was not finite after the next round; then the state before it is kept.
      clients: Names of the remote clients whose replies in that round were not finite.
    """

    rounds: int
    broken: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()


class Session(Protocol):
    """A run in progress on some engine.

    What follows is needed. A session may have more, which is used where it is there: `in_memory`, the carry without
    the records that are in a file, and `store`, that file; `values`, the sequences, where that is less than the whole
    carry; with clients elsewhere `versions` of their records, `unmeasured`, who did not answer, and two things that it
    is told: `back`, the round that a run may have to go back to, and `goes_on`, whether another follows.
    """

    @property
    def carry(self) -> Carry:
        """Where the run stands."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What it has cost so far."""
        ...

    def start(self) -> None:
        """What the method does once, before the first round."""
        ...

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        """What every client measures on its own test examples, by metric, in the order of clients."""
        ...

    def advance(self, rounds: int) -> Advance:
        """Does a number of rounds, or fewer when the state stops being finite; then the last good state is kept."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Opens a session for a run that is ready. The trajectory is the same on every engine.

    An engine may say more: `streams`, that it takes clients whose examples are not in memory; `elsewhere`, that records
    are with the clients; `folder`, where records are put that are in a file.
    """

    def open(self, prepared: PreparedRun, ledger: Ledger) -> Session: ...


def initial_carry(config: ProgramConfig, method: Any, z: Sequences, local: Sequences) -> Carry:
    """The state before the first round; `local` is stacked over clients."""
    problem = config.problem

    def record(own: Sequences) -> Record:
        return Record(own, method.client(problem, z.merged(own)))

    if local.names:
        records = jax.vmap(record)(local)
    else:
        one = jax.device_get(record(local))
        # A view of one: a population beyond memory begins with it, too.
        records = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (config.population, *np.shape(leaf))), one)
    return Carry(method.init(problem, z), records)


def non_finite(carry: Carry, elsewhere: Collection[str] = ()) -> tuple[str, ...]:
    """The names of what is not finite: sequences first, otherwise fields of the server's or the clients' state.
    `elsewhere` is what clients say of records that are not here."""
    names = tuple(name for name, tree in carry.values().items() if broken(tree))
    names += tuple(name for name in elsewhere if name not in (*names, *OF_CLIENTS))
    if names:
        return names
    fields = [f.name for f in dataclasses.fields(carry.state) if f.name != "z"]
    names = tuple(f"state.{name}" for name in fields if broken(getattr(carry.state, name)))
    return names + tuple(name for name in OF_CLIENTS if name in elsewhere or name in _broken_of_clients(carry.records))


def non_finite_record(record: Record) -> tuple[str, ...]:
    """The same of one client's record."""
    names = tuple(name for name, tree in record.local.trees().items() if broken(tree))
    return names or _broken_of_clients(record)


def _broken_of_clients(record: Record) -> tuple[str, ...]:
    return tuple(name for name, tree in zip(OF_CLIENTS, (record.state, record.channels)) if broken(tree))


OF_CLIENTS = ("client state", "what a channel keeps")


def broken(tree: Any) -> bool:
    """Whether a tree has numbers that are not finite."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return any(leaf.dtype.kind == "f" and not np.isfinite(leaf).all() for leaf in leaves)
