"""A process made by os.fork() after JAX was started cannot use JAX: its threads are gone, and calls wait for ever.

Imports only errors.
"""

from __future__ import annotations

import os

from jax._src import xla_bridge

from rookery.errors import InputError

_forked_after_start = False


def _note() -> None:
    global _forked_after_start
    _forked_after_start = _forked_after_start or xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_note)


def refuse_forked() -> None:
    """Refuses to run in a process that was forked from one in which JAX was in use."""
    if _forked_after_start:
        raise InputError(
            "run: this process was made by os.fork() after JAX was started in its parent, and would hang; start it "
            'with multiprocessing.get_context("spawn"), or fork before JAX is used'
        )
