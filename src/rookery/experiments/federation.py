"""The server of a federation: an experiment whose clients are elsewhere, run into a folder, and gone on with.

Imports experiments, runs and engines.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rookery.data.catalogue import DATASETS
from rookery.data.own_tables import shown_data
from rookery.data.partitions import Natural, parse
from rookery.data.sites import Outline
from rookery.engines.base import PreparedRun
from rookery.engines.messaging import LONGEST, PAUSE, ClientsFailed, Note, OnFailure
from rookery.engines.remote import Remote
from rookery.engines.transport import Outcome, Request, Seat, Transport
from rookery.engines.worker import AGAIN, JOIN, NEED, REFUSED
from rookery.errors import InputError, MessageError, cleaned
from rookery.experiments.configuration import agreement, common, read_configuration, write_configuration
from rookery.experiments.experiment import (
    CONFIG,
    Callback,
    Experiment,
    discarded_when_refused,
    finish,
    go,
    has_ended,
)
from rookery.experiments.site import COMPARED, GOODBYE, HELLO, MEASURED_FIRST, assembled, reports_problem
from rookery.federation.measuring import Curvature
from rookery.federation.wire import Wire
from rookery.files import check_path, checksum, read_json, slug, write_text
from rookery.memory import check_fits
from rookery.runs.events import EVENTS, EventFile, Watch, printing
from rookery.runs.fingerprint import difference, uncompared
from rookery.runs.folder import open_folder, versions
from rookery.runs.own_metrics import SUMMARY
from rookery.runs.prepare import precision_context
from rookery.runs.result import Result
from rookery.runs.table import Table
from rookery.tasks.base import Assembly

FEDERATION, MISSING = "federation", "missing.csv"
DOMINANT = 10  # times the examples of all others that one site has, from which on the server says so

Say = Callable[[str], Any]
Sources = Mapping[str, str | None]  # sites by name, and the data that is their own; None: shares of what everybody has


def public(sources: Sources) -> dict[str, str | None]:
    """Sites, with their data where it is a part of what everybody has: what a configuration may say of them."""
    known = lambda data: isinstance(data, str) and data.partition("#")[0] in DATASETS
    return {name: data if known(data) else None for name, data in sources.items()}


def check_names(sources: Sources) -> None:
    """Refuses names of sites that cannot be shown, or that two sites would share as names of folders."""
    taken: dict[str, str] = {}
    for name in sources:
        if cleaned(name, 100) != name or not name:
            raise InputError(f"sites: {cleaned(name, 100)!r} cannot name a site; give up to 100 printable characters")
        other = taken.setdefault(slug(name).lower(), name)
        if other != name:
            raise InputError(f"sites: {other!r} and {name!r} would share the folder {slug(name)!r}; rename one")


def new_name(stem: str) -> str:
    """What a run is called at all its sites."""
    return f"{slug(stem)}-{uuid.uuid4().hex[:12]}"


def serve(
    folder: Path,
    transport: Transport,
    experiment: Experiment | None = None,
    on_failure: OnFailure | None = None,
    told: Mapping[str, Any] | None = None,
    callbacks: Callable[[Path], Iterable[Callback]] | None = None,
    say: Say = lambda text: None,
    watch: Watch = lambda event: None,
) -> Result:
    """Runs an experiment with clients behind a transport, into a folder; one that was stopped goes on, bit for bit.

    Args:
      folder: a new or empty one, or one of a run that was stopped.
      experiment: what is run; None: what the folder says.
      told: what the folder's configuration says besides, such as how its sites are started again.
      say: Called with each line to print, the events that matter among them.
      watch: Called with every event of the run.
    """
    check_path(folder, "out")
    shown = printing(say)
    note = EventFile(folder / EVENTS, lambda event: (watch(event), shown(event)))
    resumed = (folder / CONFIG).is_file()
    if resumed:
        if experiment is not None:
            refuse_another(folder, experiment)
        found, config = read_configuration(folder)
        if FEDERATION not in config:
            raise InputError(f"run: {str(folder)!r} holds a run on one machine; give a new or empty folder")
        if has_ended(folder):
            return Result.load(folder)
        with open_folder(folder, "", existing=True):
            return _served(_Server(found, config, transport, on_failure, say, note), folder, callbacks, resumed)
    if experiment is None:
        raise InputError(f"run: {str(folder)!r} holds no {CONFIG}; the folder of a run is needed")
    with open_folder(folder, ""):
        with _discarded(folder):
            write_configuration(experiment, folder, {FEDERATION: {"run": uuid.uuid4().hex} | dict(told or {})})
            found, config = read_configuration(folder)
            server = _Server(found, config, transport, on_failure, say, note)
            result, assembly = _run(server, folder, callbacks, resumed)
        return _ended(server, folder, result, assembly)


def refuse_another(folder: Path, experiment: Experiment) -> None:
    """Refuses to go on in a folder that has another experiment's configuration."""
    with tempfile.TemporaryDirectory() as aside:
        write_configuration(experiment, Path(aside))
        ours = common(read_json(Path(aside) / CONFIG, "run"))
    part = difference(common(read_json(folder / CONFIG, "run")), ours)
    if part is not None:
        raise InputError(
            f"out: {str(folder)!r} holds a run with another {part}; give a new or empty folder, or remove or rename "
            "this one"
        )


