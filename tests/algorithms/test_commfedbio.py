"""CommFedBiO: its fixed points, what its channel leaves and what its sketches cost."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from references_nested import count_sketches
from rookery.federation.stages import hashed
from rookery.problems.exact import QuadraticBilevel

E1 = bed("E1")
WIDE = QuadraticBilevel.random(clients=5, dims=(3, 10), heterogeneity=1.0, weights="random", seed=0)


def off(exact, **options):
    """How far the fixed point is from the solution."""
    point = rk.fixed_point(exact.problem, rk.CommFedBiO(**options), exact.clients, **exact.start())
    truth = exact.optimum()
    return max(np.abs(point.flat(name) - truth[name]).max() for name in ("x", "y", "v"))


@pytest.mark.parametrize("counts", [(1, 1), (1, 5), (3, 2)])
def test_the_iterative_form_is_exact_at_one_lower_step(counts):
    lower, adjoint = counts
    assert off(WIDE, lr=rk.Rates(0.1), lower_rounds=lower, adjoint_rounds=adjoint) <= 1e-10


def test_more_lower_steps_cost_an_error_of_the_order_of_their_size():
    coarse, fine = (off(WIDE, lr=rk.Rates(0.1, y=eta), lower_steps=4) for eta in (2e-3, 1e-3))
    assert coarse > 1e-4 and abs(coarse / fine / 2 - 1) < 0.05


def error_of(up, eta=0.03, rounds=10_000):
    """How far x of WIDE ends from the solution."""
    method = rk.CommFedBiO(lr=rk.Rates(x=eta, y=0.1, v=eta))
    result = rk.run(WIDE.problem, method, WIDE.clients, rounds=rounds, precision="float64", up=up, **WIDE.start())
    return np.abs(result.x - WIDE.solution()).max()


def test_error_feedback_comes_close_where_the_largest_entries_alone_do_not():
    assert error_of(()) <= 1e-12
    packed = error_of(rk.CommFedBiO.channel(0.3))
    assert packed <= 5e-3  # 1.6e-3 from the solution
    assert error_of(rk.Per(v=rk.TopK(0.3))) >= 5e-2  # 7.1e-2
    assert error_of(rk.CommFedBiO.channel(0.3), eta=0.01, rounds=30_000) <= packed / 3


def test_the_channel_is_for_v_alone():
    assert rk.CommFedBiO.channel(0.3) == rk.Per(v=rk.ErrorFeedback(rk.TopK(0.3)))
    assert rk.CommFedBiO.channel() == rk.CommFedBiO.channel(0.1)
    parcels = lambda up: {
        (parcel.phase, parcel.bytes)
        for parcel in rk.run(
            WIDE.problem, rk.CommFedBiO(lr=rk.Rates(0.1)), WIDE.clients, rounds=1, up=up, **WIDE.start()
        ).ledger.parcels
        if parcel.way == "up"
    }
    plain, packed = parcels(()), parcels(rk.CommFedBiO.channel(0.3))
    assert plain == {("lower.descend", 40), ("residual", 40), ("hypergradient", 12)}
    assert packed == {("lower.descend", 40), ("residual", 15), ("hypergradient", 12)}  # three of 4 bytes, and places


NOISY = {"sampling": rk.Uniform(2), "batch_size": 2, "seed": 5}
FORMS = {
    "iterative": rk.CommFedBiO(lr=rk.Rates(0.05), adjoint_rounds=3, lower_rounds=2, lower_steps=2),
    "sketched": rk.CommFedBiO(lr=rk.Rates(0.05), form="sketched", sketch=4, lower_steps=2),
}


UP = {"iterative": rk.CommFedBiO.channel(0.5), "sketched": rk.ErrorFeedback(rk.TopK(0.5))}


@pytest.mark.parametrize("form", FORMS)
def test_engines_agree_with_a_channel(form):
    options = NOISY | {"rounds": 6, "up": UP[form]}
    compiled, eager = (run(E1, FORMS[form], engine=engine, **options) for engine in ("local", "eager"))
    assert difference(compiled, eager) <= 1e-12
    assert compiled.ledger == eager.ledger
    for a, b in zip(compiled.state.leaves, eager.state.leaves):
        np.testing.assert_allclose(a, b, atol=1e-12, rtol=0)
    assert difference(compiled, run(E1, FORMS[form], **(options | {"up": ()}))) > 1e-6


def test_sketches_are_no_replies_of_v():
    with pytest.raises(rk.InputError, match="a channel for v was given, and no reply of CommFedBiO has it"):
        run(E1, FORMS["sketched"], rounds=1, up=rk.CommFedBiO.channel(0.5))


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_goes_on_bit_for_bit_with_what_was_not_sent(engine):
    options = NOISY | {"up": rk.CommFedBiO.channel(0.5), "engine": engine}
    whole, half = (run(E1, FORMS["iterative"], rounds=rounds, **options) for rounds in (8, 4))
    again = run(E1, FORMS["iterative"], rounds=4, state=half.state, **options)
    for a, b in zip(whole.state.leaves, again.state.leaves):
        np.testing.assert_array_equal(a, b)
    assert whole.ledger == again.ledger
    forgotten = run(E1, FORMS["iterative"], rounds=4, **(options | {"up": ()}))
    assert len(whole.state.leaves) > len(forgotten.state.leaves)  # e is part of the state


def mean(name):
    return np.einsum("i,i...->...", WIDE.weights, np.stack([record[name].mean(axis=0) for record in WIDE.records]))


def mean_product(matrix, vector):
    products = [np.einsum("eij,ej->i", r[matrix], r[vector]) / len(r[vector]) for r in WIDE.records]
    return np.einsum("i,ij->j", WIDE.weights, np.stack(products))


X, Y = np.full(3, 0.3), np.full(10, -0.2)


def sketched(rows, seed=3):
    """x and v after one round of WIDE from (X, Y), where y stays but for one step."""
    method = rk.CommFedBiO(lr=rk.Rates(x=0.1, y=0.2), form="sketched", sketch=rows)
    return rk.run(WIDE.problem, method, WIDE.clients, x=X, y=Y, rounds=1, seed=seed, precision="float64")


def test_the_sketched_form_takes_no_step_on_v():
    method = rk.CommFedBiO(lr=rk.Rates(x=0.1, y=0.2, v=0.1), form="sketched")
    with pytest.raises(rk.InputError, match="takes no rate for 'v'"):
        rk.run(WIDE.problem, method, WIDE.clients, x=X, y=Y, rounds=1)


@pytest.mark.parametrize("rows", [4, 10, 60])
def test_the_sketched_form_is_its_closed_form(rows):
    """v = S1' (S2 A S1')^+ S2 (E y - Ed), x by one step along R x - Re + B'v."""
    S1, S2 = count_sketches(3, 0, rows, 10)
    y = Y - 0.2 * (mean("A") @ Y - mean("B") @ X - mean("c"))
    v = S1.T @ np.linalg.pinv(S2 @ mean("A") @ S1.T) @ S2 @ (mean("E") @ y - mean_product("E", "d"))
    h = mean("R") @ X - mean_product("R", "e") + mean("B").T @ v
    found = sketched(rows)
    np.testing.assert_allclose(found.sequences.v, v, atol=1e-11)
    np.testing.assert_allclose(found.x, X - 0.1 * h, atol=1e-11)


