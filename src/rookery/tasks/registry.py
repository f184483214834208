"""The tasks by their names on the command line."""

from __future__ import annotations

from rookery.errors import unknown
from rookery.tasks.base import Task
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.riskaverse import RiskAverse

TASKS: dict[str, type[Task]] = {"hyperrep": HyperRep, "riskaverse": RiskAverse}


def find_task(name: str) -> type[Task]:
    """A task's class by its name on the command line."""
    if name.lower() not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name.lower()]
