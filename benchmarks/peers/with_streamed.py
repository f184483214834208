"""Ours where memory is short: the cohorts' records alone are on the device, and all of them in a file."""

from __future__ import annotations

import rookery as rk
from benchmarks.peers.common import Task
from benchmarks.peers.with_rookery import serve

if __name__ == "__main__":
    serve(Task.given(), rk.Streamed(), lambda session: session.values["x"])
