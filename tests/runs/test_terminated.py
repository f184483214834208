"""SIGTERM interrupts a run, as Ctrl-C does: what Slurm, systemd and `docker stop` send."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.runs.interrupts import listening

SMALL = ["hyperrep", "simfbo", "--clients", "4", "--cohort", "2", "--task.hidden", "4", "--task.examples", "100"]
LONG = ["--rounds", "100000000", "--every", "100000", "--checkpoint-every", "1s"]


def begun(folder, *words, log=subprocess.PIPE):
    environment = os.environ | {"PYTHONPATH": str(Path(rk.__file__).parents[1])}
    command = [sys.executable, "-m", "rookery.cli", *words, "--out", str(folder)]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, text=True)


def waited(found, process, patience=120.0):
    end = time.monotonic() + patience
    while not found() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert found(), process.communicate()[0] if process.poll() is not None else "it takes too long"


@pytest.mark.parametrize("ignored", [False, True], ids=["", "in a shell's background"])
def test_a_run_that_is_terminated_is_kept_and_resumed(ignored, tmp_path):
    """Also where Ctrl-C is ignored, as by `nohup` and background processes of a shell."""
    folder = tmp_path / "run"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        process = begun(folder, "run", *SMALL, *LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        waited(lambda: len(list(folder.glob("checkpoints/round-*"))) > 1, process)
        process.terminate()
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 143, said
    assert f"rookery resume {folder} goes on" in said and "interrupted after round" in said
    result = rk.Result.load(folder)
    assert result.status == "interrupted" and result.state.round > 0
    assert (folder / "checkpoints" / f"round-{result.state.round:09d}").is_dir(), "the last round was saved"
    assert rk.read_events(folder)[-1]["event"] == "interrupted"


def test_a_federation_that_is_terminated_is_kept_and_its_sites_end(tmp_path):
    folder = tmp_path / "run"
    with open(tmp_path / "log", "w") as log:
        process = begun(folder, "federate", *SMALL, *LONG, "--sites", "2", log=log)
        try:
            waited(lambda: len(list(folder.glob("checkpoints/round-*"))) > 1, process)
            process.terminate()
            process.wait(timeout=120)
        finally:
            process.kill()
    said = (tmp_path / "log").read_text()
    assert process.returncode == 143 and f"rookery resume {folder} goes on" in said, said
    assert rk.Result.load(folder).status == "interrupted"


def test_a_site_that_is_terminated_ends_and_says_where_its_records_are(tmp_path):
    assert main(["federate", *SMALL, "--rounds", "1", "--sites", "2", "--out", str(tmp_path / "run")]) == 0
    place = tmp_path / "run" / "sites" / "site-1"
    site = subprocess.Popen(
        [sys.executable, "-m", "rookery.experiments.site", str(place)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        handled = lambda: int(
            next(line for line in Path(f"/proc/{site.pid}/status").read_text().splitlines() if "SigCgt" in line)[7:], 16
        )
        waited(lambda: handled() >> (signal.SIGTERM - 1) & 1, site)
        site.terminate()
        _, said = site.communicate(timeout=60)
    finally:
        site.kill()
    assert site.returncode == 143 and f"the records of this site's clients are in {place}" in said


CLIENTS = rk.federate([{"a": np.array([1.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)


def test_from_python_it_is_an_interrupt_and_the_handler_is_restored():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def terminate(round, row):
        if round == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(rk.Interrupted) as caught:
        rk.run(PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, x=0.0, rounds=10_000, every=1, callbacks=[terminate])
    assert caught.value.result.state.round == 3
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_signal_does_not_disturb_the_saving():
    with listening():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)


def test_a_thread_and_a_program_with_its_own_handler_are_left_alone():
    found = []
    mine = lambda *_: found.append("mine")
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with listening():
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)

    def inside():
        with listening():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
