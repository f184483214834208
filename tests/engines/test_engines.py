"""Engines: the whole cohort contract on both, with toy methods that use every part of it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from rookery.engines.local import Program
from rookery.federation.method import first_round

ENGINES = [rk.Local(), rk.Local(at_once=2), rk.Local(at_once=3), rk.Streamed(window=2000), rk.Eager()]


def agree(exact, method, **options):
    """Runs on every engine and gives the first result, after checking that all are the same."""
    results = [run(exact, method, rounds=8, engine=engine, **options) for engine in ENGINES]
    for other in results[1:]:
        assert difference(results[0], other) <= 1e-12
        assert results[0].ledger == other.ledger
        for a, b in zip(results[0].state.leaves, other.state.leaves):
            np.testing.assert_allclose(a, b, atol=1e-12, rtol=0)
    return results[0]


@rk.struct
class Counted(rk.State):
    heard: object


@rk.method
class Everything:
    """A method without a purpose that uses all of the contract: start, repeat, when, select, states, server draws."""

    lr: rk.Rates
    times: int = 3

    def init(self, problem, z):
        return Counted(z, first_round(), heard=jnp.zeros(()))

    def client(self, problem, z):
        return {"visits": jnp.zeros(()), "seen": z.zeros()}

    def start(self, state, cohort):
        d = cohort.mean("direct", state.z)
        return Counted(state.z - 0.01 * d, state.round, heard=state.heard + 100)

    def round(self, state, cohort):
        def body(cohort, t, carry):
            z, heard = carry
            d = cohort.update_mean("visit", z, t)
            few = cohort.select(1)
            heard = heard + few.sum("weight_of", state.z) + cohort.average("ones", state.z)
            return z - self.lr * d, heard

        z, heard = cohort.repeat(self.times, body, (state.z, state.heard))
        flag = jnp.asarray(state.round % 2 == 0)
        z = z - 0.01 * cohort.when(flag).mean("direct", z)
        return state.next(z=z, heard=heard + cohort.size / cohort.population)

    def direct(self, client, z):
        return client.direction(z, client.sample(client.key))

    def visit(self, client, z, t):
        d = client.direction(z, client.sample(client.key)) + 0.1 * client.state["seen"]
        state = {"visits": client.state["visits"] + 1 + t, "seen": d * (1.0 / client.size)}
        return d, state

    def weight_of(self, client, z):
        return client.weight / client.probability

    def ones(self, client, z):
        return jnp.ones(())


SCHEMES = {
    "all": rk.All(),
    "uniform": rk.Uniform(2),
    "with-replacement": rk.WithReplacement(3),
    "bernoulli": rk.Bernoulli(0.4),
    "weighted": rk.Weighted(np.array([0.5, 0.7, 0.8])),
}


RARER = ("with-replacement", "weighted")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in RARER else name for name in SCHEMES]
)
def test_engines_agree_on_the_whole_contract(name):
    method = Everything(lr=rk.Rates(0.02))
    result = agree(bed("E1"), method, sampling=SCHEMES[name], batch_size=2, seed=2)
    if name == "uniform":
        # start 1; per round three times (visit, weight_of, ones), and direct in every second round
        assert result.ledger.exchanges == 1 + 8 * 9 + 4
        by_phase = result.ledger.replies_of
        assert by_phase == {"direct": 2 + 4 * 2, "visit": 48, "weight_of": 24, "ones": 48}


@rk.method
class Loops:
    """Sends x in a loop in a loop, and again after them."""

    lr: rk.Rates

    def round(self, state, cohort):
        x = state.z.x

        def inner(cohort, t, x_new):
            return x_new - 0.1 * cohort.mean("gap", x, x_new)

        def outer(cohort, t, x_new):
            x_new = cohort.repeat(3, inner, x_new)
            return x_new - 0.1 * cohort.mean("gap", x_new, x)

        x_new = cohort.repeat(2, outer, x)
        return state.next(z=state.z.replace(x=x_new + 0.1 * cohort.mean("gap", x, x_new)))

    def gap(self, client, x, x_new):
        return x_new - x


def test_a_vector_travels_once_whatever_loop_it_is_sent_in():
    result = agree(bed("E1"), Loops(lr=rk.Rates(0.1)))
    dim = flat(result.x).size
    # x once; in each of two iterations three inner points and the outer one; the last point
    assert result.ledger.floats_down == 8 * 3 * dim * (1 + 2 * (3 + 1) + 1)
    assert result.ledger.floats_up == 8 * 3 * dim * (2 * (3 + 1) + 1)


def test_repeat_counts_are_traced(compilations):
    run(bed("E1"), Everything(lr=rk.Rates(0.02), times=3), rounds=4)
    with compilations.counted():
        run(bed("E1"), Everything(lr=rk.Rates(0.02), times=5), rounds=4)
    assert compilations.count == 0


def test_an_empty_cohort_is_a_round_without_exchange():
    method = rk.FedBiOAcc(lr=rk.Rates(0.05), local_steps=2)
    result = agree(bed("E1"), method, sampling=rk.Bernoulli(0.05), seed=0)
    assert result.state.round == 8
    assert 0 < result.ledger.exchanges < 16
    nobody = run(bed("E1"), method, rounds=1, sampling=rk.Bernoulli(1e-6))
    start = np.concatenate([flat(tree) for tree in bed("E1").start(leaves=2).values()]) + 0.3
    assert nobody.ledger.exchanges == 0 and nobody.ledger.floats_up == 0
    np.testing.assert_array_equal(np.concatenate([flat(nobody.x), flat(nobody.y)]), start)


def test_drawn_twice_counts_twice_and_travels_once():
    """Two clients, three draws: the mean divides by the expected number of draws, the ledger counts replies."""
    clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([5.0])}])
    problem = rk.Single(lambda x, e: x * e["a"])
    result = rk.run(
        problem, rk.FedAvg(lr=1.0), clients, x=0.0, rounds=400, sampling=rk.WithReplacement(3), precision="float64"
    )
    assert abs(-float(result.x) / 400 - 3.0) < 0.15  # the mean of 1 and 5
    assert result.ledger.replies < 2 * 400


def test_eager_without_jit_is_the_same_program():
    method = rk.SimFBO(lr=rk.Rates(0.05), local_steps=2)
    options = {"rounds": 2, "sampling": rk.Uniform(2), "batch_size": 1}
    plain, compiled = (run(bed("E1"), method, engine=e, **options) for e in (rk.Eager(jit=False), rk.Local()))
    assert difference(plain, compiled) <= 1e-12
    assert plain.ledger == compiled.ledger


@rk.method
class Leaky:
    """Replies with everything, also with what is local."""

    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=state.z - cohort.mean("steps", state.z).only(state.z.names))

    def steps(self, client, z):
        z = client.enter(z)
        return client.direction(z, client.sample(client.key))


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_a_local_sequence_cannot_enter_a_reply(engine):
    exact = rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 3), local=True)
    with pytest.raises(rk.InputError, match="its reply holds y, v, which stay on their clients"):
        run(exact, Leaky(lr=rk.Rates(0.1)), rounds=1, engine=engine)


@rk.method
class ByLambda:
    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=cohort.mean(lambda client, z: z, state.z))


@rk.method
class ByTypo:
    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=cohort.mean("stepz", state.z))


def test_phases_are_found_by_name_only():
    with pytest.raises(rk.InputError, match="a phase is named"):
        run(bed("E1"), ByLambda(lr=rk.Rates(0.1)), rounds=1)
    with pytest.raises(rk.InputError, match="ByTypo has no phase 'stepz'"):
        run(bed("E1"), ByTypo(lr=rk.Rates(0.1)), rounds=1)


@rk.struct
class Piece:
    scale: float

    def push(self, client, z):
        return client.direction(z, client.sample(client.key)) * self.scale


@rk.method
class WithPiece:
    lr: rk.Rates
    piece: Piece = Piece(1.0)

    def round(self, state, cohort):
        return state.next(z=state.z - self.lr * cohort.mean("piece.push", state.z))


def test_phases_of_components_have_dotted_names():
    whole = agree(bed("E1"), WithPiece(lr=rk.Rates(0.05)))
    assert difference(whole, run(bed("E1"), rk.SimFBO(lr=rk.Rates(0.05)), rounds=8)) <= 1e-14
    assert set(whole.ledger.replies_of) == {"piece.push"}


@rk.method
class Nested:
    """Loops and branches inside a loop, each with oracle calls of its own."""

    lr: rk.Rates
    outer: int = 3

    def round(self, state, cohort):
        return state.next(z=state.z - self.lr * cohort.mean("work", state.z))

    def work(self, client, z):
        def inner(q, k, key):
            return q + client.direction(z, client.sample(key)) * 0.01

        def outer(q, k, key):
            q = client.loop(client.index + 1, inner, q)
            return client.choose(k % 2 == 0, lambda: q + client.direction(z, client.sample(key)), lambda: q)

        return client.loop(self.outer, outer, z.zeros())


@pytest.mark.parametrize("batch_size", [2, None])
def test_oracle_calls_inside_loops_and_branches_are_counted(batch_size):
    result = agree(bed("E1"), Nested(lr=rk.Rates(0.01)), batch_size=batch_size)
    calls = [3 * (i + 1) + 2 for i in range(3)]  # per client and round: the inner loops, and the branches at k = 0, 2
    assert result.ledger.oracles["hvps"] == 8 * sum(calls)
    assert result.ledger.oracles["gradients"] == 8 * 3 * sum(calls)
    per_call = [2 * size if batch_size is None else 2 * batch_size for size in bed("E1").clients.sizes]
    assert result.ledger.samples == 8 * sum(n * size for n, size in zip(calls, per_call))


class Watched:
    """The rule of `Program.places`, with what it was asked and said."""

    def __init__(self, monkeypatch):
        self.said = []
        rule = Program.places

        def places(program, slots, loops, reply):
            found = rule(program, slots, loops, reply)
            self.said.append((slots, loops, found))
            return found

        monkeypatch.setattr(Program, "places", places)


def test_on_a_cpu_clients_are_side_by_side_where_points_stay_together(monkeypatch):
    """FedNest's products are of a point that all were sent; its lower steps take clients' points apart."""
    watched = Watched(monkeypatch)
    exact = rk.exact.QuadraticBilevel.random(clients=5, dims=(2, 3), seed=3)
    method = rk.FedNest(lr=rk.Rates(0.021), lower_steps=3, upper_steps=1)
    options = {"rounds": 3, "precision": "float64", **exact.start()}
    ours = rk.run(exact.problem, method, exact.clients, **options)
    assert {(loops, found) for _, loops, found in watched.said} == {(True, 1), (False, 5)}
    for engine in (rk.Local(at_once=1), rk.Eager()):
        other = rk.run(exact.problem, method, exact.clients, engine=engine, **options)
        assert np.abs(ours.x - other.x).max() <= 1e-14 and ours.ledger == other.ledger


@pytest.mark.parametrize(
    "at_once, slots, loops, numbers, found",
    [
        (None, 10, True, 1, 1),
        (None, 10, False, 1, 10),
        (None, 17, False, 1, 9),  # two blocks of nine, and not sixteen and one
        (None, 100, False, 2**18, 1),  # a reply of 1 MiB
        (None, 100, False, 2**16, 4),
        (4, 10, True, 1, 4),
        (4, 3, False, 2**20, 3),
    ],
)
def test_how_many_are_side_by_side(at_once, slots, loops, numbers, found):
    program = Program(None, at_once)  # type: ignore[arg-type]
    assert program.places(slots, loops, np.zeros(numbers, np.float32)) == found
