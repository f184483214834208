"""Studies: the small version of each runs, numbers are judged as they say, and what is done is not run again."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.experiments.experiment import Experiment, Options
from rookery.experiments.tune import settings
from rookery.reproduce import execute
from rookery.reproduce.aggitd import CHOSEN
from rookery.reproduce.code import changed, digests
from rookery.reproduce.execute import commit, run_cell
from rookery.reproduce.fedbio import Quadratic
from rookery.reproduce.frontier import TRIALS, methods
from rookery.reproduce.index import write_index
from rookery.reproduce.page import grids, plot, rows_of, verdict, write_page
from rookery.reproduce.registry import STUDIES, reproduce
from rookery.reproduce.study import Cell, Done, First, Jumps, Last, Measure, fewer, higher, mean_and_spread
from rookery.reproduce.theory import slope
from rookery.runs.table import Table
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.riskaverse import RiskAverse

HISTORY = Table([{"round": n, "exchanges": 2 * n, "accuracy": value} for n, value in enumerate((0.1, 0.92, 0.8, 0.95))])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder for studies whose runs more than one test looks at, so that they are run once."""
    return tmp_path_factory.mktemp("shared")


# One of each file, and those that other tests look at; the others are made of the same parts.
QUICK = (
    "aggitd-table2",
    "aggitd-fig3",
    "simfbo-fig4",
    "fedmsa-mco",
    "fedvra-fig2",
    "fedvra-u",
    "frontier",
)
QUICK += ("fedbio-rates", "fedbio-tasks", "flamby", "trust")
SMALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in STUDIES]


@pytest.mark.parametrize("name", SMALL)
def test_the_small_version_of_every_study_runs(name, tmp_path, shared):
    tmp_path = shared if STUDIES[name].runs_of or name in ("frontier", "aggitd-fig3", "aggitd-fig4") else tmp_path
    page, done = reproduce(name, seeds=1, quick=True, out=tmp_path, say=lambda text: None)
    text = page.read_text()
    assert STUDIES[name].title in text and "quick version" in text and f"rookery reproduce {name}" in text
    assert "rounds: " in text and "| claim |" not in text and STUDIES[name].settings.strip() not in text
    assert "(paper)" not in text, "numbers of the full study beside those of the quick one"
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


def test_after_an_interruption_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    command = ["reproduce", "fedmsa-mco", "--quick", "--seeds", "1", "--out", str(tmp_path)]
    started: list[str] = []

    def interrupted_in_the_third(cell, *arguments):
        started.append(cell.name)
        if len(started) == 3:
            signal.raise_signal(signal.SIGINT)
        return run_cell(cell, *arguments)

    monkeypatch.setattr(execute, "run_cell", interrupted_in_the_third)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(command) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted; the same command goes on" in capsys.readouterr().out
    folder = tmp_path / ".cells" / "fedmsa-mco-quick"
    assert len(list(folder.iterdir())) == 2 and list(tmp_path.glob("*.md")) == []
    assert main(command) == 0
    assert started[3:] == [cell.name for cell in STUDIES["fedmsa-mco"].cells(True)[2:]]
    assert len(list(folder.iterdir())) == 4


def test_a_page_of_what_is_done_names_what_is_missing(tmp_path):
    reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, say=lambda text: None)
    next((tmp_path / ".cells" / "fedmsa-mco-quick").glob("*.json")).unlink()
    page, done = reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, run=False)
    assert "## Not run" in page.read_text() and len(done) == 3
    with pytest.raises(rk.InputError, match="study: no cell of fedmsa-mco with 3 seeds is done under"):
        reproduce("fedmsa-mco", seeds=3, quick=True, out=tmp_path, run=False)


def test_figures_of_the_same_runs_share_them(shared):
    said: list[str] = []
    reproduce("simfbo-fig3", seeds=1, quick=True, out=shared, say=said.append)
    said.clear()
    page, done = reproduce("simfbo-fig2", seeds=1, quick=True, out=shared, say=said.append)
    assert not said and "training accuracy" in page.read_text()
    assert all(0 <= each.histories[0]["training_accuracy"][-1] <= 1 for each in done.values())


