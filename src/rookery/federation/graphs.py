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

LARGEST = 5000  # clients of whom all pairs are looked at
SMALL = 3000  # clients whose matrix has its eigenvalues taken one and all
STEPS, WIDTH = 300, 60  # of Lanczos' method: how often it begins anew, and how many vectors it has
TRIES = 1000  # random graphs that are drawn until one is connected
DENSE = 4  # a client with more than one neighbour in so many of all: then a product of matrices is faster


class Graph(ABC):
    """Who are neighbours. Subclasses are made by `@struct` with static fields alone."""

    @abstractmethod
    def edges(self, population: int) -> Any:
        """Who talks to whom: pairs of clients, each pair once or more, in any order; refuses what does not fit."""

    def spectrum(self, population: int) -> np.ndarray | None:
        """All eigenvalues of the Metropolis weights, where they are known in closed form."""
        return None


@part
@struct
class Ring(Graph):
    """Everybody talks to the client before and to the one after; the last one is before the first."""

    def edges(self, population: int) -> np.ndarray:
        return _next_to(np.arange(population)[None])

    def spectrum(self, population: int) -> np.ndarray:
        degree, values = _of_a_ring(population)
        return (1 + values) / (1 + degree)


@part
@struct
class Torus(Graph):
    """Clients row by row on a grid whose edges are glued together: four neighbours each, where it is large enough.

    Args:
      rows, columns: of the grid; None: what the number of clients leaves, as square as that allows.
    """

    rows: int | None = count(default=None, static=True)
    columns: int | None = count(default=None, static=True)

    def edges(self, population: int) -> np.ndarray:
        grid = np.arange(population).reshape(self._grid(population))
        return np.concatenate([_next_to(grid), _next_to(grid.T)])

    def spectrum(self, population: int) -> np.ndarray:
        (up, over), (beside, along) = map(_of_a_ring, self._grid(population))
        return ((1 + over[:, None] + along) / (1 + up + beside)).reshape(-1)

    def _grid(self, population: int) -> tuple[int, int]:
        rows = self.rows or (population // self.columns if self.columns else _squarest(population))
        columns = self.columns or population // rows
        if rows * columns != population:
            raise InputError(
                f"mixing.graph: a torus of {rows} x {columns} was given; {population} clients do not fill it"
            )
        return rows, columns


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

    def edges(self, population: int) -> np.ndarray:
        if not 0 < self.p <= 1:
            raise InputError(f"mixing.graph.p: {self.p} was given; 0 < p <= 1 is needed")
        if self.seed < 0:
            raise InputError(f"mixing.graph.seed: {self.seed} was given; a whole number from 0 is needed")
        check_table(population)
        rng = np.random.default_rng(self.seed)
        for _ in range(TRIES):
            pairs = np.argwhere(np.triu(rng.random((population, population)) < self.p, 1))
            if _connected(pairs, population):
                return pairs
        raise InputError(
            f"mixing.graph.p: {self.p} was given; of {TRIES} such graphs of {population} clients none is connected"
        )


@part
@struct
class Complete(Graph):
    """Everybody talks to everybody."""

    def edges(self, population: int) -> np.ndarray:
        check_table(population)
        return np.argwhere(np.triu(np.ones((population, population), bool), 1))

    def spectrum(self, population: int) -> np.ndarray:
        return np.eye(1, population)[0]


def _squarest(population: int) -> int:
    """The rows of the squarest grid that so many clients fill."""
    return next(rows for rows in range(math.isqrt(population), 0, -1) if population % rows == 0)


def _next_to(grid: np.ndarray) -> np.ndarray:
    """Neighbours along the rows of a grid, each of which is a ring."""
    pairs = np.stack([grid, np.roll(grid, -1, axis=1)], axis=-1).reshape(-1, 2)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def _of_a_ring(length: int) -> tuple[int, np.ndarray]:
    """How many neighbours everybody has in a ring, and the eigenvalues of the table of who they are."""
    degree = min(length - 1, 2)
    return degree, degree * np.cos(2 * np.pi * np.arange(length) / length)


def check_table(population: int) -> None:
    """Refuses a population that is too large for a table of who talks to whom."""
    if population > LARGEST:
        raise InputError(
            f"mixing.graph: {population} clients were given, and where one talks to many there is room for {LARGEST}; "
            "rk.Ring() and rk.Torus() have room for more"
        )


def _connected(pairs: np.ndarray, population: int) -> bool:
    """Whether everybody can be reached from everybody: all take the smallest number among those they can reach."""
    label, before = np.arange(population), None
    i, j = pairs.T
    while before is None or (label != before).any():
        before, smaller = label.copy(), np.minimum(label[i], label[j])
        np.minimum.at(label, before[i], smaller)
        np.minimum.at(label, before[j], smaller)
        while (label != (further := label[label])).any():
            label = further
    return not label.any()


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
        return _matrix(self.graph, population, self.step)

    def check(self, population: int) -> None:
        """Refuses a graph that does not fit so many clients."""
        most = 1 + int(_degrees(self.graph, population).max())
        if population * (population if self._is_dense(population) else most) > LARGEST**2:
            raise InputError(
                f"mixing.graph: {population} clients were given, one of whom talks to {most - 1}; tables of clients "
                f"times the most neighbours have room for {LARGEST**2} numbers"
            )

    def _is_dense(self, population: int) -> bool:
        """Whether somebody talks to so many that a product of matrices is faster."""
        return bool((1 + _degrees(self.graph, population).max()) * DENSE > population)

    def spectral_gap(self, population: int) -> float:
        """1 - the second largest |eigenvalue| of W^times: how much of a disagreement is gone after an exchange. NaN
        where it was not found, of very large graphs of one's own."""
        return _gap(self.graph, population, self.times, self.step)

    def messages(self, population: int) -> int:
        """How many messages an exchange takes: one over every edge, each way and each time."""
        return self.times * 2 * len(_edges(self.graph, population))

    def check_channel(self, up: Any) -> None:
        """Refuses what is packed and mixed several times: what neighbours pass on of sums would not be packed."""
        if up is not None and self.times > 1:
            raise InputError(f"up: it was given, and mixing.times is {self.times}; with a channel it must be 1")

    def mix(self, values: Any) -> Any:
        """Row i of every leaf becomes sum_j W_ij of row j."""
        return jax.tree.map(self._mixed, values)

    def _mixed(self, leaf: jax.Array) -> jax.Array:
        population = leaf.shape[0]
        once: Callable[[jax.Array], jax.Array]
        if self._is_dense(population):
            whole = jnp.asarray(self.matrix(population), leaf.dtype)
            once = lambda leaf: jnp.tensordot(whole, leaf, axes=1, precision=jax.lax.Precision.HIGHEST)
        else:
            index, weight = _lists(self.graph, population, self.step)
            shaped = lambda k: jnp.asarray(weight[:, k], leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
            once = lambda leaf: sum(
                (shaped(k) * leaf[index[:, k]] for k in range(index.shape[1])), jnp.zeros_like(leaf)
            )
        for _ in range(self.times):
            leaf = once(leaf)
        return leaf


@lru_cache(maxsize=32)
def _edges(graph: Graph, population: int) -> np.ndarray:
    """What a graph says of so many clients, checked: pairs i < j, each once, in order."""
    with failing(f"mixing.graph: {type(graph).__name__}.edges"):
        edges = graph.edges(population)
        given = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))
    if not given.size:
        given = np.zeros((0, 2), np.int64)
    fits = given.ndim == 2 and given.shape[1] == 2 and given.dtype.kind in "iu"
    if not fits or (given.size and (given.min() < 0 or given.max() >= population)):
        raise InputError(
            f"mixing.graph: {type(graph).__name__} gives edges that are no pairs of whole numbers from 0 to "
            f"{population - 1}"
        )
    if (given[:, :1] == given[:, 1:]).any():
        raise InputError(f"mixing.graph: {type(graph).__name__} gives an edge from a client to itself")
    pairs = np.unique(np.sort(given.astype(np.int64), axis=1), axis=0)
    if not _connected(pairs, population):
        raise InputError(f"mixing.graph: {graph} does not connect all of {population} clients")
    return pairs


