"""Trajectories are what they were: a change of the house moves no number."""

from __future__ import annotations

import json

import numpy as np
import pytest

from properties.trajectories import KEPT, PAIRS, name_of, now


def test_every_case_is_kept():
    assert set(json.loads(KEPT.read_text())) == {name_of(*pair) for pair in PAIRS}


@pytest.mark.parametrize(("case", "name"), PAIRS, ids=[name_of(*pair) for pair in PAIRS])
def test_trajectories_are_what_they_were(case, name):
    before = json.loads(KEPT.read_text())[name_of(case, name)]
    for sequence, values in now(case, name).items():
        np.testing.assert_allclose(values, before[sequence], rtol=0, atol=1e-14)
