"""The studies by their names on the command line, and what runs one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery.errors import InputError, unknown
from rookery.reproduce import aggitd_figures, fedvra, fedvra_readings, simfbo
from rookery.reproduce.aggitd import TABLE2
from rookery.reproduce.aggitd_readings import READINGS_STUDY
from rookery.reproduce.bytes import BYTES
from rookery.reproduce.execute import run_study
from rookery.reproduce.fedbio import RATES
from rookery.reproduce.fedbio_tasks import TASKS
from rookery.reproduce.fedmsa import LOSS_TUNING, MCO
from rookery.reproduce.fedvra_u import SEMI_SUPERVISED
from rookery.reproduce.flamby import FLAMBY
from rookery.reproduce.frontier import FRONTIER
from rookery.reproduce.gossip import GOSSIP
from rookery.reproduce.index import write_index
from rookery.reproduce.page import write_page
from rookery.reproduce.study import Done, Study
from rookery.reproduce.theory import THEORY
from rookery.reproduce.trust import TRUST

_ALL = (
    TABLE2,
    READINGS_STUDY,
    aggitd_figures.FIGURE3,
    aggitd_figures.FIGURE4,
    aggitd_figures.FIGURE5,
    aggitd_figures.FIGURE6,
    aggitd_figures.FIGURE7,
    simfbo.FIGURE2,
    simfbo.FIGURE3,
    simfbo.FIGURE4,
    simfbo.FIGURE5,
    MCO,
    LOSS_TUNING,
    fedvra.FIGURE2,
    fedvra.TABLE3,
    fedvra_readings.READINGS_STUDY,
    fedvra.TABLE4,
    SEMI_SUPERVISED,
    RATES,
    TASKS,
    FRONTIER,
    FLAMBY,
    THEORY,
    GOSSIP,
    BYTES,
    TRUST,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def reproduce(
    name: str,
    seeds: int | None = None,
    quick: bool = False,
    out: str | Path = "results",
    say: Callable[[str], Any] = print,
    run: bool = True,
) -> tuple[Path, dict[str, Done]]:
    """Runs a study's cells and writes its page.

    Args:
      name: one of `STUDIES`.
      seeds: how many; None: the study's own number, two in the small version.
      quick: the small version, on data that is built in, with few rounds: the same code.
      out: the folder of the pages; cells that are done are kept in its .cells/ and not run again.
      say: called with a sentence about what is done.
      run: whether to run what is not done; otherwise the page is of what is, and names what is missing.

    Returns:
      The page, and what was done, by the names of the cells.
    """
    study = find_study(name)
    seeds = (2 if quick else study.seeds) if seeds is None else seeds
    if seeds < 1:
        raise InputError(f"seeds: {seeds} was given; at least 1 is needed")
    runs_of = study.runs_of or name
    cells = Path(out) / ".cells" / (f"{runs_of}-quick" if quick else runs_of)
    done = run_study(study, seeds, quick, cells, say, run)
    if not done:
        raise InputError(f"study: no cell of {name} with {seeds} seeds is done under {str(out)!r}; run some first")
    command = f"rookery reproduce {name} --seeds {seeds}{' --quick' if quick else ''}"
    page = write_page(study, done, Path(out), command, quick)
    if not quick:
        write_index(Path(out), STUDIES.values())
    return page, done
