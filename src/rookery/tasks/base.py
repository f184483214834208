"""What a task is, and the data that tasks share. Imports problems and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rookery.data.datasets import Dataset, digits
from rookery.data.federated import Clients
from rookery.data.partitions import Partition
from rookery.errors import unknown
from rookery.problems.base import Problem


@dataclass(frozen=True)
class Assembly:
    """A task put together: everything `rk.run` needs besides a method."""

    problem: Problem
    clients: Clients
    x: Any
    y: Any = None
    start: Mapping[str, Any] = field(default_factory=dict)
    metrics: Callable[[Any], Mapping[str, Any]] | None = None
    main_metric: str = "accuracy"  # what plots and tables show
    falling: bool = False  # whether the main metric is better when it is lower


DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits}


def find_dataset(name: str, tuning: bool = False) -> Dataset:
    """A task's data by its name on the command line; for tuning, without its test set."""
    if name not in DATASETS:
        raise unknown("task.data", name, DATASETS)
    dataset = DATASETS[name]()
    return dataset.for_tuning() if tuning else dataset


class Task(Protocol):
    """A frozen dataclass whose fields are the task's options, with a one-line docstring for `rookery list`."""

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        """The task on so many clients, its data divided by a partition.

        With `tuning` its metrics are taken on a part of the training data, held out, and the test set is not touched.
        """
        ...

    @property
    def rates(self) -> Mapping[str, float]:
        """Step sizes that work, by sequence: the command's defaults."""
        ...

    @property
    def batch_size(self) -> int | None:
        """A batch size that works."""
        ...