@contextlib.contextmanager
def _discarded(folder: Path) -> Iterator[None]:
    """A run that fails before it has done a round leaves nothing but what its sites have to say."""
    try:
        with discarded_when_refused(folder):
            logs = {path: path.read_bytes() for path in folder.glob("sites/*/site.log")}
            try:
                yield
            except BaseException:
                logs = {path: path.read_bytes() for path in folder.glob("sites/*/site.log")}
                raise
    except InputError as error:
        said = {path: content for path, content in logs.items() if reports_problem(content)}
        if not said or folder.exists():
            raise
        for path, content in said.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        raise InputError(f"{error}; the sites' logs are in {str(folder / 'sites')!r}") from None


def _served(server: _Server, folder: Path, callbacks: Any, resumed: bool) -> Result:
    return _ended(server, folder, *_run(server, folder, callbacks, resumed))


def _run(server: _Server, folder: Path, callbacks: Any, resumed: bool) -> tuple[Result, Assembly]:
    """Makes sure of the sites, and runs."""
    outline, config = server.greet(), server.config
    before = config[FEDERATION].get("outline", outline)
    if resumed:
        server.check_unchanged(outline, before)
    assembly = server.assembly(outline)
    if not resumed:
        server.say(assembly.clients.described())
        if said := shown_data(assembly.clients.about):
            server.say(said)
        described = {"outline": None if outline is None else outline.to_json(), "facts": server.digests}
        federation = config[FEDERATION] | described
        shown = {"main_metric": assembly.main_metric, "falling": assembly.falling, "versions": versions()}
        shown["data"] = assembly.clients.stated()
        write_text(folder / CONFIG, json.dumps(config | shown | {FEDERATION: federation}, indent=1))
    try:
        engine = server.engine(assembly, outline)
        return go(server.experiment, assembly, folder, callbacks, server.note, resumed, engine), assembly
    except ClientsFailed as error:
        if error.missing:
            Table(error.missing).to_csv(folder / MISSING)
        raise


def _ended(server: _Server, folder: Path, result: Result, assembly: Assembly) -> Result:
    """Tells the sites, and writes what came of it."""
    if result.missing.rows:
        result.missing.to_csv(folder / MISSING)
    if result.status != "interrupted":
        server.part(result)
    if result.state.versions is not None:
        sent, received = result.state.versions["bytes"]
        server.say(f"messages as they travelled: {sent / 1e6:.4g} MB sent, {received / 1e6:.4g} MB received")
    finish(folder, result, server.experiment, assembly)
    return result


