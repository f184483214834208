"""Random command lines: no traceback, no status 0 on an error, nothing half-written, no hang."""

from __future__ import annotations

import functools
import json
import random
import shutil

import pytest

from fuzz.harness import command, half_written
from rookery.algorithms.registry import find_method
from rookery.cli import forms
from rookery.experiments.experiment import Options
from rookery.tasks import registry

CASES, MANY = 100, 5000
BLOCK = 50

TASKS = [
    "hyperrep",
    "classify",
    "riskaverse",
    "losstuning",
    "cleaning",
    "metalearn",
    "fairness",
    "regularisation",
    "semisupervised",
    "clustering",
]
METHODS = [
    "simfbo",
    "shrofbo",
    "fedbio",
    "fedbioacc",
    "fedmsa",
    "fednest",
    "aggitd",
    "lfednest",
    "fedavg",
    "fedvra",
    "scaffold",
    "fedbiolocal",
    "fedvrau",
    "fedpd",
]

# What a person's slip, a script's bug or malice puts where a value belongs.
HOSTILE = [
    "", " ", "-", "--", "0", "-1", "1", "2", "1.5", "-0.0", "nan", "inf", "-inf", "1e400", "1e-400", "NaN", "None", "True", "false", "x", "'", '"',
    "99999999999999999999999", "2147483648", "4294967297", "-99999999999999999999", "1e18", "0x10", "1_000", "１", "½", "∞", "\0", "\n", "é", "🐦",
    "a" * 5000, "1" * 5000, "1,2", "1,2,", ",", "1..", "..", "5..1", "1..2", "2e", "1..3e", "0e", "e", "neumann", "neumann:0:0.1", "neumann:2:nan", "cg:1e9", "cg:-1",
    "duals:1", "duals:-1:1", "duals:nan:1", "control-variates", "adam", "adam:nan", "adam:0.01", "sgd:1:2:3", "simplex", "box:1:0", "box:nan:1", "ball:-1", "tracked",
    "../../etc", "/dev/null", "/proc/self/mem", "~", "*", "$(id)", "`id`", "%s", "{}", "[]", "{", "svrg", "iid", "shards:2", "shards:0", "shards:nan", "dirichlet:0", "dirichlet:-1",
    "dirichlet:1e-300", "dirichlet:1e300", "longtail:2", "quantity:0", "mnist", "local:/nowhere", "local:", "digits", "float64", "eager",
]  # fmt: skip

OPTIONS = [
    "--rounds", "--clients", "--cohort", "--partition", "--batch-size", "--seed", "--every", "--target", "--engine", "--precision", "--checkpoint-every", "--keep", "--tensorboard",
    "--task.data", "--task.hidden", "--task.widths", "--task.ridge", "--task.validation", "--task.model", "--task.head", "--task.examples", "--task.dimension", "--task.noise",
    "--method.lr.x", "--method.lr.y", "--method.lr.v", "--method.server-lr.x", "--method.local-steps", "--method.lower-rounds", "--method.neumann-terms", "--method.neumann-step",
    "--method.momentum.x", "--method.first-batch", "--method.radius", "--method.drift", "--method.server", "--method.coefficients", "--method.gamma", "--method.a", "--method.d",
    "--method.client-set", "--method.lower-solver", "--method.weight-decay", "--method.hypergradient", "--method.skip", "--method.offset", "--method.local-clients", "--help", "--nonsense",
]  # fmt: skip


# What an option takes, for the half of them that are right: so that what comes after the first mistake is reached too.
RIGHT = {
    "--rounds": "2", "--clients": "4", "--cohort": "1", "--partition": "iid", "--batch-size": "4", "--seed": "3", "--every": "1", "--target": "0.9", "--engine": "eager",
    "--precision": "float64", "--checkpoint-every": "1", "--keep": "1", "--task.hidden": "4", "--task.ridge": "0.1", "--method.lr.x": "1e30", "--method.lr.y": "0.1",
    "--method.local-steps": "2", "--method.lower-rounds": "2", "--method.drift": "control-variates", "--method.server": "adam:0.1", "--method.weight-decay": "0", "--method.gamma": "0.5",
}  # fmt: skip


