"""Every method holds every property, on the problems that it solves."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import rookery as rk
from properties import checks
from properties.table import CASES, ONE_EACH, bed, by_name, on_beds
from properties.trajectories import KEPT, PAIRS, name_of, now
from rookery.algorithms.registry import METHODS

every_case = pytest.mark.parametrize("case", CASES, ids=by_name)
one_each = pytest.mark.parametrize("case", ONE_EACH, ids=by_name)


def on(cases, in_full=False):
    """Parametrizes over cases and the problems each solves; those after a case's first only in the full suite, if so
    asked."""
    pairs = [
        pytest.param(case, name, marks=[pytest.mark.full] * (in_full and name != case.beds[0]))
        for case, name in on_beds(cases)
    ]
    names = [f"{by_name(case)}-{name}" for case, name in on_beds(cases)]
    return pytest.mark.parametrize(("case", "name"), pairs, ids=names)


def test_every_method_has_its_rows():
    assert {case.method for case in CASES} == set(METHODS)


@pytest.mark.parametrize("case", [case for case in CASES if not case.name.endswith(("sgd", "sketched"))], ids=by_name)
def test_the_registry_says_how_many_exchanges(case):
    formula = re.sub(r"(\d)([NT])", r"\1 * \2", METHODS[case.method].exchanges)
    terms = case.options.get("neumann_terms", case.options.get("adjoint_rounds"))
    values = {"N": case.options.get("lower_rounds"), "T": terms}
    assert eval(formula, {}, values) == case.exchanges


@on([case for case in CASES if case.order is not None])
def test_exactness_class(case, name):
    checks.exactness(case, name)


@on(ONE_EACH, in_full=True)
def test_compiled_equals_eager(case, name):
    checks.engines_agree(case, name)


@on(CASES)
def test_exchanges_and_floats_are_the_published_ones(case, name):
    checks.published_counts(case, name)


@every_case
def test_client_order_does_not_matter(case):
    checks.order_does_not_matter(case, case.beds[0])


@one_each
def test_dtype_is_kept(case):
    checks.dtype_kept(case, case.beds[0])


@one_each
def test_vmap_over_seeds(case):
    checks.seeds_vectorise(case, case.beds[0])


@one_each
def test_second_run_compiles_nothing(case, compilations):
    field = next((name for name in ("local_steps", "upper_steps") if name in case.options), None)
    others: dict = {}
    if field is not None:
        given = case.options[field]
        others[field] = rk.FixedSteps([3, 1, 2]) if isinstance(given, rk.FixedSteps) else given + 1
    exact = bed(case.beds[0])
    checks.run(exact, case.make(rk.Rates(0.02)), rounds=60, seed=1, **case.noisy)
    with compilations.counted():
        checks.run(exact, case.make(rk.Rates(0.03), **others), rounds=110, seed=2, **case.noisy)
    assert compilations.count == 0


def test_every_trajectory_is_kept():
    assert set(json.loads(KEPT.read_text())) == {name_of(*pair) for pair in PAIRS}


# One problem for each case in every run; the others, which compile programs of their own, in the full one.
TRAJECTORIES = [
    pytest.param(case, name, id=name_of(case, name), marks=() if name == case.beds[0] else pytest.mark.full)
    for case, name in PAIRS
]


@pytest.mark.parametrize(("case", "name"), TRAJECTORIES)
def test_trajectories_are_what_they_were(case, name):
    before = json.loads(KEPT.read_text())[name_of(case, name)]
    for sequence, values in now(case, name).items():
        np.testing.assert_allclose(values, before[sequence], rtol=0, atol=1e-14)
