"""Ctrl-C is heard, also where Python swallows the exception it raises."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import rookery as rk
from rookery.runs.interrupts import heed, listening

CLIENTS = rk.federate([{"a": np.array([1.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)


class Deaf:
    """An object whose destructor is where Ctrl-C comes: what it raises there is printed and forgotten."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # until Python has noticed
            pass


@pytest.fixture(autouse=True)
def usual_handler():
    """Ctrl-C as Python has it, which a shell in the background may have turned off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_is_swallowed_is_heard_after_the_chunk():
    def swallow(round, row):
        if round == 3:
            Deaf()

    with pytest.raises(rk.Interrupted) as caught:
        rk.run(PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, x=0.0, rounds=10_000, every=1, callbacks=[swallow])
    assert 3 <= caught.value.result.state.round <= 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_early_interrupt_is_heard_before_the_first_round():
    def measured(z):
        Deaf()
        return {"x": z.x}

    with pytest.raises(KeyboardInterrupt):
        rk.run(PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, x=0.0, rounds=10_000, metrics=measured)


def test_a_handler_of_ones_own_is_left_alone():
    mine = lambda *_: None
    signal.signal(signal.SIGINT, mine)
    with listening():
        assert signal.getsignal(signal.SIGINT) is mine
        heed()


def test_one_interrupt_is_raised_once():
    with listening():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        with pytest.raises(KeyboardInterrupt):
            heed()
        heed()
