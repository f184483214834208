"""A federation on this machine, a process for every site: for trying. Imports experiments and engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from rookery.data.catalogue import TABLE, load_with
from rookery.data.partitions import Natural, parse
from rookery.engines.messaging import OnFailure
from rookery.engines.processes import Processes, Program
from rookery.errors import InputError
from rookery.experiments.experiment import CONFIG, Callback, Experiment, read_config
from rookery.experiments.federation import FEDERATION, Say, Sources, check_names, serve
from rookery.experiments.site import site_program
from rookery.files import refuse_used, slug, undamaged
from rookery.runs.events import Watch
from rookery.runs.result import Result
from rookery.tasks.base import table_of

SITES = 3  # where nothing is said, and the data has no sites of its own


def sources_of(experiment: Experiment, sites: int | None) -> dict[str, str | None]:
    """The sites of an experiment on this machine: those that the data has, each with its own; or as many as are asked
    for, with shares of data that everybody has."""
    partition, data = parse(experiment.options.partition), getattr(experiment.task, "data", None)
    if not isinstance(partition, Natural) or partition.column is not None or not isinstance(data, str):
        return {f"site-{number + 1}": None for number in range(SITES if sites is None else sites)}
    dataset = load_with(data, table_of(experiment.task))
    if not dataset.owners:
        raise InputError(f"partition: natural was given, and {dataset.name} has no clients of its own")
    if sites is not None and sites != len(dataset.owners):
        raise InputError(f"sites: {sites} was given, and {dataset.name} has {len(dataset.owners)} clients of its own")
    if not data.startswith(TABLE):
        return {name: f"{data}#{name}" for name in dataset.owners}
    folder = Path(data.removeprefix(TABLE)).expanduser().resolve()
    if not folder.is_dir():
        raise InputError(f"data: {data!r} was given; sites have a file each: csv:FOLDER is needed")
    return {name: f"{TABLE}{folder / name}.csv" for name in dataset.owners}


def federate(
    experiment: Experiment | None,
    folder: Path,
    sources: Sources | None = None,
    on_failure: OnFailure | None = None,
    callbacks: Callable[[Path], Iterable[Callback]] | None = None,
    say: Say = lambda text: None,
    watch: Watch = lambda event: None,
) -> Result:
    """Runs an experiment with a process for every site, into a folder, or goes on with one; sites end with it.

    What is a site's own, its records and its log, is in the folder's sites/NAME.
    """
    if sources is None:
        told = read_config(folder).get(FEDERATION)
        if isinstance(told, dict) and told.get("transport") in ("nvflare", "flower"):
            raise InputError(
                f"run: {str(folder)!r} is of a federation on {told['transport']}, which starts its sites; what was "
                "submitted or run there, submitted or run again, goes on"
            )
        if not isinstance(told, dict) or not isinstance(told.get("sites"), dict):
            raise InputError(f"run: {str(folder)!r} does not say how its sites are started")
        with undamaged(folder / CONFIG, "run"):
            sites, policy = {str(name): data for name, data in told["sites"].items()}, OnFailure(**told["on_failure"])
    else:
        refuse_used(folder, "out")
        sites, policy = dict(sources), on_failure or OnFailure()
    check_names(sites)
    told = {"transport": "loopback", "sites": sites, "on_failure": vars(policy)}
    with contextlib.closing(Processes(programs(folder, sites))) as transport:
        return serve(folder, transport, experiment, policy, told, callbacks, say, watch)


def programs(folder: Path, sources: Sources) -> dict[str, Program]:
    """How the sites of a run are started."""
    place = lambda name: (folder / "sites" / slug(name)).resolve()
    return {name: site_program(place(name), name, folder.resolve(), data) for name, data in sources.items()}
