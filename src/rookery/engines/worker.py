"""A client elsewhere: its data, its record, its copy of method and problem; bytes in, bytes out. Imports contracts.

**Rounds are transactions.** A worker keeps its record as it was after the rounds that it took part in, a version each.
A message says on how many completed rounds it builds (`base`), and which attempt of the next one it belongs to. What
the attempt has changed so far is tentative: it counts for later exchanges of the same attempt, and for good once a
message builds on that round. Whatever else is newer than the base belongs to an attempt that was given up, here or by a
server that was killed, and is dropped. So a round has happened for everybody or for nobody, without a message of its
own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.data.batches import Shard
from rookery.data.federated import Level
from rookery.engines.versions import Attempt, Version, Versions
from rookery.errors import MessageError
from rookery.federation import counts
from rookery.federation.client import Call, ProgramConfig, Record, answer
from rookery.federation.evaluation import ClientMetrics, compiled_evaluation
from rookery.federation.ledger import ORACLES
from rookery.federation.wire import Opened, Wire
from rookery.vectors import Sequences, Vector

FACTS = {"weight", "probability", "times", "round", "first", "round_key", "exchange_key"}  # of an exchange
PHASE, MEASURE = "phase", "measure"  # what a worker can be asked


@partial(jax.jit, static_argnums=(0, 1, 2))
def compiled_answer(config, phase, update, program, shard, call, record, message):
    """What a client answers in a phase, compiled once for all clients."""
    return answer(config, program, phase, update, shard, call, record, message)[0]


def own_shard(levels: Mapping[str, Level], index: int) -> Shard:
    """One client's rows, repeated up to the size of the largest client so that clients share a compiled phase."""

    def own(level: Level) -> Level:
        start, size = int(level.offset[index]), int(level.size[index])
        rows = start + np.arange(int(np.max(level.size))) % size
        return Level(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], level.rows), np.int32(0), np.int32(size))

    return Shard({name: own(level) for name, level in levels.items()})


class Worker:
    """One client: its own examples, its own record, its own copy of the method.

    Args:
      shard: its examples, as `own_shard` gives them.
      record: what it begins with.
      folder: where its record is kept, so that it comes back with it; None: in memory alone.
      jit: compile each phase; False runs it operation by operation, so that a debugger can stop in it.
    """

    def __init__(
        self,
        config: ProgramConfig,
        program: Any,
        shard: Shard,
        index: int,
        wire: Wire,
        record: Record,
        jit: bool = True,
        folder: Path | None = None,
    ):
        self.index = index
        self._config = config
        self._program = program
        self._shard = shard
        self._wire = wire
        self._jit = jit
        self.versions = Versions(record, folder)
        self._kept: dict[int, Vector] = {}  # the vectors of the attempt that it has been sent
        self._attempt: Attempt | None = None  # the one that they are of
        self._last: tuple[Attempt, int, bytes] | None = None  # the exchange that it answered last, and what
        self.test: tuple[ClientMetrics, Shard, int] | None = None  # what it measures, on what, and the largest client

    def receive(self, message: bytes) -> bytes:
        """Does what a message asks for, and gives the reply. What is no message is refused, and changes nothing."""
        opened = self._wire.open(message)
        header = opened.header
        attempt = Attempt.of(header.get("attempt"))
        asked = header.get("asked")
        if asked not in (PHASE, MEASURE):
            raise MessageError(f"message: it asks for {asked!r}; a phase or a measurement can be asked for")
        exchange = header.get("exchange", -1)
        if not isinstance(exchange, int) or (
            asked == PHASE and not (exchange >= 0 and type(header.get("update")) is bool)
        ):
            raise MessageError("message: it does not say which exchange of its round it is, and of which form")
        back = header.get("back", attempt.base)
        if not isinstance(back, int):
            raise MessageError("message: it does not say which rounds the server may go back to")
        self._settle(attempt, _undone(header), back, header.get("last"))
        if asked == MEASURE:
            return self._measure(opened)
        last = self._last
        if last is None or last[:2] != (attempt, exchange):
            self._last = last = (attempt, exchange, self._run(opened, attempt))
        return last[2]  # of who is asked the same again, since an answer was lost, what it said

    def record_at(self, base: int, undone: Mapping[int, int]) -> Record:
        """Its record after a number of completed rounds."""
        return [each for each in self.versions.all if _counts(each.attempt, base, undone)][-1].record

    def _settle(self, attempt: Attempt, undone: Mapping[int, int], back: int, last: Any) -> None:
        """Takes for good what the base has, keeps what this attempt did so far, and drops the rest. `last` is the place
        of the last round that the server knows the client to have been part of."""
        settled = [each for each in self.versions.all if _counts(each.attempt, attempt.base, undone)]
        if not settled or (isinstance(last, int) and settled[-1].attempt.base != last):
            raise MessageError(f"client {self.index}: its record of the last round that it was part of is lost")
        if attempt != self._attempt:
            self._attempt, self._kept = attempt, {}
        begun = [each for each in self.versions.all if each.attempt == attempt]
        # What is older than anything that the server may go back to is not needed any more, but for the newest of it.
        older = sum(each.attempt.base < back for each in settled)
        self.versions.become(settled[max(0, older - 1) :] + begun)

    def _run(self, opened: Opened, attempt: Attempt) -> bytes:
        asked, _ = self._wire.decode(opened, self._kept)
        if not isinstance(asked, tuple) or not asked or not isinstance(asked[0], dict) or set(asked[0]) != FACTS:
            raise MessageError("message: it does not say the facts of its exchange")
        facts, *arguments = asked
        phase = opened.header.get("phase")
        if not isinstance(phase, str):
            raise MessageError("message: it names no phase")
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
            result = compiled_answer(
                self._config,
                phase,
                opened.header["update"],
                self._program,
                self._shard,
                call,
                self.versions.all[-1].record,
                arguments,
            )
        oracles = dict(zip(ORACLES, counts.whole(result.oracles)))
        reply = self._wire.encode(result.reply, {"oracles": oracles})
        self.versions.replace(Version(attempt, jax.device_get(result.record)))
        return reply

    def _measure(self, opened: Opened) -> bytes:
        if self.test is None:
            raise MessageError("message: it asks for a measurement, and this client was given none to take")
        function, shard, largest = self.test
        z, _ = self._wire.decode(opened)
        if not isinstance(z, Sequences):
            raise MessageError("message: it asks for a measurement, and has no sequences to take it at")
        return self._wire.encode(
            compiled_evaluation(self._config, function, largest, shard, z, self.versions.all[-1].record)
        )


def _undone(header: Mapping[str, Any]) -> dict[int, int]:
    """Of the rounds that were tried more than once, which attempt counts: by the rounds before it."""
    given = header.get("undone", {})
    try:
        return {int(base): int(number) for base, number in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise MessageError("message: it does not say which attempts were given up") from None


def _counts(attempt: Attempt, base: int, undone: Mapping[int, int]) -> bool:
    """Whether what an attempt did is part of what a server with so many completed rounds has."""
    return attempt.base < base and attempt.number == undone.get(attempt.base, 0)
