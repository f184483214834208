"""What a run has cost, counted from the exchanges themselves. Imports counts and deliveries.

Inside a program counters are traced: per kind of exchange, how many exchanges and how many replies, and per oracle how
many calls. On the host they are multiplied by the static sizes of the messages in Python integers, which do not
overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.federation import counts
from rookery.federation.delivered import Dispatch

ORACLES = ("samples", "gradients", "hvps", "crosses")


class Parcel(NamedTuple):
    """A kind of thing that travels between the server and one client: in which phase, which way, how large."""

    phase: str
    way: str  # "up" to the server, "down" to the client
    floats: int
    bytes: int


def parcel_of(phase: str, way: str, tree: Any) -> Parcel:
    """The parcel that a tree makes."""
    leaves = jax.tree.leaves(tree)
    floats = [int(np.prod(np.shape(leaf))) for leaf in leaves]
    return Parcel(phase, way, sum(floats), sum(n * np.dtype(_dtype(leaf)).itemsize for n, leaf in zip(floats, leaves)))


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)


class Tally:
    """What one round counts while it is traced: exchanges and replies per phase, parcels, and oracle calls."""

    def __init__(self) -> None:
        self.counts: dict[Any, jax.Array] = {}

    def count(self, name: Any, amount: Any) -> None:
        """Adds a number to what is counted under a name."""
        self.add_count(name, counts.count(amount))

    def add_count(self, name: Any, amount: jax.Array) -> None:
        """The same, of a number that is a count already."""
        self.counts[name] = counts.plus(self.counts[name], amount) if name in self.counts else amount

    def exchange(
        self, phase: str, sent: list[tuple[Any, Dispatch | None]], reply: Any, replies: Any, oracles: jax.Array
    ) -> None:
        """Counts one exchange, if anybody answered: what was sent, part by part, and what came back."""
        self.count(("exchanges", phase), replies > 0)
        self.count(("replies", phase), replies)
        self.count(parcel_of(phase, "up", reply), replies)
        for part, dispatch in sent:
            parcel = parcel_of(phase, "down", part)
            self.count(parcel if dispatch is None else (parcel, dispatch), replies)
        for number, name in enumerate(ORACLES):
            self.add_count(name, oracles[:, number])

    def mixing(self, phase: str, reply: Any, population: int, messages: int, oracles: jax.Array) -> None:
        """Counts one exchange between neighbours: what a client gives travels once in every message."""
        self.count(("exchanges", phase), 1)
        self.count(("replies", phase), population)
        self.count(parcel_of(phase, "up", reply), messages)
        for number, name in enumerate(ORACLES):
            self.add_count(name, oracles[:, number])

    def settle(self, travels: Callable[[Dispatch], tuple[Any, bool]]) -> None:
        """At the end of a loop's body, when all that it sends is known: a parcel with a dispatch counts in the
        iterations that it travels in, and keeps its dispatch where a loop further out has a say."""
        for name in [name for name in self.counts if isinstance(name, tuple) and isinstance(name[-1], Dispatch)]:
            parcel, dispatch = name
            when, open_still = travels(dispatch)
            amount = self.counts.pop(name)
            self.add_count(name if open_still else parcel, amount if when is True else jnp.where(when, amount, 0))

    def totals(self) -> Totals:
        """The counts as one array, to be carried through a program."""
        names = tuple(sorted(self.counts, key=str))
        return Totals(names, jnp.stack([self.counts[n] for n in names], axis=1) if names else counts.zeros(0))

    def add(self, totals: Totals) -> None:
        """Adds what a loop inside the round has counted."""
        for number, name in enumerate(totals.names):
            self.add_count(name, totals.counts[:, number])


@jax.tree_util.register_pytree_node_class
class Totals:
    """Traced totals over many rounds: the names are static, the numbers are one array of counts."""

    def __init__(self, names: tuple, counts: Any):
        self.names, self.counts = names, counts

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.names, counts.plus(self.counts, other.counts))

    def values(self) -> dict[Any, int]:
        """The totals as Python integers."""
        return dict(zip(self.names, counts.whole(self.counts)))

    def tree_flatten(self):
        return (self.counts,), self.names

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(names, children[0])


@dataclass
class Ledger:
    """The cost of a run so far, in Python integers; what has not happened is not in it."""

    exchanges_of: dict[str, int] = field(default_factory=dict)  # by phase
    replies_of: dict[str, int] = field(default_factory=dict)
    parcels: dict[Parcel, int] = field(default_factory=dict)
    oracles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ORACLES, 0))

    def add(self, totals: Totals) -> None:
        """Adds what a program has counted."""
        for name, amount in totals.values().items():
            if isinstance(name, Parcel):
                _add(self.parcels, name, amount)
            elif isinstance(name, tuple):
                _add(self.exchanges_of if name[0] == "exchanges" else self.replies_of, name[1], amount)
            else:
                _add(self.oracles, name, amount)

    def add_exchange(self, phase: str, sent: list[Any], reply: Any, replies: int) -> None:
        """Adds one exchange with its number of replies; with none it has not happened."""
        _add(self.exchanges_of, phase, int(replies > 0))
        _add(self.replies_of, phase, replies)
        _add(self.parcels, parcel_of(phase, "up", reply), replies)
        for part in sent:
            _add(self.parcels, parcel_of(phase, "down", part), replies)

    def add_mixing(self, phase: str, reply: Any, population: int, messages: int) -> None:
        """Adds one exchange between neighbours, which takes so many messages."""
        _add(self.exchanges_of, phase, 1)
        _add(self.replies_of, phase, population)
        _add(self.parcels, parcel_of(phase, "up", reply), messages)

    def plus(self, totals: Totals) -> Ledger:
        """A ledger of its own with what a program has counted as well."""
        total = self.copy()
        total.add(totals)
        return total

    def copy(self) -> Ledger:
        return Ledger(dict(self.exchanges_of), dict(self.replies_of), dict(self.parcels), dict(self.oracles))

    @property
    def exchanges(self) -> int:
        """The number of exchanges: the server sends to the cohort, the cohort answers, the answers are aggregated."""
        return sum(self.exchanges_of.values())

    @property
    def replies(self) -> int:
        """The number of answers of single clients."""
        return sum(self.replies_of.values())

    @property
    def floats_up(self) -> int:
        """Numbers sent by clients, to the server or each to its neighbours, summed over clients."""
        return sum(parcel.floats * n for parcel, n in self.parcels.items() if parcel.way == "up")

    @property
    def floats_down(self) -> int:
        """Numbers sent by the server to clients, summed over clients; a vector goes to a client once a round."""
        return sum(parcel.floats * n for parcel, n in self.parcels.items() if parcel.way == "down")

    @property
    def bytes_up(self) -> int:
        return sum(parcel.bytes * n for parcel, n in self.parcels.items() if parcel.way == "up")

    @property
    def bytes_down(self) -> int:
        return sum(parcel.bytes * n for parcel, n in self.parcels.items() if parcel.way == "down")

    @property
    def samples(self) -> int:
        """Examples drawn by all clients."""
        return self.oracles["samples"]

    @property
    def gradients(self) -> int:
        """Evaluations by all clients: gradients, Hessian and cross products, each over one minibatch."""
        return sum(calls for name, calls in self.oracles.items() if name != "samples")

    def row(self) -> dict[str, int]:
        """The columns of a history."""
        columns = ("exchanges", "floats_up", "floats_down", "bytes_up", "bytes_down", "samples", "gradients")
        return {name: getattr(self, name) for name in columns}

    def to_json(self) -> dict[str, Any]:
        return {
            "exchanges": dict(self.exchanges_of),
            "replies": dict(self.replies_of),
            "parcels": [{**parcel._asdict(), "times": times} for parcel, times in self.parcels.items()],
            "oracles": dict(self.oracles),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ledger:
        parcels = {Parcel(*(row[name] for name in Parcel._fields)): row["times"] for row in data["parcels"]}
        return cls(dict(data["exchanges"]), dict(data["replies"]), parcels, dict(data["oracles"]))


def _add(counts: dict[Any, int], name: Any, amount: int) -> None:
    if amount:
        counts[name] = counts.get(name, 0) + amount