@pytest.mark.parametrize(
    ("study", "solver"), [("aggitd-fig3", "svrg"), pytest.param("aggitd-fig4", "sgd", marks=pytest.mark.full)]
)
def test_methods_of_two_loops_get_the_exchanges_that_they_are_to_have(study, solver, shared):
    _, done = reproduce(study, seeds=1, quick=True, out=shared, say=lambda text: None)
    assert len(done) == 3
    for each in done.values():
        _, a_round = CHOSEN.method(each.cell.experiment.method_name, "iid", solver=solver)
        assert each.histories[0]["exchanges"][-1] == 30 // a_round * a_round


def test_what_tuning_chose_is_kept_and_shown(shared):
    page, done = reproduce("frontier", seeds=1, quick=True, out=shared, say=lambda text: None)
    each = done["FedBiO, iid"]
    assert each.tuning is not None and each.cell.search is not None
    assert settings(each.tuning.method) in {settings(method) for method in each.cell.search.methods}
    assert len(each.tuning.table.rows) == 2
    assert f"| FedBiO, iid | 2 | {each.tuning.gradients:,} | {settings(each.tuning.method)} |" in page.read_text()
    said: list[str] = []
    _, again = reproduce("frontier", seeds=1, quick=True, out=shared, say=said.append)
    tuning = again["FedBiO, iid"].tuning
    assert tuning is not None
    assert not said and settings(tuning.method) == settings(each.tuning.method)
    path = shared / ".cells" / "frontier-quick" / "FedBiO_iid.json"
    text = path.read_text()
    kept = json.loads(text)
    kept["asked"]["search"]["exchanges"] = 11
    path.write_text(json.dumps(kept))
    _, done = reproduce("frontier", seeds=1, quick=True, out=shared, say=said.append, run=False)
    assert "FedBiO, iid" not in done  # it was tuned otherwise
    path.write_text(text)


def test_an_option_that_came_later_had_its_default_before(tmp_path):
    reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, say=lambda text: None)
    cells = sorted((tmp_path / ".cells" / "fedmsa-mco-quick").glob("*.json"))
    for path, other in zip(cells, (RiskAverse().delta, 0.5)):
        kept = json.loads(path.read_text())
        del kept["asked"]["task"]["delta"]
        if other != RiskAverse().delta:
            kept["asked"]["task"]["delta"] = other
        path.write_text(json.dumps(kept))
    _, done = reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, run=False)
    assert len(done) == len(cells) - 1


def test_numbers_are_read_off_histories():
    assert First("exchanges", "accuracy", 0.9)(HISTORY) == 2 and First("round", "accuracy", 0.96)(HISTORY) == math.inf
    assert math.isnan(Last("f1")(HISTORY)) and math.isnan(mean_and_spread(np.asarray([math.nan, math.nan]))[0])
    assert mean_and_spread(np.asarray([math.inf, math.inf]))[0] == math.inf
    assert Last("accuracy")(HISTORY) == 0.95 and Last("accuracy", 2)(HISTORY) == pytest.approx(0.875)
    assert Jumps("accuracy")(HISTORY) == pytest.approx((0.12 + 0.15) / 2)
    assert math.isnan(Jumps("accuracy")(Table(HISTORY.rows[:1])))
    mean, spread, reached = mean_and_spread(HISTORY["exchanges"][:3].astype(float) * [1, 1, math.inf])
    assert (mean, spread, reached) == pytest.approx((1.0, 2**0.5, 2)), "the sample deviation"


