"""One site of a federation: its own data, and a worker for each of its clients; bytes in, bytes out.

    python -m rookery.experiments.site FOLDER

runs one that is asked through its standard input; FOLDER holds site.json. Imports experiments, runs and engines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import numpy as safetensors

from rookery.data.catalogue import standing_in
from rookery.data.federated import cast
from rookery.data.schema import SchemaError
from rookery.data.sites import Holding, Outline, read_holding
from rookery.engines.base import PreparedRun
from rookery.engines.processes import Program, serve
from rookery.engines.versions import Attempt
from rookery.engines.worker import JOIN, Refused, Worker, own_shard, refusal
from rookery.errors import InputError, MessageError
from rookery.experiments.configuration import agreement, common, read_configuration
from rookery.experiments.experiment import Experiment
from rookery.federation.evaluation import TEST, ClientMetrics
from rookery.federation.wire import Opened, Wire
from rookery.files import checksum, fill_folder, read_json, slug, write_text
from rookery.runs.compiled import keep_compiled
from rookery.runs.fingerprint import difference
from rookery.runs.folder import versions
from rookery.runs.interrupts import interrupted_status, listening
from rookery.runs.measured import awaited_rates, measuring_run, with_measured
from rookery.runs.prepare import precision_context, prepare
from rookery.runs.result import describe
from rookery.tasks.base import Assembly, table_of
from rookery.vectors import row

HELLO, GOODBYE = "hello", "goodbye"  # what a site can be asked, besides `JOIN` and what its clients can
SITE, JOINED = "site.json", "joined.json"
MEASURED_FIRST = "measured"  # in the place of step sizes: the round that measures them is joined
COMPARED = ("python", "jax", "numpy")  # what bits depend on, and all that the server is told of a site's machine


def assembled(experiment: Experiment, outline: Outline | None, own: Mapping[str, Holding] | None = None) -> Assembly:
    """The task, where sites have data of their own: of all of them in outline, with as much as is here."""
    if outline is None:
        return experiment.assemble()
    with standing_in(outline.dataset(experiment.task.data, own)):
        return experiment.assemble()


INFO = "info:"  # marks the lines of a site's log that report no problem


def reports_problem(log: bytes) -> bool:
    """Whether a site's log has lines besides those that say that all is well."""
    return any(f" {INFO} ".encode() not in line for line in log.splitlines() if line.strip())


