"""Ctrl-C and SIGTERM as interrupts of a run. Imports nothing of rookery.

Python raises KeyboardInterrupt wherever it happens to be. In a destructor, or a callback of the garbage collector or
the compiler, the exception is printed and forgotten, and the run would continue. So the signal is remembered, and
raised again at the next place where a run can stop. SIGTERM, which Slurm, systemd and `docker stop` send, is handled in
the same way; the command then exits with status 143.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

# The signals that interrupt a run, and the handlers that a program has if it did not choose its own.
_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

_pending = False
_at_once = True
_terminated = False


def wait_for_turn() -> None:
    """From now on an interrupt is only remembered, until several processes can stop together."""
    global _at_once
    _at_once = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Handles Ctrl-C and SIGTERM while the block lasts; handlers that the program chose itself stay. Signals reach the
    main thread only, so elsewhere nothing changes."""
    global _pending, _terminated
    ours = threading.current_thread() is threading.main_thread()
    taken = [number for number, usual in _USUAL.items() if ours and signal.getsignal(number) is usual]
    if not taken:
        yield
        return
    _pending = _terminated = False
    try:
        for number in taken:
            signal.signal(number, _remember)
        yield
    finally:
        for number in taken:
            signal.signal(number, _USUAL[number])
        _pending = False


def heed() -> None:
    """Raises an interrupt that was swallowed; nothing otherwise."""
    global _pending
    if _pending:
        _pending = False
        raise KeyboardInterrupt


def pending() -> bool:
    """Whether there is an interrupt that nothing has handled."""
    return _pending


def answered() -> None:
    """Marks an interrupt as handled, so that it is not raised again."""
    global _pending
    _pending = False


def interrupted_status() -> int:
    """The exit status of a command that was interrupted: 143 after SIGTERM, 130 after Ctrl-C."""
    return 128 + (signal.SIGTERM if _terminated else signal.SIGINT)


def _remember(number: int, frame: Any) -> None:
    global _pending, _terminated
    if _terminated:  # the run is being saved; SIGKILL follows if that takes too long
        return
    _pending, _terminated = True, number == signal.SIGTERM
    if _at_once:
        raise KeyboardInterrupt