@functools.cache
def options_of(task: str, method: str) -> list[str]:
    """The options that a run of a task with a method has; none where there is no such run."""
    if task not in registry.TASKS or method not in METHODS:
        return []
    chosen = registry.TASKS[task]
    form = forms.make_form(task=chosen, method=forms.method_form(find_method(method), chosen().rates), run=Options)
    return forms.option_names(form)


def line(draw: random.Random, out: str) -> list[str]:
    """A command line: mostly a run of a small task, with options that mostly are not right."""
    kind = draw.choices(
        ["run", "compare", "resume", "report", "data", "list", "reproduce", "nonsense"], [60, 8, 8, 8, 8, 2, 4, 2]
    )[0]
    slip = lambda words: draw.choice(HOSTILE) if draw.random() < 0.1 else draw.choice(words)
    if kind == "run":
        words = ["run", slip(TASKS), slip(METHODS), "--clients", "3", "--cohort", "2", "--rounds", "1", "--out", out]
        for _ in range(draw.randrange(1, 4)):
            known = options_of(words[1], words[2]) if draw.random() < 0.9 else []
            option = draw.choice(known or OPTIONS)
            value = RIGHT[option] if option in RIGHT and draw.random() < 0.6 else draw.choice(HOSTILE)
            words += [f"{option}={value}"] if draw.random() < 0.2 else [option, value]
        if draw.random() < 0.2:
            draw.shuffle(words)
        return words
    if kind == "compare":
        methods = [
            f"{draw.choice(METHODS)}:{draw.choice(OPTIONS)[9:] or 'lr.x'}={draw.choice(HOSTILE)}" for _ in range(2)
        ]
        return [
            "compare",
            slip(TASKS),
            *methods,
            "--out",
            out,
            draw.choice(["--exchanges", "--seeds", "--tune-budget"]),
            draw.choice(HOSTILE),
        ]
    if kind == "data":
        return [
            "data",
            slip(["digits", "wine", "breast_cancer"]),
            "--partition",
            draw.choice(HOSTILE),
            "--clients",
            draw.choice(["3", *HOSTILE]),
        ]
    if kind == "reproduce":
        return [
            "reproduce",
            slip(["fedmsa-mco", "frontier", "nothing"]),
            "--page",
            "--out",
            out,
            "--seeds",
            draw.choice(HOSTILE),
        ]
    return [
        kind if kind != "nonsense" else draw.choice(HOSTILE),
        *(draw.choice(HOSTILE) for _ in range(draw.randrange(3))),
    ]


def attack(seeds, folder, monkeypatch):
    monkeypatch.chdir(folder)
    ended = {0: 0, 1: 0, 2: 0, 130: 0}
    for seed in seeds:
        out = folder / "out"
        words = line(random.Random(seed), str(out))
        status, said = command(words)
        ended[status] += 1
        assert not half_written(folder), (seed, words)
        if status == 2:
            assert not [path for path in folder.rglob("*") if path.is_file()], (seed, words, said)
        elif words[0] == "run" and not {"--help", "-h"} & set(words) and "usage" not in said:
            result = json.loads((out / "result.json").read_text())
            assert result["status"] in (("done", "stopped") if status == 0 else ("diverged",)), (seed, words)
        for child in folder.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    return ended


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_command_lines(block, tmp_path, monkeypatch):
    ended = attack(range(block * BLOCK, (block + 1) * BLOCK), tmp_path, monkeypatch)
    assert ended[2] > BLOCK // 3  # most are wrong, and are said to be


@pytest.mark.full
@pytest.mark.parametrize("block", range(CASES // BLOCK, MANY // BLOCK))
def test_many_command_lines(block, tmp_path, monkeypatch):
    attack(range(block * BLOCK, (block + 1) * BLOCK), tmp_path, monkeypatch)
