"""Studies: the small version of each runs, numbers are judged as they say, and what is done is not run again."""

from __future__ import annotations

import json
import math

import pytest

import rookery as rk
from rookery.cli import main
from rookery.reproduce.page import verdict
from rookery.reproduce.registry import STUDIES, reproduce
from rookery.reproduce.study import First, Last, Measure, mean_and_spread
from rookery.runs.table import Table

HISTORY = Table([{"round": n, "exchanges": 2 * n, "accuracy": value} for n, value in enumerate((0.1, 0.92, 0.8, 0.95))])


@pytest.mark.parametrize("name", STUDIES)
def test_the_small_version_of_every_study_runs(name, tmp_path):
    page, done = reproduce(name, seeds=1, quick=True, out=tmp_path, say=lambda text: None)
    text = page.read_text()
    assert STUDIES[name].title in text and "quick version" in text and f"rookery reproduce {name}" in text
    assert set(done) == {cell.name for cell in STUDIES[name].cells(True)}
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".md", ".csv", ".png"}
    table = Table.from_csv(tmp_path / f"{name}-quick.csv")
    assert len(table.rows) == len(done) * len(STUDIES[name].measures)


def test_what_is_done_is_not_run_again(tmp_path, capsys):
    said: list[str] = []
    _, done = reproduce("fedmsa-mco", quick=True, out=tmp_path, say=said.append)
    assert len([text for text in said if "2 seeds" in text]) == len(done)
    assert all(len(each.histories) == 2 for each in done.values())
    cells = sorted((tmp_path / ".cells" / "fedmsa-mco-quick").glob("*.json"))
    cells[0].unlink()
    kept = json.loads(cells[1].read_text())
    cells[1].write_text(json.dumps(kept | {"asked": {**kept["asked"], "rounds": 1}}))
    said.clear()
    _, again = reproduce("fedmsa-mco", quick=True, out=tmp_path, say=said.append)
    assert len([text for text in said if "2 seeds" in text]) == 2  # the one that is gone, and the one of other settings
    for name, each in done.items():
        values = [history["distance"].tolist() for history in each.histories]
        assert values == [history["distance"].tolist() for history in again[name].histories]
    assert main(["reproduce", "fedmsa-mco", "--quick", "--page", "--out", str(tmp_path)]) == 0
    assert "ours ± spread" in capsys.readouterr().out


def test_a_page_of_what_is_done_names_what_is_missing(tmp_path):
    reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, say=lambda text: None)
    next((tmp_path / ".cells" / "fedmsa-mco-quick").glob("*.json")).unlink()
    page, done = reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, run=False)
    assert "## Not run" in page.read_text() and len(done) == 3
    with pytest.raises(rk.InputError, match="study: no cell of fedmsa-mco with 3 seeds is done under"):
        reproduce("fedmsa-mco", seeds=3, quick=True, out=tmp_path, run=False)


def test_numbers_are_read_off_histories():
    assert First("exchanges", "accuracy", 0.9)(HISTORY) == 2 and First("round", "accuracy", 0.96)(HISTORY) == math.inf
    assert Last("accuracy")(HISTORY) == 0.95 and Last("accuracy", 2)(HISTORY) == pytest.approx(0.875)
    mean, spread, reached = mean_and_spread(HISTORY["exchanges"][:3].astype(float) * [1, 1, math.inf])
    assert (mean, spread, reached) == (1.0, 1.0, 2)


@pytest.mark.parametrize(
    ("rising", "ours", "all_reached", "paper", "expected"),
    [
        (True, 0.95, True, 0.94, "better"),
        (True, 0.936, True, 0.94, "within tolerance"),
        (True, 0.93, True, 0.94, "not reproduced"),
        (False, 100, True, 110, "better"),
        (False, 115, True, 110, "within tolerance"),
        (False, 125, True, 110, "not reproduced"),
        (False, 100, False, 110, "not reproduced"),
        (False, math.inf, False, math.inf, "reproduced"),
        (False, 400, True, math.inf, "better"),
        (False, 400, True, math.nan, "no number given"),
    ],
)
def test_verdicts(rising, ours, all_reached, paper, expected):
    measure = Measure(
        "it", Last("accuracy"), rising=rising, tolerance=0.005 if rising else 0, factor=1 if rising else 1.1
    )
    assert verdict(measure, ours, all_reached, paper) == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce"], "reproduce: the name of one study is needed"),
        (["reproduce", "fedvra-table5"], "study: 'fedvra-table5' is not known (did you mean"),
        (["reproduce", "fedmsa-mco", "--seeds", "0"], "seeds: 0 was given; at least 1 is needed"),
    ],
)
def test_mistakes_get_a_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
