"""The reference engine: the server program in plain Python, over a transport inside this process.

It is what a remote federation does, on one machine: phases are found by name on each client's own copy of the method,
a client holds its own examples and its own record, and only bytes pass between it and the server.
Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from rookery.data.federated import Level, cast
from rookery.engines.base import Carry, PreparedRun
from rookery.engines.messaging import MessageSession, OnFailure, stacked
from rookery.engines.transport import Outcome, Request, Seat
from rookery.engines.worker import Worker, own_shard
from rookery.federation.evaluation import TEST, ClientMetrics, metric_names
from rookery.federation.ledger import Ledger
from rookery.federation.wire import Wire
from rookery.vectors import row


@dataclass(frozen=True)
class Eager:
    """Runs client by client in plain Python.

    Args:
      jit: compile each phase for the clients; False runs it operation by operation, so that a debugger can stop in it.
    """

    jit: bool = True

    def open(self, prepared: PreparedRun, ledger: Ledger) -> EagerSession:
        return EagerSession(prepared, ledger, self.jit)


class InProcess:
    """The transport inside this process: a worker for every client, asked one after the other. What a worker raises
    besides a refused message is the user's own fault, and reaches the user."""

    slow = False

    def __init__(self, workers: Sequence[Worker]):
        self.workers = workers

    @property
    def sites(self) -> list[str]:
        return [str(worker.index) for worker in self.workers]

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        return Outcome({i: self.workers[seat.client].answer(body) for i, (seat, body) in enumerate(requests)})

    def close(self) -> None:
        pass


class EagerSession(MessageSession):
    """A run in progress with all clients in this process.

    Args:
      folder: where clients keep their records, a folder each; None: in memory alone, and a run that goes on hands them
        theirs.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        ledger: Ledger,
        jit: bool,
        on_failure: OnFailure | None = None,
        folder: Path | None = None,
    ):
        wire, levels = Wire(prepared.carry), prepared.inputs.levels
        self._born = lambda i: Worker(
            prepared.config,
            prepared.inputs.method,
            own_shard(levels, i),
            i,
            wire,
            row(prepared.carry.records, i),
            jit,
            None if folder is None else folder / str(i),
        )
        self.workers = [self._born(i) for i in range(prepared.config.population)]
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), own_shard(levels, 0))
        super().__init__(
            prepared if folder is not None else replace(prepared, versions=None),
            ledger,
            InProcess(self.workers),
            wire,
            seats=[Seat(i, i) for i in range(prepared.config.population)],
            shapes=(shapes, row(prepared.carry.records, 0)),
            on_failure=on_failure,
            traces=jit,
        )
        self._given: tuple[ClientMetrics, Level, list[str]] | None = None  # what clients were told to measure

    def restart(self, client: int) -> None:
        """Ends a client and starts it again, with what it has on its disk."""
        self.workers[client] = self._born(client)

    @property
    def carry(self) -> Carry:
        return Carry(self.state, stacked([worker.record_of(self.last.get(worker.index)) for worker in self.workers]))

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        if self._given is None or self._given[0] is not function or self._given[1] is not test:
            held, largest = cast({TEST: test}, self.config.dtype), int(np.max(test.size))
            for worker in self.workers:
                worker.test = (function, own_shard(held, worker.index), largest)
            self._given = (function, test, metric_names(function, held[TEST], self.state.z, row(self.carry.records, 0)))
        return self.measured(self._given[2])
