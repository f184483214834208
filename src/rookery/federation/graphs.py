"""Who talks to whom where there is no server: graphs, and how neighbours' values are mixed. Imports fields and structs.

A graph gives every client its neighbours; `Mixing` weighs them. Both are part of a method's structure.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError, failing
from rookery.federation.codec import part
from rookery.federation.fields import component, count
from rookery.structs import Given, static, struct

TRIES = 1000  # random graphs that are drawn until one is connected
DENSE = 4  # a client with more than one neighbour in so many of all: then a product of matrices is faster


class Graph(ABC):
    """Who are neighbours. Subclasses are made by `@struct` with static fields alone."""

    @abstractmethod
    def neighbours(self, population: int) -> np.ndarray:
        """Whether i and j talk to each other: a symmetric table without its diagonal; refuses what does not fit."""


@part
@struct
class Ring(Graph):
    """Everybody talks to the client before and to the one after; the last one is before the first."""

    def neighbours(self, population: int) -> np.ndarray:
        return _next_to(np.arange(population)[None])


@part
@struct
class Torus(Graph):
    """Clients row by row on a grid whose edges are glued together: four neighbours each, where it is large enough.

    Args:
      rows, columns: of the grid; None: what the number of clients leaves, as square as that allows.
    """

    rows: int | None = count(default=None, static=True)
    columns: int | None = count(default=None, static=True)

    def neighbours(self, population: int) -> np.ndarray:
        rows = self.rows or (population // self.columns if self.columns else _squarest(population))
        columns = self.columns or population // rows
        if rows * columns != population:
            raise InputError(
                f"mixing.graph: a torus of {rows} x {columns} was given; {population} clients do not fill it"
            )
        grid = np.arange(population).reshape(rows, columns)
        return _next_to(grid) | _next_to(grid.T)


@part
@struct
class RandomGraph(Graph):
    """Every two clients talk to each other with probability p (Erdos and Renyi); drawn again until it is connected.

    Args:
      p: the probability.
      seed: of the draw.
    """

    p: float = static(default=0.3)
    seed: int = static(default=0)

    def neighbours(self, population: int) -> np.ndarray:
        if not 0 < self.p <= 1:
            raise InputError(f"mixing.graph.p: {self.p} was given; 0 < p <= 1 is needed")
        if self.seed < 0:
            raise InputError(f"mixing.graph.seed: {self.seed} was given; a whole number from 0 is needed")
        rng = np.random.default_rng(self.seed)
        for _ in range(TRIES):
            upper = np.triu(rng.random((population, population)) < self.p, 1)
            if _connected(table := upper | upper.T):
                return table
        raise InputError(
            f"mixing.graph.p: {self.p} was given; of {TRIES} such graphs of {population} clients none is connected"
        )


@part
@struct
class Complete(Graph):
    """Everybody talks to everybody."""

    def neighbours(self, population: int) -> np.ndarray:
        return ~np.eye(population, dtype=bool)


def _squarest(population: int) -> int:
    """The rows of the squarest grid that so many clients fill."""
    return next(rows for rows in range(math.isqrt(population), 0, -1) if population % rows == 0)


def _next_to(grid: np.ndarray) -> np.ndarray:
    """Neighbours along the rows of a grid, each of which is a ring."""
    table = np.zeros((grid.size, grid.size), bool)
    table[grid, np.roll(grid, -1, axis=1)] = True
    return (table | table.T) & ~np.eye(grid.size, dtype=bool)


def _connected(table: np.ndarray) -> bool:
    """Whether everybody can be reached from the first client."""
    reached = np.zeros(len(table), bool)
    reached[:1] = True
    while (more := reached | table[reached].any(axis=0)).sum() > reached.sum():
        reached = more
    return bool(reached.all())


def _wrap_graph(given: Any) -> Graph:
    if not isinstance(given, Graph):
        raise InputError(f"mixing: {given!r} was given; a graph such as rk.Ring() is needed")
    try:
        hash(given)
    except TypeError:
        raise InputError(
            f"mixing.graph: {type(given).__name__} has a field that is no fixed value, such as an array; give tuples"
        ) from None
    return given


@part
@struct
class Mixing:
    """What a client makes of its neighbours' values: sum_j W_ij r_j, with Metropolis weights

        W_ij = 1 / (1 + max(d_i, d_j)) for neighbours,   W_ii = 1 - the rest,   d_i the number of i's neighbours.

    W is symmetric and its rows sum to 1, so mixing keeps the mean over clients, and draws them together by the
    spectral gap, 1 - max(|lambda_2|, |lambda_n|). In a complete graph every weight is 1 / n.

    Args:
      graph: `rk.Ring()`, `rk.Torus(rows)`, `rk.RandomGraph(p, seed)` or `rk.Complete()`.
      times: how often neighbours mix in one exchange, each time over all edges; the matrix is W^times.
      step: how far a client goes towards its neighbours' mean: (1 - step) I + step W in the place of W. Channels that
        lose much want a smaller one.
    """

    graph: Graph = component(Ring(), wrapped=_wrap_graph, static=True)
    times: int = count(default=1, static=True)
    step: float = static(default=1.0)

    def __post_init__(self) -> None:
        _wrap_graph(self.graph)
        if isinstance(self.step, bool) or not isinstance(self.step, Real) or not 0 < float(self.step) <= 1:
            raise InputError(f"mixing.step: {self.step!r} was given; a number above 0 and up to 1 is needed")

    def matrix(self, population: int) -> np.ndarray:
        """W of so many clients, with its step, in float64; read only."""
        return _weights(self.graph, population, self.step)

    def spectral_gap(self, population: int) -> float:
        """1 - the second largest |eigenvalue| of W^times: how much of a disagreement is gone after an exchange."""
        return _gap(self.graph, population, self.times, self.step)

    def messages(self, population: int) -> int:
        """How many messages an exchange takes: one over every edge, each way and each time."""
        return self.times * int(np.count_nonzero(_neighbours(self.graph, population)))

    def check_channel(self, up: Any) -> None:
        """Refuses what is packed and mixed several times: what neighbours pass on of sums would not be packed."""
        if up is not None and self.times > 1:
            raise InputError(f"up: it was given, and mixing.times is {self.times}; with a channel it must be 1")

    def mix(self, values: Any) -> Any:
        """Row i of every leaf becomes sum_j W_ij of row j."""
        return jax.tree.map(self._mixed, values)

    def _mixed(self, leaf: jax.Array) -> jax.Array:
        population = leaf.shape[0]
        index, weight = _lists(self.graph, population, self.step)
        once: Callable[[jax.Array], jax.Array]
        if index.shape[1] * DENSE > population:
            whole = jnp.asarray(self.matrix(population), leaf.dtype)
            once = lambda leaf: jnp.tensordot(whole, leaf, axes=1)
        else:
            shaped = lambda k: jnp.asarray(weight[:, k], leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
            once = lambda leaf: sum(
                (shaped(k) * leaf[index[:, k]] for k in range(index.shape[1])), jnp.zeros_like(leaf)
            )
        for _ in range(self.times):
            leaf = once(leaf)
        return leaf


@lru_cache(maxsize=32)
def _neighbours(graph: Graph, population: int) -> np.ndarray:
    """What a graph says of so many clients, checked."""
    with failing(f"mixing.graph: {type(graph).__name__}.neighbours"):
        table = np.asarray(graph.neighbours(population), bool)
    if table.shape != (population, population) or (table != table.T).any() or table.diagonal().any():
        raise InputError(
            f"mixing.graph: {type(graph).__name__} gives no symmetric table of {population} clients without a diagonal"
        )
    if not _connected(table):
        raise InputError(f"mixing.graph: {graph} does not connect all of {population} clients")
    return table


@lru_cache(maxsize=32)
def _weights(graph: Graph, population: int, step: float) -> np.ndarray:
    """The Metropolis weights of a graph, with a step."""
    table = _neighbours(graph, population)
    degree = table.sum(axis=1)
    weights = np.where(table, step / (1 + np.maximum(degree[:, None], degree)), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    weights.flags.writeable = False
    return weights


@lru_cache(maxsize=32)
def _gap(graph: Graph, population: int, times: int, step: float) -> float:
    if population == 1:
        return 1.0
    sizes = np.sort(np.abs(np.linalg.eigvalsh(_weights(graph, population, step))))
    return float(1 - sizes[-2] ** times)


@lru_cache(maxsize=32)
def _lists(graph: Graph, population: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Whom each client hears, itself among them, and with which weight: lists as long as the longest, with weight 0."""
    weights = _weights(graph, population, step)
    order = np.argsort(weights == 0, axis=1, kind="stable")
    index = order[:, : int((weights != 0).sum(axis=1).max())].astype(np.int32)
    return index, np.take_along_axis(weights, index, axis=1)