class _Server:
    """What a server says to its sites, and makes sure of."""

    def __init__(
        self,
        experiment: Experiment,
        config: dict[str, Any],
        transport: Transport,
        on_failure: OnFailure | None,
        say: Say,
        note: Note,
    ):
        self.experiment = experiment
        self.config = config
        self.transport = transport
        self.on_failure = on_failure or OnFailure()
        self.say = say
        self.note = note
        self.run = str(config[FEDERATION]["run"])
        self.digests: dict[str, str] = {}  # of what each site says of its data
        self._clients: list[list[int]] = []  # of every site, which clients are there
        self._wire = Wire()

    def _ask(self, headers: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """What sites say, by their numbers; all must answer, and are asked again where the policy is to wait."""
        answers: dict[int, dict[str, Any]] = {}
        failures: dict[str, str] = {}
        for tried in range(self.on_failure.tries if self.on_failure.policy == "wait" else 1):
            if tried:
                time.sleep(min(PAUSE * 2**tried, LONGEST))
            left = [site for site in headers if site not in answers]
            requests = [Request(Seat(site, -1), self._wire.encode((), dict(headers[site]))) for site in left]
            outcome: Outcome = self.transport.ask(requests, self.on_failure.deadline)
            failures = {}
            for place, site in enumerate(left):
                name = self.transport.sites[site]
                if place not in outcome.replies:
                    failures[name] = cleaned(outcome.failures.get(place, "nothing came back"))
                    continue
                try:
                    answer = self._wire.header(outcome.replies[place])
                except MessageError as error:
                    failures[name] = str(error)
                    continue
                if answer.get(NEED) == AGAIN:
                    failures[name] = cleaned(answer.get(REFUSED))
                    continue
                if REFUSED in answer:
                    raise InputError(cleaned(answer[REFUSED]))
                answers[site] = answer
            if not failures:
                return answers
            for name, why in failures.items():
                self.say(f"site {name} did not answer: {why}")
        raise ClientsFailed(failures)

    def greet(self) -> Outline | None:
        """Asks every site who it is, whether it has the same configuration, and how much data of its own."""
        ours = common(self.config)
        everybody = range(len(self.transport.sites))
        answers = self._ask({site: {"asked": HELLO, "configuration": ours} for site in everybody})
        facts: dict[str, Any] = {}
        here = versions()
        for site, said in answers.items():
            name = cleaned(said.get("name"))
            if (part := _differs(said.get("configuration"), ours, "configuration")) is not None:
                raise InputError(f"site {name}: it has another {part} than the server; give both the same")
            if name in facts:
                raise InputError(f"site {name}: two sites say that they are it; names are of one site each")
            if name != self.transport.sites[site]:
                raise InputError(f"site {self.transport.sites[site]}: it says that it is {name!r}")
            facts[name] = said.get("facts")
            has = said["versions"] if isinstance(said.get("versions"), dict) else {}
            for what in COMPARED:
                if has.get(what) != here[what]:
                    theirs = cleaned(has.get(what))
                    self.say(f"site {name} has {what} {theirs}, and the server {here[what]}: bits may differ")
        own = [name for name, said in facts.items() if said is not None]
        if own and len(own) < len(facts):
            other = next(name for name in facts if facts[name] is None)
            raise InputError(f"site {other}: it has no data of its own, and site {own[0]} has; all must, or none")
        if not own:
            return None
        if not all(isinstance(said, dict) for said in facts.values()):
            raise InputError("data: a site does not say how much it has")
        if not isinstance(parse(self.experiment.options.partition), Natural):
            given = self.experiment.options.partition
            raise InputError(f"partition: {given} was given, and sites have data of their own; natural is needed")
        self.digests = {name: checksum(json.dumps(said, sort_keys=True).encode()) for name, said in facts.items()}
        outline = Outline.of(facts)
        name, count = outline.largest, max(outline.train)
        what = "each party's list of labels and places"
        check_fits(f"site {name}: examples", count, what, outline.labels_bytes)
        if len(outline.names) > 1 and count > DOMINANT * (sum(outline.train) - count):
            self.say(f"site {name} says that it has {count} of {sum(outline.train)} examples, and weighs as much")
        return outline

    def check_unchanged(self, outline: Outline | None, before: Mapping[str, Any] | None) -> None:
        """Refuses to resume with other sites, or with other data at a site, than the run began with."""
        if (outline is None) != (before is None):
            had, have = ("no data", "have some") if before is None else ("data", "have none")
            raise InputError(f"sites: they had {had} of their own when the run began, and {have} now")
        if outline is None or before is None:
            return
        old = Outline.from_json(before)
        if gone := sorted(set(old.names) - set(outline.names)):
            raise InputError(f"site {gone[0]}: it took part when the run began, and is not there now; start it again")
        if new := sorted(set(outline.names) - set(old.names)):
            raise InputError(
                f"site {new[0]}: it did not take part when the run began; leave it out, or begin a run in a new folder"
            )
        digests = self.config[FEDERATION].get("facts") or {}
        for name, now in self.digests.items():
            then, size = (_sizes(each, name) for each in (old, outline))
            if then != size or digests.get(name, now) != now:
                counts = f"{size}, as then, but other values or labels" if then == size else f"{size}, and then {then}"
                raise InputError(
                    f"site {name}: its data is not what it was when the run began: it has {counts}; give the site the "
                    "data that it had, or begin a run in a new folder"
                )
        if json.loads(json.dumps(outline.to_json())) != before:  # of a folder without digests of each site
            raise InputError(
                "sites: the data of one is not what it was when the run began; give each site the data that it had, or "
                "begin a run in a new folder"
            )

    def assembly(self, outline: Outline | None) -> Assembly:
        """The task as the server has it: where sites have data of their own, without any, and what is measured is
        measured with them."""
        with precision_context(self.experiment.options.precision):
            assembly = assembled(self.experiment, outline)
        if outline is None:
            return _measurable(assembly)
        if assembly.client_metrics is None or assembly.clients.test is None:
            self.say("nothing is measured: the server has no data, and this task has no metrics of clients")
            return replace(assembly, metrics=None, client_metrics=None)
        main = assembly.main_metric
        known = any(main.endswith(f" {which}") for which in SUMMARY)
        if known:
            return replace(assembly, metrics=assembly.shared_metrics)
        return replace(assembly, metrics=assembly.shared_metrics, main_metric="accuracy weighted", falling=False)

    def engine(self, assembly: Assembly, outline: Outline | None) -> Remote:
        population, sites = assembly.clients.population, len(self.transport.sites)
        if outline is None:
            at = [client % sites for client in range(population)]
        else:
            at = [self.transport.sites.index(name) for name in outline.names]
        self._clients = [[client for client in range(population) if at[client] == site] for site in range(sites)]

        named = [value for value in vars(self.experiment.task).values() if isinstance(value, str)]

        def join(prepared: PreparedRun, which: Sequence[int]) -> None:
            said: dict[str, Any] = {"asked": JOIN, "run": self.run}
            said["rates"] = MEASURED_FIRST if isinstance(prepared.inputs.method, Curvature) else prepared.rates
            ours = agreement(prepared, assembly.client_metrics)
            names = list(self.transport.sites)
            seen = lambda site: None if outline is None else outline.seen_by(names[site], named).to_json()
            own = lambda site: {"outline": seen(site), "clients": self._clients[site]}
            for site, answer in self._ask({site: said | own(site) for site in which}).items():
                theirs: Any = answer.get("agreement")
                name = self.transport.sites[site]
                if (part := _differs(theirs, ours, "run")) is not None:
                    raise InputError(f"site {name}: it makes another {part} of the configuration than the server does")
                if parts := uncompared(theirs, ours):
                    self.say(f"site {name}: its {', '.join(parts)} cannot be compared with the server's")

        seats = tuple(Seat(site, client) for client, site in enumerate(at))
        return Remote(self.transport, seats, tuple(assembly.clients.names), self.run, join, self.on_failure, self.note)

    def part(self, result: Result) -> None:
        """Tells all sites how the run ended; who does not hear it has everything still."""
        last = (result.state.versions or {}).get("last", {})
        said = {"asked": GOODBYE, "run": self.run}
        finals = [{str(client): last.get(str(client)) for client in clients} for clients in self._clients]
        try:
            self._ask({site: said | {"final": final} for site, final in enumerate(finals)})
        except (ClientsFailed, InputError) as error:
            self.say(f"not every site heard that the run has ended: {error}")


def _sizes(outline: Outline, name: str) -> str:
    """How many examples a site has, in words."""
    place = outline.names.index(name)
    return f"{outline.train[place]} training and {outline.test[place]} test examples"


def _differs(theirs: Any, ours: Mapping[str, str], whole: str) -> str | None:
    """The first part in which what a site says differs from the server's; `whole` where it is not of the same form."""
    if not isinstance(theirs, dict) or set(theirs) != set(ours):
        return whole
    return difference(theirs, ours) if all(isinstance(digest, str) for digest in theirs.values()) else whole


def _measurable(assembly: Assembly) -> Assembly:
    """A task without what reads clients' own variables, which the server does not have."""
    if not assembly.problem.local or assembly.metrics is None:
        return assembly
    return replace(assembly, metrics=None)
