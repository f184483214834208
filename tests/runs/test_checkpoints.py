"""Runs that survive: killed at any moment they go on bit for bit; what is damaged or foreign is told in a sentence."""

from __future__ import annotations

import importlib
import itertools
import json
import random
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.engines.worker import Worker
from rookery.files import hold
from rookery.runs import checkpoint, fingerprint
from rookery.runs import run as runs
from rookery.runs.checkpoint import read_interval

sys.path.insert(0, str(Path(__file__).parent))
import survivor

SCRIPT = Path(__file__).parent / "survivor.py"


def same(a: rk.Result, b: rk.Result) -> None:
    """Equal in every bit but the seconds."""
    for one, other in zip(a.state.leaves, b.state.leaves, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    timeless = lambda result: [{k: v for k, v in row.items() if k != "seconds"} for row in result.history.rows]
    assert timeless(a) == timeless(b) and a.history.columns == b.history.columns
    assert a.ledger == b.ledger and a.status == b.status
    for one, other in zip(jax.tree.leaves(a.sequences), jax.tree.leaves(b.sequences), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def undisturbed():
    return {engine: survivor.run(engine) for engine in ("local", "eager")}


# Moments in the middle of writing a checkpoint: before a file is synced, before the folder gets its name, before it is
# known to have it, while an old one is put away.
WRITES = ["fsync:3", "fsync:9", "replace:2", "replace:5", "replace:6", "fsync:30", "open:12", "replace:13"]
KILLS = 20


def moments(kills):
    draw = random.Random(1)
    starts = [f"start:{draw.uniform(0.5, 2.5):.2f}" for _ in range(3)]
    going = [f"going:{draw.uniform(0.0, 0.5):.2f}" for _ in range(KILLS - len(WRITES) - len(starts))]
    return draw.sample(starts + going + WRITES, KILLS)[:kills]


@pytest.mark.parametrize("kills", [7, pytest.param(KILLS, marks=pytest.mark.full)])
def test_a_run_killed_many_times_ends_as_if_it_had_never_been(kills, tmp_path, undisturbed):
    """Killed again and again; a run that has ended all the same is compared, and the next killed in its place."""
    left, killed, lives, folder = moments(kills), 0, 0, tmp_path
    while left and lives < 2 * kills:
        folder, lives = tmp_path / f"run{lives - killed}", lives + 1
        code = subprocess.run([sys.executable, str(SCRIPT), str(folder), "local", left[0]], timeout=300).returncode
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            same(rk.resume(folder, *survivor.problem(), **survivor.options("local")), undisturbed["local"])
        else:
            killed += 1
            left.pop(0)
    assert killed == kills
    if (folder / "run.json").exists():
        same(rk.resume(folder, *survivor.problem(), **survivor.options("local")), undisturbed["local"])


class Stop(Exception):
    pass


def stopped(folder, engine="local", at=20, every=5, **changes):
    """A run whose checkpoints end at a round, since something in it fails there."""

    def fail(round, row):
        if round > at:
            raise Stop

    with pytest.raises(Stop):
        survivor.run(engine, rk.Checkpoints(folder, every=every, **changes), callbacks=[fail])
    return sorted(path.name for path in folder.glob("round-*"))


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_every_engine_goes_on_bit_for_bit(engine, tmp_path, undisturbed):
    assert stopped(tmp_path / "run", engine) == ["round-000000015", "round-000000020"]
    seen = []
    result = rk.resume(
        tmp_path / "run",
        *survivor.problem(),
        **survivor.options(engine),
        callbacks=[lambda round, row: seen.append(round)],
    )
    same(result, undisturbed[engine])
    assert seen == [21, 28, 35, 40]
    same(rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options(engine)), undisturbed[engine])


def test_a_run_can_be_lengthened(tmp_path):
    stopped(tmp_path / "run")
    longer = rk.resume(tmp_path / "run", *survivor.problem(), rounds=49, **survivor.options("local"))
    assert longer.history["round"].tolist() == [0, 7, 14, 21, 28, 35, 42, 49]
    same(longer, rk.run(*survivor.problem(), rounds=49, every=7, **survivor.options("local")))


def test_the_newest_are_kept_and_seconds_are_an_interval(tmp_path):
    assert stopped(tmp_path / "a", every=3, keep=4) == [f"round-0000000{round:02d}" for round in (9, 12, 15, 18)]
    assert not list((tmp_path / "a").glob(".*"))
    assert stopped(tmp_path / "b", every="1000s") == ["round-000000000"]
    assert len(stopped(tmp_path / "c", every="0.000001s", keep=3)) == 3
    assert read_interval("7") == (7, 0.0) and read_interval("2.5s") == (None, 2.5)


def damage(path: Path, how: str) -> None:
    state, description = path / "state.safetensors", path / "checkpoint.json"
    if how == "a bit":
        content = bytearray(state.read_bytes())
        content[-3] ^= 4
        state.write_bytes(bytes(content))
    elif how == "cut":
        state.write_bytes(state.read_bytes()[:-10])
    elif how == "gone":
        state.unlink()
    elif how == "description":
        description.write_text(description.read_text().replace('\\"round\\": 20', '\\"round\\": 21', 1))
    else:
        description.write_text("{")


@pytest.mark.parametrize("how", ["a bit", "cut", "gone", "description", "no json"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(how, tmp_path, undisturbed):
    names = stopped(tmp_path / "run")
    damage(tmp_path / "run" / names[-1], how)
    with pytest.warns(rk.AdviceWarning, match=r"the checkpoint round-000000020 is damaged: .*; the one before is used"):
        result = rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local"))
    same(result, undisturbed["local"])


@pytest.mark.filterwarnings("ignore:the checkpoint")
def test_when_all_are_damaged_it_is_said(tmp_path):
    for name in stopped(tmp_path / "run"):
        damage(tmp_path / "run" / name, "cut")
    with pytest.raises(rk.InputError, match=r"path: all checkpoints in .* are damaged"):
        rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local"))


def other_loss(x, y, e):
    return survivor.loss(x, y, e) * 2


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("method", lambda p, m, c: (p, rk.SimFBO(lr=rk.Rates(0.06), local_steps=m.local_steps, drift=m.drift), c)),
        ("method", lambda p, m, c: (p, rk.FedBiO(lr=rk.Rates(0.05)), c)),
        ("problem", lambda p, m, c: (rk.Bilevel(upper=other_loss, lower=p.lower), m, c)),
        ("data", lambda p, m, c: (p, m, rk.federate([c.client(i) for i in (1, 0, 2, 3, 4)]))),
    ],
)
def test_another_problem_method_or_data_is_refused(part, change, tmp_path):
    stopped(tmp_path / "run")
    with pytest.raises(rk.InputError, match=rf"round-000000020 in .* is of a run with another {part}; give what"):
        rk.resume(tmp_path / "run", *change(*survivor.problem()), **survivor.options("local"))


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("seed", {"seed": 4}),
        ("precision", {"precision": "float64"}),
        ("batch size", {"batch_size": 3}),
        ("sampling", {"sampling": rk.Bernoulli(0.6)}),
        ("initial values", {"y": np.ones(3)}),
    ],
)
def test_other_options_are_refused(part, change, tmp_path):
    stopped(tmp_path / "run")
    with pytest.raises(rk.InputError, match=f"another {part}; give what"):
        rk.resume(tmp_path / "run", *survivor.problem(), **(survivor.options("local") | change))


