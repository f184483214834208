"""The benchmark with real hospitals: its division of patients, its forms, and that tuning sees no test patient."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.data.survival import SIZES, tcga_brca
from rookery.reproduce.flamby import MEASURES, RESULTS, cells
from rookery.reproduce.flamby_task import Benchmark, centres_of
from rookery.reproduce.page import verdict

needs_brca = pytest.mark.skipif(
    not (Path(os.environ.get("ROOKERY_DATA", "nowhere")) / "tcga_brca").is_dir(), reason="ROOKERY_DATA has no tcga_brca"
)


def assembled(**options):
    tuning = options.pop("tuning", False)
    return Benchmark(**options).assemble(rk.IID(), 4, 0, tuning)


def test_hospitals_are_divided_as_the_benchmark_divides_them():
    centres = centres_of("heart")
    sizes = [(len(c["train"]["label"]), len(c["test"]["label"])) for c in centres]
    assert sizes == [(199, 104), (172, 89), (30, 16), (85, 45)]
    assert centres[0]["train"]["input"].shape[1] == 13
    whole = assembled()
    assert whole.clients.sizes.tolist() == [199, 172, 30, 85]
    np.testing.assert_allclose(whole.clients.weights, np.array([199, 172, 30, 85]) / 486)
    for i in range(4):
        np.testing.assert_allclose(whole.clients.client(i)["input"].mean(axis=0), 0, atol=1e-12)


@needs_brca
def test_regions_are_divided_as_the_benchmark_divides_them():
    regions = tcga_brca()
    assert tuple((len(r["train"]["time"]), len(r["test"]["time"])) for r in regions) == SIZES
    assert regions[0]["train"]["input"].shape[1] == 39


def test_without_its_files_brca_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path))
    with pytest.raises(
        rk.InputError, match=r"data: tcga_brca needs brca.csv and split.csv in .*, and brca.csv is not there"
    ):
        assembled(data="brca")
    (tmp_path / "tcga_brca").mkdir()
    (tmp_path / "tcga_brca" / "brca.csv").write_text("pid,a,E,T\np,1,0,3\n")
    (tmp_path / "tcga_brca" / "split.csv").write_text("pid,fold,fold2\np,train,train_0\n")
    with pytest.raises(rk.InputError, match="has regions of"):
        tcga_brca()


def test_tuning_sees_no_test_patient():
    """The patients of a tuning run, both for training and in the place of the test, are the training patients."""
    train = np.concatenate([c["train"]["input"] for c in centres_of("heart")])
    parts = assembled(scaling="none", tuning=True)
    used = np.concatenate([parts.clients.client(i)["input"] for i in range(4)])
    held = np.concatenate([parts.metrics.arrays[f"c{k}"]["input"] for k in range(4)])  # type: ignore[union-attr]
    assert len(used) + len(held) == len(train) == 486
    known = {row.tobytes() for row in train.astype(np.float32)}
    assert all(row.tobytes() in known for row in np.concatenate([used, held]).astype(np.float32))


@pytest.mark.parametrize("form", ["pooled", "local", "own heads", "penalties", "site weights"])
def test_every_form_learns(form):
    parts = assembled(form=form, scaling="pooled", ridge=0.1)
    method = rk.SimFBO(lr=rk.Rates(0.2)) if form in ("penalties", "site weights") else rk.FedAvg(lr=rk.Rates(0.2))
    result = rk.run(
        parts.problem, method, parts.clients, x=parts.x, y=parts.y, rounds=60, every=60, metrics=parts.metrics
    )
    assert result.history["pooled"][-1] > 0.72


def test_the_refitted_model_is_the_minimum_over_both_levels():
    """With x held, w goes where the gradient over all of the training patients is zero."""
    parts = assembled(form="penalties", scaling="pooled")
    held = rk.SimFBO(lr=rk.Rates(0.5, x=0.0))
    result = rk.run(parts.problem, held, parts.clients, x=parts.x, y=parts.y, rounds=3000, precision="float64")
    whole = Benchmark(scaling="pooled", form="plain").assemble(rk.IID(), 4, 0)
    penalty = float(np.exp(parts.x[0]))
    plain = rk.run(
        rk.Single(rk.OfBatch(lambda w, e, p: whole.problem.loss.function(w, e, p) + 0.5 * penalty * w["w"] @ w["w"])),  # type: ignore[attr-defined]
        rk.FedAvg(lr=rk.Rates(0.5)), whole.clients, x=whole.x, rounds=3000, precision="float64",
    )  # fmt: skip
    difference = jax.tree.map(lambda a, b: np.abs(a - b).max(), result.sequences["w"], plain.x)
    # The levels hold whole patients, so that 0.3 of a hospital's is rounded.
    assert max(jax.tree.leaves(difference)) < 0.02


def test_published_numbers_stand_in_their_cells():
    names = {cell.name: cell for cell in cells(False)}
    assert len(names) == 25
    cell = names["FedAdam, Fed-TCGA-BRCA"]
    assert cell.paper == {"pooled": 0.842} and cell.published_spread == {"pooled": 0.015}
    assert set(RESULTS["heart"]["FedAvg"]) == {"pooled", "Cleveland", "Hungary", "Switzerland", "VA"}
    pooled = MEASURES[0]
    assert verdict(pooled, 0.828, True, 0.842, 0.015) == "reproduced"
    assert verdict(pooled, 0.826, True, 0.842, 0.015) == "worse"
    assert verdict(pooled, 0.833, True, 0.842) == "reproduced" and verdict(pooled, 0.9, True, 0.842) == "better"