@pytest.mark.parametrize(
    ("rising", "ours", "all_reached", "paper", "expected"),
    [
        (True, 0.95, True, 0.94, "better"),
        (True, 0.943, True, 0.94, "reproduced"),
        (True, 0.936, True, 0.94, "reproduced"),
        (True, 0.93, True, 0.94, "worse"),
        (False, 95, True, 110, "better"),
        (False, 101, True, 110, "reproduced"),
        (False, 115, True, 110, "reproduced"),
        (False, 125, True, 110, "worse"),
        (False, 100, False, 110, "worse"),
        (False, math.inf, False, math.inf, "reproduced"),
        (False, 400, True, math.inf, "better"),
        (False, 400, False, math.inf, "reproduced"),
        (False, 400, True, math.nan, "no number given"),
    ],
)
def test_verdicts(rising, ours, all_reached, paper, expected):
    measure = Measure(
        "it", Last("accuracy"), rising=rising, tolerance=0.005 if rising else 0, factor=1 if rising else 1.1
    )
    assert verdict(measure, ours, all_reached, paper) == expected


def done_with(row: str, *finals: float) -> Done:
    """A row in the column "here": runs of one round; a seed whose value is NaN diverged before it ended."""
    cell = Cell(row, "here", Experiment("riskaverse", RiskAverse(), "FedMSA", rk.FedMSA(lr=0.1), Options(rounds=1)))
    first = {"round": 0, "accuracy": 0.0, "exchanges": 0}
    ends = [[] if math.isnan(end) else [{"round": 1, "accuracy": end, "exchanges": 1000 * end}] for end in finals]
    return Done(cell, [Table([first, *end]) for end in ends], 1.0, "abc", "cpu")


def test_an_order_holds_where_spreads_are_apart():
    done = {f"{row}, here": done_with(row, *values) for row, values in (("a", (0.9, 0.8)), ("b", (0.6, 0.7)))}
    done["c, here"] = done_with("c", 0.7, 0.85)
    percent = Measure("it", Last("accuracy"), percent=True)
    found = higher(done, "here", "a", ("b", "c", "missing"), percent)
    assert [claim.holds for claim in found] == [True, False]
    assert found[0].text == "here: a is above b (it), spreads apart"
    assert found[0].found == "85.00 ± 7.1 % against 65.00 ± 7.1 %; so with 2 of 2 seeds"
    assert found[1].found.endswith("so with 1 of 2 seeds")
    spent = Measure("exchanges", Last("exchanges"), rising=False)
    assert [claim.holds for claim in fewer(done, "here", "b", ("a", "c"), spent)] == [True, False]
    never = Measure("never", First("exchanges", "accuracy", 0.75), rising=False)
    (claim,) = fewer(done, "here", "a", ("b",), never)
    assert claim.holds and claim.found == "850 ± 71 against never; so with 2 of 2 seeds"
    assert not fewer(done, "here", "b", ("b",), never)[0].holds
    assert fewer(done, "here", "missing", ("a",), never) == []


def test_an_order_asks_for_every_seed():
    level = Measure("it", First("exchanges", "accuracy", 0.5), rising=False)
    done = {"a, here": done_with("a", 0.5, 0.4), "b, here": done_with("b", 0.9, 0.9)}
    (claim,) = fewer(done, "here", "a", ("b",), level)
    assert not claim.holds and claim.found == "500 ± 0, 1 of 2 against 900 ± 0; so with 1 of 2 seeds"


def test_a_run_that_diverged_is_not_noisy():
    whole = done_with("a", 0.3)
    rows = [{"round": 0, "accuracy": each} for each in (0.1, 0.9, 0.1)]
    done = dataclasses.replace(whole, histories=[*whole.histories, Table(rows)])
    noise = Measure("noise", Jumps("accuracy"))
    assert noise.of(done.histories[1]) == pytest.approx(0.8)
    assert np.isnan(done.values(noise)).tolist() == [False, True]


