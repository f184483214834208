"""Every method's trajectory is the one that its formulas give in plain numpy."""

from __future__ import annotations

import pytest

import references
import references_family  # noqa: F401  adds its settings
from references import REFERENCES, SETTINGS, bed_of, label
from rookery.algorithms.local_steps import descend
from rookery.algorithms.registry import METHODS


def test_every_reference_is_of_a_method_and_used():
    assert {setting.method for setting in SETTINGS} == set(REFERENCES) <= set(METHODS)


@pytest.mark.parametrize("setting", SETTINGS, ids=label)
def test_trajectory_is_the_reference(setting):
    # The common tests hold the engines to each other on problems without local sequences and sets: there the engine
    # that compiles least will do.
    special = bed_of(setting.bed).problem.local or bed_of(setting.bed).sets
    references.agrees(setting, engine="local" if special else "eager")


@pytest.mark.parametrize("name", REFERENCES)
def test_samples(name):
    for check in references.sampling_checks(name):
        check(engine="eager")


def test_local_work():
    references.work_is_the_norm(descend, engine="eager")
