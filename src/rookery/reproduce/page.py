"""A study's results on paper: a table to print, csv, png and a page in markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from rookery.experiments.compare import cost
from rookery.experiments.experiment import COHORT
from rookery.experiments.tune import Tuning, settings
from rookery.files import write_text
from rookery.reproduce.code import changed, digests
from rookery.reproduce.study import Claim, Done, Last, Measure, Study, Summary, cell_name, summary
from rookery.runs.plot import plot_panels
from rookery.runs.table import Table

REPRODUCED, BETTER, WORSE = "reproduced", "better", "worse"
NO_NUMBER, NO_YARDSTICK = "no number given", "no yardstick"
MARKS = {REPRODUCED: "✓", BETTER: "▲", WORSE: "✗"}


def rows_of(study: Study, done: Mapping[str, Done], quick: bool = False) -> Table:
    """One row per cell and measure: the paper's number, ours with its spread, and whether it is reproduced."""
    table = Table()
    for each in done.values():
        for measure in study.measures:
            paper = each.cell.paper.get(measure.name, math.nan)
            found = summary(each, measure)
            table.append(
                {
                    "method": each.cell.row,
                    "setting": each.cell.column,
                    "measure": measure.name,
                    "paper": paper,
                    "ours": found.mean,
                    "spread": found.spread,
                    "reached": found.reached,
                    "seeds": found.seeds,
                    "diverged": sum(each.diverged),
                    "verdict": NO_YARDSTICK
                    if quick
                    else verdict(
                        measure,
                        found.mean,
                        found.reached == found.seeds,
                        paper,
                        each.cell.published_spread.get(measure.name, 0.0),
                    ),
                    "seconds": each.seconds,
                    "commit": each.commit,
                    "device": each.device,
                }
            )
    return table


def verdict(measure: Measure, ours: float, all_reached: bool, paper: float, spread: float = 0.0) -> str:
    """Whether a number counts as the paper's: reproduced, within the tolerance on either side; better; or worse."""
    if math.isnan(paper):
        return NO_NUMBER
    if math.isinf(paper):  # the paper never got there
        return BETTER if all_reached else REPRODUCED
    if not all_reached:
        return WORSE
    return {0: REPRODUCED, 1: BETTER, -1: WORSE}[measure.side(ours, paper, spread)]


def cause_of(study: Study, name: str) -> str:
    """The cause that was found of a number that is not the paper's, or of a claim that does not hold."""
    return next((text for part, text in study.causes.items() if part in name), "No cause found yet.")


def write_page(study: Study, done: Mapping[str, Done], folder: Path, command: str, quick: bool) -> Path:
    """Writes NAME.md, NAME.csv and NAME.png into a folder, and gives the page's path."""
    table, name = rows_of(study, done, quick), f"{study.name}-quick" if quick else study.name
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{name}.csv")
    if study.picture is None:
        plot(study, done, folder / f"{name}.png")
    else:
        study.picture(done, folder / f"{name}.png")
    page = folder / f"{name}.md"
    claims = _claims(study, done, quick)
    (folder / f"{name}.claims.csv").unlink(missing_ok=True)
    if claims:
        rows = [{"claim": claim.text, "holds": claim.holds, "found": claim.found} for claim in claims]
        Table(rows).to_csv(folder / f"{name}.claims.csv")
    write_text(page, render(study, done, table, claims, name, command, quick))
    return page


def _claims(study: Study, done: Mapping[str, Done], quick: bool) -> list[Claim]:
    """What can be judged of what was run: nothing quickly, and of some studies nothing where cells are missing."""
    missing = [cell for cell in study.cells(quick) if cell.name not in done]
    return [] if quick or (missing and not study.claims_of_parts) else list(study.claims(done))


