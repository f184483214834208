"""What a task is, and the data, networks and penalties that tasks share. Imports problems, data and models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite, prod
from typing import Any, Literal, Protocol, get_args

from rookery.data.catalogue import DATASETS, LOCAL, TABLE, load_with
from rookery.data.datasets import Dataset
from rookery.data.federated import Clients
from rookery.data.inputs import CropFlip
from rookery.data.own_tables import TableOptions
from rookery.data.partitions import Partition
from rookery.data.scaling import Standardise
from rookery.data.schema import SchemaError, read_schema, schema_text
from rookery.direction import GIVEN, INFERRED, known_direction, lower_is_better
from rookery.errors import InputError, unknown
from rookery.problems.base import Problem
from rookery.problems.bilevel import Bilevel
from rookery.problems.penalty import Penalty
from rookery.tasks.models import MLP, Initial, OnStored, lenet, wide_cnn


@dataclass(frozen=True)
class Assembly:
    """A task put together: everything `rk.run` needs besides a method."""

    problem: Problem
    clients: Clients
    x: Any
    y: Any = None
    start: Mapping[str, Any] = field(default_factory=dict)
    metrics: Callable[[Any], Mapping[str, Any]] | None = None
    client_metrics: Callable[[Any, Any], Mapping[str, Any]] | None = None  # of every client's own test examples
    main_metric: str = "accuracy"  # what plots and tables show
    falling: bool | None = None  # whether lower is better in the main metric; None: inferred from its name
    direction: str = GIVEN  # where `falling` comes from
    shared_metrics: Callable[[Any], Mapping[str, Any]] | None = None  # those that a server without data can measure
    conclusion: Callable[[Any], Any] | None = None  # function of the result to the text that the command ends with

    def __post_init__(self):
        if self.falling is None:
            object.__setattr__(self, "falling", lower_is_better(self.main_metric))
            object.__setattr__(self, "direction", INFERRED)

    def check_target(self, target: float | None) -> None:
        """Refuse a target that cannot be reached, or one of a metric whose direction is not known."""
        if target is not None:
            known_direction(self.main_metric, self.falling)
        if target is not None and target > 1 and "accuracy" in self.main_metric:
            raise InputError(f"target: {target:g} was given; {self.main_metric} is a part of 1, such as 0.9")

    def stop(self, target: float | None) -> dict[str, Any] | None:
        """Return the rule that ends a run at a target: at most that value where lower is better, otherwise at least."""
        if target is None:
            return None
        return {self.main_metric: (lambda value: value <= target) if self.falling else target}


def find_dataset(name: str, tuning: bool = False, table: TableOptions | None = None) -> Dataset:
    """A task's data by its name in the catalogue; for tuning, without its test set.

    `table` says how a csv file is read; a task that is `OnData` passes its own `table`.
    """
    if name not in DATASETS and not name.startswith((LOCAL, TABLE)):
        raise unknown("task.data", name, [*DATASETS, f"{LOCAL}PATH", f"{TABLE}PATH"])
    try:
        dataset = load_with(name, table or TableOptions())
    except InputError as error:
        name, _, rest = str(error).partition(":")
        if name not in TableOptions.__dataclass_fields__ or isinstance(error, SchemaError):
            raise
        raise InputError(f"task.{'checked' if name == 'checked' else name}:{rest}") from None
    return dataset.for_tuning() if tuning else dataset


def find_network(
    model: str, dataset: Dataset, widths: tuple[int, ...], allowed: tuple[str, ...], init: Initial = "fan_in"
) -> OnStored:
    """A task's network by its name on the command line: mlp (with hidden layers of these widths), lenet or cnn; `init`
    says how its layers start."""
    if init not in get_args(Initial):
        raise unknown("task.init", str(init), get_args(Initial))
    if model not in allowed:
        raise unknown("task.model", str(model), allowed)
    if model == "mlp":
        if any(width < 1 for width in widths):
            raise InputError(f"task: a hidden layer of width {min(widths)} was given; at least 1 is needed")
        return OnStored(MLP(prod(dataset.shape), tuple(widths), dataset.classes, init), dataset.scale)
    make, least = (lenet, 4) if model == "lenet" else (wide_cnn, 16)
    if len(dataset.shape) != 3 or min(dataset.shape[:2]) < least:
        raise InputError(
            f"task.model: {model!r} was given with {dataset.name}, whose inputs are {_shown(dataset.shape)}; it needs "
            f"images of at least {least} x {least} pixels, and mlp takes any input"
        )
    return OnStored(make(dataset.shape, dataset.classes, init), dataset.scale)


def augmentation(dataset: Dataset, augment: bool) -> CropFlip | None:
    """Random flips and crops of a dataset's images, by up to an eighth of their side, where they are asked for."""
    if not augment:
        return None
    if len(dataset.shape) != 3:
        raise InputError(
            f"task.augment: True was given with {dataset.name}, whose inputs are {_shown(dataset.shape)}; only images "
            "are augmented"
        )
    height, width, channels = dataset.shape
    return CropFlip((height, width, channels), padding=min(height, width) // 8)


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) + (" images" if len(shape) == 3 else " numbers")