def test_a_run_that_diverged_has_no_end_and_is_counted(tmp_path):
    percent = Measure("it", Last("accuracy"), percent=True)
    done = {"a, here": done_with("a", 0.9, 0.8), "b, here": done_with("b", math.nan, 0.7)}
    done["c, here"] = done_with("c", math.nan, math.nan)
    assert [each.diverged for each in done.values()] == [[False, False], [True, False], [True, True]]
    assert [claim.holds for claim in higher(done, "here", "a", ("b", "c"), percent)] == [True, True]
    assert not higher(done, "here", "b", ("c",), percent)[0].holds
    study = dataclasses.replace(
        STUDIES["fedvra-u"], measures=(percent,), cells=lambda quick: [], claims=lambda done: []
    )
    page = write_page(study, done, tmp_path, "a command", quick=False).read_text()
    assert "| b | 70.00 ± 0, 1 of 2 |" in page and "| c | diverged |" in page
    assert "such runs are in no mean of final values" in page and "Nothing was claimed." in page
    assert "Runs were evaluated every" in page


def test_a_page_says_which_sampler_drew_its_cohorts(tmp_path):
    percent = Measure("it", Last("accuracy"), percent=True)
    study = dataclasses.replace(STUDIES["fedvra-u"], measures=(percent,), cells=lambda quick: [])
    of = lambda **commits: {
        name: dataclasses.replace(done_with(name, 0.5), commit=commit) for name, commit in commits.items()
    }
    page = lambda done: write_page(study, done, tmp_path, "a command", quick=True).read_text()
    assert "by the sampler before" not in page(of(a="abc"))
    assert "\nCohorts were drawn by the sampler before Floyd's" in page(of(a="cfadd06+changes"))
    assert "\nCohorts of cells at cfadd06 were drawn by the sampler before" in page(of(a="abc", b="cfadd06"))


def test_claims_that_need_cells_that_are_not_there_are_not_judged(tmp_path):
    percent = Measure("it", Last("accuracy"), percent=True)
    study = dataclasses.replace(STUDIES["fedvra-u"], measures=(percent,), claims_of_parts=False)
    done = {"a, here": done_with("a", 0.5)}
    assert "No claim was judged" in write_page(study, done, tmp_path, "a command", quick=False).read_text()


def test_equal_numbers_have_no_spread():
    assert mean_and_spread(np.full(3, 6.4417599999999995))[1] == 0