class Site:
    """A site that answers messages.

    Args:
      configuration: the folder of the configuration, which is the same at all parties.
      folder: where it keeps what is its own: its clients' records, and in the end their own variables.
      name: who it is.
      data: its own data, as `read_holding` takes it; None: clients' shares of data that everybody has.
    """

    def __init__(self, configuration: Path, folder: Path, name: str, data: str | None = None):
        self.experiment, self.config = read_configuration(configuration)
        self.folder = folder
        self.name = name
        self._data = data
        self._holding: Holding | None = None
        self._workers: dict[int, Worker] = {}
        self._run: str | None = None  # the run that it is part of
        self._replies = self._bytes = 0  # replies to clients' messages since this process began, and their bytes
        self._wire = Wire()

    def receive(self, message: bytes) -> bytes:
        """What it says to a message. Of what goes wrong here the server learns that it did, and the log why: a
        sentence about data may hold some of it."""
        try:
            with precision_context(self.experiment.options.precision):
                return self._answered(message)
        except SchemaError as error:
            self._say(str(error))
            return refusal(self._wire, MessageError(f"site {self.name}: {error}"))
        except MessageError as error:
            self._say(str(error))
            return refusal(self._wire, error)
        except Exception as error:  # whatever the user's own code may raise
            self._say(traceback.format_exc() if not isinstance(error, InputError) else str(error))
            sentence = f"site {self.name}: it failed, with {type(error).__name__}; its log says why"
            return refusal(self._wire, MessageError(sentence))

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _log(self, text: str) -> None:
        """Logs something that went as it should; it stays at the site."""
        self._say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {INFO} {self.name}: {text}")

    def _answered(self, message: bytes) -> bytes:
        opened = self._wire.open(message)
        asked, header = opened.header.get("asked"), opened.header
        if asked == HELLO:
            return self._wire.encode((), self._hello(header))
        if asked == JOIN:
            return self._wire.encode((), self._join(header))
        self._check_joined(header.get("run"))
        if asked == GOODBYE:
            return self._wire.encode((), self._goodbye(header))
        reply = self._worker(opened).receive(message)
        self._replies, self._bytes = self._replies + 1, self._bytes + len(reply)
        return reply

    # The handshake.

    def _hello(self, header: Mapping[str, Any]) -> dict[str, Any]:
        theirs, ours = header.get("configuration"), common(self.config)
        if not isinstance(theirs, dict) or (part := difference(theirs, ours)) is not None:
            part = part if isinstance(theirs, dict) else "configuration"
            raise MessageError(f"site {self.name}: the server has another {part} than this site; give both the same")
        facts = None if self._data is None else self._own().facts()
        had = (
            "a share of the data that all have"
            if facts is None
            else f"{facts['train']} training and {facts['test']} test examples"
        )
        self._log(f"the server asked who this site is; it has {had}")
        has = {name: version for name, version in versions().items() if name in COMPARED}
        return {"name": self.name, "configuration": ours, "facts": facts, "versions": has}

    def _own(self) -> Holding:
        assert self._data is not None
        if self._holding is None:
            self._holding = read_holding(self._data, table_of(self.experiment.task))
        return self._holding

    def _outline(self, header: Mapping[str, Any]) -> Outline | None:
        given = header.get("outline")
        if (given is None) != (self._data is None):
            raise MessageError(f"site {self.name}: all sites, or none, must have data of their own")
        return None if given is None else Outline.from_json(given)

    def _join(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the run ready, keeps what it was told, and says what it makes of the configuration."""
        prepared, function = self._made_ready(header)
        told = json.dumps(dict(header))
        kept = json.dumps({"told": told, "checksum": checksum(told.encode())})
        write_text(self.folder / "records" / slug(str(self._run)) / JOINED, kept)
        options = self.experiment.options
        what = f"{self.experiment.task_name} with {self.experiment.method_name}, {options.rounds} rounds"
        self._log(f"joined run {self._run}: {what}; clients here: {', '.join(map(str, self._workers))}")
        return {"agreement": agreement(prepared, function)}

    def _made_ready(self, header: Mapping[str, Any]) -> tuple[PreparedRun, ClientMetrics | None]:
        """The run, with a worker for each client that is here."""
        outline = self._outline(header)
        run, clients = header.get("run"), header.get("clients")
        if not isinstance(run, str) or not isinstance(clients, list) or any(type(i) is not int for i in clients):
            raise MessageError("message: it does not say which run is joined, and with which clients")
        if outline is not None and [outline.names[i : i + 1] for i in clients] != [(self.name,)]:
            raise MessageError(f"site {self.name}: it is told to be {clients} of {', '.join(outline.names)}")
        experiment = self.experiment
        assembly = assembled(experiment, outline, None if outline is None else {self.name: self._own()})
        arguments = experiment.arguments(assembly)
        names = ("problem", "clients", "x", "y", "start", "sampling", "batch_size", "seed", "precision", "up", "down")
        awaited, method = awaited_rates(experiment.method, assembly.problem)
        with experiment.advised():
            prepared = prepare(method=method, **{name: arguments[name] for name in names})
        rates = header.get("rates")
        if measures := bool(awaited) and rates == MEASURED_FIRST:
            prepared = measuring_run(prepared)
        else:
            prepared = with_measured(prepared, _checked_rates(rates, awaited))
        if any(not 0 <= i < prepared.config.population for i in clients):
            raise MessageError(f"site {self.name}: it is told to be clients {clients} of {prepared.config.population}")
        place = self.folder / "records" / slug(run)
        self._check_data(place, prepared.inputs.levels, clients)
        self._wire = Wire(prepared.carry)
        self._workers = {
            i: Worker(
                prepared.config,
                prepared.inputs.method,
                own_shard(prepared.inputs.levels, i),
                i,
                self._wire,
                row(prepared.carry.records, i),
                folder=None if measures else place / str(i),  # what is measured leaves no record
                run=run,
            )
            for i in clients
        }
        function, test = assembly.client_metrics, assembly.clients.test
        if function is not None and test is not None:
            held = cast({TEST: test}, prepared.config.dtype)
            for worker in self._workers.values():
                worker.test = (function, own_shard(held, worker.index), int(np.max(test.size)))
        self._run = run
        return prepared, function

    def _check_data(self, place: Path, levels: Mapping[str, Any], clients: list[int]) -> None:
        """Refuses to go on with other data than a run began with."""
        total = hashlib.sha256()
        for i in clients:
            for name, level in own_shard(levels, i).levels.items():
                total.update(f"{name} {jax.tree.structure(level.rows)}".encode())
                for leaf in jax.tree.leaves(level.rows):
                    total.update(f"{leaf.dtype}{leaf.shape}".encode())
                    total.update(np.ascontiguousarray(leaf).tobytes())
        path = place / "data.json"
        if not path.is_file():
            write_text(path, json.dumps({"data": total.hexdigest()}))
        elif read_json(path, "site").get("data") != total.hexdigest():
            raise MessageError(
                f"site {self.name}: its data is not what it was when the run began; give it the data that it had, or "
                "begin a run in a new folder"
            )

    def _check_joined(self, run: Any) -> None:
        """Makes sure that it is part of a run: a process that was started again reads what it had been told."""
        if run is not None and run == self._run:
            return
        told = _told(self.folder / "records" / slug(str(run)) / JOINED) if isinstance(run, str) else None
        if told is None:
            raise Refused(f"site {self.name}: it has not joined this run", JOIN)
        self._made_ready(told)

    def _worker(self, opened: Opened) -> Worker:
        client = opened.header.get("client")
        if not isinstance(client, int) or client not in self._workers:
            raise MessageError(f"site {self.name}: client {client!r} is not here; here are {sorted(self._workers)}")
        return self._workers[client]

    def _goodbye(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Takes for good what a run ended with, and leaves its clients' own variables where they are theirs to use."""
        final = header.get("final")
        if not isinstance(final, dict) or set(final) != set(map(str, self._workers)):
            raise MessageError("message: it does not say how the run ended for the clients that are here")
        for i, worker in self._workers.items():
            arrays: dict[str, np.ndarray] = {}
            record = worker.conclude(None if final[str(i)] is None else Attempt.of(final[str(i)]))
            for name, tree in record.local.trees().items():
                describe(tree, name, arrays)
            if arrays:
                own = self.folder / f"own-{i}.safetensors"
                write = lambda aside, own=own, arrays=arrays: safetensors.save_file(arrays, aside / own.name)
                fill_folder(self.folder, write, last=own.name)
                self._log(f"the own variables of client {i} are in {own.name}")
        self._log(f"run {self._run} has ended; this process sent {self._replies} replies, {self._bytes} bytes")
        return {"name": self.name}


def _told(path: Path) -> dict[str, Any] | None:
    """What a site was told when it joined a run. None where that is lost or damaged: the server tells it again."""
    try:
        kept = json.loads(path.read_text())
        told = kept["told"]
        return json.loads(told) if checksum(told.encode()) == kept["checksum"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checked_rates(given: Any, awaited: tuple[str, ...]) -> dict[str, float]:
    """The step sizes that were measured, as a server tells them."""
    rates = {} if given is None else given
    if not isinstance(rates, dict) or set(rates) != set(awaited):
        raise MessageError(f"message: the measured step sizes of {', '.join(awaited) or 'nothing'} are to be told")
    if any(type(rate) is not float or not 0 < rate < float("inf") for rate in rates.values()):
        raise MessageError("message: a measured step size is no positive number")
    return rates


@contextlib.contextmanager
def _replies() -> Iterator[Any]:
    """The standard output for replies alone: what others print goes to the log."""
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        yield replies


def site_program(place: Path, name: str, configuration: Path, data: str | None) -> Program:
    """How the process of a site is started; what is its own is in a folder of its own."""
    told = json.dumps({"name": name, "configuration": str(configuration), "data": data}, indent=1)
    command = [sys.executable, "-m", "rookery.experiments.site", str(place)]
    return Program(command, place / "site.log", before=lambda: write_text(place / SITE, told))


def _end_with_parent(interval: float = 1.0) -> None:
    """Ends this process when the one that started it has: also where it hangs, and does not hear that."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(interval)
    time.sleep(10 * interval)  # to say its last, where it can
    os._exit(1)


def main() -> int:
    """Runs the site of a folder."""
    folder = Path(sys.argv[1])
    told = read_json(folder / SITE, "site")
    keep_compiled()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with listening(), _replies() as replies:
            site = Site(Path(told["configuration"]), folder, told["name"], told.get("data"))
            serve(site.receive, sys.stdin.buffer, replies)
    except KeyboardInterrupt:  # every reply that was sent is on disk already
        print(f"interrupted; the records of this site's clients are in {folder}", file=sys.stderr, flush=True)
        return interrupted_status()
    return 0


if __name__ == "__main__":
    sys.exit(main())
