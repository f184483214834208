"""The tasks by their names on the command line, and those of a user's own by their file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

from rookery.errors import InputError, unknown
from rookery.own_code import file_and_class, load_class
from rookery.tasks.base import Task
from rookery.tasks.classify import Classify
from rookery.tasks.cleaning import Cleaning
from rookery.tasks.clustering import Clustering
from rookery.tasks.fairness import Fairness
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.losstuning import LossTuning
from rookery.tasks.metalearn import MetaLearn
from rookery.tasks.personalised import Personalised
from rookery.tasks.regularisation import Regularisation
from rookery.tasks.riskaverse import RiskAverse
from rookery.tasks.semisupervised import SemiSupervised
from rookery.tasks.trust import Trust

TASKS: dict[str, type[Task]] = {
    "trust": Trust,
    "personalised": Personalised,
    "hyperrep": HyperRep,
    "losstuning": LossTuning,
    "cleaning": Cleaning,
    "regularisation": Regularisation,
    "metalearn": MetaLearn,
    "fairness": Fairness,
    "riskaverse": RiskAverse,
    "classify": Classify,
    "semisupervised": SemiSupervised,
    "clustering": Clustering,
}


def find_task(name: str) -> type[Task]:
    """A task's class by its name on the command line, or one's own as `path/to/file.py:Class`."""
    if file_and_class(name) is not None:
        return _checked(name)
    if name.lower() not in TASKS:
        raise unknown("task", name, [*TASKS, "FILE.py:CLASS"])
    return TASKS[name.lower()]


def _checked(name: str) -> type[Task]:
    """The class of a user's own, once it is seen to be a task."""
    cls = load_class(name, "task")
    lacking = [part for part in ("assemble", "rates", "batch_size") if not hasattr(cls, part)]
    if lacking or not dataclasses.is_dataclass(cls):
        lack = f"has no {' and no '.join(lacking)}" if lacking else "is no dataclass"
        file = Path(name.rpartition(":")[0]).name
        raise InputError(
            f"task: {cls.__name__} in {file} {lack}; a task is a dataclass with assemble, rates and batch_size"
        )
    return cast(type[Task], cls)