def read_mixing(argument: str, text: str) -> Mixing:
    """`ring`, `torus`, `torus:4x5`, `random:0.3`, `random:0.3:7` or `complete`, and after an @ the step."""
    named, at, step = text.partition("@")
    try:
        graph, length = _read_graph(*named.split(":")), float(step) if at else 1.0
    except ValueError:
        raise InputError(
            f"{argument}: {text!r} was given; allowed are ring, torus, torus:ROWSxCOLUMNS, random:P, random:P:SEED and "
            "complete, each with @STEP behind it or not"
        ) from None
    return Mixing(graph, step=length)


def _read_graph(*parts: str) -> Graph:
    match parts:
        case ["ring"]:
            return Ring()
        case ["complete"]:
            return Complete()
        case ["torus"]:
            return Torus()
        case ["torus", size]:
            rows, columns = map(int, size.split("x"))
            return Torus(rows, columns)
        case ["random", p]:
            return RandomGraph(float(p))
        case ["random", p, seed]:
            return RandomGraph(float(p), int(seed))
    raise ValueError


def _wrap_mixing(given: Any) -> Any:
    if isinstance(given, Graph):
        return Mixing(given)
    if not isinstance(given, Mixing):
        raise InputError(f"mixing: {given!r} was given; rk.Mixing(rk.Ring()) or a graph such as rk.Ring() is needed")
    return given


def mixing_field() -> Any:
    """A method's field `mixing`: a graph will do."""
    text = "Who talks to whom: ring, torus, torus:ROWSxCOLUMNS, random:P, random:P:SEED or complete; @STEP behind it."
    return component(Mixing(), read=read_mixing, text=text, given="ring", wrapped=_wrap_mixing, static=True)


GivenMixing = Given[Mixing, Mixing | Graph]
