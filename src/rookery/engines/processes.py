"""The transport to processes on this machine, for trying a federation. Imports contracts.

Every site is a process of its own, started by a command, that reads requests from its standard input and writes replies
to its standard output, in frames. One that died, or did not answer in time, is started again when it is asked next.
Sites end when their input does: also when this process is killed.
"""

from __future__ import annotations

import contextlib
import queue
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from rookery.engines.transport import LATE, Outcome, Request
from rookery.errors import InputError
from rookery.federation.wire import LARGEST

FRAME = struct.Struct("<QQ")  # the number of a request, and how many bytes follow
PART = 2**24  # bytes that are read at a time
GRACE, SHORT = 10.0, 0.5  # seconds that a site is given to end by itself; and one that has said its last


@dataclass(frozen=True)
class Program:
    """How a site is started.

    Args:
      command: the words of its command.
      log: the file that takes what it writes besides its replies.
      before: what is done before it is started.
    """

    command: Sequence[str]
    log: Path
    before: Callable[[], Any] = lambda: None


class Frame(NamedTuple):
    """A request's number, and bytes."""

    number: int
    body: bytes


def read_frame(stream: IO[bytes], largest: int = LARGEST) -> Frame | None:
    """The next frame of a stream; None: it has ended, or what comes is none."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    number, size = FRAME.unpack(head)
    if size > largest:
        return None
    body = bytearray()
    while len(body) < size:  # in parts: what is announced is not believed before it is there
        part = stream.read(min(PART, size - len(body)))
        if not part:
            return None
        body += part
    return Frame(number, bytes(body))


def write_frame(stream: IO[bytes], frame: Frame) -> None:
    """Writes a frame."""
    stream.write(FRAME.pack(frame.number, len(frame.body)))
    stream.write(frame.body)
    stream.flush()


def serve(receive: Callable[[bytes], bytes], requests: IO[bytes], replies: IO[bytes]) -> None:
    """A site's side: answers every request, until there are no more."""
    while (frame := read_frame(requests)) is not None:
        write_frame(replies, Frame(frame.number, receive(frame.body)))


class _Site:
    """One process, and a thread that reads what it says."""

    def __init__(self, program: Program):
        self.said: queue.SimpleQueue[tuple[float, Frame | None]] = queue.SimpleQueue()  # with the time of arrival
        try:
            program.log.parent.mkdir(parents=True, exist_ok=True)
            program.before()
            with open(program.log, "ab") as log:
                self.process = subprocess.Popen(
                    list(program.command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is the server's; sites end when it does
                )
        except OSError as error:
            raise InputError(f"site: {program.command[0]!r} cannot be started: {error.strerror}") from error
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input: IO[bytes] = self.process.stdin
        self._to_send: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        listen = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        speak = threading.Thread(target=self._speak, daemon=True)
        self._threads = (listen, speak)
        for thread in self._threads:
            thread.start()

    def _listen(self, output: IO[bytes]) -> None:
        try:
            with output:
                while (frame := read_frame(output)) is not None:
                    self.said.put((time.monotonic(), frame))
        finally:
            self.said.put((time.monotonic(), None))

    def _speak(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, which is heard elsewhere
            while (frame := self._to_send.get()) is not None:
                write_frame(self._input, frame)
        with contextlib.suppress(OSError):
            self._input.close()

    def send(self, frame: Frame) -> None:
        """Sends a frame, without waiting until it is read: a pipe holds little."""
        self._to_send.put(frame)

    def end(self, grace: float) -> int | None:
        """Ends the process: by itself, or else by force; gives the status of one that did."""
        self._to_send.put(None)
        try:
            status = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self._rest()
        return status

    def kill(self) -> None:
        """Ends the process at once."""
        self._to_send.put(None)
        self.process.kill()
        self.process.wait()
        self._rest()

    def _rest(self) -> None:
        for thread in self._threads:
            thread.join(SHORT)


class Processes:
    """Sites that are processes on this machine.

    Args:
      programs: how each site is started, by its name.
    """

    slow = False

    def __init__(self, programs: Mapping[str, Program]):
        self._programs = list(programs.values())
        self.sites = list(programs)
        self.started: list[_Site | None] = [None] * len(self._programs)
        self._asked = 0  # requests so far

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        begun = time.monotonic()
        end = None if deadline is None else begun + deadline
        replies: dict[int, bytes] = {}
        failures: dict[int, str] = {}
        arrived: dict[int, float] = {}
        waiting: dict[int, dict[int, int]] = {}  # by site: numbers of frames, and the places of their requests
        for place, (seat, body) in enumerate(requests):
            self._asked += 1
            try:
                self._site(seat.site).send(Frame(self._asked, body))
            except InputError as error:
                failures[place] = str(error)
            else:
                waiting.setdefault(seat.site, {})[self._asked] = place
        for site, numbers in waiting.items():
            self._collect(site, numbers, end, replies, failures, arrived)
        return Outcome(replies, failures, {place: moment - begun for place, moment in arrived.items()})

    def _site(self, number: int) -> _Site:
        found = self.started[number]
        if found is None:
            found = self.started[number] = _Site(self._programs[number])
        return found

    def _collect(
        self,
        number: int,
        waiting: dict[int, int],
        end: float | None,
        replies: dict[int, bytes],
        failures: dict[int, str],
        arrived: dict[int, float],
    ) -> None:
        """Waits for what a site says to the requests that it was sent."""
        site = self._site(number)
        while waiting:
            try:
                moment, frame = site.said.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                moment = time.monotonic()
                site.kill()
                why = LATE
                break
            if frame is None:
                status = site.end(SHORT)
                why = "what it sent is no reply" if status is None else f"its process ended, with status {status}"
                break
            if (place := waiting.pop(frame.number, None)) is not None:
                replies[place] = frame.body
                arrived[place] = moment
        else:
            return
        self.started[number] = None
        arrived |= dict.fromkeys(waiting.values(), moment)
        failures |= dict.fromkeys(waiting.values(), why)

    def close(self) -> None:
        """Ends all sites."""
        for number, site in enumerate(self.started):
            if site is not None:
                site.end(GRACE)
                self.started[number] = None