def plot(study: Study, done: Mapping[str, Done], path: Path) -> None:
    """One panel per column and axis, one curve per row."""
    panels: dict[str, dict] = {}
    for each in done.values():
        if study.metric not in each.histories[0]:
            continue
        longest = max(each.histories, key=lambda history: len(history.rows))
        values = np.full((len(each.histories), len(longest.rows)), np.nan)  # of the runs that go on that long
        for number, history in enumerate(each.histories):
            values[number, : len(history.rows)] = history[study.metric]
        alive = np.ma.masked_invalid(values)
        mean, several = alive.mean(axis=0), alive.count(axis=0) > 1
        deviation = np.ma.where(several, alive.std(axis=0, ddof=min(1, len(alive) - 1)), 0 * mean)
        mean, spread = np.ma.filled(mean, np.nan), np.ma.filled(deviation, np.nan)
        for axis in study.axes:
            label = f"{axis}\n{each.cell.column}" if each.cell.column else axis
            panels.setdefault(label, {})[each.cell.row] = (cost(longest, axis), mean, spread)
    wrap = len(study.axes) if len(study.axes) > 1 else min(4, len(panels))
    plot_panels(
        panels,
        study.metric,
        path,
        title=study.title,
        wrap=wrap,
        logarithmic=study.logarithmic,
        log_metric=study.log_metric,
        lowest=study.lowest,
    )


def render(
    study: Study, done: Mapping[str, Done], table: Table, claims: list[Claim], name: str, command: str, quick: bool
) -> str:
    """The page."""
    missing = [cell.name for cell in study.cells(quick) if cell.name not in done]
    seconds = sum(each.seconds for each in done.values())
    by_seeds: dict[int, list[str]] = {}
    for each in done.values():
        by_seeds.setdefault(len(each.histories), []).append(each.cell.column or each.cell.row)
    seeds = max(by_seeds)
    rest = [f"{number} in {'; '.join(dict.fromkeys(of))}" for number, of in by_seeds.items() if number < seeds]
    natural = all(each.cell.experiment.options.partition == "natural" for each in done.values())
    first = min(each.cell.experiment.options.seed for each in done.values())
    drawn = "initial values" if natural else "partition, initial values"
    commits, devices = ({getattr(each, key) for each in done.values()} for key in ("commit", "device"))
    lines = [
        f"# {study.title}",
        "",
        f"{study.source}.",
        f"Made again by `{command}`, in {seconds:.0f} s of its cells together, on {', '.join(sorted(devices))}, at "
        f"commit {', '.join(sorted(commits))},",
        f"with {seeds} seeds ({first} to {first + seeds - 1}; each draws its own {drawn} and minibatches)"
        + (f"; {', '.join(rest)}." if rest else "."),
        *_cohorts(done),
        "",
    ]
    if quick:
        lines += [
            "**This is the quick version**: the code of the study on small data for a few rounds. It shows that it",
            "runs; it is no reproduction, and no claim of the study is judged by it.",
            "",
            *_ran(done),
            "",
        ]
    else:
        lines += [study.settings.strip(), ""]
    lines += [*_tables(study, done, table), ""]
    if claims:
        lines += [f"## {study.claims_heading}", "", "| claim | holds | found |", "|---|---|---|"]
        lines += [f"| {claim.text} | {'yes' if claim.holds else '**no**'} | {claim.found} |" for claim in claims]
        lines += [""]
    lines += [f"![{study.metric} against {', '.join(study.axes)}]({name}.png)", ""]
    if study.remarks and not quick:
        lines += ["## Remarks on the runs published with Rookery", "", study.remarks.strip(), ""]
    if tuned := {label: each.tuning for label, each in done.items() if each.tuning}:
        lines += ["## What tuning chose", "", *_tuned(tuned), ""]
    lines += [f"## {study.misses_heading}", "", *_missed(study, table, claims, missing, quick), ""]
    if missing:
        lines += ["## Not run", "", *(f"- {name}" for name in missing), ""]
    if older := _older(done):
        lines += ["## Older than the code", "", *older, ""]
    lines += [_seconds(study, done), ""]
    return "\n".join(lines)


def _ran(done: Mapping[str, Done]) -> list[str]:
    """What the cells ran, a line for those that ran alike but for their methods."""
    alike: dict[str, list[str]] = {}
    for each in done.values():
        experiment = each.cell.experiment
        options, task = experiment.options, experiment.task
        usual = type(task)()
        own = {f.name: getattr(task, f.name) for f in fields(task)}
        shown = [f"{name} {value}" for name, value in own.items() if name == "data" or value != getattr(usual, name)]
        batch = task.batch_size if options.batch_size is None else options.batch_size
        of_task = f" ({', '.join(shown)})" if shown else ""
        cohort = options.cohort if options.cohort is not None else min(COHORT, options.clients)
        said = (
            f"{experiment.task_name}{of_task}, {options.clients} clients, {cohort or 'all of them'} a round, "
            f"{options.partition}, minibatches of {batch or 'everything'}, {options.rounds} rounds"
        )
        alike.setdefault(said, []).append(each.cell.name)
    return [f"- {said}: {'; '.join(names)}" for said, names in alike.items()]


