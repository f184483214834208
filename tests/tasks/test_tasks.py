"""What every task promises: it runs, learns, repeats itself by its seed, and tunes without its test set."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.data.datasets import Dataset
from rookery.runs.own_metrics import OwnMetrics
from rookery.tasks import base
from rookery.tasks.registry import TASKS, find_task
from rookery.vectors import Values


@cache
def assemble(name, seed=0, clients=10, partition=None, **options):
    return TASKS[name](**options).assemble(partition or rk.IID(), clients=clients, seed=seed)


def solve(name, method, rounds, parts=None, **options):
    """A run of an assembled task; methods take the task's rates for the sequences that they move."""
    task = TASKS[name]()
    parts = parts or assemble(name)
    if isinstance(method, type):
        method = method(lr=rk.Rates(**task.rates))
    options = {"every": rounds, "batch_size": task.batch_size, "metrics": parts.metrics} | options
    options |= {"client_metrics": parts.client_metrics}
    return rk.run(
        parts.problem, method, parts.clients, x=parts.x, y=parts.y, start=parts.start, rounds=rounds, **options
    )


@pytest.mark.parametrize("name", TASKS)
def test_every_task_runs_repeats_itself_and_shares_its_program(name, compilations):
    task, parts = TASKS[name](), assemble(name)
    assert tuple(task.rates) == parts.problem.names
    result = solve(name, rk.SimFBO, rounds=2)
    assert parts.main_metric in result.history and task.__doc__
    same = TASKS[name]().assemble(rk.IID(), clients=10, seed=0)
    with compilations.counted() as counted:
        again = solve(name, rk.SimFBO, rounds=2, parts=same)
    assert counted.count == 0, "equal tasks are compiled twice"
    assert again.history[parts.main_metric].tolist() == result.history[parts.main_metric].tolist()
    for a, b in zip(*(jax.tree.leaves(r.sequences) for r in (result, again))):
        np.testing.assert_array_equal(a, b)
    other = task.assemble(rk.IID(), clients=10, seed=1)
    flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(p.clients.levels)]) for p in (parts, other)]
    assert flat[0].shape != flat[1].shape or (flat[0] != flat[1]).any()


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if issubclass(task, base.Nested)])
def test_every_nested_task_takes_penalties(name):
    """Its rates are for the sequences that it then has, and no second derivative is taken."""
    options: dict[str, Any] = {"lam": (100.0, 200.0)} | ({"form": "nested"} if hasattr(TASKS[name], "form") else {})
    task = TASKS[name](**options)
    parts = task.assemble(rk.IID(), clients=4, seed=0)
    assert tuple(task.rates) == parts.problem.names == ("x", "y", "y2", "w")
    method = rk.SimFBO(lr=rk.Rates(**task.rates))
    result = solve(name, method, rounds=2, parts=parts)
    assert result.ledger.oracles["hvps"] == 0 and result.status == "done"
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.sequences))


@pytest.mark.parametrize("name", TASKS)
def test_the_first_line_of_a_task_says_what_it_is(name):
    """It is what `rookery list` shows; and every option says what it means."""
    task = TASKS[name]
    first = (task.__doc__ or "").split("\n")[0]
    assert first.endswith((".", ":")) and len(first) < 110
    own = [cls for cls in task.__mro__ if dataclasses.is_dataclass(cls)]
    lines = "".join(map(inspect.getsource, own)).split("\n")
    for field in dataclasses.fields(task):
        line = next(i for i, text in enumerate(lines) if text.startswith(f"    {field.name}: "))
        assert lines[line + 1].strip().startswith('"""'), field.name


def start(parts):
    """The initial values as a metric sees them: those of clients stacked."""
    z = {
        name: value(jax.random.key(0)) if callable(value) else value for name, value in (("x", parts.x), ("y", parts.y))
    }
    stacked = lambda leaf: np.stack([leaf] * parts.clients.population)
    return Values(
        {name: jax.tree.map(stacked, v) if name in parts.problem.local else v for name, v in z.items() if v is not None}
    )


def measured(parts):
    """All metrics at the start, of the server's test examples and of the clients' own."""
    z = start(parts)
    found = dict(parts.metrics(z)) if parts.metrics else {}
    if parts.client_metrics is not None:
        carry = SimpleNamespace(values=lambda: z)
        own = OwnMetrics(parts.client_metrics, parts.clients, carry, parts.problem.local, np.float32)
        found |= own.metric(np.float32)(z)
    return found


def garbage(dataset: Dataset) -> Dataset:
    """The same training set with a test set of noise."""
    rng = np.random.default_rng(0)
    test = {"input": rng.integers(0, 9, dataset.test["input"].shape).astype(dataset.test["input"].dtype)}
    test["label"] = rng.permutation(dataset.test["label"])
    return dataclasses.replace(dataset, test=test)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "riskaverse"])
