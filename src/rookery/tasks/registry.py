"""The tasks by their names on the command line."""

from __future__ import annotations

from rookery.errors import unknown
from rookery.tasks.base import Task
from rookery.tasks.clustering import Clustering
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.riskaverse import RiskAverse
from rookery.tasks.semisupervised import SemiSupervised

TASKS: dict[str, type[Task]] = {
    "hyperrep": HyperRep,
    "riskaverse": RiskAverse,
    "semisupervised": SemiSupervised,
    "clustering": Clustering,
}


def find_task(name: str) -> type[Task]:
    """A task's class by its name on the command line."""
    if name.lower() not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name.lower()]
