"""The study of trust: sites of given sizes, paired intervals, and claims that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.reproduce.study import Done
from rookery.reproduce.trust import CURVES, SIZES, above_better, bounds, cells, claims, share_of_records
from rookery.reproduce.trust_trial import SYNTHETIC, TrustTrial
from rookery.runs.table import Table
from rookery.tasks.trust_models import MODELS


def test_intervals_are_students_and_bonferronis():
    mean, low, high = bounds(np.array([1.0, 2.0, 3.0]))
    half = 4.302653 / 3**0.5  # t of two degrees of freedom at 97.5 %
    np.testing.assert_allclose([mean, low, high], [2.0, 2 - half, 2 + half], rtol=1e-6)
    np.testing.assert_allclose(bounds(np.array([1.0, 2.0, 3.0]), 10)[2] - 2, 14.08905 / 3**0.5, rtol=1e-5)
    assert bounds(np.array([1.0])) == (1.0, -np.inf, np.inf)


def done(cell, plain, checked, trusted, chosen, index=2.0, found=1.0):
    """A cell that was run with two seeds, with these accuracies."""
    rows = [
        {
            "round": 300, "accuracy plain weighted": plain + d, "accuracy checked weighted": checked + d,
            "accuracy trusted weighted": trusted + d, "accuracy weighted": chosen + d, "accuracy oracle weighted": 1.0,
            "chosen": index, "found": found, "left out": 0.0,
        }
        for d in (0.0, 0.001)
    ]  # fmt: skip
    return Done(cell, [Table([row]) for row in rows], 1.0, "commit", "cpu")


def of(kind):
    return [cell for cell in cells(False) if cell.column == kind]


def test_claims_hold_where_trust_is_above_and_fail_where_it_is_below():
    some = [cell for cell in of("digits") if cell.experiment.task.wrong == 1.0 and cell.experiment.task.bad][:3]
    good = {cell.name: done(cell, 0.5, 0.8, 0.9, 0.9) for cell in some}
    assert all(claim.holds for claim in claims(good))
    bad = good | {some[2].name: done(some[2], 0.5, 0.8, 0.78, 0.78)}
    failed = [claim for claim in claims(bad) if not claim.holds]
    assert len(failed) == 4 + 2 * (share_of_records(some[2].experiment.task) >= 0.25)
    assert all(some[2].name in claim.found for claim in failed)
    missed = {cell.name: done(cell, 0.5, 0.8, 0.9, 0.9, index=0.0, found=0.0) for cell in some}
    texts = [claim.text for claim in claims(missed) if not claim.holds]
    assert len(texts) == 2 and "is chosen" in texts[0] and "are found" in texts[1]
    np.testing.assert_allclose(above_better(good[some[0].name], "chosen"), [10.0, 10.0])


def test_the_study_has_every_site_every_part_and_every_kind():
    assert len(of("heart")) == 1 + 5 * 6 and len(of("digits")) == 1 + 5 * 6 and len(of("breast_cancer")) == 1 + 6 * 6
    assert {cell.experiment.task.wrong for cell in of("digits") if cell.experiment.task.bad} == {0.3, 0.5, 1.0}
    assert len(of("power of detection")) == len(CURVES) * len(SIZES) and min(SIZES) == 30 and max(SIZES) == 2000
    assert len({cell.name for cell in cells(False)}) == len(cells(False))
    assert all(cell.experiment.options.seed == 2000 for cell in cells(False))


@pytest.mark.parametrize("data", [SYNTHETIC, "digits"])
def test_trials_have_sites_of_the_asked_sizes_and_wrong_labels_at_the_bad_ones(data):
    trial = TrustTrial(data=data, sizes=(30, 200, 100), bad=(2,), checked_part=0.1)
    parts, right = (each.assemble(None, 3, seed=5) for each in (trial, TrustTrial(data, (30, 200, 100), (), 1.0)))
    assert parts.clients.sizes.tolist() == [30, 200, 100]
    for i in range(3):
        own = parts.clients.client(i)
        checked = own["fixed"][:, MODELS.index("checked")] > 0
        assert checked.sum() == [3, 20, 10][i]
        changed = own["label"] != right.clients.client(i)["label"]
        assert (changed == ~checked).all() if i == 2 else not changed.any()


def test_rare_classes_keep_a_tenth():
    trial = TrustTrial(sizes=(700, 700), rare=(7, 8, 9))
    clients = trial.assemble(None, 2, seed=1).clients
    counts = np.sum([np.bincount(clients.client(i)["label"], minlength=10) for i in (0, 1)], axis=0)
    assert counts[:7].min() > 130 and 3 < counts[7:].min() <= counts[7:].max() < 30
