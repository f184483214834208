"""What a run gives back, and how it is kept on disk: numpy, json and safetensors, no pickle."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from rookery.data.own_tables import shown_data
from rookery.direction import lower_is_better
from rookery.engines.base import Carry, PreparedRun
from rookery.engines.records import RecordStore
from rookery.errors import InputError, unknown
from rookery.federation.ledger import Ledger
from rookery.files import check_path, checksum, fill_folder, read_json, undamaged, write_folder
from rookery.runs.segments import Segment, replay
from rookery.runs.table import Table
from rookery.vectors import Tree, Values, row

FORMAT = 2
READABLE = (1, 2)  # those of format 1 have no checksums
HISTORY, SEQUENCES, STATE, RESULT = "history.csv", "sequences.safetensors", "state.safetensors", "result.json"


@dataclass(frozen=True)
class Divergence:
    """Where a run diverged.

    Args:
      round: First round that left a state that is not finite; or the last round, where the run ended by itself.
      sequences: Names of what was not finite, or of what exploded.
      reason: How it exploded, if the state stayed finite (`runs/divergence.py` has the rule).
      clients: Names of the remote clients whose replies in that round were not finite.
    """

    round: int
    sequences: tuple[str, ...]
    reason: str = ""
    clients: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.reason:
            return f"{self.reason} by round {self.round}, the last one; its state is finite and is kept"
        whose = f"; the replies of {', '.join(self.clients)} were not finite" if self.clients else ""
        return (
            f"{' and '.join(self.sequences)} not finite after round {self.round}; "
            f"the state after round {self.round - 1} is kept{whose}"
        )


@dataclass(frozen=True)
class RunState:
    """Where a run stands, to continue from: the leaves of its carry, its key, and what it has cost; of a run with
    clients elsewhere, which version of its record each of them is at."""

    leaves: tuple[np.ndarray, ...]
    key: np.ndarray
    ledger: Ledger
    seconds: float
    round: int
    versions: Mapping[str, Any] | None = None
    store: RecordStore | None = None  # where the records are, of a run that has them in a file
    segments: tuple[Path, list[Segment]] | None = None  # what a checkpoint has of such records, in place of leaves
    rates: Mapping[str, float] | None = None  # the step sizes that were measured
    feedback: str = ""  # what its channels keep between messages
    of_records: int = 0  # how many of the leaves, the last ones, are views of the store

    @classmethod
    def of(
        cls,
        carry: Carry,
        prepared: PreparedRun,
        ledger: Ledger,
        seconds: float,
        session: Any = None,
    ) -> RunState:
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(carry))
        round, key = int(carry.state.round), np.asarray(jax.random.key_data(prepared.inputs.key))
        versions, store = getattr(session, "versions", None), getattr(session, "store", None)
        up = prepared.config.up
        told: dict[str, Any] = {"rates": prepared.rates, "feedback": "" if up is None else up.feedback}
        told["of_records"] = 0 if store is None else len(jax.tree.leaves(carry.records))
        return cls(leaves, key, ledger.copy(), seconds, round, versions, store, **told)

    @property
    def in_memory(self) -> tuple[np.ndarray, ...]:
        """The leaves without those of records in a file, which come last."""
        return self.leaves[: len(self.leaves) - self.of_records]

    def arrays(self, records: bool = True) -> dict[str, np.ndarray]:
        """The state's arrays by name, for a file; with those of records that have a file of their own, or without."""
        taken = self.leaves if records else self.in_memory
        return {"key": self.key, **{f"{number:06d}": np.array(leaf, order="C") for number, leaf in enumerate(taken)}}

    def describe(self) -> dict[str, Any]:
        """The rest of the state, for json."""
        told = {"ledger": self.ledger.to_json(), "seconds": self.seconds, "round": self.round}
        told |= {} if self.versions is None else {"versions": self.versions}
        told |= {} if not self.feedback else {"feedback": self.feedback}
        return told if self.rates is None else told | {"rates": dict(self.rates)}

    @classmethod
    def rebuild(cls, arrays: Mapping[str, np.ndarray], described: Mapping[str, Any]) -> RunState:
        """The state that `arrays` and `describe` wrote."""
        leaves = tuple(arrays[name] for name in sorted(arrays) if name != "key")
        ledger = Ledger.from_json(described["ledger"])
        state = cls(leaves, arrays["key"], ledger, described["seconds"], described["round"], described.get("versions"))
        return replace(state, rates=described.get("rates"), feedback=described.get("feedback", ""))

    def carry(self, template: Carry, folder: str | Path | None = None) -> Carry:
        """The carry in the structure of a run that has been made ready for the same problem and method; records that
        are in a file are put into one in `folder`."""
        if self.segments is not None:
            records = replay(*self.segments, template.records, folder)
            return replace(self, leaves=(*self.leaves, *jax.tree.leaves(records)), segments=None).carry(template)
        needed = jax.tree.leaves(template)
        if [(leaf.shape, leaf.dtype) for leaf in self.leaves] != [(np.shape(n), np.asarray(n).dtype) for n in needed]:
            raise InputError("state: it belongs to another problem, method, population or precision than this run's")
        return jax.tree.unflatten(jax.tree.structure(template), self.leaves)


