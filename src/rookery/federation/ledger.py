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


# A traced counter is two int32 limbs, (high, low) in base 2**30: 32 bits overflow within minutes.
_BASE = 30


def zero() -> jax.Array:
    """A traced counter at 0."""
    return jnp.zeros(2, jnp.int32)


def add(counter: jax.Array, amount: Any) -> jax.Array:
    """The counter plus an amount below 2**30, or plus another counter."""
    high, low = (amount[0], amount[1]) if jnp.ndim(amount) == 1 else (0, amount)
    low = counter[1] + low
    return jnp.stack([counter[0] + high + (low >> _BASE), low & (2**_BASE - 1)]).astype(jnp.int32)


def value(counter: Any) -> int:
    """A counter as a Python integer."""
    high, low = np.asarray(counter).astype(object)
    return int(high) * 2**_BASE + int(low)


@jax.tree_util.register_pytree_node_class
class Tally:
    """Traced counters: per site (exchanges, replies), and per oracle. Its sites are static, its counts are leaves."""

    def __init__(self, counters: Mapping[Any, jax.Array] | None = None):
        self.counters = dict(counters or {})

    def count(self, name: Any, amount: Any) -> None:
        self.counters[name] = add(self.counters.get(name, zero()), amount)

    def exchange(self, site: Site, happened: Any, replies: Any) -> None:
        """Counts one exchange at a site, if it happened, with so many replies."""
        self.count((site, "exchanges"), jnp.asarray(happened, jnp.int32))
        self.count((site, "replies"), jnp.asarray(replies, jnp.int32))

    def merge(self, other: Tally) -> None:
        for name, counter in other.counters.items():
            self.count(name, counter)

    def tree_flatten(self):
        names = tuple(sorted(self.counters, key=str))
        return tuple(self.counters[name] for name in names), names

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(dict(zip(names, children)))


@dataclass
class Ledger:
    """The cost of a run so far, in Python integers."""

    exchanges_at: dict[Site, int] = field(default_factory=dict)
    replies_at: dict[Site, int] = field(default_factory=dict)
    oracles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ORACLES, 0))

    def add_tally(self, tally: Tally) -> None:
        """Adds what a program has counted."""
        for name, counter in tally.counters.items():
            if isinstance(name, tuple):
                site, what = name
                totals = self.exchanges_at if what == "exchanges" else self.replies_at
                totals[site] = totals.get(site, 0) + value(counter)
            else:
                self.oracles[name] = self.oracles.get(name, 0) + value(counter)

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