@dataclass(frozen=True)
class Grid:
    """Numbers as they are shown: a heading, names of columns, and rows with their names first."""

    heading: str
    columns: list[str]
    rows: list[list[str]]


def grids(study: Study, table: Table, by_setting: bool = False) -> list[Grid]:
    """A grid per measure with a column per setting, or the other way about."""
    outer, inner = ("setting", "measure") if by_setting else ("measure", "setting")
    measures = {measure.name: measure for measure in study.measures}
    unit = lambda name: f"{name}, %" if name in measures and measures[name].percent else name
    found = []
    for name in dict.fromkeys(row[outer] for row in table.rows):
        rows = [row for row in table.rows if row[outer] == name and not _empty(row)]
        if not rows:
            continue
        columns = list(dict.fromkeys(row[inner] for row in rows))
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            cells = {row[inner]: row for row in rows if row["method"] == method}
            texts = [cell_text(measures[row["measure"]], row) if (row := cells.get(c)) else "" for c in columns]
            lines.append([method, *texts])
        found.append(Grid(unit(name), [unit(column) for column in columns], lines))
    return found


def _empty(row: Mapping) -> bool:
    """Whether a measure has no meaning in a cell."""
    return math.isnan(row["ours"]) and math.isnan(row["paper"]) and not row["diverged"]


def _tables(study: Study, done: Mapping[str, Done], table: Table) -> list[str]:
    """The grids in markdown, and what their marks mean."""
    compared = any(not math.isnan(row["paper"]) and row["verdict"] != NO_YARDSTICK for row in table.rows)
    lines = []
    for grid in grids(study, table, study.by_setting):
        lines += [f"**{grid.heading}**: ours ± spread{' (paper), mark' if compared else ''}", ""]
        lines += [f"| | {' | '.join(grid.columns)} |", "|---" * (len(grid.columns) + 1) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in grid.rows] + [""]
    if compared:
        lines += ["✓ reproduced, within the tolerance on either side; ▲ better than that; ✗ worse."]
        lines += [_tolerances(study, any(each.cell.published_spread for each in done.values()))]
    lines += [_grain(study, done)]
    if any(row["diverged"] for row in table.rows):
        lines += ["A run that diverged has no end: such runs are in no mean of final values, and are counted."]
    return lines


def _tolerances(study: Study, spreads: bool) -> str:
    """How far a number may be from the paper's, on either side."""
    parts = ["a published standard deviation, where there is one"] if spreads else []
    sizes = {
        m.name: f"{100 * m.tolerance:g} point{'s' * (m.tolerance != 0.01)}" if m.percent else f"{m.tolerance:g}"
        for m in study.measures
        if m.tolerance
    }
    if len(sizes) == len(study.measures) > 2 and len(set(sizes.values())) == 1:
        parts.append(f"{next(iter(sizes.values()))} in everything")
    else:
        parts += [f"{name} {size}" for name, size in sizes.items()]
    for measure in study.measures:
        if measure.factor != 1:
            parts.append(f"{measure.name} a factor of {measure.factor:g}")
    rest = "" if parts and parts[-1].endswith("in everything") else "; else none"
    return f"The tolerance: {'; '.join(parts)}{rest}." if parts else "There is no tolerance."


def _grain(study: Study, done: Mapping[str, Done]) -> str:
    """How often runs were evaluated, and what an end is."""
    histories = [history for each in done.values() for history in each.histories if len(history.rows) > 1]
    steps = [float(history["exchanges"][1] - history["exchanges"][0]) for history in histories] or [0.0]
    least, most = min(steps), max(steps)
    often = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    text = f"Runs were evaluated every {often} exchanges"
    ends = sorted({measure.of.evaluations for measure in study.measures if isinstance(measure.of, Last)})
    means = [f"the last {number} evaluations" for number in ends if number > 1]
    return f"{text}; final values are means of {' or '.join(means)}." if means else f"{text}."


