"""A queue of cells for a machine that is there for minutes: `rookery queue --minutes 9`.

It runs the next cells of a priority list until a time limit, and saves each at once. Run again, it resumes with the
cells that are not done. One process per GPU: several run out of memory. `--merge` takes over the cells of another
machine; `--check` then runs two rounds of each on a CPU, which tell later whether a cell is what the code still gives.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rookery.errors import InputError
from rookery.files import slug, write_text
from rookery.reproduce.execute import asked_for, read_done, run_cell, write_done
from rookery.reproduce.registry import find_study
from rookery.reproduce.replay import check_cell
from rookery.reproduce.study import Cell, Done, Study

# STUDY, STUDY:PATTERN of cells' names, or either with @SEEDS. What comes first is run first.
PRIORITY = (
    "fedmsa-losstuning:FedMSA, K = ?, q = *",
    "fedmsa-losstuning:FedMSA, K = ??, q = *",
    "fedmsa-losstuning:FedNest, K = *",
    "fedvra-readings:*FedVRA*",
    "fedvra-readings:*FedDyn*",
    "fedvra-table3:FedVRA*",
    "fedvra-table3:*non-iid*",
    "aggitd-table2",
    "fedvra-table3",
    "aggitd-fig4",
    "aggitd-fig5",
    "aggitd-fig6",
    "fedmsa-losstuning",
    "fedvra-table4",
    "fedvra-fig2",
    "fedvra-u",
    "frontier",
)
UNKNOWN = 90.0  # seconds that a cell is taken to need where nothing like it is done
MARGIN = 1.2  # how much longer than the last one like it a cell may take


@dataclass(frozen=True)
class Waiting:
    """A cell of a study that is to be run with a number of seeds, and the file that keeps it."""

    study: Study
    cell: Cell
    seeds: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.study.name}: {self.cell.name}, {self.seeds} seed{'s' * (self.seeds > 1)}"


def parse_entry(entry: str) -> tuple[Study, str, int | None]:
    """Return the study of an entry, the pattern of its cells' names, and the number of seeds where it names one."""
    text, at, seeds = entry.rpartition("@")
    if not at:
        text, seeds = entry, ""
    elif not seeds.isdigit() or int(seeds) < 1:
        raise InputError(f"entry must be STUDY, STUDY:PATTERN or either with @SEEDS, SEEDS from 1; got {entry!r}.")
    name, _, pattern = text.partition(":")
    return find_study(name), pattern or "*", int(seeds) if seeds else None


def listed(entries: Sequence[str], out: Path, quick: bool = False) -> Iterator[Waiting]:
    """Yield the cells of the entries in their order, each once, whether they are done or not."""
    seen: set[Path] = set()
    for entry in entries:
        study, pattern, seeds = parse_entry(entry)
        runs_of = study.runs_of or study.name
        folder = out / ".cells" / (f"{runs_of}-quick" if quick else runs_of)
        for cell in study.cells(quick):
            path = folder / f"{slug(cell.name)}.json"
            if fnmatchcase(cell.name, pattern) and path not in seen:
                seen.add(path)
                yield Waiting(study, cell, cell.seeds(seeds or (2 if quick else study.seeds)), path)


def find_done(one: Waiting) -> Done | None:
    """Return a cell as it is kept, if it is kept as it is asked for now."""
    return read_done(one.path, one.cell, asked_for(one.cell, one.seeds))


def is_done(one: Waiting) -> bool:
    """Whether a cell is kept as it is asked for now, and no check found that the code gives something else."""
    return find_done(one) is not None and not json.loads(one.path.read_text()).get("stale", False)


@dataclass
class Estimates:
    """Seconds that cells take, learnt from those that are done: of the same row, else of the same study."""

    seconds: dict[tuple[str, str], float]

    @classmethod
    def of_cells(cls, waiting: Sequence[Waiting]) -> Estimates:
        """Learn from the cells that are kept in files."""
        known = cls({})
        for one in waiting:
            if one.path.is_file():
                known.learn(one, float(json.loads(one.path.read_text())["seconds"]))
        return known

    def learn(self, one: Waiting, seconds: float) -> None:
        """Take note of what a cell took, per seed."""
        for key in ((one.study.name, one.cell.row), (one.study.name, "")):
            self.seconds[key] = seconds / one.seeds

    def of(self, one: Waiting) -> float:
        """Return what a cell is expected to take."""
        known = [self.seconds.get((one.study.name, row)) for row in (one.cell.row, "")]
        return next((MARGIN * each * one.seeds for each in known if each is not None), UNKNOWN)


