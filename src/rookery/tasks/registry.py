"""The tasks by their names on the command line, and those of a user's own by their file."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, cast

from rookery.errors import InputError, nearest, unknown
from rookery.tasks.base import Task
from rookery.tasks.classify import Classify
from rookery.tasks.cleaning import Cleaning
from rookery.tasks.clustering import Clustering
from rookery.tasks.fairness import Fairness
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.losstuning import LossTuning
from rookery.tasks.metalearn import MetaLearn
from rookery.tasks.regularisation import Regularisation
from rookery.tasks.riskaverse import RiskAverse
from rookery.tasks.semisupervised import SemiSupervised

TASKS: dict[str, type[Task]] = {
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
    path, colon, cls = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _own_task(Path(path), cls)
    if name.lower() not in TASKS:
        raise unknown("task", name, [*TASKS, "FILE.py:CLASS"])
    return TASKS[name.lower()]


def _own_task(path: Path, name: str) -> type[Task]:
    """The class of this name in a Python file, once it is seen to be a task."""
    if not path.is_file():
        raise InputError(f"task: {str(path)!r} was given; there is no such file")
    module = _load_file(path)
    cls = vars(module).get(name)
    if not isinstance(cls, type):
        classes = [n for n, value in vars(module).items() if isinstance(value, type)]
        raise InputError(f"task: {path.name} has no class {name!r}{nearest(name, classes)}; give one as FILE.py:CLASS")
    lacking = [part for part in ("assemble", "rates", "batch_size") if not hasattr(cls, part)]
    if lacking or not dataclasses.is_dataclass(cls):
        lack = f"has no {' and no '.join(lacking)}" if lacking else "is no dataclass"
        raise InputError(
            f"task: {name} in {path.name} {lack}; a task is a dataclass with assemble, rates and batch_size"
        )
    return cast(type[Task], cls)


def _load_file(path: Path) -> Any:
    """A Python file as a module; the same file is the same module, so that its classes stay the same."""
    path = path.resolve()
    known = f"rookery_task_{hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module  # dataclasses and type hints look a class's module up by its name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[known]
        first = str(error).strip().split("\n")[0]
        raise InputError(f"task: {path.name} fails when it is read, with {type(error).__name__}: {first}") from error
    return module
