"""The trajectories of the methods in references_nested.py are those that their formulas give in plain numpy."""

from __future__ import annotations

import pytest

import references
import references_family  # noqa: F401  adds its settings
import references_gossip
import references_nested
from references_nested import LISTENED, REFERENCES, SETTINGS, label, samples_are_as_said
from rookery.algorithms.registry import METHODS


def test_every_method_has_a_reference():
    assert {setting.method for setting in SETTINGS} == set(REFERENCES)
    assert set(REFERENCES) | set(references.REFERENCES) | set(references_gossip.REFERENCES) == set(METHODS)


@pytest.mark.parametrize("setting", SETTINGS, ids=label)
def test_trajectory_is_the_reference(setting):
    references_nested.agrees(setting, engine="eager")


@pytest.mark.parametrize(("name", "indices"), [("fednest", {1, 2}), ("lfednest", {1, 2}), ("aggitd", {0, 1})])
def test_engines_draw_the_same(name, indices):
    """Truncation indices, and the cohorts; over the rounds the indices are such that products are taken."""
    setting = next(setting for setting in SETTINGS if setting.method == name)
    drawn = [references_nested.nearest(setting, engine=engine) for engine in ("eager", "local")]
    assert drawn[0][0] == drawn[1][0] and max(gap for _, gap in drawn) <= references.TOLERANCE
    assert set(references_nested.outcomes(label(setting))[drawn[0][0]]["drawn"]) == indices


@pytest.mark.parametrize("listened", LISTENED, ids=lambda listened: listened.method)
def test_samples(listened):
    samples_are_as_said(listened)


def test_first_round_of_fedmsa():
    references_nested.first_round_is_short()


@pytest.mark.parametrize("name", ["fedbioacc", "fedbioacclocal"])
def test_first_batch_and_visits_with_local_sequences(name):
    references_nested.first_batch_is_taken_once(name)
    references_nested.visits_are_counted(name)


def test_an_estimator_without_a_size_is_allowed():
    references_nested.estimators_need_no_size()
