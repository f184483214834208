"""`rk.check` against mutants of the library's methods: how many it catches alone, and beside a method to agree with.

A mutant that passes is shown to compute the same: the references, which catch every mutant of `test_mutation.py` that
does not, let it pass as well. Of each file a fixed sample of mutants is judged, on the first problem that its methods
solve. Defaults of fields are choices, and are left out.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import rookery as rk
from mutation.mutants import Mutant, loaded, mutants
from mutation.test_mutation import PACKAGE, file_of, judge, source_of
from rookery.algorithms.registry import METHODS
from rookery.errors import AdviceWarning, DivergenceWarning
from rookery.runs.check import CLIENTS, ON_A_GRAPH, PROBLEMS, findings_of, fits
from rookery.runs.check_settings import same_runs_as
from rookery.runs.findings import examined

# File -> the method that is checked. Methods that declare a bias, and tell no closed form, are left out.
FILES = {
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "fednova": "fednova",
    "scaffold": "scaffold",
    "vrlsgd": "vrlsgd",
    "feddyn": "feddyn",
    "fedadmm": "fedadmm",
    "fedpd": "fedpd",
    "fedvra": "fedvra",
    "fedvrau": "fedvrau",
    "fedmsa": "fedmsa",
    "fedbioacc": "fedbioacc",
    "storm": "fedbioacc",
    "local_steps": "simfbo",
    "one_loop": "simfbo",
    "shrofbo": "shrofbo",
}
SAMPLE = int(os.environ.get("ROOKERY_CHECK_MUTANTS", "8"))  # mutants of each file
SHARE = 0.95  # of those that compute something else, over all files


def sample_of(file: str) -> list[Mutant]:
    """A fixed sample of a file's mutants, spread over the file."""
    inside = [mutant for mutant in mutants(source_of(file)) if not re.match(r"^\w+ \| \w+: ", mutant.key)]
    count = min(SAMPLE, len(inside))
    return [inside[place * len(inside) // count] for place in range(count)]


def class_of(file: str, source: str) -> Any:
    """The method whose file, or whose helper's file, has this source."""
    name = FILES[file]
    fresh = {f"{PACKAGE}.{file}": source}
    if file != file_of(name):
        between = ["one_loop"] if file == "local_steps" and name == "simfbo" else []
        fresh |= {f"{PACKAGE}.{other}": source_of(other) for other in (*between, file_of(name))}
    with loaded(fresh) as modules:
        return getattr(modules[f"{PACKAGE}.{file_of(name)}"], METHODS[name].method.__name__)


def first_findings(method: Any) -> Iterator[Any]:
    """The findings on the first problem."""
    problem = None
    for finding in findings_of(method):
        problem = problem or finding.problem
        if finding.problem != problem:
            return
        yield finding


def verdict(file: str, source: str) -> str:
    """What catches a mutant: a row of `rk.check`, "like" for the comparison, or "nothing"."""
    original = METHODS[FILES[file]].method(lr=rk.Rates(0.1))
    try:
        method = class_of(file, source)(lr=rk.Rates(0.1))
        for finding in first_findings(method):
            if not finding.holds:
                return finding.what
        name = next(name for name in PROBLEMS if fits(method, name))
        exact = PROBLEMS[name](ON_A_GRAPH if method.neighbours else CLIENTS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AdviceWarning)
            warnings.simplefilter("ignore", DivergenceWarning)
            return "nothing" if examined("like", same_runs_as(original), name, method, exact).holds else "like"
    except Exception:  # it does not load, or its first call fails
        return "raises"


_counts: dict[str, Counter[str]] = {}


@pytest.mark.full
@pytest.mark.parametrize("file", FILES)
def test_the_check_passes_the_file_itself(file):
    assert verdict(file, source_of(file)) == "nothing"
    jax.clear_caches()


@pytest.mark.full
@pytest.mark.parametrize("file", FILES)
def test_mutants_that_pass_compute_the_same(file, capsys):
    counts: Counter[str] = Counter()
    missed = []
    for mutant in sample_of(file):
        what = verdict(file, mutant.source)
        if what == "nothing":
            what = "same" if judge(file, mutant.source) is None else "missed"
            missed += [str(mutant)] if what == "missed" else []
        counts[what if what in ("same", "missed", "like") else "alone"] += 1
        jax.clear_caches()
    _counts[file] = counts
    with capsys.disabled():
        print(f"\n{file}.py: {dict(counts)}", *(f"  missed: {key}" for key in missed), sep="\n")
    assert counts["missed"] <= max(1, round((1 - SHARE) * SAMPLE)), missed


@pytest.mark.full
def test_nearly_all_mutants_are_caught(capsys):
    if len(_counts) < len(FILES):
        pytest.skip("only with the mutants of all files, in one process")
    total = sum(_counts.values(), Counter())
    other = sum(total.values()) - total["same"]
    with capsys.disabled():
        print(f"\nof {other} mutants that compute something else: {dict(total)}")
    assert (total["alone"] + total["like"]) / other >= SHARE
