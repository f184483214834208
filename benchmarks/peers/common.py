"""What all contenders have in common: the task, its data, the first weights, the loss, and the talk with the runner.

Imports numpy alone, since every contender runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

INPUTS, HIDDEN, LABELS = 784, 64, 10
NAMES = ("w1", "b1", "w2", "b2")
Weights = tuple[np.ndarray, ...]  # in the order of NAMES; matrices are (inputs, outputs)


@dataclass(frozen=True)
class Task:
    """What a contender does; `folder` holds the data."""

    folder: str
    method: str  # fedavg or scaffold
    clients: int
    cohort: int
    examples: int  # of each client
    batch: int
    epochs: int
    lr: float

    @staticmethod
    def given() -> Task:
        """The task that this process was started with."""
        return Task(**json.loads(sys.argv[1]))

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * -(-self.examples // self.batch)

    def data(self, mapped: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (clients, examples, 784) and labels (clients, examples); `mapped`: read where they are needed."""
        mode = "r" if mapped else None
        return tuple(np.load(Path(self.folder) / f"{name}.npy", mmap_mode=mode) for name in ("inputs", "labels"))


def make_data(folder: Path, clients: int, examples: int) -> None:
    """Labels of a linear teacher, each client with a bias of its own: clients pull apart, and there is something to
    learn."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((clients, examples, INPUTS), np.float32)
    teacher = rng.standard_normal((INPUTS, LABELS), np.float32) / INPUTS**0.5
    bias = rng.standard_normal((clients, 1, LABELS), np.float32)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", np.argmax(inputs @ teacher + bias, axis=-1).astype(np.int64))


def first_weights() -> Weights:
    rng = np.random.default_rng(1)
    w1 = rng.standard_normal((INPUTS, HIDDEN), np.float32) * np.float32((2 / INPUTS) ** 0.5)
    w2 = rng.standard_normal((HIDDEN, LABELS), np.float32) * np.float32((1 / HIDDEN) ** 0.5)
    return w1, np.zeros(HIDDEN, np.float32), w2, np.zeros(LABELS, np.float32)


def mean_loss(task: Task, weights: Weights) -> float:
    """The cross-entropy over all clients' examples, in parts that fit a cache."""
    w1, b1, w2, b2 = (np.asarray(w) for w in weights)
    total = 0.0
    for inputs, labels in zip(*task.data(mapped=True)):
        logits = np.maximum(inputs @ w1 + b1, 0) @ w2 + b2
        top = logits.max(axis=-1)
        chosen = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        total += float(np.sum(top + np.log(np.exp(logits - top[:, None]).sum(axis=-1)) - chosen))
    return total / (task.clients * task.examples)


class Talk:
    """Commands of the runner, answered one JSON line each: `go N`, N rounds; `loss`, that of the weights as they are.

    Whatever a framework prints goes to the log instead, so that the answers stand alone.
    """

    def __init__(self, task: Task, weights: Callable[[], Weights]):
        self.task, self.weights = task, weights
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.begun = 0.0
        self.left = 0

    def next(self) -> int:
        """The next number of rounds; 0 when there are no more."""
        for line in sys.stdin:
            match line.split():
                case ["go", rounds]:
                    self.begun = time.perf_counter()
                    return int(rounds)
                case ["loss"]:
                    self._answer(loss=mean_loss(self.task, self.weights()))
        return 0

    def done(self) -> None:
        """The rounds are done."""
        self._answer(seconds=time.perf_counter() - self.begun, memory=peak_memory())

    def serve(self, go: Callable[[int], None]) -> None:
        """For contenders that are called."""
        while rounds := self.next():
            go(rounds)
            self.done()

    def after_round(self) -> None:
        """For frameworks that call: to be called before the first round and after every one."""
        self.left -= 1
        if self.left < 1:
            if self.begun:
                self.done()
            self.left = self.next()
            if not self.left:
                sys.exit()

    def _answer(self, **what: float) -> None:
        print(json.dumps(what), file=self.answers, flush=True)


def peak_memory() -> float:
    """The most megabytes that this process and those it started have held, each at its own peak; pages that they
    share are counted for each."""
    if not Path("/proc/self/status").exists():
        unit = 1e6 if sys.platform == "darwin" else 1e3
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has just ended
            continue
        process = int(status.parent.name)
        parents[process] = int(fields["PPid"])
        peaks[process] = float(fields.get("VmHWM", "0 kB").split()[0]) / 1e3
    own = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(peaks[process] for process in own)
