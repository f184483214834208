"""The mesh: eight devices in one process, and two real processes over loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engines.grids import everything, runs, same_numbers, with_records
from rookery.cli import main
from rookery.engines.hosts import environment, join, together
from rookery.errors import InputError
from rookery.experiments.machines import free_ports
from rookery.runs.result import Result
from rookery.runs.table import Table

HERE = Path(__file__).parent


def on_eight_devices(marks: str) -> None:
    """Runs the tests that need them in a process that has them."""
    environ = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        environ.pop(name, None)
    command = [sys.executable, "-m", "pytest", str(HERE / "on_devices.py"), "-x", "-m", marks, "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environ, cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_eight_devices_give_the_numbers_of_one():
    on_eight_devices("not full")


@pytest.mark.full
def test_eight_devices_give_the_numbers_of_one_for_every_method():
    on_eight_devices("full")


RUN = ["hyperrep", "simfbo", "--precision", "float64", "--rounds", "12", "--every", "4", "--method.local-steps", "2"]


def launched(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "rookery.cli", "launch", "-n", "2", "--", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_processes_give_the_numbers_of_one(tmp_path):
    process = launched("run", *RUN, "--engine", "mesh", "--out", str(tmp_path / "two"))
    assert main(["run", *RUN, "--out", str(tmp_path / "one")]) == 0
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said.count("results in") == 1
    one, two = (Table.from_csv(tmp_path / name / "history.csv") for name in ("one", "two"))
    assert one.columns == two.columns and len(one.rows) == len(two.rows)
    for column in one.columns:
        if column != "seconds":
            np.testing.assert_allclose(two[column], one[column], atol=1e-12)
    for a, b in zip(
        Result.load(tmp_path / "one").state.leaves, Result.load(tmp_path / "two").state.leaves, strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_two_processes_sweep_and_run_as_one_does(tmp_path):
    """Of a sweep each has some of the runs; of a run some of the clients, with their records. Both have all results,
    and their checkpoints go on with one."""
    folders = [tmp_path / str(process) for process in range(2)]
    at, paths = f"127.0.0.1:{free_ports(1)[0]}", [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    shared = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for folder in folders:
        folder.mkdir()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "engines.grids", str(folder)],
            env=shared | environment(at, 2, process),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process, folder in enumerate(folders)
    ]
    local = everything("local") | runs("local", "local")
    for process in started:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    for folder in folders:
        same_numbers(local, np.load(folder / "numbers.npz"))
    resumed = with_records("local", resumed=folders[0] / "run")
    for a, b in zip(with_records("local").state.leaves, resumed.state.leaves, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def until_it_writes(folder: Path) -> None:
    """Waits until a run has written two checkpoints more than there are."""
    written = lambda: set((folder / "checkpoints").glob("*"))
    for _ in range(2):
        before, deadline = written(), time.monotonic() + 200
        while written() <= before and time.monotonic() < deadline:
            time.sleep(0.1)


@pytest.mark.full
@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_together_and_resumed_together(how, status, tmp_path):
    folder = tmp_path / "run"
    long = [*RUN[:4], "--rounds", "100000", "--every", "50000", "--checkpoint-every", "1s"]
    process = launched("run", *long, "--engine", "mesh", "--out", str(folder))
    until_it_writes(folder)
    process.send_signal(how)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == status and "rookery resume" in said, said
    reached = Result.load(folder).history.rows[-1]["round"]
    assert 0 < reached < 100000
    again = launched("resume", str(folder))
    until_it_writes(folder)
    again.send_signal(how)
    said, _ = again.communicate(timeout=100)
    assert again.returncode == status, said
    assert Result.load(folder).history.rows[-1]["round"] >= reached


@pytest.mark.full
def test_two_processes_that_diverge_end_together(tmp_path):
    """Both go back to the last good round, from a copy of the same one."""
    folder = tmp_path / "run"
    rates = ["--method.lr.x", "1e5", "--method.lr.y", "1e5", "--method.lr.v", "1e5"]
    process = launched("run", *RUN, *rates, "--rounds", "400", "--engine", "mesh", "--out", str(folder))
    said, _ = process.communicate(timeout=200)
    assert process.returncode in (0, 1) and "diverged" in said, said
    assert 0 < Result.load(folder).state.round < 400


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([], "a number of processes and a command are needed"),
        (["-n", "two", "--", "run"], "'two' processes were given"),
        (["-n", "2", "--", "compare"], "'compare' was given; run and resume"),
        (["-n", "2", "--", "run", "hyperrep", "simfbo"], "the run is not on the mesh"),
    ],
)
def test_bad_launches_are_refused_in_a_sentence(arguments, sentence, capsys):
    assert main(["launch", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_that_is_not_on_the_mesh_is_not_resumed_by_several(tmp_path, capsys):
    assert main(["run", *RUN[:2], "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    assert main(["launch", "-n", "2", "--", "resume", str(tmp_path / "run")]) == 2
    assert "the run is not on the mesh" in capsys.readouterr().err


def test_what_is_wrong_with_the_run_is_said_once():
    process = launched("run", "hyperrep", "simfbo", "--engine", "mesh", "--clients", "0")
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 2 and said.count("rookery: clients") == 1, said


@pytest.mark.parametrize(
    "environ, sentence",
    [
        ({"ROOKERY_COORDINATOR": "127.0.0.1:1"}, "ROOKERY_PROCESSES: nothing was given"),
        (environment("127.0.0.1:1", 0, 0), "ROOKERY_PROCESS: 0 was given with ROOKERY_PROCESSES=0"),
        (environment("127.0.0.1:1", 2, 2), "ROOKERY_PROCESS: 2 was given with ROOKERY_PROCESSES=2"),
        (environment("127.0.0.1", 2, 0), "ROOKERY_COORDINATOR: '127.0.0.1' was given; host:port"),
        (environment("127.0.0.1:70000", 2, 0), "host:port"),
        (environment("127.0.0.1:\u00b2", 2, 0), "host:port"),
        (
            {"ROOKERY_COORDINATOR": "127.0.0.1:1", "ROOKERY_PROCESSES": "\u00b2"},
            "ROOKERY_PROCESSES: '\u00b2' was given",
        ),
        ({"SLURM_STEP_NODELIST": "one", "SLURM_NTASKS": "many"}, "SLURM_NTASKS: 'many' was given"),
    ],
)
def test_an_environment_that_cannot_be_is_refused(environ, sentence):
    with pytest.raises(InputError, match=sentence):
        join(environ)


def test_a_script_of_slurm_without_srun_is_one_process():
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    join(job)
    join(job | {"SLURM_STEP_NODELIST": "one", "SLURM_STEP_NUM_TASKS": "1"})  # a shell of salloc's
    assert not together()


def test_a_step_of_slurm_is_joined():
    """As `srun -n 2` sets the environment, on one machine."""
    code = "import jax; from rookery.engines.hosts import agreed, join; join(); print(agreed(jax.process_index()))"
    port = {"JAX_COORDINATOR_PORT": str(free_ports(1)[0])}
    step = port | {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | step | {"SLURM_PROCID": str(process), "SLURM_LOCALID": str(process)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    for process in started:
        said, errors = process.communicate(timeout=100)
        assert process.returncode == 0 and said.strip().endswith("0"), errors
