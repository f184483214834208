"""What a run has cost, counted from the exchanges themselves. Imports nothing of rookery.

Inside a program small counters are traced: per kind of exchange, how many exchanges and how many replies, and per
oracle how many calls. On the host they are multiplied by the static sizes of the messages in Python integers, which
do not overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ORACLES = ("samples", "gradients", "hvps", "crosses")


class Site(NamedTuple):
    """One kind of exchange: the phase, and the size of what goes each way, per client."""

    phase: str
    floats_up: int
    floats_down: int
    bytes_up: int
    bytes_down: int


def site_of(phase: str, message: Any, reply: Any) -> Site:
    """The site of an exchange, from the shapes of its message and its reply."""

    def sizes(tree: Any) -> tuple[int, int]:
        leaves = jax.tree.leaves(tree)
        floats = sum(int(np.prod(np.shape(leaf))) for leaf in leaves)
        return floats, sum(int(np.prod(np.shape(leaf))) * np.dtype(_dtype(leaf)).itemsize for leaf in leaves)

    (up, bytes_up), (down, bytes_down) = sizes(reply), sizes(message)
    return Site(phase, up, down, bytes_up, bytes_down)


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)


class Tally:
    """What one round counts while it is traced: per site (exchanges, replies), and per oracle; each below 2**30."""

    def __init__(self) -> None:
        self.counts: dict[Any, Any] = {}

    def count(self, name: Any, amount: Any) -> None:
        self.counts[name] = self.counts.get(name, 0) + jnp.asarray(amount, jnp.int32)

    def exchange(self, site: Site, happened: Any, replies: Any, oracles: jax.Array) -> None:
        """Counts one exchange at a site, if it happened, with its replies and their oracle calls."""
        self.count((site, "exchanges"), happened)
        self.count((site, "replies"), replies)
        for number, name in enumerate(ORACLES):
            self.count(name, oracles[number])

    def totals(self) -> Totals:
        """The counts as one array, to be carried through a program."""
        names = tuple(sorted(self.counts, key=str))
        low = jnp.stack([self.counts[name] for name in names]) if names else jnp.zeros(0, jnp.int32)
        return Totals(names, jnp.stack([jnp.zeros_like(low), low]))

    def add(self, totals: Totals) -> None:
        """Adds what a loop inside the round has counted."""
        for number, name in enumerate(totals.names):
            self.count(name, totals.limbs[1, number])


@jax.tree_util.register_pytree_node_class
class Totals:
    """Traced totals over many rounds: the names are static, the numbers are one array of two rows.

    Row 0 counts units of 2**30, row 1 the rest: 32 bits alone overflow within minutes.
    """

    BASE = 30

    def __init__(self, names: tuple, limbs: Any):
        self.names, self.limbs = names, limbs

    def __add__(self, other: Totals) -> Totals:
        high, low = self.limbs + other.limbs
        return Totals(self.names, jnp.stack([high + (low >> self.BASE), low & (2**self.BASE - 1)]))

    def values(self) -> dict[Any, int]:
        """The totals as Python integers."""
        high, low = np.asarray(self.limbs).astype(object)
        return {name: int(h) * 2**self.BASE + int(l) for name, h, l in zip(self.names, high, low)}

    def tree_flatten(self):
        return (self.limbs,), self.names

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(names, children[0])


@dataclass
class Ledger:
    """The cost of a run so far, in Python integers."""

    exchanges_at: dict[Site, int] = field(default_factory=dict)
    replies_at: dict[Site, int] = field(default_factory=dict)
    oracles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ORACLES, 0))

    def add(self, totals: Totals) -> None:
        """Adds what a program has counted."""
        for name, amount in totals.values().items():
            if isinstance(name, tuple):
                site, what = name
                counts = self.exchanges_at if what == "exchanges" else self.replies_at
                counts[site] = counts.get(site, 0) + amount
            else:
                self.oracles[name] = self.oracles.get(name, 0) + amount

    def add_exchange(self, site: Site, replies: int) -> None:
        """Adds one exchange with so many replies; with none it has not happened."""
        self.exchanges_at[site] = self.exchanges_at.get(site, 0) + (replies > 0)
        self.replies_at[site] = self.replies_at.get(site, 0) + replies

    def copy(self) -> Ledger:
        return Ledger(dict(self.exchanges_at), dict(self.replies_at), dict(self.oracles))

    @property
    def exchanges(self) -> int:
        """The number of exchanges: the server sends to the cohort, the cohort answers, the answers are aggregated."""
        return sum(self.exchanges_at.values())

    @property
    def replies(self) -> int:
        """The number of answers of single clients."""
        return sum(self.replies_at.values())

    @property
    def floats_up(self) -> int:
        """Numbers sent by clients to the server, summed over clients."""
        return sum(site.floats_up * n for site, n in self.replies_at.items())

    @property
    def floats_down(self) -> int:
        """Numbers sent by the server to clients, summed over clients."""
        return sum(site.floats_down * n for site, n in self.replies_at.items())

    @property
    def bytes_up(self) -> int:
        return sum(site.bytes_up * n for site, n in self.replies_at.items())

    @property
    def bytes_down(self) -> int:
        return sum(site.bytes_down * n for site, n in self.replies_at.items())

    @property
    def samples(self) -> int:
        """Examples drawn by all clients."""
        return self.oracles["samples"]

    def row(self) -> dict[str, int]:
        """The columns of a history."""
        columns = ("exchanges", "floats_up", "floats_down", "bytes_up", "bytes_down", "samples")
        return {name: getattr(self, name) for name in columns}

    def to_json(self) -> dict[str, Any]:
        sites = [
            {
                **site._asdict(),
                "exchanges": self.exchanges_at.get(site, 0),
                "replies": self.replies_at.get(site, 0),
            }
            for site in self.exchanges_at
        ]
        return {"sites": sites, "oracles": dict(self.oracles)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ledger:
        ledger = cls(oracles=dict(data["oracles"]))
        for row in data["sites"]:
            site = Site(*(row[name] for name in Site._fields))
            ledger.exchanges_at[site], ledger.replies_at[site] = row["exchanges"], row["replies"]
        return ledger
