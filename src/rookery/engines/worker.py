"""A client elsewhere: its data, its record, its copy of method and problem; bytes in, bytes out. Imports contracts.

**Rounds are transactions.** A worker keeps its record as it was after the rounds that it took part in, a version each.
A message names the version that it builds on, and the attempt at a round that it belongs to. What the attempt has
changed so far is tentative: it counts for later exchanges of the same attempt, and for good once a message builds on
it. Whatever else is newer belongs to an attempt that was given up, here or by a server that was killed, and is dropped.
So a round has happened for everybody or for nobody, without a message of its own.
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
from rookery.data.levels import ABSENT
from rookery.engines.base import non_finite_record
from rookery.engines.versions import BEGINNING, Attempt, Owner, Version, Versions
from rookery.errors import MessageError
from rookery.federation import counts
from rookery.federation.channels import unpack_vectors
from rookery.federation.client import Call, ProgramConfig, Record, answer, with_own
from rookery.federation.evaluation import ClientMetrics, compiled_evaluation
from rookery.federation.ledger import ORACLES
from rookery.federation.wire import Opened, Wire
from rookery.vectors import Sequences, Vector

FACTS = {"weight", "probability", "times", "round", "first", "round_key", "exchange_key"}  # of an exchange
PHASE, MEASURE = "phase", "measure"  # what a worker can be asked
REFUSED, NEED = "refused", "need"  # how a header begins that says why there is no answer, and what would help
WHOLE, JOIN = "whole", "join"  # what would: the message with nothing left out; to be told what it is part of
AGAIN, NEWER = "again", r"[0-9]{20}-[0-9a-f]{8}"  # to be asked again; a name that sorts after this one


LAST = "its record of the last round that it was part of"


class Refused(MessageError):
    """A message that could be answered if the server helped: `need` says how."""

    def __init__(self, sentence: str, need: str | None):
        super().__init__(sentence)
        self.need = need


def refusal(wire: Wire, error: MessageError) -> bytes:
    """The message that says why there is no answer."""
    return wire.encode((), {REFUSED: str(error), NEED: getattr(error, "need", None)})


@partial(jax.jit, static_argnums=(0, 1, 2))
def compiled_answer(config, phase, update, program, shard, call, record, message):
    """What a client answers in a phase, compiled once for all clients."""
    return answer(config, program, phase, update, shard, call, record, unpack_vectors(config.down, message))[0]


def own_shard(levels: Mapping[str, Level], index: int) -> Shard:
    """One client's rows, repeated up to the size of the largest client here so that clients share a compiled phase."""

    def own(level: Level) -> Level:
        start, size = int(level.offset[index]), int(level.size[index])
        if start == ABSENT:
            raise MessageError(f"client {index}: its rows are at another party")
        rows = start + np.arange(int(np.max(level.size[np.asarray(level.offset) != ABSENT]))) % size
        return Level(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], level.rows), np.int32(0), np.int32(size))

    return Shard({name: own(level) for name, level in levels.items()})


def shard_shapes(levels: Mapping[str, Level]) -> Shard:
    """The shapes and types of a client's rows, of which there may be none here."""
    shape = lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)
    number = jax.ShapeDtypeStruct((), np.int32)
    return Shard({name: Level(jax.tree.map(shape, level.rows), number, number) for name, level in levels.items()})


