"""Arguments that nobody should give, each of which ends in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.experiments.api import comparison_folder
from rookery.runs.forked import refuse_forked
from rookery.runs.run import check_callbacks

SINGLE = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)
CLIENTS = rk.federate([{"a": np.ones(3)}, {"a": np.zeros(2)}], test=[{"a": np.ones(1)}] * 2)


def solve(**options):
    return rk.run(SINGLE, rk.FedAvg(lr=0.1), CLIENTS, x=0.0, rounds=1, **options)


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        ([3], "callbacks: 3 was given; functions of the round"),
        ("ab", "callbacks: 'a' was given; functions of the round"),
        (None, "callbacks: None was given; functions of the round"),
        (print, "callbacks: <built-in function print> was given; a list of functions is needed"),
    ],
)
def test_callbacks_are_functions(callbacks, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        solve(callbacks=callbacks)
    assert check_callbacks(iter([print])) == (print,)


def test_complex_metrics_are_refused():
    with pytest.raises(rk.InputError, match="metrics: 'c' is a complex number; every metric must be real"):
        solve(metrics=lambda z: {"c": z.x * (1 + 2j)})
    with pytest.raises(rk.InputError, match="client_metrics: 'c' is a complex number; every metric must be real"):
        solve(client_metrics=lambda z, e: {"c": jnp.sqrt(z.x + e["a"] + 0j)})


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "y/" * 3000])
def test_folders_that_no_system_has_are_refused(name, tmp_path):
    path = f"{tmp_path}/{name}"
    result = solve()
    calls = {
        "checkpoints": lambda: solve(checkpoints=rk.Checkpoints(path, every=1)),
        "resume": lambda: rk.resume(path, SINGLE, rk.FedAvg(lr=0.1), CLIENTS, x=0.0),
        "save": lambda: result.save(path),
        "load": lambda: rk.Result.load(path),
        "shards": lambda: rk.data.write_shards(path, [np.ones(2)]),
        "compare": lambda: comparison_folder(Path(path), {}, []).__enter__(),
        "federated": lambda: rk.federated(rk.tasks.Classify(), rk.FedAvg(lr=rk.Rates(0.1)), out=path, rounds=1),
    }
    for call in calls.values():
        with pytest.raises(rk.InputError):
            call()


@pytest.mark.parametrize("methods", [{"a": 1}, [{}], ["x", 7], "ab", 5])
def test_a_damaged_comparison_is_refused(methods, tmp_path):
    """A dict where a label is expected was a traceback."""
    (tmp_path / "compare.json").write_text(json.dumps({"rounds": 5, "methods": methods}))
    with pytest.raises(rk.InputError, match=r"out: '.*compare.json' is damaged: methods must be a list of labels"):
        comparison_folder(tmp_path, {"rounds": 5}, ["simfbo"]).__enter__()


FORKS = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax.numpy as jnp
import rookery as rk
from rookery.runs.forked import refuse_forked
refuse_forked()
if "used" in sys.argv:
    jnp.ones(2).sum()
child = os.fork()
if child == 0:
    try:
        refuse_forked()
    except rk.InputError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("how", "status"), [("used", 3), ("unused", 0)])
def test_a_run_in_a_process_that_was_forked_after_jax_was_used_is_refused(how, status):
    refuse_forked()
    done = subprocess.run([sys.executable, "-c", FORKS, how], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    assert ("run: this process was made by os.fork()" in done.stdout) == bool(status)
