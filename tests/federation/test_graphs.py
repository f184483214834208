"""Graphs and their weights against numpy and by hand."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.federation.graphs import read_mixing

GRAPHS = [(rk.Ring(), 7), (rk.Torus(3, 4), 12), (rk.Torus(), 10), (rk.RandomGraph(0.3, seed=2), 12), (rk.Complete(), 5)]


def table_of(graph, n):
    """Whether i and j are neighbours."""
    table = np.zeros((n, n), bool)
    for i, j in graph.edges(n):
        table[i, j] = table[j, i] = True
    return table


@pytest.mark.parametrize(("graph", "n"), GRAPHS, ids=str)
def test_weights_are_metropolis_symmetric_and_sum_to_one(graph, n):
    W, neighbours = rk.Mixing(graph).matrix(n), table_of(graph, n)
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-15)
    degree = [sum(row) for row in neighbours]
    for i, j in zip(*np.nonzero(neighbours)):
        assert W[i, j] == 1 / (1 + max(degree[i], degree[j]))
    assert (W[~neighbours & ~np.eye(n, dtype=bool)] == 0).all()


@pytest.mark.parametrize(
    ("graph", "n"),
    [*GRAPHS, (rk.Ring(), 2), (rk.Ring(), 3), (rk.Torus(1, 6), 6), (rk.Torus(2, 2), 4), (rk.Torus(5, 2), 10)],
    ids=str,
)
def test_spectral_gap_is_that_of_numpy(graph, n):
    for times in (1, 3):
        mixing = rk.Mixing(graph, times=times)
        W = np.linalg.matrix_power(mixing.matrix(n), times) - np.full((n, n), 1 / n)
        assert abs(mixing.spectral_gap(n) - (1 - np.abs(np.linalg.eigvals(W)).max())) <= 1e-12


def test_spectral_gaps_in_closed_form():
    ring, torus = rk.Mixing(rk.Ring()), rk.Mixing(rk.Torus(5, 5))
    assert abs(ring.spectral_gap(9) - (2 - 2 * np.cos(2 * np.pi / 9)) / 3) <= 1e-14
    assert abs(torus.spectral_gap(25) - (2 - 2 * np.cos(2 * np.pi / 5)) / 5) <= 1e-14
    assert abs(rk.Mixing(rk.Complete()).spectral_gap(6) - 1) <= 1e-14
    assert rk.Mixing(rk.Ring()).spectral_gap(1) == 1


def test_neighbours_by_hand():
    """4 is in the middle row of a grid of 3 x 3: 1 above, 7 below, 3 and 5 beside; 0 has 1, 2, 3 and 6."""
    torus = table_of(rk.Torus(3, 3), 9)
    assert np.flatnonzero(torus[4]).tolist() == [1, 3, 5, 7]
    assert np.flatnonzero(torus[0]).tolist() == [1, 2, 3, 6]
    assert np.flatnonzero(table_of(rk.Ring(), 5)[0]).tolist() == [1, 4]
    assert np.flatnonzero(table_of(rk.Ring(), 2)[0]).tolist() == [1]


def test_messages_are_edges_both_ways():
    assert rk.Mixing(rk.Ring()).messages(7) == 14
    assert rk.Mixing(rk.Ring(), times=3).messages(7) == 42
    assert rk.Mixing(rk.Torus(3, 4)).messages(12) == 48
    assert rk.Mixing(rk.Complete()).messages(5) == 20
    assert rk.Mixing(rk.Ring()).messages(1) == 0


@pytest.mark.parametrize(("graph", "n"), [*GRAPHS, (rk.Ring(), 20)], ids=str)
def test_mixing_is_the_product_with_the_matrix(graph, n):
    """By lists of neighbours where there are few, and by a product of matrices."""
    values = np.random.default_rng(0).normal(size=(n, 2, 3))
    with jax.enable_x64(True):
        for times in (1, 2):
            mixing = rk.Mixing(graph, times=times)
            expected = np.einsum("ij,jkl->ikl", np.linalg.matrix_power(mixing.matrix(n), times), values)
            np.testing.assert_allclose(mixing.mix({"a": values})["a"], expected, atol=1e-15)


def test_a_random_graph_is_that_of_its_seed_and_connected():
    draw = lambda seed: table_of(rk.RandomGraph(0.15, seed=seed), 20)
    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).any()
    for seed in range(5):
        walks = np.linalg.matrix_power(draw(seed).astype(float) + np.eye(20), 20)
        assert (walks > 0).all()


@pytest.mark.parametrize(
    ("text", "graph"),
    [
        ("ring", rk.Ring()),
        ("complete", rk.Complete()),
        ("torus", rk.Torus()),
        ("torus:4x5", rk.Torus(4, 5)),
        ("random:0.3", rk.RandomGraph(0.3)),
        ("random:0.3:7", rk.RandomGraph(0.3, seed=7)),
    ],
)
def test_a_shell_names_graphs(text, graph):
    assert read_mixing("mixing", text) == rk.Mixing(graph)


def test_a_shell_says_the_step():
    assert read_mixing("mixing", "torus:4x5@0.3") == rk.Mixing(rk.Torus(4, 5), step=0.3)
    with pytest.raises(rk.InputError, match=r"mixing\.step: 2\.0 was given; a number above 0 and up to 1 is needed"):
        read_mixing("mixing", "ring@2")


def test_a_step_is_a_part_of_the_way():
    whole, part = rk.Mixing(rk.Ring()), rk.Mixing(rk.Ring(), step=0.25)
    np.testing.assert_allclose(part.matrix(6), 0.75 * np.eye(6) + 0.25 * whole.matrix(6), atol=1e-15)
    assert part.spectral_gap(6) < whole.spectral_gap(6)


@pytest.mark.parametrize(
    "text", ["star", "ring:3", "torus:4", "torus:4x", "random", "random:many", "", "ring@", "ring@a"]
)
def test_a_shell_names_no_others(text):
    with pytest.raises(rk.InputError, match=f"mixing: '{text}' was given; allowed are ring"):
        read_mixing("mixing", text)


class Apart(rk.Graph):
    """Two clients who talk to each other, and others who do not."""

    def edges(self, population):
        return [(0, 1)]


class Star(rk.Graph):
    """Everybody talks to the first client."""

    def edges(self, population):
        return [(i, 0) for i in range(1, population)]


class Wrong(rk.Graph):
    """Pairs that are none."""

    def edges(self, population):
        if population == 4:
            return [(0, 1, 2), (1, 2, 3)]
        return [(0, 1), (2, 2)] if population == 3 else [(0, population)]


class Broken(rk.Graph):
    """A graph whose edges cannot be told."""

    def edges(self, population):
        return np.zeros((population, population))[population]


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (Broken(), "mixing.graph: Broken.edges fails, with IndexError: index 6 is out of bounds"),
        (rk.Torus(4, 5), "mixing.graph: a torus of 4 x 5 was given; 6 clients do not fill it"),
        (rk.Torus(4), "mixing.graph: a torus of 4 x 1 was given"),
        (rk.RandomGraph(0.0), "mixing.graph.p: 0.0 was given; 0 < p <= 1 is needed"),
        (rk.RandomGraph(0.5, seed=-1), "mixing.graph.seed: -1 was given"),
        (rk.RandomGraph(1e-6), "of 1000 such graphs of 6 clients none is connected"),
        (Apart(), "does not connect all of 6 clients"),
        (Wrong(), "Wrong gives edges that are no pairs of whole numbers from 0 to 5"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_what_does_not_fit_is_refused(graph, sentence):
    with pytest.raises(rk.InputError, match=re.escape(sentence)):
        rk.Mixing(graph).matrix(6)


def test_an_edge_to_itself_is_refused():
    with pytest.raises(rk.InputError, match="Wrong gives an edge from a client to itself"):
        rk.Mixing(Wrong()).matrix(3)
    with pytest.raises(rk.InputError, match="Wrong gives edges that are no pairs"):
        rk.Mixing(Wrong()).matrix(4)


def test_a_graph_of_ones_own():
    """A star of n: 1 / n over every edge; W has 1 - 1 / n as its second largest eigenvalue."""
    mixing = rk.Mixing(Star())
    np.testing.assert_allclose(mixing.matrix(5)[0], 1 / 5)
    assert abs(mixing.spectral_gap(5) - 1 / 5) <= 1e-14 and mixing.messages(5) == 8


def test_large_graphs_need_no_table():
    """A hundred thousand clients in a ring: lists of three, and gaps in closed form; of a star by Lanczos' method."""
    n = 100_000
    mixing = rk.Mixing(rk.Ring())
    assert abs(mixing.spectral_gap(n) - 4 / 3 * np.sin(np.pi / n) ** 2) <= 1e-15
    spike = np.zeros(n, np.float32)
    spike[0] = 3
    mixed = np.asarray(mixing.mix(spike))
    assert np.flatnonzero(mixed).tolist() == [0, 1, n - 1] and np.allclose(mixed[[0, 1, n - 1]], 1)
    assert abs(rk.Mixing(Star()).spectral_gap(3200) - 1 / 3200) <= 1e-9
    with pytest.raises(rk.InputError, match="6000 clients were given, one of whom talks to 5999"):
        rk.Mixing(Star()).check(6000)
    with pytest.raises(rk.InputError, match="100000 clients were given, and where one talks to many there is room"):
        rk.Mixing(rk.Complete()).messages(n)


def test_a_graph_of_an_array_is_refused():
    @rk.struct
    class Table(rk.Graph):
        table: np.ndarray = rk.static()

        def edges(self, population):
            return self.table

    with pytest.raises(
        rk.InputError, match=r"mixing\.graph: Table has a field that is no fixed value, such as an array"
    ):
        rk.Mixing(Table(np.ones((2, 2)) - np.eye(2)))


def test_what_is_no_graph_is_refused():
    with pytest.raises(rk.InputError, match="mixing: 'ring' was given; a graph such as"):
        rk.Mixing("ring")  # type: ignore[arg-type]
    with pytest.raises(rk.InputError, match=r"mixing: 'ring' was given; rk\.Mixing"):
        rk.Gossip(lr=0.1, mixing="ring")  # type: ignore[arg-type]
    assert rk.Gossip(lr=0.1, mixing=rk.Torus()).mixing == rk.Mixing(rk.Torus())