def test_losses_of_one_name_are_told_apart_by_their_code(tmp_path):
    def make(factor, power):
        upper = (lambda x, e: factor * (x - e) ** 2) if power == 2 else (lambda x, e: factor * (x - e) ** 4)
        return rk.Single(upper)

    clients = rk.federate([np.array([1.0, 2.0])])
    method = rk.FedAvg(lr=rk.Rates(0.1))
    rk.run(make(1.0, 2), method, clients, x=0.0, rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run"))
    rk.resume(tmp_path / "run", make(1.0, 2), method, clients, x=0.0)
    for other in (make(3.0, 2), make(1.0, 4)):
        with pytest.raises(rk.InputError, match=r"another (problem|losses)"):
            rk.resume(tmp_path / "run", other, method, clients, x=0.0)


def falling(t):
    return 0.1 / (1 + t)


class Slow:
    """A schedule that is no dataclass."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, t):
        return self.rate / (1 + t)


def schedule(rate, power=1):
    return (lambda t: rate / (1 + t)) if power == 1 else (lambda t: rate / (1 + t) ** 2)


# What was run, and what must not be taken for it. Each of them once had the same fingerprint as its neighbour.
FOREIGN = {
    "a library's schedule": [rk.FedAvg(lr=rk.Decay(0.1)), rk.FedAvg(lr=rk.Decay(0.9, power=0))],
    "a schedule of one's own": [rk.FedAvg(lr=schedule(0.1)), rk.FedAvg(lr=schedule(0.2)), rk.FedAvg(lr=schedule(0.1, 2))],
    "a schedule that is a function": [rk.FedAvg(lr=falling), rk.FedAvg(lr=schedule(0.1)), rk.FedAvg(lr=0.1)],
    "a schedule that is an object": [rk.FedAvg(lr=Slow(0.1)), rk.FedAvg(lr=Slow(0.2)), rk.FedAvg(lr=rk.Decay(0.1))],
    "a schedule bound to an object": [rk.FedAvg(lr=Slow(0.1).__call__), rk.FedAvg(lr=Slow(0.3).__call__)],
    "a part of a schedule": [rk.FedAvg(lr=partial(pow, 0.1)), rk.FedAvg(lr=partial(pow, 0.2))],
    "a compiled schedule": [rk.FedAvg(lr=jax.jit(schedule(0.1))), rk.FedAvg(lr=jax.jit(schedule(0.4)))],
    "an optimiser's switch": [
        rk.FedAvg(lr=0.1, server=rk.ServerOptimiser(optax.sgd, learning_rate=0.1, momentum=0.9, nesterov=nesterov))
        for nesterov in (False, True)
    ],
    "an optimiser": [rk.FedAvg(lr=0.1, server=rk.ServerOptimiser(made, learning_rate=0.1)) for made in (optax.sgd, optax.adam)],
    "an optimiser of some sequences": [
        rk.FedAvg(lr=0.1, server={"x": rk.ServerOptimiser(optax.sgd, learning_rate=0.1, nesterov=n)}) for n in (False, True)
    ],
    "coefficients": [rk.SimFBO(lr=0.1, coefficients=lambda k, i, t, a=a: a + 0.0 * k) for a in (1.0, 2.0)],
    "a structural field": [rk.FedAvg(lr=0.1, normalised=n) for n in (False, True)],
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_foreign_is_continued(name, tmp_path):
    first, *others = FOREIGN[name]
    problem, clients = rk.Single(half), rk.federate([{"a": np.array([1.0, 2.0])}])
    rk.run(problem, first, clients, x=0.0, rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run", every=1))
    assert rk.resume(tmp_path / "run", problem, first, clients, x=0.0).state.round == 2
    for other in others:
        with pytest.raises(
            rk.InputError, match=r"is of a run with another (method|functions of the method|traced program); give what"
        ):
            rk.resume(tmp_path / "run", problem, other, clients, x=0.0)


def test_no_foreign_sampling_is_continued(tmp_path):
    draws = [lambda t, p=p: p + 0.0 * t for p in (0.5, 0.6)]
    go = lambda how, p, **options: how(
        rk.Single(half), rk.FedAvg(lr=0.1), clients, x=0.0, sampling=rk.Bernoulli(p), **options
    )
    clients = rk.federate([{"a": np.array([1.0, 2.0])}] * 3)
    go(rk.run, draws[0], rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run"))
    go(partial(rk.resume, tmp_path / "run"), draws[0])
    for other in (draws[1], 0.5):
        with pytest.raises(rk.InputError, match=r"another (sampling|functions of the sampling|traced program)"):
            go(partial(rk.resume, tmp_path / "run"), other)


class WithoutDict:
    """A schedule whose state is in slots."""

    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, t):
        return self.rate / (1 + t)


def hidden(rate):
    """A schedule that reads its rate from where no description reaches: the items of a generator."""
    unknown = (each for each in itertools.repeat(rate))
    return lambda t: next(unknown) / (1 + t)


@pytest.mark.parametrize("make", [WithoutDict, hidden])
def test_the_traced_program_decides_whether_functions_are_the_same(make, tmp_path):
    problem, clients = rk.Single(half), rk.federate([{"a": np.array([1.0, 2.0])}])
    first = rk.FedAvg(lr=make(0.1))
    rk.run(problem, first, clients, x=0.0, rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run"))
    assert rk.resume(tmp_path / "run", problem, rk.FedAvg(lr=make(0.1)), clients, x=0.0).state.round == 2
    with pytest.raises(rk.InputError, match=r"another (method|functions of the method|traced program)"):
        rk.resume(tmp_path / "run", problem, rk.FedAvg(lr=make(0.2)), clients, x=0.0)


HELPER = "def penalty(x):\n    {doc}return {sign}0.5 * x**2\n"


@pytest.mark.parametrize("call", ["helper_of_a_loss.penalty(x)", "penalty(x)"])
def test_a_changed_function_in_an_imported_module_is_refused(call, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def attempt(go, **text):
        (tmp_path / "helper_of_a_loss.py").write_text(HELPER.format(**text))
        importlib.invalidate_caches()
        sys.modules.pop("helper_of_a_loss", None)
        names = {"__name__": "__main__"}
        exec("import helper_of_a_loss\nfrom helper_of_a_loss import penalty", names)
        exec(f"def loss(x, e): return 0.5 * (x - e['a']) ** 2 + {call}", names)
        return go(rk.Single(names["loss"]), rk.FedAvg(lr=0.1), rk.federate([{"a": np.ones(2)}]), x=0.0)

    attempt(partial(rk.run, rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run")), doc="", sign="")
    resume = partial(rk.resume, tmp_path / "run")
    with pytest.raises(rk.InputError, match="of a run with another losses"):
        attempt(resume, doc="", sign="-")
    # A docstring is a constant of the bytecode, and not of the program.
    assert attempt(resume, doc="'A penalty.'\n    ", sign="").state.round == 2


def test_another_random_generator_of_jax_is_refused(tmp_path):
    problem, clients = rk.Single(half), rk.federate([{"a": np.array([1.0, 2.0])}])
    go = lambda how, **options: how(problem, rk.FedAvg(lr=0.1), clients, x=0.0, **options)
    go(rk.run, rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run"))
    with jax.threefry_partitionable(False), pytest.raises(rk.InputError, match="another JAX configuration"):
        go(partial(rk.resume, tmp_path / "run"))


def test_another_version_of_python_is_said(tmp_path, monkeypatch):
    stopped(tmp_path / "run")
    monkeypatch.setattr(fingerprint, "_python", lambda: "3.99")
    with pytest.warns(rk.AdviceWarning, match=r"the losses, .* of the checkpoint round-000000020 cannot be compared"):
        rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local"))


def test_what_all_clients_begin_with_is_digested_once():
    alike = lambda fill: np.broadcast_to(np.full(1000, fill), (10**9, 1000))  # 8 TB, if it were looked at
    digest = lambda array: fingerprint.digest("", array)
    assert digest(alike(1.0)) == digest(alike(1.0)) != digest(alike(2.0))
    assert digest(alike(1.0)) != digest(alike(1.0)[1:])
    assert digest(np.ones((3, 2))) != digest(np.array([[1.0, 1.0]] * 2 + [[1.0, 2.0]]))


def test_fingerprints_are_the_same_in_every_process():
    code = "import survivor; from rookery.runs.fingerprint import describe; p, m, c = survivor.problem(); "
    code += "import hashlib, optax, rookery as rk; s = rk.ServerOptimiser(optax.adam, learning_rate=0.1); "
    code += "print(hashlib.md5((describe(p, True) + describe(m, True) + describe(s, True)).encode()).hexdigest())"
    environment = {
        "PYTHONPATH": f"{SCRIPT.parent}:{Path(rk.__file__).parents[1]}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONHASHSEED": "random",
    }
    said = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True).stdout
        for _ in range(2)
    }
    assert len(said) == 1


def test_another_version_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path / "run")
    monkeypatch.setattr(checkpoint, "__version__", "99.0")
    with pytest.raises(rk.InputError, match=r"was written by rookery .*; this is 99.0 .*resume it with that version"):
        rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(rk.InputError, match="holds no checkpoints"):
        rk.resume(tmp_path / "empty", *survivor.problem(), **survivor.options("local"))


def test_two_runs_never_write_the_same_folder(tmp_path):
    stopped(tmp_path / "run")
    with pytest.raises(rk.InputError, match=r"checkpoints: .* is there already; give a new or empty folder"):
        survivor.run("local", rk.Checkpoints(tmp_path / "run"))
    with hold(tmp_path / "run", "path"), pytest.raises(rk.InputError, match="is being written by another run"):
        rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local"))


def test_a_disk_without_space_stops_the_run_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(rk.StorageError, match=r"checkpoints: 3 of them and the result take .* MiB are free under"):
        survivor.run("local", rk.Checkpoints(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fills_up_stops_the_run_cleanly(tmp_path):
    """The operating system refuses files beyond a size, as a full disk does, from the second checkpoint on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(round, row):
        if round >= 14:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))

    try:
        with pytest.raises(
            rk.StorageError, match=r"that of round 15 cannot be written: .*; that of round 10 is whole"
        ) as caught:
            survivor.run("local", rk.Checkpoints(tmp_path / "run", every=5), callbacks=[fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.result.state.round == 15
    assert not list((tmp_path / "run").glob(".*"))
    same(rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local")), survivor.run("local"))


def test_an_unwritable_folder_stops_the_run_before_it_begins(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(rk.StorageError, match=r"checkpoints: .* cannot be written: Not a directory"):
        survivor.run("local", rk.Checkpoints(tmp_path / "file" / "run"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rk.Checkpoints("a", every=0), "checkpoint every: 0 was given; rounds"),
        (lambda: rk.Checkpoints("a", every="10 s"), "checkpoint every: '10 s' was given"),
        (lambda: rk.Checkpoints("a", every="0s"), "checkpoint every: '0s' was given"),
        (lambda: rk.Checkpoints("a", keep=0), "keep: 0 was given"),
        (lambda: survivor.run("local", "folder"), "checkpoints: 'folder' was given; rk.Checkpoints"),
    ],
)
def test_bad_plans_are_refused(make, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        make()


def test_ctrl_c_leaves_a_checkpoint(tmp_path, undisturbed):
    def interrupt(round, row):
        if round == 14:
            raise KeyboardInterrupt

    with pytest.raises(rk.Interrupted):
        survivor.run("local", rk.Checkpoints(tmp_path / "run", every="1000s"), callbacks=[interrupt])
    described = json.loads(
        json.loads((tmp_path / "run" / "round-000000014" / "checkpoint.json").read_text())["content"]
    )
    assert described["round"] == 14
    same(rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local")), undisturbed["local"])


@pytest.mark.parametrize("exchange", [1, 7, 12])
def test_ctrl_c_inside_a_round_of_the_eager_engine_leaves_no_half_round(exchange, tmp_path, undisturbed, monkeypatch):
    real, calls = Worker.receive, 0

    def interrupted(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == 20 + exchange:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Worker, "receive", interrupted)
    with pytest.raises(rk.Interrupted):
        survivor.run("eager", rk.Checkpoints(tmp_path / "run", every=3))
    monkeypatch.undo()
    same(rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("eager")), undisturbed["eager"])


@pytest.mark.parametrize("where", ["in the callback", "in the evaluation"])
def test_ctrl_c_at_an_evaluation_neither_loses_it_nor_the_target(where, tmp_path, monkeypatch):
    stop = {"size": lambda size: size > 0}  # there at the second evaluation
    whole = survivor.run("local", stop=stop)
    assert whole.status == "stopped" and whole.history["round"].tolist() == [0, 7]

    def interrupt(*arguments):
        raise KeyboardInterrupt

    if where == "in the callback":
        options = {"callbacks": [lambda round, row: interrupt() if round == 7 else None]}
    else:
        options = {}
        real, calls = runs.evaluate, []
        second = lambda *a: interrupt() if len(calls) == 1 else (calls.append(1), real(*a))[1]
        monkeypatch.setattr(runs, "evaluate", lambda *a: second(*a) if len(calls) < 2 else real(*a))
    with pytest.raises(KeyboardInterrupt):
        survivor.run("local", rk.Checkpoints(tmp_path / "run", every=1), stop=stop, **options)
    monkeypatch.undo()
    same(rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local"), stop=stop), whole)


def test_what_a_user_keeps_in_the_folder_is_left_alone(tmp_path, undisturbed):
    stopped(tmp_path / "run")
    (tmp_path / "run" / ".git").mkdir()
    (tmp_path / "run" / ".rookery-aside-x").mkdir()
    same(rk.resume(tmp_path / "run", *survivor.problem(), **survivor.options("local")), undisturbed["local"])
    assert [path.name for path in (tmp_path / "run").glob(".*")] == [".git"]


def half(x, e, factor=1.0):
    return factor * helper(x, e)


def helper(x, e):
    return 0.5 * (x - e["a"]) ** 2 * ("a" in {"a", "b"})


def test_what_a_loss_is_made_of_is_told_apart(tmp_path, monkeypatch):
    clients, method = rk.federate([{"a": np.array([1.0, 2.0])}]), rk.FedAvg(lr=rk.Rates(0.1))
    go = lambda loss, **options: rk.resume(tmp_path / "run", rk.Single(loss), method, clients, x=0.0, **options)
    plan = rk.Checkpoints(tmp_path / "run")
    rk.run(rk.Single(partial(half, factor=2.0)), method, clients, x=0.0, rounds=2, checkpoints=plan)
    go(partial(half, factor=2.0))
    for other in (partial(half, factor=3.0), half):
        with pytest.raises(rk.InputError, match=r"another (problem|losses)"):
            go(other)
    with pytest.raises(rk.InputError, match="another set of metrics"):
        go(partial(half, factor=2.0), metrics=lambda z: {"x": z.x})
    monkeypatch.setitem(globals(), "helper", lambda x, e: 0.5 * (x - e["a"]) ** 4)
    with pytest.raises(rk.InputError, match="another losses"):
        go(partial(half, factor=2.0))


def test_another_augmentation_is_refused(tmp_path):
    examples = [{"input": np.ones((4, 9), np.uint8)}]
    loss = rk.Single(lambda x, e: x * np.float32(1) * e["input"].sum())
    method, augment = rk.FedAvg(lr=rk.Rates(0.01)), rk.data.CropFlip((3, 3, 1), padding=1)
    options = {"x": 0.0, "batch_size": 2}
    plan = rk.Checkpoints(tmp_path / "run")
    rk.run(loss, method, rk.federate(examples, augment=augment), rounds=2, checkpoints=plan, **options)
    with pytest.raises(rk.InputError, match="another augmentation"):
        rk.resume(tmp_path / "run", loss, method, rk.federate(examples), **options)
