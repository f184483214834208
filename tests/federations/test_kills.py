"""The server is killed, anywhere, and started again: the run goes on, bit for bit, and its sites end with it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from federations.conftest import alone, exact
from federations.test_frameworks import gone
from federations.test_processes import CASES, owned, same
from rookery.files import slug
from rookery.runs.result import Result

HERE = Path(__file__).parent


def started(folder: Path, case: str, rounds: int) -> subprocess.Popen:
    words = [sys.executable, str(HERE / "survivor.py"), str(folder), case, str(rounds)]
    with open(folder.parent / "log", "ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)


def killed(folder: Path, case: str, rounds: int, kills: int, rng: random.Random) -> int:
    """Starts a run, kills it so often, and lets it end; says how often it was killed."""
    count, run = 0, folder / "run"
    folder.mkdir(parents=True)
    while True:
        server = started(run, case, rounds)
        if count < kills:
            begun = time.monotonic()
            if rng.random() < 0.7:  # in the middle of rounds; otherwise anywhere
                while server.poll() is None and time.monotonic() - begun < 60:
                    newest = max(run.glob("checkpoints/round-*"), default=None)
                    if newest is not None and newest.stat().st_mtime > time.time() - 0.5:
                        break
                    time.sleep(0.01)
                time.sleep(rng.random() * 0.3)
            else:
                time.sleep(rng.random() * 6)
            if server.poll() is None:
                os.kill(server.pid, signal.SIGKILL)
                server.wait()
                assert gone(str(run)), "a site has outlived its server"
                count += 1
                continue
        assert server.wait(300) == 0, (folder / "log").read_text()[-2000:]
        return count


def check(folder: Path, case: str, rounds: int) -> None:
    expected = alone(exact(*CASES[case], rounds=rounds, checkpoint_every="1"))
    found = Result.load(folder / "run")
    same(found, expected)
    assert len(found.history.rows) == len(expected.history.rows)
    if expected.local:
        (folder / "sites").symlink_to(folder / "run" / "sites")
        owned(folder, expected)


@pytest.mark.parametrize("case", ["E5 fedbiolocal", pytest.param("E1a scaffold", marks=pytest.mark.full)])
def test_a_server_that_is_killed_goes_on_bit_for_bit(case, tmp_path):
    assert killed(tmp_path / "k", case, 40, 2, random.Random(1)) > 0
    check(tmp_path / "k", case, 40)


@pytest.mark.full
def test_a_hundred_kills(tmp_path):
    total, rng = 0, random.Random(7)
    for number in range(40):
        case = ("E1a scaffold", "E5 fedbiolocal", "E1 drift control", "E1 aggitd")[number % 4]
        place = tmp_path / slug(f"{number}")
        total += killed(place, case, 60, 10, rng)
        check(place, case, 60)
        if total >= 100:
            break
    assert total >= 100 and np.isfinite(total)