def test_a_curve_goes_on_with_the_runs_that_do(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("rookery.reproduce.page.plot_panels", lambda panels, *rest, **options: drawn.update(panels))
    study = dataclasses.replace(STUDIES["fedvra-u"], axes=("exchanges",))
    plot(study, {"b, here": done_with("b", math.nan, 0.7)}, tmp_path / "it.png")
    x, mean, spread = drawn["exchanges\nhere"]["b"]
    assert x.tolist() == [0, 700] and mean.tolist() == [0.0, 0.7] and spread.tolist() == [0.0, 0.0]
    plot(study, {"b, here": done_with("b", math.inf, 0.7)}, tmp_path / "it.png")
    assert drawn["exchanges\nhere"]["b"][1].tolist() == [0.0, 0.7]


def test_the_best_step_is_one_at_which_no_run_diverges():
    cells = {cell.name: cell for cell in STUDIES["fedmsa-mco"].cells(True)}

    def made(name, *ends):
        rounds = cells[name].experiment.options.rounds
        points = lambda last, distance: ((0, 1.0), (last or rounds, distance))
        rows = lambda end: [{"round": r, "exchanges": r, "distance": d} for r, d in points(*end)]
        return Done(cells[name], [Table(rows(end)) for end in ends], 1.0, "abc", "cpu")

    close = {name: made(name, (0, 1e-3), (0, 1e-3)) for name in cells}
    assert STUDIES["fedmsa-mco"].claims(close)[0].holds
    lost = {name: made(name, (1, 1e-9), (0, 1e-9)) if "FedMSA" in name else each for name, each in close.items()}
    claim = STUDIES["fedmsa-mco"].claims(lost)[0]
    assert not claim.holds and claim.found.startswith("some run diverges at every step against 0.001")


def test_a_page_states_its_tolerance(tmp_path):
    measure = Measure("it", Last("accuracy", 2), tolerance=0.005, factor=1.3, percent=True)
    each = done_with("a", 0.9)
    each = dataclasses.replace(each, cell=dataclasses.replace(each.cell, paper={"it": 0.46}))
    missing = [dataclasses.replace(each.cell, row="b")]
    study = dataclasses.replace(
        STUDIES["fedvra-u"], measures=(measure,), cells=lambda quick: missing, claims=lambda done: []
    )
    page = write_page(study, {"a, here": each}, tmp_path, "a command", quick=False).read_text()
    assert "The tolerance: it 0.5 points; it a factor of 1.3; else none." in page
    assert "means of the last 2 evaluations" in page and "- b, here" in page
    assert (
        "within the tolerance of the paper's. That is of what was run." in page
    )  # and no word of claims, which there are none of


def test_a_commit_is_marked_where_the_code_was_changed(monkeypatch):
    monkeypatch.delenv("ROOKERY_COMMIT", raising=False)
    said = {"status": "", "rev-parse": "abc1234"}
    monkeypatch.setattr("rookery.reproduce.execute._git", lambda *words: said[words[0]])
    assert commit() == "abc1234"
    said["status"] = " M run.py"
    assert commit() == "abc1234+changes"
    monkeypatch.setenv("ROOKERY_COMMIT", "def5678")
    assert commit() == "def5678"


@pytest.mark.parametrize("name", [name for name in methods() if name not in ("SimFBO", "FedBiO", "FBO-AggITD")])
def test_every_method_of_the_frontier_runs(name):
    exchanges, tried = methods()[name]
    assert len(tried) == TRIALS and len({settings(method) for method in tried}) == TRIALS
    options = Options(clients=10, cohort=2, partition="shards:2", batch_size=4, engine="eager")
    experiment = Experiment("hyperrep", HyperRep(hidden=2), name, tried[0], options)
    result = rk.run(method=tried[0], rounds=1, **experiment.arguments(experiment.assemble()))
    assert result.history["exchanges"][-1] == exchanges


def test_numbers_are_shown_whole():
    measure = Measure("it", Last("accuracy"))
    assert measure.show_with_spread(20000.0, 1234.5) == "20,000 ± 1,234"
    assert measure.show_with_spread(126.66, 8.2) == "126.7 ± 8.2" and measure.show(0.00012345) == "0.0001234"
    assert measure.show_with_spread(349.3, 113.2) == "349.3 ± 110" and measure.show_with_spread(math.inf, 1) == "never"


def test_a_grid_has_a_row_per_method_and_leaves_out_what_has_no_meaning():
    study = dataclasses.replace(
        STUDIES["fedbio-tasks"], measures=(Measure("it", Last("accuracy"), percent=True), Measure("f1", Last("f1")))
    )
    table = rows_of(study, {"a, here": done_with("a", 0.9), "b, here": done_with("b", 0.6)})
    (grid,) = grids(study, table)  # nothing for f1, which no cell has
    assert (grid.heading, grid.columns, grid.rows) == ("it, %", ["here"], [["a", "90.00 ± 0"], ["b", "60.00 ± 0"]])
    assert [each.heading for each in grids(study, table, by_setting=True)] == ["here"]


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


def test_cells_know_the_code_that_made_them(tmp_path, shared):
    """A change of what a module does is said of the cells that use it; comments, docstrings and other modules are not
    one."""
    package = tmp_path / "rookery"
    shutil.copytree(Path(rk.__file__).parent, package)
    task, method = HyperRep(), rk.FedNest(lr=rk.Rates(x=0.1, y=0.1))
    before = digests(task, method, root=package)
    assert {"rookery.algorithms.fednest", "rookery.tasks.hyperrep", "rookery.engines.local"} <= set(before)
    assert not any(name.startswith(("rookery.cli", "rookery.reproduce")) for name in before)
    assert before == digests(task, method)

    def after(module: str, old: str, new: str) -> list[str]:
        copy = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "rookery"
        shutil.copytree(package, copy)
        path = copy.joinpath(*module.split(".")).with_suffix(".py")
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        return changed(before, digests(task, method, root=copy))

    assert after("algorithms.fednest", '"""p after T exchanges', '"""What is left after T exchanges') == []
    assert after("algorithms.aggitd", "self.lower_rounds + 1", "self.lower_rounds + 2") == []
    assert after("algorithms.rounds", "+ q)", "- q)") == ["rookery.algorithms.rounds"]
    page, _ = reproduce("aggitd-fig3", seeds=1, quick=True, out=shared, say=lambda text: None)
    assert "Older than the code" not in page.read_text()
    path = shared / ".cells" / "aggitd-fig3-quick" / "FedNest_C_=_0.1.json"
    text = path.read_text()
    kept = json.loads(text)
    try:
        path.write_text(json.dumps(kept | {"code": kept["code"] | {"rookery.algorithms.fednest": "0"}}))
        page, _ = reproduce("aggitd-fig3", seeds=1, quick=True, out=shared, say=lambda text: None, run=False)
        assert "- FedNest, C = 0.1: made before a change of algorithms.fednest." in page.read_text()
        path.write_text(json.dumps(kept | {"code": {}}))
        page, _ = reproduce("aggitd-fig3", seeds=1, quick=True, out=shared, say=lambda text: None, run=False)
        assert "- FedNest, C = 0.1: made before a change of more than is known" in page.read_text()
    finally:
        path.write_text(text)
    own = digests(Quadratic(), method)  # a task of a study's own, and what it is made of
    assert {"rookery.reproduce.fedbio", "rookery.problems.exact.bilevel"} <= set(own)
    assert changed(before | {"python": "2.7"}, before) == []


def test_one_page_has_every_number_of_the_papers(tmp_path):
    """Numbers and claims of all tables in a folder, each with its mark and its cause."""
    study = STUDIES["aggitd-table2"]
    rows = [
        {"method": method, "setting": "iid, tau = 1", "measure": measure, "paper": paper, "ours": ours, "spread": 0.001}
        | {"reached": 5, "seeds": 5}
        for method, measure, paper, ours in (
            ("FedNest", "exchanges to 90 %", 1630.0, 1600.0),
            ("FBO-AggITD", "exchanges to 90 %", 530.0, 300.0),
            ("FBO-AggITD", "final accuracy", 0.9294, 0.90),
            ("FBO-AggITD", "something else", 1.0, 1.0),
        )
    ]
    Table(rows).to_csv(tmp_path / "aggitd-table2.csv")
    claims = [{"claim": "a is first", "holds": True, "found": "1 | 2"}, {"claim": "b", "holds": False, "found": "3"}]
    Table(claims).to_csv(tmp_path / "aggitd-table2.claims.csv")
    text = write_index(tmp_path, [study]).read_text()
    assert "1 reproduced, 1 better, 1 worse." in text and "1 of 2 hold." in text
    assert "| FedNest, iid, tau = 1 | exchanges to 90 % | 1,630 | 1,600 ± 0.001 | ✓ |  |" in text
    assert "| 530 | 300 ± 0.001 | ▲ |" in text and "| 92.94 % | 90.00 ± 0.1 % | ✗ | No cause found yet. |" in text
    assert "| a is first | yes | 1 / 2 |  |" in text and "| b | **no** | 3 | No cause found yet. |" in text
    (tmp_path / "README.md").write_text("# My project")
    assert write_index(tmp_path, [study]).read_text() == "# My project"


def test_slopes_and_their_intervals():
    """An exact power has its exponent and no width; what scatters holds no claim; one seed has no interval."""
    sizes = (1, 2, 4)
    assert slope(sizes, [np.full(5, 8.0 / n) for n in sizes]) == pytest.approx((-1.0, 0.0))
    rng = np.random.default_rng(0)
    _, half = slope(sizes, [np.exp(rng.normal(size=5)) / n for n in sizes])
    each = rng.normal(size=5)
    tilted = [np.array([n ** (-1 + 0.1 * e) for e in each]) for n in sizes]
    assert slope(sizes, tilted)[1] == pytest.approx(2.776 * 0.1 * np.std(each, ddof=1) / 5**0.5)
    assert half > 0.2 and slope(sizes, [np.ones(1)] * 3)[1] == math.inf
