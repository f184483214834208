"""The engine of a federation: the server program here, every client behind a transport. Imports contracts only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rookery.data.federated import Level, cast
from rookery.engines.base import NO_RECORDS, Carry, PreparedRun
from rookery.engines.messaging import MessageSession, Note, OnFailure, ignore, stacked
from rookery.engines.transport import Seat, Transport
from rookery.engines.worker import shard_shapes
from rookery.federation.client import Record
from rookery.federation.evaluation import TEST, ClientMetrics, metric_names
from rookery.federation.ledger import Ledger
from rookery.federation.wire import Wire

Join = Callable[[PreparedRun, Sequence[int]], None]  # tells sites, by their numbers, what they are part of


@dataclass(frozen=True)
class Remote:
    """Runs with clients elsewhere: their data and their records stay with them.

    Args:
      seats: where each client is.
      names: who they are.
      run: what the run is called at all sites, also when it goes on.
      join: tells sites what they are part of, and makes sure that they have the same run in mind.
      on_failure: what happens when somebody does not answer.
      note: Called with the kind and the facts of every event of the run.
    """

    transport: Transport
    seats: tuple[Seat, ...]
    names: tuple[str, ...]
    run: str
    join: Join
    on_failure: OnFailure | None = None
    note: Note = ignore

    elsewhere = True  # records are not here

    def open(self, prepared: PreparedRun, ledger: Ledger) -> RemoteSession:
        self.join(prepared, range(len(self.transport.sites)))
        return RemoteSession(self, prepared, ledger)


class RemoteSession(MessageSession):
    """A run in progress with all clients elsewhere."""

    def __init__(self, engine: Remote, prepared: PreparedRun, ledger: Ledger):
        self._engine, self._prepared = engine, prepared
        shapes = shard_shapes(prepared.inputs.levels)
        self._record: Record = prepared.record
        super().__init__(
            prepared,
            ledger,
            engine.transport,
            Wire(Carry(prepared.carry.state, prepared.record)),
            seats=engine.seats,
            shapes=(shapes, prepared.record),
            names=engine.names,
            run=engine.run,
            on_failure=engine.on_failure,
            note=engine.note,
        )

    @property
    def carry(self) -> Carry:
        channels = stacked([self.shifts[i] for i in range(self.config.population)]) if self.shifts else ()
        return Carry(self.state, NO_RECORDS._replace(channels=channels))

    def join(self, clients: Sequence[int]) -> None:
        self._engine.join(self._prepared, sorted({self._seats[client].site for client in clients}))

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        level = cast({TEST: test}, self.config.dtype)[TEST]
        return self.measured(metric_names(function, level, self.state.z, self._record))
