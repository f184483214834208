"""Every method holds every property, on a bilevel, a compositional and a minimax problem."""

from __future__ import annotations

import pytest

import rookery as rk
from properties import checks
from properties.table import BEDS, CASES, ONE_EACH, bed, by_name
from rookery.algorithms.registry import METHODS

every_case = pytest.mark.parametrize("case", CASES, ids=by_name)
one_each = pytest.mark.parametrize("case", ONE_EACH, ids=by_name)
every_bed = pytest.mark.parametrize("name", BEDS)


def test_every_method_has_its_rows():
    assert {case.method for case in CASES} == set(METHODS)
    assert all(case.exchanges == METHODS[case.method].exchanges for case in CASES)


@every_bed
@every_case
def test_exactness_class(case, name):
    checks.exactness(case, name)


@every_bed
@one_each
def test_compiled_equals_eager(case, name):
    checks.engines_agree(case, name)


@every_bed
@every_case
def test_exchanges_and_floats_are_the_published_ones(case, name):
    checks.published_counts(case, name)


@every_case
def test_client_order_does_not_matter(case):
    checks.order_does_not_matter(case, "E1")


@one_each
def test_dtype_is_kept(case):
    checks.dtype_kept(case, "E1")


@one_each
def test_vmap_over_seeds(case):
    checks.seeds_vectorise(case, "E1")


@one_each
def test_second_run_compiles_nothing(case, compilations):
    other = (
        {"local_steps": rk.FixedSteps([3, 1, 2])}
        if isinstance(case.options["local_steps"], rk.FixedSteps)
        else {"local_steps": 3}
    )
    options = {"sampling": rk.Uniform(2), "batch_size": 2}
    checks.run(bed("E1"), case.make(rk.Rates(0.02)), rounds=60, seed=1, **options)
    with compilations.counted():
        checks.run(bed("E1"), case.make(rk.Rates(0.03), **other), rounds=110, seed=2, **options)
    assert compilations.count == 0