def check_options(task: Any, **rules: tuple[bool, str]) -> None:
    """Refuses a task's options: by option, whether it is good and what is allowed."""
    for name, (good, allowed) in rules.items():
        value = getattr(task, name)
        if not good or (isinstance(value, float) and not isfinite(value)):
            raise InputError(f"task.{name}: {value!r} was given; {allowed} is needed")


class Task(Protocol):
    """A frozen dataclass whose fields are the task's options, with a one-line docstring for `rookery list`."""

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        """The task on a number of clients, its data divided by a partition.

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


@dataclass(frozen=True, kw_only=True)
class OnData:
    """Options that tasks on data of the catalogue have in common: how a csv file is read."""

    label: str = ""
    """Column of a csv file to learn; by default its one column called label, target, class, y, outcome, diagnosis or
    num."""
    categories: tuple[str, ...] = ()
    """Columns of a csv file that hold words or codes; each becomes one column per value."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Rows of a csv file with empty cells: refuse the file, or drop the rows."""
    standardise: Standardise = "pooled"
    """How inputs of csv files and of heart are scaled: pooled, by mean and standard deviation of all; client, by
    those of each client; robust, by each client's median and interquartile range; none."""
    schema: str = ""
    """Schema of the csv files (rookery schema writes one). It has label, inputs, categories and classes, and every file
    must keep its rules."""
    checked: str = ""
    """Column of a csv file, of 0 and 1, that says which labels were checked (it is no input); or a csv file that names
    these records by site and row."""

    @property
    def table(self) -> TableOptions:
        """How a csv file is read."""
        schema = read_schema(self.schema) if self.schema else None
        return TableOptions(self.label, self.categories, self.missing, self.standardise, schema, self.checked)


def described_task(task: Any) -> dict[str, Any]:
    """A task's options as a configuration has them: with the text of its schema, so that other parties can read it."""
    described = asdict(task)
    if isinstance(task, OnData) and task.schema:
        described["schema"] = schema_text(task.schema)
    return described


def table_of(task: Any) -> TableOptions:
    """How a task reads a csv file; a task of a user's own may have no such options."""
    return task.table if isinstance(task, OnData) else TableOptions()


@dataclass(frozen=True, kw_only=True)
class Nested(OnData):
    """What tasks with a bilevel problem have in common: by what derivatives it is solved."""

    lam: tuple[float, ...] = ()
    """Penalties, for gradients alone: one, or several that are extrapolated; none: Hessian-vector products."""

    def bilevel(self, upper: Callable, lower: Callable, **scopes: Any) -> Bilevel:
        """The problem of two losses, with the scopes of its levels."""
        return Bilevel(upper, lower, by=self._by, **scopes)

    def nested_rates(self, x: float, y: float, v: float) -> dict[str, float]:
        """Step sizes that work: with penalties those of x and y, as w is to have that of y."""
        by = self._by
        return {"x": x, "y": y, "v": v} if by is None else {"x": x, **dict.fromkeys(by.lower, y)}

    @property
    def _by(self) -> Penalty | None:
        try:
            return Penalty(self.lam) if self.lam else None
        except InputError as error:
            raise InputError(f"task.{error}") from None