class Worker:
    """One client: its own examples, its own record, its own copy of the method.

    Args:
      shard: its examples, as `own_shard` gives them.
      record: what it begins with.
      folder: where its record is kept, so that it comes back with it; None: in memory alone.
      jit: compile each phase; False runs it operation by operation, so that a debugger can stop in it.
      run: The name of the run that the record is of.
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
        run: str = "",
    ):
        self.index = index
        self._config = config
        self._program = program
        self._shard = shard
        self._wire = wire
        self._jit = jit
        self._initial = record
        self.versions = Versions(record, folder, Owner(run, index))
        self._kept: dict[int, Vector] = {}  # the vectors of the attempt that it has been sent
        self._lost: Any = ()  # what its channel lost of what it gave its neighbours last
        newest = self.versions.all[-1].attempt
        self._attempt = None if newest == BEGINNING else newest  # the one that they are of
        self.test: tuple[ClientMetrics, Shard, int] | None = None  # what it measures, on what, and the largest client

    def answer(self, message: bytes) -> bytes:
        """What it says to a message: what was asked for, or why not."""
        try:
            return self.receive(message)
        except MessageError as error:
            return refusal(self._wire, error)

    def receive(self, message: bytes | Opened) -> bytes:
        """Does what a message asks for, and gives the reply. What is no message is refused, and changes no record."""
        opened = message if isinstance(message, Opened) else self._wire.open(message)
        header = opened.header
        attempt = Attempt.of(header.get("attempt"))
        asked = header.get("asked")
        if header.get("client") != self.index:
            raise MessageError(f"message: it is for client {header.get('client')!r}, and this is client {self.index}")
        if asked not in (PHASE, MEASURE):
            raise MessageError(f"message: it asks for {asked!r}; a phase or a measurement can be asked for")
        exchange = header.get("exchange")
        if type(exchange) is not int or (asked == PHASE and not (exchange >= 0 and type(header.get("update")) is bool)):
            raise MessageError("message: it does not say which exchange of its round it is, and of which form")
        back = header.get("back")
        if type(back) is not int:
            raise MessageError("message: it does not say which rounds the server may go back to")
        builds_on = BEGINNING if header.get("builds_on") is None else Attempt.of(header["builds_on"])
        self._refuse_late(attempt, exchange if asked == PHASE else None)
        self._settle(attempt, builds_on, back)
        if asked == MEASURE:
            base = self._version(builds_on)
            assert base is not None  # it was settled
            return self._measure(opened, base.record)
        last = self.versions.all[-1]
        if (last.attempt, last.exchange) == (attempt, exchange):
            return last.answer  # of who is asked the same again, since an answer was lost, what it said
        return self._run(opened, attempt)

    def _refuse_late(self, attempt: Attempt, exchange: int | None) -> None:
        """Refuses what comes after it is over, such as a message that the network brings a second time."""
        before, last = self._attempt, self.versions.all[-1]
        late = before is not None and (attempt.session, *attempt[:2]) < (before.session, *before[:2])
        if exchange is not None and last.attempt == attempt:
            late = late or exchange < last.exchange
        if late:
            newer = before is not None and attempt.session < before.session
            sentence = "message: it is of a round, or of an exchange, that is over"
            raise Refused(sentence, before.session if newer and before is not None else None)

    def record_of(self, attempt: Attempt | None) -> Record:
        """Its record after an attempt that counted; where that is lost, or None was given, what it began with."""
        return (self._version(attempt or BEGINNING) or self.versions.all[0]).record

    def _version(self, attempt: Attempt) -> Version | None:
        if not jax.tree.leaves(self.versions.all[0].record):  # what is nothing is the same after every round
            return self.versions.all[0]
        found = next((each for each in self.versions.all if each.attempt == attempt), None)
        return Version(BEGINNING, self._initial) if found is None and attempt == BEGINNING else found

    def conclude(self, final: Attempt | None) -> Record:
        """Takes for good what a run ended with, and drops the rest; gives its record."""
        ended = self._version(final or BEGINNING)
        if ended is None:
            raise MessageError(self.versions.lost(f"client {self.index}: {LAST}"))
        self.versions.become([ended])
        return ended.record

    def _settle(self, attempt: Attempt, builds_on: Attempt, back: int) -> None:
        """Takes for good what a message builds on, keeps what its attempt did so far, and drops the rest."""
        base = self._version(builds_on)
        if base is None:
            raise MessageError(self.versions.lost(f"client {self.index}: {LAST}"))
        if attempt != self._attempt:
            self._attempt, self._kept = attempt, {}
        chain = [each for each in self.versions.all if each.attempt.base < builds_on.base]
        # What is older than anything that the server may go back to is not needed any more, but for the newest of it.
        older = sum(each.attempt.base <= back for each in [*chain, base])
        begun = [each for each in self.versions.all if each.attempt == attempt and each is not base]
        self.versions.become([*chain, base][max(0, older - 1) :] + begun)

    def _run(self, opened: Opened, attempt: Attempt) -> bytes:
        asked, _ = self._decoded(opened)
        if not isinstance(asked, tuple) or not asked or not isinstance(asked[0], dict) or set(asked[0]) != FACTS:
            raise MessageError("message: it does not say the facts of its exchange")
        facts, *arguments = asked
        phase, update = opened.header.get("phase"), opened.header["update"]
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
        last = self.versions.all[-1]
        record = last.record
        if phase in self._program.silent and arguments:  # what its neighbours gave
            arguments = [*arguments[:-1], with_own(arguments[-1], self._lost)]
        with contextlib.nullcontext() if self._jit else jax.disable_jit():
            given = (self._program, self._shard, call, record, arguments)
            result = compiled_answer(self._config, phase, update, *given)
        new, self._lost = jax.device_get((result.record, result.lost))
        oracles = dict(zip(ORACLES, counts.whole(result.oracles)))
        said = {"oracles": oracles, "broken": list(non_finite_record(new))}
        reply = self._wire.encode(result.reply, self._echo(opened) | said)
        same = all(map(np.array_equal, jax.tree.leaves(record), jax.tree.leaves(new)))
        if last.attempt != attempt or not same:
            # On disk before the answer is on its way. What changes nothing is computed again when it is asked again.
            self.versions.replace(Version(attempt, new, opened.header["exchange"], reply))
        return reply

    def _decoded(self, opened: Opened) -> tuple[Any, dict[str, Any]]:
        if missing := self._wire.left_out(opened) - set(self._kept):
            raise Refused(
                f"client {self.index}: {len(missing)} of the vectors that a message leaves out are not here", WHOLE
            )
        return self._wire.decode(opened, self._kept)

    def _echo(self, opened: Opened) -> dict[str, Any]:
        """What a reply says of the question that it answers."""
        return {name: opened.header.get(name) for name in ("client", "attempt", "exchange")}

    def _measure(self, opened: Opened, record: Record) -> bytes:
        if self.test is None:
            raise MessageError("message: it asks for a measurement, and this client was given none to take")
        function, shard, largest = self.test
        z, _ = self._wire.decode(opened)
        if not isinstance(z, Sequences):
            raise MessageError("message: it asks for a measurement, and has no sequences to take it at")
        found = compiled_evaluation(self._config, function, largest, shard, z, record)
        return self._wire.encode(found, self._echo(opened))
