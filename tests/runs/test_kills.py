"""The command, killed while it writes each of its files, goes on as if it had never been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
import rookery.runs.folder
from rookery.cli import main

SCRIPT = Path(__file__).parent / "doomed.py"
SMALL = ["hyperrep", "simfbo", "--rounds", "5", "--clients", "6", "--cohort", "3", "--task.hidden", "4", "--every", "1"]
RUN = ["run", *SMALL, "--method.drift", "control-variates", "--checkpoint-every", "2", "--out"]


def doomed(moment, *words):
    environment = os.environ | {"PYTHONPATH": str(Path(rk.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, str(SCRIPT), moment, *words], capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run that was left alone, and how often it calls what a kill may come in the place of."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    ended = doomed("count", *RUN, str(out))
    assert ended.returncode == 0, ended.stderr
    return out, json.loads(ended.stdout.strip().split("\n")[-1])


def survives(moment, undisturbed, tmp_path):
    """Kills a run at a moment, goes on with what it left, and compares."""
    whole, _ = undisturbed
    out = tmp_path / "run"
    assert doomed(moment, *RUN, str(out)).returncode == -signal.SIGKILL, moment
    if not (out / "config.json").is_file():  # it had not begun, and the same command begins
        leftovers = [path.name for path in out.rglob("*")] if out.exists() else []
        assert all(name.startswith(".") or name == "config.json" for name in leftovers), moment
        return
    assert main(["resume", str(out)]) == 0, moment
    left = sorted(path.name for path in out.iterdir() if path.name != ".lock")  # which nobody holds any more
    assert left == sorted(path.name for path in whole.iterdir())
    for file in ("sequences.safetensors", "state.safetensors"):
        one, two = load_file(whole / file), load_file(out / file)
        assert one.keys() == two.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], two[name], moment)
    timeless = lambda folder: [
        {k: v for k, v in row.items() if k != "seconds"} for row in rk.Result.load(folder).history.rows
    ]
    assert timeless(out) == timeless(whole)


# One in each file: config.json, a row of the history, run.json, a checkpoint's folder, its old ones, the results one by
# one, and the checkpoints that are not needed any more.
MOMENTS = ["row:4", "replace:-6", "rmdir:-2"]
MOMENTS += [pytest.param(moment, marks=pytest.mark.full) for moment in ("replace:1", "replace:3", "replace:-1")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on(moment, undisturbed, tmp_path):
    name, number = moment.split(":")
    at = int(number) if int(number) > 0 else undisturbed[1][name] + 1 + int(number)
    survives(f"{name}:{at}", undisturbed, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", ["replace", "fsync", "unlink", "rmdir", "mkdir", "rmtree", "row"])
def test_killed_at_every_call_it_goes_on(name, undisturbed, tmp_path):
    assert undisturbed[1][name] > 0
    for number in range(1, undisturbed[1][name] + 1):
        (tmp_path / str(number)).mkdir()
        survives(f"{name}:{number}", undisturbed, tmp_path / str(number))


def test_a_full_disk_leaves_a_run_that_goes_on(undisturbed, tmp_path):
    """A row of the history that does not fit is not half there, and what was done is in the last checkpoint."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        real = rk.runs.folder.HistoryFile.__call__

        def fill(self, round, row):
            if round == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.path.stat().st_size + 10, before[1]))
            real(self, round, row)

        patch.setattr(rk.runs.folder.HistoryFile, "__call__", fill)
        try:
            assert main([*RUN, str(out)]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
    assert [line.split(",")[0] for line in (out / "history.csv").read_text().splitlines()] == [
        "round",
        "0",
        "1",
        "2",
        "3",
    ]
    assert main(["resume", str(out)]) == 0
    np.testing.assert_array_equal(
        load_file(out / "sequences.safetensors")["x.dense0.w"],
        load_file(undisturbed[0] / "sequences.safetensors")["x.dense0.w"],
    )


def test_history_is_appended_to_and_not_written_again(tmp_path):
    """What an evaluation writes does not grow with those before it."""
    file = rk.runs.folder.HistoryFile(tmp_path / "history.csv")
    row = {"round": 0, "loss": 0.5}
    file(0, row)
    before = os.stat(tmp_path / "history.csv").st_ino
    sizes = []
    for number in range(1, 200):
        size = (tmp_path / "history.csv").stat().st_size
        file(number, row | {"round": number})
        sizes.append((tmp_path / "history.csv").stat().st_size - size)
    assert os.stat(tmp_path / "history.csv").st_ino == before and max(sizes) <= len("199,0.5\r\n")
    assert rk.Table.from_csv(tmp_path / "history.csv")["round"].tolist() == list(range(200))
