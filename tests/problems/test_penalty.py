"""The penalty form of a bilevel problem: its direction, its minibatches, where methods come to rest on it, its costs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from problems.test_kinds import DATA, Z, assert_same, direction, lower, mean, upper
from rookery.vectors import Values

LAM = 7.0
POINT = Values(x=Z.x, y=Z.y, w=Z.v)


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def by(exact, *lam):
    return dataclasses.replace(exact.problem, by=rk.Penalty(lam))


def bias(exact, *lam):
    return np.abs(exact.penalty_solution(lam) - exact.solution()).max()


def point(problem, method, exact):
    return rk.fixed_point(problem, method, exact.clients, **exact.start(leaves=2))


def e1(**options):
    return rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=1, **options)


def grads(loss, x, y):
    return jax.grad(lambda x, y: mean(loss, x, y), (0, 1))(x, y)


def plus(*terms):
    """A sum of (number, tree)."""
    return jax.tree.map(lambda *leaves: sum(c * leaf for (c, _), leaf in zip(terms, leaves)), *(t for _, t in terms))


@pytest.mark.parametrize("independent", [False, True])
def test_its_direction_is_autodiff_of_the_mean_losses(double, independent):
    problem = rk.Bilevel(upper, lower, independent=independent, by=rk.Penalty(LAM))
    assert problem.names == ("x", "y", "w")
    d = direction(problem, POINT)
    (f_x, f_y), (g_x, g_y) = grads(upper, POINT.x, POINT.y), grads(lower, POINT.x, POINT.y)
    at_w_x, at_w_y = grads(lower, POINT.x, POINT.w)
    assert_same(d.x, plus((1, f_x), (LAM, g_x), (-LAM, at_w_x)))
    assert_same(d.y, plus((1 / LAM, f_y), (1, g_y)))
    assert_same(d.w, at_w_y)


def test_several_penalties_are_weighed_so_that_the_first_orders_cancel(double):
    lams = (3.0, 6.0, -4.0)
    problem = rk.Bilevel(upper, lower, by=rk.Penalty(lams))
    assert problem.names == ("x", "y", "y2", "y3", "w")
    other = jax.tree.map(lambda leaf: leaf + 0.1, Z.y)
    z = Values(x=Z.x, y=Z.y, y2=Z.v, y3=other, w=Z.y)
    each = [
        direction(rk.Bilevel(upper, lower, by=rk.Penalty(lam)), Values(x=z.x, y=z[y], w=z.w))
        for lam, y in zip(lams, ("y", "y2", "y3"))
    ]
    c = np.linalg.solve(np.array([[1, 1, 1], [1 / lam for lam in lams], [1 / lam**2 for lam in lams]]), [1, 0, 0])
    d = direction(problem, z)
    assert_same(d.x, plus(*((weight, one.x) for weight, one in zip(c, each))))
    assert_same([d.y, d.y2, d.y3], [one.y for one in each])


def test_both_gradients_of_the_lower_loss_are_on_one_minibatch(double):
    """At y = w their difference vanishes on every minibatch, and with it the noise that lam would multiply."""
    for independent in (False, True):
        problem = rk.Bilevel(upper, lower, independent=independent, by=rk.Penalty(1e9))
        still = Values(x=Z.x, y=Z.y, w=Z.y)
        for example in range(4):
            d = direction(problem, still, [example] * len(problem.draws))
            f_x = jax.grad(lambda x: upper(x, Z.y, jax.tree.map(lambda leaf: leaf[example], DATA)))(Z.x)
            assert_same(d.x, f_x)
            assert_same(d.y, d.w, 1e-6)


def test_every_derivative_has_a_draw_of_its_own_where_asked():
    problem = rk.Bilevel(upper, lower, independent=True, by=rk.Penalty(LAM))
    assert problem.draws == {"lower": "lower", "cross": "lower", "upper": "upper", "adjoint": "upper"}
    assert rk.Bilevel(upper, lower, by=rk.Penalty(LAM)).draws == {"lower": "lower", "upper": "upper"}


def test_the_closed_form_by_hand():
    """One dimension, bar(A) = bar(B) = 2, E = 1, d = 1, R = 1/2: (1/2 + 2 M) x = 2 M with M = 1 / (2 + 1 / lam)."""
    tiny = rk.exact.QuadraticBilevel.tiny()
    for lam in (0.5, 1.0, 10.0, 1e4):
        np.testing.assert_allclose(tiny.penalty_solution(lam), 4 * lam / (6 * lam + 1), rtol=1e-13)
    M = 2 / (2 + 1 / 20) - 1 / (2 + 1 / 10)  # lam = 20 and 10
    np.testing.assert_allclose(tiny.penalty_solution((10, 20)), 2 * M / (0.5 + 2 * M), rtol=1e-13)


def test_the_closed_form_is_at_rest():
    """All three directions vanish at the closed form, written with the means of the examples' matrices."""
    exact = e1(examples=3)
    p, lam, x = exact.weights, 10.0, exact.penalty_solution(10.0)
    bar = lambda of: np.tensordot(p, [of(record) for record in exact.records], 1)
    m = {key: bar(lambda record: record[key].mean(0)) for key in "ABcER"}
    Ed, Re = (bar(lambda r: np.mean([M @ v for M, v in zip(r[a], r[b])], 0)) for a, b in ("Ed", "Re"))
    w = np.linalg.solve(m["A"], m["B"] @ x + m["c"])
    y = np.linalg.solve(m["A"] + m["E"] / lam, m["B"] @ x + m["c"] + Ed / lam)
    np.testing.assert_allclose(m["R"] @ x - Re - lam * m["B"].T @ (y - w), 0, atol=1e-12)


