"""A study's results on paper: a table to print, csv, png and a page in markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rookery.reproduce.study import Claim, Done, Measure, Study, mean_and_spread
from rookery.runs.files import write_text
from rookery.runs.plot import plot_panels
from rookery.runs.table import Table


def rows_of(study: Study, done: Mapping[str, Done], quick: bool = False) -> Table:
    """One row per cell and measure: the paper's number, ours with its spread, and whether it is reproduced."""
    table = Table()
    for each in done.values():
        for measure in study.measures:
            paper = each.cell.paper.get(measure.name, math.nan)
            values = each.values(measure)
            mean, spread, reached = mean_and_spread(values)
            table.append(
                {
                    "method": each.cell.row,
                    "setting": each.cell.column,
                    "measure": measure.name,
                    "paper": paper,
                    "ours": mean,
                    "spread": spread,
                    "reached": reached,
                    "seeds": len(values),
                    "verdict": "no yardstick" if quick else verdict(measure, mean, reached == len(values), paper),
                    "seconds": each.seconds,
                    "commit": each.commit,
                    "device": each.device,
                }
            )
    return table


def verdict(measure: Measure, ours: float, all_reached: bool, paper: float) -> str:
    """Whether a number counts as the paper's: better, within the tolerance, or not reproduced."""
    if math.isnan(paper):
        return "no number given"
    if math.isinf(paper):  # the paper never got there
        return "reproduced" if math.isinf(ours) else "better"
    if not all_reached:
        return "not reproduced"
    better = ours >= paper if measure.rising else ours <= paper
    if better:
        return "better"
    return "within tolerance" if measure.holds(ours, paper) else "not reproduced"


def write_page(study: Study, done: Mapping[str, Done], folder: Path, command: str, quick: bool) -> Path:
    """Writes NAME.md, NAME.csv and NAME.png into a folder, and gives the page's path."""
    table, name = rows_of(study, done, quick), f"{study.name}-quick" if quick else study.name
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{name}.csv")
    plot(study, done, folder / f"{name}.png")
    page = folder / f"{name}.md"
    write_text(page, render(study, done, table, name, command, quick))
    return page


def plot(study: Study, done: Mapping[str, Done], path: Path) -> None:
    """One panel per column, one curve per row."""
    panels: dict[str, dict] = {}
    for each in done.values():
        length = min(len(history.rows) for history in each.histories)
        values = np.stack([history[study.metric][:length] for history in each.histories])
        x = np.mean([history[study.axis][:length] for history in each.histories], axis=0)
        label = f"{study.axis}\n{each.cell.column}" if each.cell.column else study.axis
        panels.setdefault(label, {})[each.cell.row] = (x, values.mean(axis=0), values.std(axis=0))
    plot_panels(panels, study.metric, path, title=study.title)


def render(study: Study, done: Mapping[str, Done], table: Table, name: str, command: str, quick: bool) -> str:
    """The page."""
    missing = [cell.name for cell in study.cells(quick) if cell.name not in done]
    claims = [] if missing and not study.claims_of_parts else list(study.claims(done))
    any_cell = next(iter(done.values()))
    seconds, seeds = sum(each.seconds for each in done.values()), len(any_cell.histories)
    commits, devices = ({getattr(each, key) for each in done.values()} for key in ("commit", "device"))
    lines = [
        f"# {study.title}",
        "",
        f"{study.source}. Made again by `{command}`",
        f"in {seconds:.0f} s on {', '.join(sorted(devices))}, at commit {', '.join(sorted(commits))}, "
        f"with {seeds} seeds (0 to {seeds - 1}; each draws its own partition, initial values and minibatches).",
        "",
    ]
    if quick:
        lines += [
            "**This is the quick version**: built-in data and few rounds; the paper's numbers are no yardstick.",
            "",
        ]
    lines += [study.settings.strip(), "", *_tables(study, table), ""]
    if claims:
        lines += ["## What the paper claims", "", "| claim | holds | found |", "|---|---|---|"]
        lines += [f"| {claim.text} | {'yes' if claim.holds else '**no**'} | {claim.found} |" for claim in claims]
        lines += [""]
    lines += [f"![{study.metric} against {study.axis}]({name}.png)", ""]
    lines += ["## Not reproduced", "", *_missed(study, table, claims, quick), ""]
    if missing:
        lines += ["## Not run", "", *(f"- {name}" for name in missing), ""]
    lines += ["Seconds of each cell, compilation included: " + _seconds(done) + ".", ""]
    return "\n".join(lines)


def _tables(study: Study, table: Table) -> list[str]:
    """A table with rows of methods and columns of settings: ours ± spread (the paper's)."""
    settings = list(dict.fromkeys(row["setting"] for row in table.rows))
    methods = list(dict.fromkeys(row["method"] for row in table.rows))
    lines = []
    for measure in study.measures:
        found = {(row["method"], row["setting"]): row for row in table.rows if row["measure"] == measure.name}
        unit = ", %" if measure.percent else ""
        lines += [f"**{measure.name}{unit}**: ours ± spread (paper), mark", ""]
        lines += [f"| | {' | '.join(settings)} |", "|---" * (len(settings) + 1) + "|"]
        for method in methods:
            cells = [cell_text(measure, found.get((method, setting))) for setting in settings]
            lines += [f"| {method} | {' | '.join(cells)} |"]
        lines += [""]
    lines += ["✓ at least as good as the paper's number, or within the tolerance; ✗ not reproduced."]
    return lines


def cell_text(measure: Measure, row: Mapping | None) -> str:
    """One cell: ours ± spread (the paper's), and a mark."""
    if row is None:
        return ""
    ours = measure.show(row["ours"])
    if math.isfinite(row["ours"]):
        spread = 100 * row["spread"] if measure.percent else row["spread"]
        ours += f" ± {spread:.2g}"
        if row["reached"] < row["seeds"]:
            ours += f", {row['reached']} of {row['seeds']}"
    if row["verdict"] in ("no number given", "no yardstick"):
        return ours if math.isnan(row["paper"]) else f"{ours} ({measure.show(row['paper'])})"
    mark = "✗" if row["verdict"] == "not reproduced" else "✓"
    return f"{ours} ({measure.show(row['paper'])}) {mark}"


def _missed(study: Study, table: Table, claims: list[Claim], quick: bool) -> list[str]:
    """What was not reproduced, each with the cause that was found."""
    if quick:
        return ["The quick version is no reproduction."]
    missed = [row for row in table.rows if row["verdict"] == "not reproduced"]
    names = [f"{row['method']}, {row['setting']}: {row['measure']}" for row in missed]
    names += [claim.text for claim in claims if not claim.holds]
    if not names:
        return [
            "Nothing: every number is at least as good as the paper's, or within the tolerance, and every claim holds."
        ]
    lines = []
    for name in names:
        cause = next((text for part, text in study.causes.items() if part in name), "no cause found yet")
        lines.append(f"- {name}. {cause}")
    return lines


def _seconds(done: Mapping[str, Done]) -> str:
    return "; ".join(f"{name} {each.seconds:.0f}" for name, each in done.items())
