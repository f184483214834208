"""The reference engine: the server program in plain Python, over a transport inside this process.

It is what a remote federation does, on one machine: phases are found by name on each client's own copy of the method,
a client holds its own examples and its own record, and only bytes pass between it and the server.
Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from rookery.data.federated import Level, cast
from rookery.engines.base import Carry, PreparedRun
from rookery.engines.messaging import MessageSession, OnFailure, stacked
from rookery.engines.transport import Outcome, Request
from rookery.engines.worker import Worker, own_shard
from rookery.errors import MessageError
from rookery.federation.evaluation import TEST, ClientMetrics
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

    def __init__(self, workers: Sequence[Worker]):
        self.workers = workers

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        replies, failures = {}, {}
        for client, body in requests:
            try:
                replies[client] = self.workers[client].receive(body)
            except MessageError as error:
                failures[client] = str(error)
        return Outcome(replies, failures)

    def close(self) -> None:
        pass


class EagerSession(MessageSession):
    """A run in progress with all clients in this process."""

    def __init__(self, prepared: PreparedRun, ledger: Ledger, jit: bool, on_failure: OnFailure | None = None):
        wire, config, levels = Wire(prepared.carry), prepared.config, prepared.inputs.levels
        self.workers = [
            Worker(config, prepared.inputs.method, own_shard(levels, i), i, wire, row(prepared.carry.records, i), jit)
            for i in range(config.population)
        ]
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), own_shard(levels, 0))
        super().__init__(
            prepared,
            ledger,
            InProcess(self.workers),
            wire,
            shapes=(shapes, row(prepared.carry.records, 0)),
            on_failure=on_failure,
            traces=jit,
        )
        self._given: tuple[ClientMetrics, Level, list[str]] | None = None  # what clients were told to measure

    @property
    def carry(self) -> Carry:
        place = int(self.state.round) + 1
        return Carry(self.state, stacked([worker.record_at(place, self.undone) for worker in self.workers]))

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        if self._given is None or self._given[0] is not function or self._given[1] is not test:
            held, largest = cast({TEST: test}, self.config.dtype), int(np.max(test.size))
            for worker in self.workers:
                worker.test = (function, own_shard(held, worker.index), largest)
            example = jax.tree.map(lambda rows: rows[0], held[TEST].rows)
            values = self.state.z.merged(row(self.carry.records, 0).local).trees()
            self._given = (function, test, list(jax.eval_shape(lambda: dict(function(values, example)))))
        return self.measured(self._given[2], [worker.index for worker in self.workers])
