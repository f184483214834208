"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rookery.runs import progress
from rookery.runs.progress import Bars, Sites

ROW = {"round": 3, "exchanges": 3, "bytes_up": 0, "bytes_down": 0, "seconds": 1.0, "accuracy": 0.5}


def exchange(round, moment, **sites):
    entries = [{"site": s, "answered": took is not None, "seconds": took} for s, took in sites.items()]
    return {"event": "exchange", "round": round, "time": moment, "clients": entries}


def test_sites_are_shown_with_their_last_reply_the_longest_silent_first():
    sites = Sites()
    sites(exchange(1, 100.0, va=0.25, bonn=0.5, rome=None))
    sites({"event": "failed", "time": 100.5, "round": 2, "site": "bonn", "failure": "it did not answer in time"})
    sites(exchange(2, 101.0, va=0.25, bonn=None))
    assert sites.lines(103.0) == [
        "rome: no reply yet",
        "bonn: last reply 3 s ago (round 1, after 0.5 s); it did not answer in time",
        "va: last reply 2 s ago (round 2, after 0.25 s)",
    ]
    sites(exchange(3, 104.0, bonn=0.1))
    assert sites.lines(104.0)[-1] == "bonn: last reply 0 s ago (round 3, after 0.1 s)"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_pipe_is_given_lines_of_progress_and_a_terminal_the_sites(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PERIOD", 0.0)
    output, sites = io.StringIO(), Sites()
    console = Console(file=output, force_terminal=terminal, width=100)
    sites(exchange(3, 100.0, va=0.25))
    with Bars(console, sites) as bars:
        bars.add("trust simfbo", 10)(3, ROW)
    said = output.getvalue()
    assert ("trust simfbo: 3 of 10 rounds  3 exchanges  accuracy 0.5" in said) is not terminal
    assert ("va: last reply" in said) is terminal