def test_the_hypergradient_error_shrinks_with_the_sketch():
    """To 0, where no two entries of y share a cell."""
    y = Y - 0.2 * (mean("A") @ Y - mean("B") @ X - mean("c"))
    v = np.linalg.solve(mean("A"), mean("E") @ y - mean_product("E", "d"))
    h = mean("R") @ X - mean_product("R", "e") + mean("B").T @ v
    errors = {
        rows: [np.linalg.norm((X - sketched(rows, seed).x) / 0.1 - h) / np.linalg.norm(h) for seed in range(9)]
        for rows in (5, 40, 200)
    }
    small, middle, large = (np.median(errors[rows]) for rows in (5, 40, 200))
    assert small > 2 * middle and middle > 1e-3 and large <= 1e-12


def test_clients_and_the_server_have_the_same_sketches():
    """Those of a count sketch as a channel draws them, by the round's key, which is two numbers on its way."""
    key = jax.random.key(4)
    cells, turned = hashed(key, (50,), 7)
    assert cells.shape == turned.shape == (50,) and int(cells.max()) == 6 and set(np.ravel(turned)) == {0, 1}
    down = [parcel for parcel in sketched(4).ledger.parcels if (parcel.phase, parcel.way) == ("sketches", "down")]
    assert sorted(parcel.floats for parcel in down) == [2, 10]  # and the new y
    assert difference(sketched(4, 1), sketched(4, 1)) == 0 < difference(sketched(4, 1), sketched(4, 2))


def test_counts_are_traced_and_the_sketch_is_structure(compilations):
    method = rk.CommFedBiO(lr=rk.Rates(0.05), adjoint_rounds=3, lower_rounds=3, lower_steps=2)
    run(E1, method, rounds=2)
    with compilations.counted():
        run(E1, dataclasses.replace(method, adjoint_rounds=30, lower_rounds=20, lower_steps=5), rounds=2)
    assert compilations.count == 0


def test_the_adjoint_goes_on_from_the_round_before():
    """With x and y at rest, rounds of one exchange are exchanges of one round."""
    optimum = E1.optimum()
    start = {name: {"a": optimum[name][:1], "b": optimum[name][1:]} for name in ("x", "y")}
    make = lambda count: rk.CommFedBiO(lr=rk.Rates(x=1e-300, y=0.1, v=0.1), adjoint_rounds=count)
    ends = [
        rk.run(E1.problem, make(count), E1.clients, rounds=rounds, precision="float64", **start)
        for count, rounds in ((1, 12), (4, 3))
    ]
    assert difference(*ends) <= 1e-13 and np.abs(flat(ends[0].sequences.v)).max() > 0.01


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"form": "sketch"}, "form: 'sketch' is not known"),
        ({"adjoint_rounds": 0}, "adjoint_rounds: 0 was given"),
        ({"sketch": 0}, "sketch: 0 was given"),
        ({"lr": rk.Rates(x=0.1, y=0.1)}, "lr: no rate for v"),
        ({"lr": rk.Rates(0.1, v=rk.PerClient([0.1, 0.2, 0.3]))}, "a number of each client's own was given where"),
    ],
)
def test_bad_settings_are_refused(options, sentence):
    with pytest.raises(rk.InputError) as error:
        run(E1, rk.CommFedBiO(**({"lr": rk.Rates(0.1)} | options)), rounds=1)
    assert sentence in str(error.value)


def test_it_says_what_it_solves():
    assert not FORMS["iterative"].biased and FORMS["sketched"].biased
    with pytest.raises(rk.InputError, match="CommFedBiO: it needs every sequence shared, and y, v"):
        run(bed("E1-local"), rk.CommFedBiO(lr=rk.Rates(0.1)))
    with pytest.raises(rk.InputError, match="CommFedBiO: it solves bilevel problems"):
        run(bed("E1a"), rk.CommFedBiO(lr=rk.Rates(0.1)))