@dataclass(frozen=True)
class Result:
    """The outcome of a run; everything in it is numpy.

    `x` and `y` are the final values, `sequences` all of them by name. A local sequence has a leading axis of clients
    there, and `local[i]` holds client i's own. `history` is a table, `ledger` the cost, `state` where to continue from.
    `status` is "done", "stopped" (a target was reached), "interrupted" or "diverged", with `divergence` saying where.
    `clients` has a row per client with its `client_metrics`, where these were asked for; `missing` has who did not
    answer in which round and why, where clients are elsewhere. `rates` are the step sizes that `lr="auto"` measured.
    `data` states the label, its classes and the inputs, where the clients came from a table or a dataset.
    """

    sequences: Values
    local: list[Values]
    history: Table
    ledger: Ledger
    state: RunState
    status: str = "done"
    divergence: Divergence | None = None
    compile_seconds: float = 0.0
    clients: Table | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> Table:
        """Who did not answer in which round, and why; empty where all clients are in this process."""
        return Table((self.state.versions or {}).get("missing", ()))

    @property
    def rates(self) -> dict[str, float]:
        """The step sizes that were measured, by sequence; empty where all were given."""
        return dict(self.state.rates or {})

    @property
    def worse(self) -> dict[str, tuple[float, float]]:
        """The metrics that ended worse than they began, each with its first and last value; only metrics whose name
        says whether lower is better."""
        found = {}
        for metric in self.history.metrics if self.history.rows else ():
            first, last = float(self.history[metric][0]), float(self.history[metric][-1])
            if (signed_change(metric, first, last) or 0.0) > 0:
                found[metric] = (first, last)
        return found

    @property
    def x(self) -> Tree:
        """The final x."""
        return self.sequences.x

    @property
    def y(self) -> Tree:
        """The final y."""
        return self.sequences.y

    def plot(self, path: str | Path, metric: str | None = None, against: str = "exchanges", title: str = "") -> Path:
        """Draws a metric of the history against what it cost into a png; None: the first metric."""
        from rookery.runs.plot import plot_histories

        metrics = self.history.metrics
        if not metrics:
            raise InputError("metric: this run measured nothing; give rk.run metrics=")
        if metric is not None and metric not in metrics:
            raise unknown("metric", metric, metrics)
        return plot_histories({"run": self.history}, metric or metrics[0], path, against, title)

    def __repr__(self) -> str:
        """A few lines: how it ended, what it reached, what it cost, and what it holds."""
        last = self.history.rows[-1] if self.history.rows else {}
        metrics = ", ".join(f"{name} {last[name]:.4g}" for name in self.history.metrics) or "no metrics"
        where = f": {self.divergence}" if self.divergence is not None else ""
        shapes = ", ".join(f"{name} {_size(tree)}" for name, tree in self.sequences.items())
        cost = self.ledger
        return "\n".join(
            [
                f"Result: {self.status} after round {self.state.round}{where}",
                f"  {metrics}",
                *([f"  {said}"] if (said := shown_data(self.data)) else []),
                *([f"  step sizes, measured: {shown_rates(self.rates)}"] if self.rates else []),
                *([f"  {shown_worse(self.worse)}"] if self.worse else []),
                f"  {cost.exchanges} exchanges, {(cost.bytes_up + cost.bytes_down) / 1e6:.4g} MB, "
                f"{cost.gradients} gradients, {self.state.seconds:.3g} s and {self.compile_seconds:.3g} s of compiling",
                f"  sequences: {shapes}" + (f" ({len(self.local)} clients have their own)" if self.local else ""),
            ]
        )

    def save(self, path: str | Path) -> Path:
        """Writes the result into a new folder: result.json, history.csv, sequences.safetensors (the final values, by
        name), state.safetensors (to go on from). `Result.load(path)` reads it; `to_npz` writes the values for numpy.

        The folder is written aside and renamed, so it is there whole or not at all.
        """
        return write_folder(path, self.write_into)

    def to_npz(self, path: str | Path) -> Path:
        """Writes the final sequences into one numpy file, for who has no safetensors: `numpy.load(path)["x.dense0.w"]`.

        Names are those in sequences.safetensors; of a sequence that is one array, its own.
        """
        target, arrays = Path(path), {}
        if target.suffix != ".npz" or not target.parent.is_dir():
            raise InputError(
                f"path: {str(path)!r} was given; the name of an .npz file in a folder that is there is needed"
            )
        for name, tree in self.sequences.items():
            describe(tree, name, arrays)
        fill_folder(target.parent, lambda aside: np.savez(aside / target.name, **arrays), last=target.name)  # type: ignore[arg-type]
        return target

    def write_into(self, folder: Path) -> None:
        """Writes the result's files into a folder that is there."""
        arrays: dict[str, np.ndarray] = {}
        description = {
            "format": FORMAT,
            "status": self.status,
            "divergence": None if self.divergence is None else dataclasses.asdict(self.divergence),
            "compile_seconds": self.compile_seconds,
            "sequences": {name: describe(tree, name, arrays) for name, tree in self.sequences.items()},
            "local": list(self.local[0]) if self.local else [],
            "clients": len(self.local),
            "client_metrics": None if self.clients is None else self.clients.rows,
            "data": dict(self.data),
            **self.state.describe(),
        }
        self.history.to_csv(folder / HISTORY)
        safetensors.save_file(arrays, folder / SEQUENCES)
        safetensors.save_file(self.state.arrays(), folder / STATE)
        files = (HISTORY, SEQUENCES, STATE)
        description["checksums"] = {name: checksum((folder / name).read_bytes()) for name in files}
        (folder / RESULT).write_text(json.dumps(description, indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Reads what `save` wrote. Pytrees of classes of one's own come back as dicts."""
        folder = Path(path)
        check_path(folder, "path")
        if not (folder / RESULT).is_file():
            raise InputError(f"path: {str(path)!r} holds no result; a folder written by Result.save is needed")
        description = read_json(folder / RESULT, "path")
        with undamaged(folder / RESULT, "path"):
            return cls._read(folder, description)

    @classmethod
    def _read(cls, folder: Path, description: Mapping[str, Any]) -> Result:
        if description["format"] not in READABLE:
            raise InputError(
                f"path: {str(folder)!r} is of format {description['format']!r}; this version reads {FORMAT}"
            )
        try:
            for name, expected in description["checksums"].items() if description["format"] > 1 else ():
                if name in (HISTORY, SEQUENCES, STATE) and checksum((folder / name).read_bytes()) != expected:
                    raise InputError(f"path: {name} in {str(folder)!r} is damaged: it does not match its checksum")
            arrays = safetensors.load_file(folder / SEQUENCES)
            stored = safetensors.load_file(folder / STATE)
            history = Table.from_csv(folder / HISTORY)
        except (OSError, SafetensorError) as error:
            raise InputError(f"path: the result in {str(folder)!r} is damaged: {error}") from None
        sequences = Values({name: rebuild(node, arrays) for name, node in description["sequences"].items()})
        state = RunState.rebuild(stored, description)
        divergence = description["divergence"]
        return cls(
            sequences=sequences,
            local=per_client(sequences, description["local"], description["clients"]),
            history=history,
            ledger=state.ledger.copy(),
            state=state,
            status=description["status"],
            divergence=None if divergence is None else _divergence(divergence),
            compile_seconds=description["compile_seconds"],
            clients=None if description.get("client_metrics") is None else Table(description["client_metrics"]),
            data=description.get("data", {}),
        )


def _divergence(described: Mapping[str, Any]) -> Divergence:
    clients = tuple(described.get("clients", ()))
    return Divergence(described["round"], tuple(described["sequences"]), described.get("reason", ""), clients)


def signed_change(metric: str, first: float, last: float, falling: bool | None = None) -> float | None:
    """Return by how much a metric got worse; None where its direction is not known or a value is not finite."""
    lower = lower_is_better(metric) if falling is None else falling
    if lower is None or not (math.isfinite(first) and math.isfinite(last)):
        return None
    return last - first if lower else first - last


def shown_worse(worse: Mapping[str, tuple[float, float]]) -> str:
    """Name the metrics that ended worse than they began, in a sentence."""
    each = [
        f"{name} ended at {last:.3g}, worse than its first value {first:.3g}" for name, (first, last) in worse.items()
    ]
    return f"{'; '.join(each)}: if that is unexpected, try smaller step sizes"


def shown_rates(rates: Mapping[str, float]) -> str:
    """Step sizes by sequence, to three digits."""
    return ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())


def _size(tree: Tree) -> str:
    """The shape of an array, or how many numbers a pytree of several holds."""
    leaves = jax.tree.leaves(tree)
    return str(np.shape(leaves[0])) if len(leaves) == 1 else f"{sum(np.size(leaf) for leaf in leaves)} numbers"


def per_client(sequences: Values, local: Any, population: int) -> list[Values]:
    """Each client's own sequences, from stacked ones; no entries when nothing is local."""
    if not local:
        return []
    return [Values({name: row(sequences[name], i) for name in local}) for i in range(population)]


def describe(tree: Tree, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The structure of a tree in json, its arrays put into `arrays` under readable names."""
    if tree is None:
        return None
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: describe(child, f"{name}.{key}", arrays) for key, child in tree.items()}}
    if isinstance(tree, dict):  # json has texts as keys: numbers stand beside what they name
        pairs = [[key if isinstance(key, int | float) else str(key), child] for key, child in tree.items()]
        return {"pairs": [[key, describe(child, f"{name}.{key}", arrays)] for key, child in pairs]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [describe(child, f"{name}.{i}", arrays) for i, child in enumerate(tree)]}
    if jax.tree_util.all_leaves([tree]):
        name = _unused(name, arrays)
        arrays[name] = np.array(tree, order="C")
        return name
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        named[_unused(jax.tree_util.keystr(path, simple=True, separator="."), named)] = leaf
    return describe(named, name, arrays)


def _unused(name: str, used: Mapping[str, Any]) -> str:
    """A name, or the next one like it: {"a.b": ..., "a": {"b": ...}} has two of one name."""
    numbered = (f"{name}~{number}" for number in itertools.count(2))
    return name if name not in used else next(other for other in numbered if other not in used)


def rebuild(node: Any, arrays: dict[str, np.ndarray]) -> Tree:
    """The tree that `describe` wrote."""
    if node is None or isinstance(node, str):
        return None if node is None else arrays[node]
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: rebuild(child, arrays) for key, child in content.items()}
    if kind == "pairs":
        return {key: rebuild(child, arrays) for key, child in content}
    children = [rebuild(child, arrays) for child in content]
    return children if kind == "list" else tuple(children)
