"""The benchmark beside other frameworks: who is there gives our results, and who is not is skipped by name."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.peers import __main__ as peers
from benchmarks.peers.page import OURS, Measured, Results, missed, page

FLOWER = next(contender for contender in peers.CONTENDERS if contender.task_per_client)
RUN_HERE = [contender for contender in peers.CONTENDERS if not contender.packages]


@pytest.mark.parametrize("method", peers.METHODS)
def test_loops_by_hand_give_our_results(method, tmp_path):
    here = {contender: python for contender in RUN_HERE if (python := peers.python_of(contender, tmp_path))}
    results = Results(losses={method: peers.check(here, method)})
    assert len(here) >= 2
    assert all(results.same(method, contender.name) for contender in here), results.losses


def test_peers_without_an_environment_are_skipped(tmp_path, capsys):
    found = peers.chosen(tmp_path, [FLOWER.name])
    assert [contender.name for contender in found] == [OURS]
    assert "Flower: skipped" in capsys.readouterr().out


def results(seconds: float, startup: float = 9.0) -> Results:
    done = {OURS: Measured(0.1, 3.0, 500.0, 1.0), FLOWER.name: Measured(seconds, startup, 900.0, 1.0)}
    losses: dict[str, float | str] = {OURS: 1.0, FLOWER.name: 1.2}
    return Results({FLOWER: "1"}, {"fedavg": losses}, {("fedavg", 100): done})


def test_goals_that_are_missed_are_named():
    assert missed(results(seconds=2.0)) == {}
    (line,) = missed(results(seconds=0.5))["seconds"]
    assert line == "Flower at 5.00 (FedAvg, 100) of ours; at least 10 wanted"
    assert missed(results(seconds=2.0, startup=1.5)) == {"startup": ["Flower at 0.50 (FedAvg, 100) of ours"]}


def test_the_page_says_what_was_found():
    assert "All reached." in page(results(seconds=2.0))
    text = page(results(seconds=0.5))
    assert "| Flower (other results) | 500 | 5.00 |" in text and "Flower not: 1.20000 against 1.00000" in text


def test_a_contender_that_fails_says_why(tmp_path):
    """Its data is not there."""
    (ours,) = (contender for contender in RUN_HERE if contender.name == OURS)
    task = dataclasses.replace(peers.SAME, folder=str(tmp_path))
    python = peers.python_of(ours, tmp_path)
    assert python is not None
    with peers.Process(ours, python, task) as process, pytest.raises(peers.Failed, match=r"inputs\.npy"):
        process.ask("go 1")
