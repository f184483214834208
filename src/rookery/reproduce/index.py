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
from rookery.reproduce.study import Study, Summary, cell_name

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
        link, rows = f"[{study.name}]({study.name}.md)", _rows(folder / f"{study.name}.csv")
        older = _is_older(folder / f"{study.name}.md")
        spreads = {cell.name: cell.published_spread for cell in study.cells(False)} if rows else {}
        for row in rows:
            cell = cell_name(row["method"], row["setting"])
            found = _judged(study, row, cell, spreads.get(cell, {}), older)
            if found is not None:
                mark, line = found
                totals[mark] += 1
                numbers.append(_line((link, cell, *line)))
        for row in _rows(folder / f"{study.name}.claims.csv") if study.judged else ():
            holds = row["holds"] == "True"
            totals["held"] += holds
            cause = "" if holds else cause_of(study, row["claim"])
            orders.append(_line((link, row["claim"], "yes" if holds else "**no**", row["found"], cause)))
    said = ", ".join(f"{totals[mark]} {mark}" for mark in (REPRODUCED, BETTER, WORSE))
    lines = [_HEAD, *_table("Numbers", f"{said}.", ("study", "cell", *_OF_NUMBERS), numbers)]
    held = f"{totals['held']} of {len(orders)} hold."
    lines += ["", *_table("Orders and other claims", held, ("study", "claim", "holds", "found", "cause"), orders), ""]
    write_text(page, "\n".join(lines))
    return page


_OF_NUMBERS = ("measure", "paper", "ours", "mark", "cause")


def _judged(
    study: Study, row: Mapping[str, str], cell: str, published: Mapping[str, float], older: bool
) -> tuple[str, tuple[str, ...]] | None:
    """A number's mark, and what its line says of it; None: the paper has none, or the study has no such measure."""
    measure = next((each for each in study.measures if each.name == row["measure"]), None)
    paper = float(row["paper"] or "nan")
    if measure is None or math.isnan(paper):
        return None
    ours, spread = (float(row[key] or "nan") for key in ("ours", "spread"))
    reached, seeds = int(float(row["reached"])), int(float(row["seeds"]))
    mark = verdict(measure, ours, reached == seeds, paper, published.get(measure.name, 0.0))
    cause = _OLDER if older else cause_of(study, f"{cell}: {row['measure']} ({mark})")
    unit = " %" if measure.percent else ""
    shown = Summary(ours, spread, reached, seeds).show(measure, unit)
    return mark, (measure.name, f"{measure.show(paper)}{unit}", shown, MARKS[mark], "" if mark == REPRODUCED else cause)


_OLDER = "Its page is older than the study: it was made with other initial values, and is to be made again."


def _is_older(page: Path) -> bool:
    """Whether a page says that the study has changed since."""
    return page.is_file() and "**Older than the study**" in page.read_text(encoding="utf-8")


def _table(heading: str, total: str, columns: tuple[str, ...], rows: list[str]) -> list[str]:
    return [f"## {heading}", "", total, "", _line(columns), "|---" * len(columns) + "|", *rows]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"