@pytest.mark.parametrize("local", [False, True])
def test_its_bias_is_of_the_order_that_it_says(local):
    exact = e1(local=local)
    assert abs(bias(exact, 100) / bias(exact, 1000) / 10 - 1) < 0.02
    assert abs(bias(exact, 100, 200) / bias(exact, 1000, 2000) / 100 - 1) < 0.03
    assert abs(bias(exact, 100, -100) / bias(exact, 1000, -1000) / 100 - 1) < 0.03
    assert abs(bias(exact, 100, 200, 400) / bias(exact, 1000, 2000, 4000) / 1000 - 1) < 0.05


METHODS = {
    "simfbo": lambda lr: rk.SimFBO(lr=lr),
    "simfbo controlled": lambda lr: rk.SimFBO(lr=lr, local_steps=5, drift=rk.ControlVariates()),
    "shrofbo controlled": lambda lr: rk.ShroFBO(
        lr=lr, local_steps=rk.FixedSteps([1, 2, 4]), drift=rk.ControlVariates()
    ),
    "fedbio controlled": lambda lr: rk.FedBiO(lr=lr, local_steps=5, drift=rk.ControlVariates()),
    "fedbioacc": lambda lr: rk.FedBiOAcc(lr=lr, local_steps=2),
    "fedmsa": lambda lr: rk.FedMSA(lr=lr, local_steps=4, local_clients=3, momentum=0.5),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_rest_at_the_closed_form(method):
    exact, make = e1(), METHODS[method]
    for lam in ((10.0,), (10.0, 20.0)):
        rests = point(by(exact, *lam), make(rk.Rates(0.1)), exact)
        assert np.abs(rests.flat("x") - exact.penalty_solution(lam)).max() <= 1e-10
        assert np.abs(rests.flat("w") - exact.lower_solution(exact.penalty_solution(lam))).max() <= 1e-10
        assert rests.radius < 1


@pytest.mark.parametrize("method", [rk.SimFBO(lr=rk.Rates(0.1)), rk.FedBiOAcc(lr=rk.Rates(0.1), local_steps=2)])
def test_with_a_lower_level_of_each_clients_own(method):
    exact = e1(local=True)
    problem = by(exact, 10.0)
    assert problem.local == ("y", "w")
    rests = point(problem, method, exact)
    assert np.abs(rests.flat("x") - exact.penalty_solution(10.0)).max() <= 1e-10


def test_it_is_as_stable_as_the_adjoint_form():
    """lam (w - y) moves as v does, so that a large lam needs no smaller steps."""
    exact, method = e1(), rk.SimFBO(lr=rk.Rates(0.1))
    adjoint = point(exact.problem, method, exact)
    for lam in (100.0, 1000.0):
        rests = point(by(exact, lam), method, exact)
        assert abs(rests.radius - adjoint.radius) < 1 / lam
        assert np.abs(lam * (rests.flat("w") - rests.flat("y")) - adjoint.flat("v")).max() < 50 / lam


def test_a_penalty_that_grows_with_the_rounds_is_that_of_the_round():
    exact, grow = e1(), lambda t: 10.0 * (1 + t)
    for number, lam in ((1, 20.0), (4, 50.0)):
        rests = rk.fixed_point(
            by(exact, grow), rk.SimFBO(lr=rk.Rates(0.1)), exact.clients, round=number, **exact.start()
        )
        assert np.abs(rests.flat("x") - exact.penalty_solution(lam)).max() <= 1e-10
    result = rk.run(
        by(exact, lambda t: 2.0 * (1 + t / 10)), rk.SimFBO(lr=rk.Rates(0.1)), exact.clients, rounds=4000,
        precision="float64", **exact.start(),
    )  # fmt: skip
    assert np.abs(np.asarray(result.x) - exact.solution()).max() < 2 * bias(exact, 800)


def test_a_growing_penalty_is_the_same_on_every_engine():
    exact = e1()
    problem = by(exact, lambda t: 2.0 * (1 + jnp.sqrt(t)), lambda t: 20.0 * (1 + t))
    options = {"rounds": 6, "sampling": rk.Uniform(2), "batch_size": 2, "seed": 3, **exact.start()}
    for precision, tolerance in (("float64", 1e-12), ("float32", 1e-5)):
        runs = [
            rk.run(
                problem,
                rk.SimFBO(lr=rk.Rates(0.05), local_steps=2),
                exact.clients,
                engine=engine,
                precision=precision,
                **options,
            )
            for engine in ("local", "eager")
        ]
        for name in problem.names:
            a, b = (np.asarray(run.sequences[name]) for run in runs)
            np.testing.assert_allclose(a, b, atol=tolerance)
            assert a.dtype == np.dtype(precision)
        assert runs[0].ledger == runs[1].ledger


def test_it_costs_gradients_alone():
    exact = e1(examples=4)
    for lam, gradients in (((10.0,), 6), ((10.0, 20.0), 10)):
        problem = by(exact, *lam)
        result = rk.run(
            problem, rk.SimFBO(lr=rk.Rates(0.01), local_steps=3), exact.clients, rounds=2, batch_size=2, **exact.start()
        )
        assert result.ledger.oracles == {
            "samples": 2 * 3 * 3 * 4,
            "gradients": 2 * 3 * 3 * gradients,
            "hvps": 0,
            "crosses": 0,
        }


@pytest.mark.parametrize("method", [rk.AggITD, rk.FedNest, rk.LFedNest, rk.FedBiOLocal, rk.FedBiOAccLocal])
def test_methods_that_need_second_derivatives_refuse_it(method):
    exact = e1()
    with pytest.raises(
        rk.InputError, match=f"{method.__name__}: it solves bilevel problems, and this one is first-order bilevel"
    ):
        rk.run(by(exact, 10.0), method(lr=rk.Rates(0.1)), exact.clients, rounds=1, **exact.start())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rk.Penalty(0.0), "lam: 0.0 was given; a finite number that is not 0"),
        (lambda: rk.Penalty(float("inf")), "lam: inf was given"),
        (lambda: rk.Penalty("10"), "lam: '10' was given"),
        (lambda: rk.Penalty(True), "lam: True was given"),
        (lambda: rk.Penalty(1e-45), "lam: 1e-45 was given; numbers of a size from 1.18e-38 to 3.4e+38 are held"),
        (lambda: rk.Penalty((1.0, -1e39)), "lam: -1e+39 was given; numbers of a size"),
        (lambda: rk.Penalty(10**400), "lam: a number above 1e308 was given; numbers of a size"),
        (lambda: rk.Penalty(()), "lam: an empty tuple was given"),
        (lambda: rk.Penalty((10, 10.0)), "lam: (10, 10.0) was given; to be extrapolated its numbers must differ"),
        (lambda: rk.Penalty(lambda t: 0.0 * t), "lam: 0.0 was given"),
        (lambda: rk.Penalty(lambda t: jnp.ones(2)), "lam: a schedule that gives shape (2,) of a round was given"),
        (lambda: rk.Penalty(lambda t: 1.0 if t > 3 else 2.0), "lam: the schedule, of a traced round, fails"),
        (lambda: rk.Bilevel(upper, lower, by=10.0), "by: 10.0 was given; None or rk.Penalty(lam) is needed"),
    ],
)
def test_bad_penalties_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(rk.InputError) as error:
        make()
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("lam", "sentence"),
    [
        ((lambda t: 10.0 - t,), "lam: 0.0 was given in round 10; a finite number that is not 0 is needed"),
        ((lambda t: 10.0 / (t != 3), 1.0), "lam: inf was given in round 3"),
        ((lambda t: 2.0 + t, 10.0), r"lam: \(10.0, 10.0\) was given in round 8; to be extrapolated its numbers must"),
    ],
)
def test_penalties_of_later_rounds_are_checked_before_the_first(lam, sentence):
    exact, method = e1(), rk.SimFBO(lr=rk.Rates(0.01))
    with pytest.raises(rk.InputError, match=sentence):
        rk.run(by(exact, *lam), method, exact.clients, rounds=11, **exact.start())
    rk.run(by(exact, *lam), method, exact.clients, rounds=3, **exact.start())


def test_a_ball_for_v_needs_a_v():
    exact = e1()
    with pytest.raises(rk.InputError, match=r"radius: 1\.0 was given"):
        rk.run(by(exact, 10.0), rk.SimFBO(lr=rk.Rates(0.1), radius=1.0), exact.clients, rounds=1, **exact.start())


def test_a_sweep_checks_penalties_of_later_rounds():
    exact = rk.exact.QuadraticBilevel.tiny()
    problem = rk.Bilevel(exact.problem.upper, exact.problem.lower, by=rk.Penalty(lambda t: 3.0 - t))
    with pytest.raises(rk.InputError, match=r"lam: 0\.0 was given in round 3"):
        rk.sweep(
            problem, rk.SimFBO(lr=rk.Rates(0.1)), exact.clients, over={"seed": [0, 1]}, rounds=5,
            metrics=lambda z: {"x": z.x}, **exact.start(),
        )  # fmt: skip
