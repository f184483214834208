"""`rk.federated`: a task with a method on clients elsewhere, from Python. Imports experiments."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

from rookery.engines.messaging import OnFailure
from rookery.errors import InputError, unknown
from rookery.experiments import loopback
from rookery.experiments.api import task_name
from rookery.experiments.experiment import Experiment, Options
from rookery.experiments.federation import Say
from rookery.experiments.loopback import SITES
from rookery.own_code import short_name
from rookery.runs.result import Result

TRANSPORTS = ("loopback", "nvflare", "flower")


def federated(
    task: Any,
    method: Any,
    *,
    out: str | Path,
    sites: int | None = None,
    transport: str = "loopback",
    on_failure: OnFailure | None = None,
    say: Say = print,
    **options: Any,
) -> Result:
    """Solves a task with a method over clients in processes of their own on this machine, which keep their data.

    Args:
      task: such as `rk.tasks.Trust()`; both ends make it, so it is one of the library's, or of a file.
      method: such as `rk.SimFBO(lr=rk.Rates(0.1))`.
      out: the folder of the run, new or empty. What is a site's own is in its sites/.
      sites: how many processes; None: those that the data has (`partition="natural"`), or three.
      transport: "loopback", "nvflare" or "flower".
      on_failure: what happens when somebody does not answer; None: `rk.OnFailure("wait")`.
      say: called with sentences about what happens.
      options: as of the command: `rounds`, `clients` (by default one a site), `cohort`, `partition`, `batch_size`,
        `seed`, `every`, `precision`, and so on.

    Returns:
      A `Result`, without what is the clients' own; `missing` has who did not answer in which round, and why.
    """
    if transport not in TRANSPORTS:
        raise unknown("transport", str(transport), TRANSPORTS)
    if not dataclasses.is_dataclass(task) or isinstance(task, type) or not hasattr(task, "assemble"):
        raise InputError(f"task: {task!r} was given; a task such as rk.tasks.HyperRep() is needed")
    allowed = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in allowed or name == "engine":
            raise unknown("options", name, allowed)
    if sites is not None and (not isinstance(sites, int) or sites < 1):
        raise InputError(f"sites: {sites!r} was given; a whole number from 1 is needed")
    given = {"clients": sites or SITES, **getattr(task, "defaults", {}), **options}
    experiment = Experiment(task_name(task), task, type(method).__name__, method, Options(**given))
    sources = loopback.sources_of(experiment, sites)
    return launch(experiment, Path(out), sources, transport, on_failure or OnFailure("wait"), say=say)


def launch(
    experiment: Experiment,
    folder: Path,
    sources: Any,
    transport: str,
    on_failure: OnFailure,
    say: Say,
    secure: bool = False,
) -> Result:
    """Runs an experiment over a transport, with everything on this machine; for Python and for the command."""
    if transport == "loopback":
        return loopback.federate(experiment, folder, sources, on_failure, say=say)
    framework = importlib.import_module(f"rookery.experiments.{transport}")
    more = {"secure": secure} if transport == "flower" else {}
    return framework.federate(experiment, folder, sources, on_failure, say, **more)


def label(experiment: Experiment) -> str:
    """What a federation's folder is called after."""
    return f"federate_{Path(experiment.task_name).stem}_{short_name(experiment.method_name)}"