def _degrees(graph: Graph, population: int) -> np.ndarray:
    """How many neighbours each client has."""
    return np.bincount(_edges(graph, population).reshape(-1), minlength=population)


def _weights(graph: Graph, population: int, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of the Metropolis weights that are not 0, with a step: rows, columns and values, by row."""
    i, j = _edges(graph, population).T
    degree = _degrees(graph, population)
    weight = step / (1 + np.maximum(degree[i], degree[j]))
    rows, columns, values = np.concatenate([i, j]), np.concatenate([j, i]), np.concatenate([weight, weight])
    own = 1 - np.bincount(rows, values, minlength=population)
    everybody = np.arange(population)
    rows, columns = np.concatenate([rows, everybody]), np.concatenate([columns, everybody])
    order = np.lexsort((columns, rows))
    return rows[order], columns[order], np.concatenate([values, own])[order]


@lru_cache(maxsize=32)
def _matrix(graph: Graph, population: int, step: float) -> np.ndarray:
    """The Metropolis weights of a graph, with a step, as a table."""
    check_table(population)  # of W, which a graph of one's own may need in whole
    rows, columns, values = _weights(graph, population, step)
    table = np.zeros((population, population))
    table[rows, columns] = values
    table.flags.writeable = False
    return table


@lru_cache(maxsize=32)
def _gap(graph: Graph, population: int, times: int, step: float) -> float:
    if population == 1:
        return 1.0
    with failing(f"mixing.graph: {type(graph).__name__}.spectrum"):
        known = graph.spectrum(population)
    if known is not None:
        values = 1 - step * (1 - known)
    elif population <= SMALL:
        values = np.linalg.eigvalsh(_matrix(graph, population, step))
    else:
        values = _largest_eigenvalues(*_weights(graph, population, step))
    return float(1 - np.sort(np.abs(values))[-2] ** times)


def _largest_eigenvalues(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The two largest eigenvalues of a symmetric matrix by size, by Lanczos' method; NaN where it does not end."""
    from scipy.sparse import coo_array  # which JAX brings
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    size = int(rows.max()) + 1
    matrix = coo_array((values, (rows, columns)), shape=(size, size)).tocsr()
    try:
        begin = np.cos(np.arange(size))
        return np.asarray(eigsh(matrix, k=2, v0=begin, ncv=WIDTH, maxiter=STEPS, return_eigenvectors=False))
    except ArpackNoConvergence:
        return np.full(2, np.nan)


@lru_cache(maxsize=32)
def _lists(graph: Graph, population: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Whom each client hears, itself among them, and with which weight: lists as long as the longest, with weight 0."""
    rows, columns, values = _weights(graph, population, step)
    length = np.bincount(rows, minlength=population)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(length) - length, length)
    index, weight = np.zeros((population, length.max()), np.int32), np.zeros((population, length.max()))
    index[rows, place], weight[rows, place] = columns, values
    return index, weight


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
