"""Events of a run: one json object per line, appended as things happen. Imports errors.

docs/federation.md documents the format. A process that is killed may leave part of a line. Readers skip such a line,
and the next writer starts on a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rookery.errors import InputError, StorageError

EVENTS = "events.jsonl"  # in a run's folder, beside its history
POLL = 0.5  # seconds between two looks at a file that another process writes

Event = Mapping[str, Any]
Watch = Callable[[Event], Any]


class EventFile:
    """Appends events to a file; call it with the kind of an event and its facts.

    Args:
      path: File to append to; it is made with the first event.
      watch: Called with every event after it was written.
    """

    def __init__(self, path: Path, watch: Watch = lambda event: None):
        self.path = path
        self.watch = watch

    def __call__(self, kind: str, **facts: Any) -> None:
        event = {"time": round(time.time(), 3), "event": kind, **facts}
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        try:
            with open(self.path, "ab+") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    line = line if file.read(1) == b"\n" else b"\n" + line
                try:
                    file.write(line)
                    file.flush()
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
        except OSError as error:
            raise StorageError(f"events: {str(self.path)!r} cannot be written: {error.strerror}") from error
        self.watch(event)


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """Reads the events of a run, oldest first. Lines that are not whole events are skipped.

    Args:
      path: Folder of a run, or its events.jsonl.
    """
    file = Path(path)
    file = file / EVENTS if file.is_dir() else file
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"path: {str(path)!r} holds no readable {EVENTS}: {error.strerror}") from None
    return [event for line in lines if (event := _parsed(line)) is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


@contextlib.contextmanager
def following(path: Path, watch: Watch, poll: float = POLL) -> Iterator[None]:
    """Calls `watch` with every event that another process appends to a file while the block lasts."""
    end = threading.Event()
    start = path.stat().st_size if path.is_file() else 0
    thread = threading.Thread(target=_follow, args=(path, start, watch, poll, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _follow(path: Path, start: int, watch: Watch, poll: float, end: threading.Event) -> None:
    while True:
        last = end.is_set()
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(start)
            whole, newline, _ = file.read().rpartition(b"\n")
            start += len(whole) + len(newline)
            for line in whole.split(b"\n"):
                if (event := _parsed(line)) is not None:
                    watch(event)
        if last:
            return
        end.wait(poll)


def sentence(event: Event) -> str | None:
    """The line that is printed for an event; None for events that are only recorded."""
    facts = {name: value for name, value in event.items() if name not in ("time", "event")}
    write = _SENTENCES.get(str(event.get("event")))
    return None if write is None else write(facts)


def printing(say: Callable[[str], Any]) -> Watch:
    """Returns a function that prints the line of every event that has one. Sites choose parts of it, such as reasons
    of failures: what is not printable is left out."""

    def watch(event: Event) -> None:
        if (line := sentence(event)) is not None:
            say(printable(line))

    return watch


def printable(text: str) -> str:
    """A text without control characters, newlines and broken characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _who(facts: Event) -> str:
    """A client, with its site where that has another name."""
    client, site = facts.get("client"), facts.get("site")
    return f"client {client}" if site in (None, client) else f"client {client} at {site}"


_SENTENCES: dict[str, Callable[[Event], str | None]] = {
    "resumed": lambda facts: f"resumed after round {facts.get('round')}",
    "checkpoint": lambda facts: None if facts.get("status") else f"round {facts.get('round')}: checkpoint written",
    "failed": lambda facts: f"round {facts.get('round')}: no reply from {_who(facts)}: {facts.get('failure')}",
    "returned": lambda facts: f"round {facts.get('round')}: {_who(facts)} replies again",
    "undone": lambda facts: f"round {facts.get('round')}: too few replies; the round is undone and drawn again",
    "not finite": lambda facts: (
        f"round {facts.get('round')}: warning: the reply of {_who(facts)} in phase {facts.get('phase')!r} has numbers "
        "that are not finite"
    ),
    "large reply": lambda facts: (
        f"round {facts.get('round')}: warning: the reply of {_who(facts)} in phase {facts.get('phase')!r} has norm "
        f"{facts.get('norm'):.3g}; the median of the other replies is {facts.get('median'):.3g}"
    ),
}
