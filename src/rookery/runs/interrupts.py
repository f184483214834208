"""Ctrl-C that is heard: also where Python was in a callback, which swallows the exception. Imports nothing of rookery.

Python raises KeyboardInterrupt wherever it happens to be. In a destructor, or a callback of the garbage collector or
the compiler, it is printed and forgotten, and the run would go on. So it is remembered, and raised again at the next
place where a run can stop.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_pending = False
_at_once = True


def wait_for_turn() -> None:
    """From now on a Ctrl-C is remembered alone, for a place where several processes can stop together."""
    global _at_once
    _at_once = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Remembers Ctrl-C while the block lasts, where the program has not said what it does on its own."""
    global _pending
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _pending = False
    signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _pending = False


def heed() -> None:
    """Raises a Ctrl-C that was swallowed; nothing otherwise."""
    global _pending
    if _pending:
        _pending = False
        raise KeyboardInterrupt


def pending() -> bool:
    """Whether there was a Ctrl-C that nobody has answered."""
    return _pending


def answered() -> None:
    """Says that a Ctrl-C has been answered, so that it is not raised again."""
    global _pending
    _pending = False


def _remember(number: int, frame: Any) -> None:
    global _pending
    _pending = True
    if _at_once:
        raise KeyboardInterrupt
