"""What every engine is given and gives back. Imports contracts only: no engine knows a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Level
from rookery.federation.client import ProgramConfig, Record
from rookery.federation.evaluation import ClientMetrics
from rookery.federation.ledger import Ledger
from rookery.federation.sampling import Sampling
from rookery.vectors import Sequences, Values


class Inputs(NamedTuple):
    """What a run's program reads and never changes; all of it traced."""

    method: Any
    sampling: Sampling
    levels: Mapping[str, Level]
    weights: Any
    key: Any  # of the run


class Carry(NamedTuple):
    """What a run's program changes: the server's state, and every client's record, stacked over clients."""

    state: Any
    records: Record

    def values(self) -> Values:
        """All sequences by name; the local ones with a leading axis of clients."""
        return Values({**self.state.z.trees(), **self.records.local.trees()})


@dataclass(frozen=True)
class PreparedRun:
    """A run made ready: its static side, traced inputs, and where it begins."""

    config: ProgramConfig
    inputs: Inputs
    carry: Carry


@dataclass(frozen=True)
class Advance:
    """What came of some rounds: how many were done, and the sequences that were not finite after the next one."""

    rounds: int
    broken: tuple[str, ...] = ()


class Session(Protocol):
    """A run in progress on some engine."""

    carry: Carry
    ledger: Ledger

    def start(self) -> None:
        """What the method does once, before the first round."""
        ...

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        """What every client measures on its own test examples, by metric, in the order of clients."""
        ...

    def advance(self, rounds: int) -> Advance:
        """Does a number of rounds, or fewer when the state stops being finite; then the last good state is kept."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Opens a session for a run that is ready. The trajectory is the same on every engine."""

    def open(self, prepared: PreparedRun, ledger: Ledger) -> Session: ...


def initial_carry(config: ProgramConfig, method: Any, z: Sequences, local: Sequences) -> Carry:
    """The state before the first round; `local` is stacked over clients."""
    problem = config.problem

    def record(own: Sequences) -> Record:
        return Record(own, method.client(problem, z.merged(own)))

    if local.names:
        records = jax.vmap(record)(local)
    else:
        one = record(local)
        records = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (config.population, *jnp.shape(leaf))), one)
    return Carry(method.init(problem, z), records)


def non_finite(carry: Carry) -> tuple[str, ...]:
    """The names of what is not finite: sequences first, otherwise fields of the server's or the clients' state."""

    def broken(tree: Any) -> bool:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        return any(leaf.dtype.kind == "f" and not np.isfinite(leaf).all() for leaf in leaves)

    names = tuple(name for name, tree in carry.values().items() if broken(tree))
    if names:
        return names
    fields = [f.name for f in dataclasses.fields(carry.state) if f.name != "z"]
    names = tuple(f"state.{name}" for name in fields if broken(getattr(carry.state, name)))
    return names + (("client state",) if broken(carry.records.state) else ())
