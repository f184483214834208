"""Methods without a server: identities, and where they rest in closed form, in float64."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat
from references_gossip import REFERENCES
from rookery.problems.exact import LinearComposition, QuadraticBilevel, QuadraticMinimax

N = 6
E1 = QuadraticBilevel.random(clients=N, dims=(2, 3), weights="random", seed=1)
GRAPHS = {"ring": rk.Ring(), "torus": rk.Torus(2, 3), "random": rk.RandomGraph(0.4, seed=3)}
on_graphs = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def run(method, rounds=12, exact=E1, **options):
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    return rk.run(
        exact.problem, method, exact.clients, **({"rounds": rounds, "precision": "float64"} | start | options)
    )


def rest(method, exact=E1):
    return rk.fixed_point(exact.problem, method, exact.clients, **exact.start(leaves=2))


def means():
    """Every client's matrices, means over its examples, and n p_i."""
    names = "ABcdEeR"
    own = [{name: record[name].mean(axis=0) for name in names} for record in E1.records]
    for each, record in zip(own, E1.records):
        each["Ed"] = np.einsum("kij,kj->i", record["E"], record["d"]) / len(record["d"])
        each["Re"] = np.einsum("kij,kj->i", record["R"], record["e"]) / len(record["e"])
    return own, N * E1.weights


def fields():
    """n p_i D_i(z) = M_i z + k_i with z = (x, y, v), by hand from f and g."""
    own, share = means()
    M = [
        np.block(
            [
                [m["R"], np.zeros((2, 3)), m["B"].T],
                [-m["B"], m["A"], np.zeros((3, 3))],
                [np.zeros((3, 2)), -m["E"], m["A"]],
            ]
        )
        for m in own
    ]
    k = [np.concatenate([-m["Re"], -m["c"], m["Ed"]]) for m in own]
    return share[:, None, None] * np.stack(M), share[:, None] * np.stack(k)


def stacked(matrices):
    """Blocks on a diagonal."""
    n, rows, columns = matrices.shape
    whole = np.zeros((n, rows, n, columns))
    whole[np.arange(n), :, np.arange(n), :] = matrices
    return whole.reshape(n * rows, n * columns)


THETA = rk.Rates(x=0.2, y=1.0, v=0.7)
SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gossip, first": (rk.Gossip, {"steps": 1, "adapt": "first", "theta": 1.0}),
    "gossip, last, momentum": (
        rk.Gossip,
        {"steps": 3, "adapt": "last", "theta": np.repeat([0.2, 1.0, 0.7], [2, 3, 3])},
    ),
    "gossip, first, momentum": (
        rk.Gossip,
        {"steps": 2, "adapt": "first", "theta": np.repeat([0.2, 1.0, 0.7], [2, 3, 3])},
    ),
    "gossiptracking": (rk.GossipTracking, {}),
    "gbdsbo": (rk.GBDSBO, {"lam": 0.15, "terms": 4, "beta": 0.3}),
}
NAMES = {"steps": "local_steps", "lam": "neumann_step", "terms": "neumann_terms", "beta": "averaging"}