def _tuned(tuned: Mapping[str, Tuning]) -> list[str]:
    """What was tried and chosen, by cell."""
    lines = ["| | settings tried | gradient evaluations | chosen |", "|---|---|---|---|"]
    for name, tuning in tuned.items():
        lines += [f"| {name} | {len(tuning.table.rows)} | {tuning.gradients:,} | {settings(tuning.method)} |"]
    return lines


def cell_text(measure: Measure, row: Mapping) -> str:
    """One cell: ours ± spread (the paper's), and a mark."""
    ours = Summary(row["ours"], row["spread"], row["reached"], row["seeds"]).show(measure)
    if row["verdict"] in (NO_NUMBER, NO_YARDSTICK):
        return ours
    return f"{ours} ({measure.show(row['paper'])}) {MARKS[row['verdict']]}"


def _missed(study: Study, table: Table, claims: list[Claim], missing: list[str], quick: bool) -> list[str]:
    """What was not reproduced, on either side, each with the cause that was found."""
    if quick:
        return ["The quick version is no reproduction."]
    missed = [row for row in table.rows if row["verdict"] in (BETTER, WORSE)]
    names = [f"{cell_name(row['method'], row['setting'])}: {row['measure']} ({row['verdict']})" for row in missed]
    names += [claim.text for claim in claims if not claim.holds]
    if not names:
        compared = any(not math.isnan(row["paper"]) for row in table.rows)
        good = ["every number is within the tolerance of the paper's"] if compared else []
        good += ["every claim holds"] if claims else []
        unjudged = missing and not study.claims_of_parts and study.claims is not Study.claims
        none = (
            "No claim was judged, since some of what it compares was not run." if unjudged else "Nothing was claimed."
        )
        whole = f"Nothing: {', and '.join(good)}." if good else none
        return [f"{whole}{' That is of what was run.' if missing and not unjudged else ''}"]
    by_cause: dict[str, list[str]] = {}
    for name in names:
        by_cause.setdefault(cause_of(study, name), []).append(name)
    return [f"- {'; '.join(names)}. {cause}" for cause, names in by_cause.items()]


def _older(done: Mapping[str, Done]) -> list[str]:
    """Which cells were made by other code than there is, and what has changed since."""
    found: dict[str, list[str]] = {}
    for name, each in done.items():
        if not each.code:
            found.setdefault("more than is known: cells did not keep what made them", []).append(name)
            continue
        since = changed(each.code, digests(each.cell.experiment.task, each.cell.experiment.method))
        if since:
            found.setdefault(", ".join(module.removeprefix("rookery.") for module in since), []).append(name)
    said = {what: "; ".join(names) if len(names) < len(done) else "All cells" for what, names in found.items()}
    return [f"- {names}: made before a change of {what}." for what, names in said.items()]


# Commits of published cells whose cohorts `rk.Uniform` drew by sorting the population, and not by Floyd's method.
SORTED = frozenset(
    (
        "067641b", "2bc77a2", "2df2c35", "63af3e7", "70cc923", "8329c2e",
        "ab2a15a", "cfadd06", "d7d4326", "e2ee207", "f21f1a2",
    )
)  # fmt: skip


def _cohorts(done: Mapping[str, Done]) -> list[str]:
    """Which sampler drew the cohorts, where another would now."""
    drawn = [each for each in done.values() if each.cell.experiment.options.cohort != 0]
    before = [each for each in drawn if each.commit.split("+")[0] in SORTED]
    if not before:
        return []
    of = (
        "Cohorts"
        if len(before) == len(drawn)
        else f"Cohorts of cells at {', '.join(sorted({b.commit for b in before}))}"
    )
    return [f"{of} were drawn by the sampler before Floyd's method: with the same seeds, clients are others now."]


def _seconds(study: Study, done: Mapping[str, Done]) -> str:
    """How long the cells took; the table has the seconds of each."""
    name, slowest = max(done.items(), key=lambda item: item[1].seconds)
    middle = float(np.median([each.seconds for each in done.values()]))
    return (
        f"A cell took {middle:.0f} s in the median, compilation included, and at most {slowest.seconds:.0f} s "
        f"({name}). "
        f"[{study.name}.csv]({study.name}.csv) has the seconds of each."
    )
