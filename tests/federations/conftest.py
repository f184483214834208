"""Federations on this machine: three processes that the tests of a file share."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rookery.engines.messaging import OnFailure
from rookery.engines.processes import Processes, Program
from rookery.experiments.experiment import Experiment, Options
from rookery.experiments.federation import serve
from rookery.experiments.site import SITE
from rookery.runs.run import run
from rookery.tasks.registry import find_task

HERE = Path(__file__).parent
EXACT = f"{HERE / 'exact_task.py'}:Exact"
SITES = ("site-1", "site-2", "site-3")


@dataclass
class Recording:
    """A transport whose messages are kept, as whoever sits on the wire sees them."""

    inside: Processes
    seen: list[bytes] = field(default_factory=list)

    @property
    def sites(self):
        return self.inside.sites

    slow = False

    def ask(self, requests, deadline):
        outcome = self.inside.ask(requests, deadline)
        self.seen += [request.body for request in requests] + list(outcome.replies.values())
        return outcome

    def close(self):
        self.inside.close()


class Pool:
    """Three processes, which become the sites of one federation after the other."""

    def __init__(self, folder: Path):
        self.folder = folder
        programs = {}
        for name in SITES:
            (folder / name).mkdir(parents=True)
            programs[name] = Program(
                [sys.executable, str(HERE / "pool_site.py"), str(folder / name)], folder / f"{name}.log"
            )
        self.transport = Recording(Processes(programs))

    def use(self, run: Path, sources: dict[str, str] | None = None) -> None:
        """Makes them the sites of a run."""
        for name in SITES:
            place = run / "sites" / name
            place.mkdir(parents=True, exist_ok=True)
            told = {"name": name, "configuration": str(run / "server"), "data": (sources or {}).get(name)}
            (place / SITE).write_text(json.dumps(told))
            (self.folder / name / "current").write_text(str(place))
            (self.folder / name / "fault.json").unlink(missing_ok=True)
        self.transport.seen.clear()

    def fail(self, site: int, kind: str, at: int) -> None:
        """Says what happens at a site, at which message to its client."""
        (self.folder / SITES[site] / "fault.json").write_text(json.dumps({"kind": kind, "at": at}))

    def happened(self) -> bool:
        """Whether everything that was to happen did."""
        return not list(self.folder.glob("*/fault.json"))

    def solve(
        self, experiment: Experiment, run: Path, policy: OnFailure | None = None, sources: Any = None, faults=(), **more
    ):
        """Runs an experiment on the three sites."""
        self.use(run, sources)
        for fault in faults:
            self.fail(*fault)
        return serve(run / "server", self.transport, experiment, policy, **more)


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    made = Pool(tmp_path_factory.mktemp("pool"))
    yield made
    made.transport.close()
    assert made.transport.inside.started == [None] * 3


def exact(problem: str, method: Any, rounds: int = 4, **options: Any) -> Experiment:
    """A problem with a known answer, with a method."""
    given = {"clients": 3, "rounds": rounds, "every": 2, "precision": "float64", "cohort": 0} | options
    return Experiment(EXACT, find_task(EXACT)(**{"problem": problem}), type(method).__name__, method, Options(**given))


def alone(experiment: Experiment) -> Any:
    """The same on this machine, compiled."""
    arguments = experiment.arguments(experiment.assemble())
    return run(method=experiment.method, rounds=experiment.options.rounds, every=experiment.options.every, **arguments)
