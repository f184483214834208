"""One page of everything that was made again: every number of the papers, ours, its mark and its cause.

It is made of the tables that lie in the folder of the pages, whichever study wrote them.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rookery.files import write_text
from rookery.reproduce.page import BETTER, MARKS, REPRODUCED, WORSE, cause_of, verdict
from rookery.reproduce.study import Study, Summary

NAME = "README.md"
_HEAD = """# The papers' numbers, and ours

Written by `rookery reproduce`, from the tables in this folder. A number is **reproduced** (✓) where ours is within the
tolerance of its page, on either side; **better** (▲) and **worse** (✗) numbers have the cause that was found. Curves
without numbers are judged by their orders, in the second table; pages say more.
"""


def write_index(folder: Path, studies: Iterable[Study]) -> Path:
    """Writes README.md of a folder of pages, or finds it to be somebody else's and leaves it."""
    page = folder / NAME
    if page.is_file() and not page.read_text(encoding="utf-8").startswith(_HEAD.split("\n")[0]):
        return page
    numbers: list[str] = []
    orders: list[str] = []
    totals = Counter[str]()
    for study in studies:
        for row in _rows(folder / f"{study.name}.csv"):
            found = _judged(study, row)
            if found is not None:
                mark, line = found
                totals[mark] += 1
                numbers.append(line)
        for row in _rows(folder / f"{study.name}.claims.csv") if study.judged else ():
            holds = row["holds"] == "True"
            cause = "" if holds else cause_of(study, row["claim"])
            cells = (
                f"[{study.name}]({study.name}.md)",
                row["claim"],
                "yes" if holds else "**no**",
                row["found"],
                cause,
            )
            orders.append(_line(cells))
    held = sum("| yes |" in line for line in orders)
    said = ", ".join(f"{totals[mark]} {mark}" for mark in (REPRODUCED, BETTER, WORSE))
    lines = [
        _HEAD,
        "## Numbers",
        "",
        f"{said}.",
        "",
        _line(("study", "cell", "measure", "paper", "ours", "mark", "cause")),
    ]
    lines += ["|---" * 7 + "|", *numbers, "", "## Orders and other claims", ""]
    lines += [
        f"{held} of {len(orders)} hold.",
        "",
        _line(("study", "claim", "holds", "found", "cause")),
        "|---" * 5 + "|",
    ]
    write_text(page, "\n".join([*lines, *orders, ""]))
    return page


def _judged(study: Study, row: Mapping[str, str]) -> tuple[str, str] | None:
    """A number's mark and its line; None: the paper has none, or the study no such measure any more."""
    measure = next((each for each in study.measures if each.name == row["measure"]), None)
    paper = float(row["paper"] or "nan")
    if measure is None or math.isnan(paper):
        return None
    ours, spread = (float(row[key] or "nan") for key in ("ours", "spread"))
    reached, seeds = int(float(row["reached"])), int(float(row["seeds"]))
    cell = f"{row['method']}, {row['setting']}" if row["setting"] else row["method"]
    published = next((each.published_spread for each in study.cells(False) if each.name == cell), {})
    mark = verdict(measure, ours, reached == seeds, paper, published.get(measure.name, 0.0))
    cause = "" if mark == REPRODUCED else cause_of(study, f"{cell}: {row['measure']} ({mark})")
    unit = " %" if measure.percent else ""
    shown = Summary(ours, spread, reached, seeds).show(measure, unit)
    link = f"[{study.name}]({study.name}.md)"
    return mark, _line((link, cell, measure.name, f"{measure.show(paper)}{unit}", shown, MARKS[mark], cause))


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"