@pytest.mark.parametrize("name", SETTINGS)
def test_trajectory_is_the_reference(name):
    """Seven rounds on a ring, clients with different weights, against plain numpy."""
    method, options = SETTINGS[name]
    means_of, share = means()
    own = {key: np.stack([each[key] for each in means_of]) for key in ("A", "B", "c", "R", "Re", "E", "Ed")}
    M, k = fields()
    own |= {"M": M / share[:, None, None], "k": k / share[:, None], "share": share}
    given: dict[str, Any] = {NAMES.get(key, key): value for key, value in options.items() if key != "theta"}
    if isinstance(options.get("theta"), np.ndarray):
        given["momentum"] = THETA
    result = run(method(lr=rk.Rates(0.05), mixing=rk.Ring(), **given), rounds=7)
    start = [flat(E1.start(leaves=2)[part]) + 0.3 for part in ("x", "y")] + [np.zeros(3)]
    reference = REFERENCES[name.partition(",")[0]]
    W = rk.Mixing(rk.Ring()).matrix(N)
    mean = reference(own, W, np.tile(np.concatenate(start), (N, 1)), 7, 0.05, **options).mean(axis=0)
    found = np.concatenate([flat(result.sequences[part]) for part in ("x", "y", "v")])
    np.testing.assert_allclose(found[: len(mean)], mean, atol=1e-13, rtol=0)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_complete_graph_is_simfbo(steps):
    """Along the whole trajectory, with minibatches: the same samples and, to rounding, the same points."""
    options = {
        "batch_size": 2,
        "every": 1,
        "metrics": lambda z: {f"x{i}": x for i, x in enumerate(jnp.ravel(z.x["a"]))},
    }
    method = rk.Gossip(lr=rk.Rates(0.05), mixing=rk.Complete(), local_steps=steps)
    one = run(rk.SimFBO(lr=rk.Rates(0.05), local_steps=steps), **options)
    found = [run(method, **options)]
    if steps == 1:
        found.append(run(rk.GossipTracking(lr=rk.Rates(0.05), mixing=rk.Complete()), **options))
    for other in found:
        assert difference(one, other) <= 1e-12
        for column in one.history.metrics:
            np.testing.assert_allclose(one.history[column], other.history[column], atol=1e-12, rtol=0)
        assert other.history["consensus_error"].max() <= 1e-14


@on_graphs
@pytest.mark.parametrize("adapt", ["first", "last"])
def test_gossip_rests_where_the_closed_form_says(graph, adapt):
    """(I - W) z + eta W D(z) = 0 of all points stacked, without the second W where the step comes last."""
    eta, (M, k) = 0.1, fields()
    W = np.kron(rk.Mixing(graph).matrix(N), np.eye(8))
    outer = W if adapt == "first" else np.eye(8 * N)
    points = np.linalg.solve(np.eye(8 * N) - W + eta * outer @ stacked(M), -eta * outer @ k.reshape(-1))
    point = rest(rk.Gossip(lr=rk.Rates(eta), mixing=graph, adapt=adapt))
    x = points.reshape(N, 8).mean(axis=0)[:2]
    assert point.radius < 1
    np.testing.assert_allclose(point.flat("x"), x, atol=1e-10)
    assert np.abs(x - E1.solution()).max() > 1e-3, "clients differ, and it must be biased"


def test_gossip_comes_to_rest_there():
    """The run itself, not its linear map; and the consensus error of the history is that of the points."""
    eta, (M, k), W = 0.1, fields(), np.kron(rk.Mixing(rk.Ring()).matrix(N), np.eye(8))
    points = np.linalg.solve(np.eye(8 * N) - W + eta * W @ stacked(M), -eta * W @ k.reshape(-1)).reshape(N, 8)
    result = run(rk.Gossip(lr=rk.Rates(eta), mixing=rk.Ring()), rounds=4000)
    mean = points.mean(axis=0)
    for name, part in (("x", mean[:2]), ("y", mean[2:5]), ("v", mean[5:])):
        np.testing.assert_allclose(flat(result.sequences[name]), part, atol=1e-10)
    apart = np.sqrt(np.mean(np.sum((points - mean) ** 2, axis=1)))
    assert abs(result.history["consensus_error"][-1] - apart) <= 1e-10
    assert abs(result.history["spectral_gap"][-1] - rk.Mixing(rk.Ring()).spectral_gap(N)) <= 1e-15