def test_tuning_does_not_touch_the_test_set(name, monkeypatch):
    task, load, found = TASKS[name](), base.load_with, []
    for change in (lambda dataset: dataset, garbage):
        monkeypatch.setattr(base, "load_with", lambda *given: change(load(*given)))
        parts: list[Any] = [task.assemble(rk.IID(), clients=5, seed=0, tuning=tuning) for tuning in (True, False)]
        found.append([{name: float(value) for name, value in measured(p).items()} for p in parts])
    assert found[0][0] == found[1][0], "tuning reads the test set"
    assert found[0][1] != found[1][1], "the metric does not read the test set"


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("semisupervised", {"unlabelled": 1.0}, "task.unlabelled: 1.0 was given; a number from 0 to below 1"),
        ("semisupervised", {"data": "digit"}, "task.data: 'digit' is not known .did you mean 'digits'"),
        ("semisupervised", {"trust": 0.0}, "task.trust: 0.0"),
        ("semisupervised", {"weight": -1.0}, "task.weight: -1.0"),
        ("clustering", {"clusters": 0}, "task.clusters: 0"),
        ("clustering", {"softness": 0.0}, "task.softness: 0.0"),
        ("hyperrep", {"lam": (0.0,)}, "task.lam: 0.0 was given; a finite number that is not 0"),
        ("hyperrep", {"lam": (10.0, 10.0)}, r"task.lam: \(10.0, 10.0\) was given; to be extrapolated"),
        ("hyperrep", {"hidden": 0}, "task.hidden: 0 was given; a width of at least 1"),
        ("hyperrep", {"head": 2}, "task.head: 2 was given; 1 of 2 layers"),
        ("hyperrep", {"head": 3, "model": "lenet"}, "task.head: 3 was given; 1 or 2 of 5 layers"),
        ("hyperrep", {"ridge": float("nan")}, "task.ridge: nan"),
        ("hyperrep", {"model": "cnn"}, "task.model: 'cnn' is not known; allowed are mlp, lenet"),
        ("hyperrep", {"validation": 1.0}, "validation: 1.0 was given"),
        (
            "hyperrep",
            {"examples": 5000},
            "task.examples: 5000 was given; a number from 2 to 718, or 0 for all, is needed",
        ),
        ("hyperrep", {"examples": -1}, "task.examples: -1 was given"),
        (
            "hyperrep",
            {"data": "wine", "model": "lenet"},
            "task.model: 'lenet' was given with wine, whose inputs are 13",
        ),
        ("hyperrep", {"data": "wine", "augment": True}, "task.augment: True was given with wine"),
        ("classify", {"model": "cnn"}, "task.model: 'cnn' was given with digits, whose inputs are 8 x 8 x 1 images"),
        ("classify", {"widths": (8, 0)}, "a hidden layer of width 0 was given"),
        ("classify", {"decay": -1.0}, "task.decay: -1.0"),
        ("losstuning", {"tail": 0.0}, "task.tail: 0.0 was given; a number above 0 and at most 1"),
        ("losstuning", {"ridge": -1.0}, "task.ridge: -1.0"),
        ("cleaning", {"noise": 1.0}, "task.noise: 1.0 was given; a number from 0 to below 1"),
        ("cleaning", {"ridge": 0.0}, "task.ridge: 0.0 was given; a positive number"),
        ("fairness", {"pull": -0.1}, "task.pull: -0.1"),
        ("regularisation", {"penalty": 0.0}, "task.penalty: 0.0 was given; a positive number"),
        ("metalearn", {"pull": 0.0}, "task.pull: 0.0 was given; a positive number"),
        ("riskaverse", {"examples": 1}, "task.examples: 1 was given; at least one for each of 2 clients"),
        ("riskaverse", {"dimension": 0}, "task.dimension: 0"),
        ("riskaverse", {"lam": -1.0}, "task.lam: -1.0"),
        ("riskaverse", {"delta": 0.0}, "task.delta: 0.0"),
        ("riskaverse", {"noise": -1.0}, "task.noise: -1.0"),
    ],
)
def test_bad_options_are_refused(name, options, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        TASKS[name](**options).assemble(rk.IID(), clients=2, seed=0)


OWN = """
from dataclasses import dataclass
import rookery as rk

@dataclass(frozen=True)
class Mine:
    size: int = 3
    rates = {"x": 0.1}
    batch_size = None
    def assemble(self, partition, clients, seed, tuning=False): ...

@dataclass(frozen=True)
class Half:
    rates = {"x": 0.1}

class Plain(Mine.__base__):
    rates = batch_size = assemble = None
"""


def test_a_task_of_ones_own_is_found_by_its_file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    assert cast(Any, find_task(f"{path}:Mine")()).size == 3 and find_task(f"{path}:Mine") is find_task(f"{path}:Mine")
    path.write_text(OWN.replace("= 3", "= 4"))
    assert cast(Any, find_task(f"{path}:Mine")()).size == 4
    (tmp_path / "bad.py").write_text("1 / 0")
    for name, sentence in [
        (f"{path}:Mina", "task: own.py has no class 'Mina' .did you mean 'Mine'"),
        (f"{path}:Half", "task: Half in own.py has no assemble and no batch_size; a task is a dataclass with"),
        (f"{path}:Plain", "task: Plain in own.py is no dataclass"),
        (f"{tmp_path / 'none.py'}:Mine", "none.py' was given; there is no such file"),
        (
            f"{tmp_path / 'bad.py'}:Mine",
            "task: bad.py, when it is read, fails, with ZeroDivisionError: division by zero",
        ),
        ("hyperrepp", "task: 'hyperrepp' is not known .did you mean 'hyperrep'"),
    ]:
        with pytest.raises(rk.InputError, match=sentence):
            find_task(name)