def run_queue(
    entries: Sequence[str],
    minutes: float,
    out: Path,
    say: Callable[[str], Any] = print,
    journal: Path | None = None,
    quick: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> list[Waiting]:
    """Run cells until the time is over; a cell that is not expected to end in time is not begun.

    Args:
      entries: The priority list.
      minutes: The time limit.
      out: The folder of the pages; cells are kept in its .cells/.
      say: Called with a sentence about what is done.
      journal: A file to which each finished cell is appended, for `merge` on another machine.
      quick: Whether to run the small versions of the studies.
      clock: What gives the time in seconds.

    Returns:
      The cells that are left.
    """
    end = clock() + 60 * minutes
    cells = list(listed(entries, out, quick))
    estimates = Estimates.of_cells(cells)
    left = [one for one in cells if not is_done(one)]
    for one in list(left):
        if (needed := estimates.of(one)) > end - clock():
            say(f"{one.name}: left, since about {needed:.0f} s are needed and {max(0.0, end - clock()):.0f} s are left")
            continue
        say(f"{one.name}: begun, about {needed:.0f} s")
        begun = clock()
        try:
            done = run_cell(one.cell, one.seeds)
        except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:  # the next cells may run yet
            say(f"  failed: {type(error).__name__}: {str(error)[:300]}")
            continue
        write_done(one.path, done, asked_for(one.cell, one.seeds))
        if journal is not None:
            note(journal, out, one.path)
        estimates.learn(one, clock() - begun)
        left.remove(one)
        ended = "; ".join(
            f"{measure.name} {measure.show(float(value))}"
            for measure in one.study.measures
            for value in [_mean(done, measure)]
        )
        say(f"  {done.seconds:.1f} s: {ended}")
    say(summary_of(left, estimates))
    return left


def _mean(done: Any, measure: Any) -> float:
    """Return the mean of a measure over seeds, infinite where one never got there."""
    return float(sum(done.values(measure)) / len(done.histories))


def summary_of(left: Sequence[Waiting], estimates: Estimates) -> str:
    """Return a sentence on what is left."""
    if not left:
        return "nothing is left"
    lines = [f"{len(left)} cells are left, about {sum(map(estimates.of, left)) / 60:.0f} minutes:"]
    return "\n".join(lines + [f"  {one.name}, about {estimates.of(one):.0f} s" for one in left])


def check(entries: Sequence[str], out: Path, say: Callable[[str], Any] = print, quick: bool = False) -> dict[str, str]:
    """Check the cells that are kept against the present code; returns the outcome of each by its name."""
    found = {}
    for one in listed(entries, out, quick):
        if (done := find_done(one)) is not None:
            found[one.name] = check_cell(one.path, done, say)
            say(f"{one.name}: {found[one.name]}")
    return found


def note(journal: Path, out: Path, path: Path) -> None:
    """Append a finished cell to a journal: a line of json, compressed by itself."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"path": path.relative_to(out / ".cells").as_posix(), "cell": path.read_text()}) + "\n"
    with journal.open("ab") as file:
        file.write(gzip.compress(line.encode()))


def merge(journal: Path, out: Path, say: Callable[[str], Any] = print) -> list[Path]:
    """Write the cells of a journal into a folder of pages; returns their files."""
    written = []
    try:
        lines = gzip.decompress(journal.read_bytes()).decode().splitlines()
        found = [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"merge: {journal} is no journal of a queue, or was cut off: {error}") from None
    for each in found:
        path = out / ".cells" / each["path"]
        if not path.resolve().is_relative_to((out / ".cells").resolve()):
            raise InputError(f"merge: {journal} names {each['path']!r}, which is outside of the cells' folder.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, each["cell"])
        written.append(path)
    say(f"{len(written)} cells were merged into {out / '.cells'}")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="rookery queue", description=__doc__)
    parser.add_argument("entries", nargs="*", help="STUDY, STUDY:PATTERN or either with @SEEDS; default: all that wait")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the pages")
    parser.add_argument("--journal", type=Path, help="file to which finished cells are appended as well")
    parser.add_argument("--merge", type=Path, help="run nothing: take the cells of this journal over")
    parser.add_argument("--check", action="store_true", help="run no cell: check those that are kept, on a CPU")
    parser.add_argument("--list", action="store_true", help="run nothing: print what is left")
    parser.add_argument("--quick", action="store_true", help="small versions, on data that is built in")
    given = parser.parse_args(arguments)
    say = lambda text: print(text, flush=True)
    entries = given.entries or PRIORITY
    try:
        if given.merge is not None:
            merge(given.merge, given.out, say)
        elif given.check:
            check(entries, given.out, say, given.quick)
        elif given.list:
            cells = list(listed(entries, given.out, given.quick))
            say(summary_of([one for one in cells if not is_done(one)], Estimates.of_cells(cells)))
        else:
            run_queue(entries, given.minutes, given.out, say, given.journal, given.quick)
    except InputError as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