def test_momentum_changes_the_way_and_not_the_rest():
    theta = rk.Rates(x=0.2, y=1.0, v=1.0)
    plain, heavy = (rk.Gossip(lr=rk.Rates(0.1), mixing=rk.Ring(), momentum=m) for m in (None, theta))
    np.testing.assert_allclose(rest(plain).flat("x"), rest(heavy).flat("x"), atol=1e-10)
    one, other = run(plain, rounds=1), run(heavy, rounds=1)
    start = flat(E1.start(leaves=2)["x"]) + 0.3
    np.testing.assert_allclose(flat(other.x) - start, 0.2 * (flat(one.x) - start), atol=1e-14)
    np.testing.assert_allclose(flat(other.y), flat(one.y), atol=1e-14)


@on_graphs
def test_tracking_rests_at_the_solution(graph):
    point = rest(rk.GossipTracking(lr=rk.Rates(0.05), mixing=graph))
    assert point.radius < 1
    assert np.abs(point.flat("x") - E1.solution()).max() <= 1e-10


@pytest.mark.parametrize(
    "exact",
    [
        pytest.param(
            LinearComposition.random(clients=5, dims=(2, 3, 2), weights="random", seed=2), marks=pytest.mark.full
        ),
        QuadraticMinimax.random(clients=5, dims=(2, 3), weights="random", seed=3),
        QuadraticBilevel.random(clients=5, dims=(2, 3), weights="random", seed=1, local=True),
    ],
    ids=["E2", "E3", "E1-local"],
)
def test_tracking_rests_at_the_solution_of_any_nesting(exact):
    """On a ring; with own lower levels only x is mixed, and y and v stay on their clients."""
    point = rest(rk.GossipTracking(lr=rk.Rates(0.05), mixing=rk.Ring()), exact)
    assert np.abs(point.flat("x") - exact.solution()).max() <= 1e-10


def test_tracking_comes_to_the_solution_and_to_consensus():
    result = run(rk.GossipTracking(lr=rk.Rates(0.05), mixing=rk.Ring()), rounds=4000)
    assert np.abs(flat(result.x) - E1.solution()).max() <= 1e-10
    assert result.history["consensus_error"][-1] <= 1e-10


PACKED = {
    "ef21:topk:0.5": rk.Mixing(rk.Ring(), step=0.5),
    "ef21:topk:0.3": rk.Mixing(rk.Ring(), step=0.3),
    "diana:randk:0.5": rk.Mixing(rk.Torus(2, 3), step=0.3),
    "ef21:quantise:4": rk.RandomGraph(0.5),
}


@pytest.mark.parametrize("up", PACKED)
def test_tracking_is_exact_with_packed_differences(up):
    """What a channel loses of a client's own value is put back where neighbours mix, so that means stay what they
    are."""
    result = run(rk.GossipTracking(lr=rk.Rates(0.05), mixing=PACKED[up]), rounds=6000, up=up)
    assert np.abs(flat(result.x) - E1.solution()).max() <= 1e-10
    assert result.history["consensus_error"][-1] <= 1e-10


def test_whatever_is_lost_means_stay():
    """The mean of the estimates s_i is that of the directions d_i, with a stage that loses most of every message."""
    result = run(rk.GossipTracking(lr=rk.Rates(0.01), mixing=rk.Ring()), rounds=5, up="topk:0.01+quantise:2")
    leaves = [leaf for leaf in result.state.leaves if leaf.shape[:1] == (N,)]
    each = len(leaves) // 3  # of z, s and d
    for s, d in zip(leaves[each : 2 * each], leaves[2 * each :]):
        assert np.abs(d).max() > 1e-3
        np.testing.assert_allclose(s.mean(axis=0), d.mean(axis=0), atol=1e-14)


def test_gbdsbo_rests_where_the_closed_form_says():
    """Its matrices do not depend on the point: they rest by themselves, and x and y solve a linear system."""
    alpha, gamma, lam, beta, b = 0.05, 0.1, 0.15, 0.3, 4
    own, share = means()
    W, eye = rk.Mixing(rk.Ring()).matrix(N), np.eye
    memory = beta * np.linalg.inv(eye(N) - (1 - beta) * W) * share  # of what is averaged over time and neighbours
    averaged = lambda values: np.tensordot(memory, np.stack(values), axes=1)
    u, H = averaged([-m["B"].T for m in own]), averaged([m["A"] for m in own])
    q = np.stack([lam * sum(np.linalg.matrix_power(eye(3) - lam * h, k) for k in range(b + 1)) for h in H])
    uq = stacked(u @ q)
    s, h = stacked(np.stack([m["R"] for m in own])), stacked(np.stack([m["E"] for m in own]))
    s, s0 = np.kron(memory, eye(2)) @ s, -np.kron(memory, eye(2)) @ np.concatenate([m["Re"] for m in own])
    h, h0 = np.kron(memory, eye(3)) @ h, -np.kron(memory, eye(3)) @ np.concatenate([m["Ed"] for m in own])
    A, B = (stacked(share[:, None, None] * np.stack([m[name] for m in own])) for name in "AB")
    c = np.concatenate([w * m["c"] for w, m in zip(share, own)])
    system = np.block(
        [
            [eye(2 * N) - np.kron(W, eye(2)) + alpha * s, -alpha * uq @ h],
            [-gamma * B, eye(3 * N) - np.kron(W, eye(3)) + gamma * A],
        ]
    )
    points = np.linalg.solve(system, np.concatenate([-alpha * (s0 - uq @ h0), gamma * c]))
    method = rk.GBDSBO(
        lr=rk.Rates(x=alpha, y=gamma), mixing=rk.Ring(), neumann_step=lam, neumann_terms=b + 1, averaging=beta
    )
    result = run(method, rounds=3000)
    np.testing.assert_allclose(flat(result.x), points[: 2 * N].reshape(N, 2).mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(flat(result.y), points[2 * N :].reshape(N, 3).mean(axis=0), atol=1e-10)
    assert np.abs(flat(result.x) - E1.solution()).max() > 1e-3
    products = b * 3 + 3  # Hessian and cross products with unit vectors
    assert result.ledger.gradients == 3000 * N * (products + 3)
    assert result.ledger.floats_up == 3000 * 2 * N * (2 * 2 + 2 * 3 + 2 * 3 + b * 9)


@pytest.mark.parametrize("adapt", ["first", pytest.param("last", marks=pytest.mark.full)])
def test_engines_agree_on_a_graph(adapt):
    """Compiled, client by client, side by side and streamed, with minibatches and momentum."""
    mixing = rk.Mixing(rk.Ring(), times=2)
    method = rk.Gossip(
        lr=rk.Rates(0.05), mixing=mixing, local_steps=rk.RandomSteps(1, 3), adapt=adapt, momentum=rk.Rates(0.5)
    )
    one = run(method, batch_size=2)
    for engine in ("eager", rk.Local(at_once=4), "streamed"):
        other = run(method, batch_size=2, engine=engine)
        assert difference(one, other) <= 1e-12
        assert one.ledger == other.ledger
        for a, b in zip(one.state.leaves, other.state.leaves, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12, rtol=0)


def test_engines_agree_on_packed_messages():
    method, up = rk.GossipTracking(lr=rk.Rates(0.05), mixing=rk.Mixing(rk.Ring(), step=0.5)), "ef21:topk:0.5+quantise:8"
    one = run(method, batch_size=2, up=up)
    for engine in ("eager", rk.Local(at_once=4), "streamed", rk.Mesh(), rk.Mesh(ordered=True)):
        other = run(method, batch_size=2, up=up, engine=engine)
        assert difference(one, other) <= 1e-12
        assert one.ledger == other.ledger


def test_it_goes_on_bit_for_bit():
    method = rk.GossipTracking(lr=rk.Rates(0.05), mixing=rk.Torus(2, 3))
    whole, half = run(method, rounds=8, batch_size=2), run(method, rounds=4, batch_size=2)
    later = run(method, rounds=4, batch_size=2, state=half.state)
    assert difference(whole, later) == 0
    for a, b in zip(whole.state.leaves, later.state.leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.ledger == later.ledger


def test_the_ledger_counts_edges():
    """A torus of 2 x 3 has 9 edges: 3 in each row of 3, which is a ring, and 1 in each column of 2."""
    dim = 2 + 3 + 3
    for method, each in ((rk.Gossip, dim), (rk.GossipTracking, 2 * dim)):
        cost = run(method(lr=rk.Rates(0.05), mixing=rk.Torus(2, 3)), rounds=5).ledger
        assert (cost.exchanges, cost.replies) == (5, 5 * N)
        assert (cost.floats_up, cost.floats_down) == (5 * 2 * 9 * each, 0)
        assert (cost.bytes_up, cost.bytes_down) == (8 * cost.floats_up, 0)


def test_sweeps_have_the_columns_of_a_run():
    start = jax.tree.map(lambda leaf: leaf + 0.3, E1.start(leaves=2))
    options = {"rounds": 6, "precision": "float64", **start}
    method = rk.Gossip(lr=rk.Rates(0.05), mixing=rk.Ring())
    table = rk.sweep(E1.problem, method, E1.clients, over={"lr.default": [0.02, 0.05]}, **options)
    own = run(method, rounds=6)
    for column in ("consensus_error", "spectral_gap"):
        np.testing.assert_allclose(table.results[1].history[column][-1], own.history[column][-1], atol=1e-13)
    assert table["consensus_error"][0] < table["consensus_error"][1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sampling": rk.Uniform(3)}, "Gossip needs all clients in every round: rk.All()"),
        (
            {"metrics": lambda z: {"spectral_gap": 0.0}},
            "metrics: 'spectral_gap' is what client_metrics give as well, or the",
        ),
        ({"down": [rk.Quantise(8)]}, "and with Gossip no server sends anything"),
        ({"stop": {"gap": 1.0}}, "there is no metric 'gap'; there are consensus_error, spectral_gap"),
    ],
)
def test_what_does_not_fit_is_refused(options, sentence):
    with pytest.raises(rk.InputError, match=re.escape(sentence)):
        run(rk.Gossip(lr=rk.Rates(0.05)), **options)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (rk.Gossip(lr=rk.Rates(0.1), mixing=rk.Torus(4, 5)), "a torus of 4 x 5 was given; 6 clients do not fill it"),
        (rk.Gossip(lr=rk.Rates(0.1), momentum=rk.Rates(1.5)), "momentum.default: 1.5 was given; 0 <= theta <= 1"),
        (rk.GBDSBO(lr=rk.Rates(0.1), averaging=0.0), "averaging: 0.0 was given; 0 < beta <= 1 is needed"),
        (rk.GBDSBO(lr=rk.Rates(0.1), neumann_terms=10**8), "at most 268435456 numbers a client are allowed"),
    ],
)
def test_settings_that_do_not_fit_are_refused(method, sentence):
    with pytest.raises(rk.InputError, match=re.escape(sentence)):
        run(method)


def test_clients_who_share_nothing_cannot_mix():
    problem = rk.Single(lambda x, e: (x - e["a"]) ** 2, scope="local")
    clients = rk.federate([{"a": np.ones(2)}, {"a": np.zeros(2)}])
    with pytest.raises(rk.InputError, match="all its sequences are the clients' own, and Gossip mixes what they share"):
        rk.run(problem, rk.Gossip(lr=0.1), clients, x=0.0, rounds=1)


@rk.method
class HalfAsked:
    """Mixes some of the clients, which nobody can."""

    def client(self, problem, z):
        return z

    def round(self, state, cohort):
        return state.next(z=cohort.select(3).mix(rk.Mixing(), "give", "take"))


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_some_clients_cannot_mix(engine):
    with pytest.raises(rk.InputError, match="neighbours mix, and not all clients are there"):
        run(HalfAsked(), engine=engine)
