"""The two-loop methods: their estimators, averaged over all truncation indices, are the closed forms."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from rookery.problems.exact import QuadraticBilevel

EXACT = bed("E1")
STEP = 0.2  # lambda, below 1 / the largest eigenvalue


@rk.method
class FixedQ(rk.AggITD):
    """AggITD with its random index given."""

    index: int = 0

    def round(self, state, cohort):
        x = state.z.x
        y, p = self.aggregate(cohort, x, state.z.y, self.index)
        h = cohort.mean("hypergradient", x, y, p)
        return state.next(z=state.z.replace(x=self.upper.run(cohort, x, y, h), y=y, v=p))


@rk.method
class FixedT(rk.FedNest):
    """FedNest with its random index given."""

    index: int = 0

    def round(self, state, cohort):
        x = state.z.x
        y = cohort.repeat(self.lower_rounds, lambda cohort, t, y: self.lower.run(cohort, x, y), state.z.y)
        p = self.adjoint(cohort, x, y, self.index)
        h = cohort.mean("hypergradient", x, y, p)
        return state.next(z=state.z.replace(x=self.upper.run(cohort, x, y, h), y=y, v=p))


@rk.method
class FixedLocalT(rk.LFedNest):
    """LFedNest with its random index given."""

    index: int = 0

    def round(self, state, cohort):
        x = state.z.x
        y = cohort.repeat(self.lower_rounds, lambda cohort, t, y: self.lower.run(cohort, x, y), state.z.y)
        return state.next(z=state.z.replace(x=x + cohort.mean("descend", x, y, self.index), y=y))


def lower_path(x, y, rounds, steps, beta):
    """y^0 .. y^N of SVRG lower rounds on E1, in numpy: H_i and the shared gradient, step by step."""
    A = np.stack([record["A"].mean(axis=0) for record in EXACT.records])
    B = np.stack([record["B"].mean(axis=0) for record in EXACT.records])
    c = np.stack([record["c"].mean(axis=0) for record in EXACT.records])
    path = [y]
    for _ in range(rounds):
        y = path[-1]
        q = np.einsum("i,ij->j", EXACT.weights, A @ y - B @ x - c)
        moved = np.zeros_like(y)
        for p, A_i in zip(EXACT.weights, A):
            y_i = y
            for _ in range(steps):
                y_i = y_i - beta * (A_i @ (y_i - y) + q)
            moved = moved + p * (y_i - y)
        path.append(y + moved)
    return path


START_X, START_Y = np.full(2, 0.3), np.full(3, 0.3)


@pytest.mark.parametrize("rounds", [1, 4])
def test_aggitd_averaged_over_q_is_the_sum_along_the_path(rounds):
    make = lambda q: FixedQ(lr=rk.Rates(x=0.1, y=0.1), neumann_step=STEP, lower_rounds=rounds, lower_steps=2, index=q)
    adjoints = [flat(run(EXACT, make(q), rounds=1).sequences.v) for q in range(rounds + 1)]
    path = lower_path(START_X, START_Y, rounds, 2, 0.1)
    np.testing.assert_allclose(np.mean(adjoints, axis=0), EXACT.neumann(START_X, rounds + 1, STEP, y=path), atol=1e-12)
    assert np.ptp(adjoints, axis=0).max() > 0.01


@pytest.mark.parametrize("terms", [1, 5])
def test_fednest_averaged_over_t_is_the_neumann_sum(terms):
    make = lambda t: FixedT(lr=rk.Rates(x=0.1, y=0.1), neumann_step=STEP, neumann_terms=terms, lower_steps=2, index=t)
    adjoints = [flat(run(EXACT, make(t), rounds=1).sequences.v) for t in range(terms)]
    y = lower_path(START_X, START_Y, 1, 2, 0.1)[-1]
    np.testing.assert_allclose(np.mean(adjoints, axis=0), EXACT.neumann(START_X, terms, STEP, y=y), atol=1e-12)


def slope(errors, counts):
    """The factor per term of a geometric decay, fitted."""
    return np.exp(np.polyfit(counts, np.log(errors), 1)[0])


def test_both_reach_the_hypergradient_at_the_predicted_linear_rate():
    A = np.einsum("i,ijk->jk", EXACT.weights, np.stack([r["A"].mean(axis=0) for r in EXACT.records]))
    predicted = np.abs(1 - STEP * np.linalg.eigvalsh(A)).max()
    counts = [20, 30, 40]
    y_star = EXACT.lower_solution(START_X)
    truth = EXACT.adjoint(START_X)
    start = {"x": {"a": START_X[:1], "b": START_X[1:]}, "y": {"a": y_star[:1], "b": y_star[1:]}}

    def adjoint(method):
        options = {"rounds": 1, "precision": "float64"} | start
        return flat(rk.run(EXACT.problem, method, EXACT.clients, **options).sequences.v)

    rates = rk.Rates(x=0.1, y=0.1)
    for make in (
        lambda n, i: FixedT(lr=rates, neumann_step=STEP, neumann_terms=n, index=i),
        lambda n, i: FixedQ(lr=rates, neumann_step=STEP, lower_rounds=n - 1, index=i),
    ):
        means = [np.mean([adjoint(make(n, i)) for i in range(n)], axis=0) for n in counts]
        assert abs(slope([np.linalg.norm(p - truth) for p in means], counts) / predicted - 1) < 0.01


@pytest.mark.parametrize("solver", ["svrg", "sgd"])
def test_fixed_points_in_expectation_are_the_truncated_ones(solver):
    options = {"lr": rk.Rates(x=0.1, y=0.1), "neumann_step": STEP, "lower_solver": solver}
    terms = 4
    cases = {
        "fednest": [FixedT(**options, neumann_terms=terms, index=t) for t in range(terms)],
        "aggitd": [FixedQ(**options, lower_rounds=terms - 1, index=q) for q in range(terms)],
    }
    for methods in cases.values():
        point = rk.fixed_point(EXACT.problem, methods, EXACT.clients, **EXACT.start(leaves=2))
        np.testing.assert_allclose(point.flat("x"), EXACT.neumann_solution(STEP, terms), atol=1e-10)
    assert np.abs(EXACT.neumann_solution(STEP, terms) - EXACT.solution()).max() > 0.01


@pytest.mark.parametrize("heterogeneity", [1.0, 0.0])
def test_lfednest_is_biased_exactly_as_predicted(heterogeneity):
    exact = QuadraticBilevel.random(clients=3, dims=(2, 3), heterogeneity=heterogeneity, weights="random", seed=1)
    methods = [
        FixedLocalT(lr=rk.Rates(x=0.1, y=0.1), neumann_step=STEP, neumann_terms=4, lower_steps=3, index=t)
        for t in range(4)
    ]
    point = rk.fixed_point(exact.problem, methods, exact.clients, **exact.start())
    np.testing.assert_allclose(point.flat("x"), exact.local_hessian_solution(STEP, 4), atol=1e-10)
    # With many terms the truth without heterogeneity, and the wrong point of local Hessians with it.
    many = exact.local_hessian_solution(STEP, 400)
    np.testing.assert_allclose(many, exact.biased_solution("local-hessian"), atol=1e-10)
    assert (np.abs(many - exact.solution()).max() < 1e-10) == (heterogeneity == 0.0)


def test_svrg_rounds_do_not_move_at_their_solutions():
    """At y*(x) a lower round stays, given h = 0 an upper round stays, at any numbers of steps."""
    x = EXACT.solution()
    optimum = EXACT.optimum()
    start = {name: {"a": optimum[name][:1], "b": optimum[name][1:]} for name in ("x", "y")}
    steps = {"lower_steps": 4, "upper_steps": rk.FixedSteps([1, 3, 5])}
    # Many terms: the adjoint is exact, so h = 0 at the solution and nothing moves; 400 terms leave 1e-14.
    methods = [
        FixedT(lr=rk.Rates(x=0.1, y=0.1), neumann_step=STEP, neumann_terms=1, index=0, **steps),
        rk.LFedNest(lr=rk.Rates(x=0.0, y=0.1), neumann_step=STEP, **steps),
    ]
    for method in methods:
        result = rk.run(EXACT.problem, method, EXACT.clients, rounds=1, precision="float64", **start)
        np.testing.assert_allclose(flat(result.y), optimum["y"], atol=1e-13)

    @rk.method
    class UpperOnly(rk.FedNest):
        def round(self, state, cohort):
            x, y = state.z.x, state.z.y
            return state.next(z=state.z.replace(x=self.upper.run(cohort, x, y, x.zeros())))

    method = UpperOnly(lr=rk.Rates(x=0.1, y=0.1), **steps)
    result = rk.run(EXACT.problem, method, EXACT.clients, rounds=3, precision="float64", **start)
    np.testing.assert_allclose(flat(result.x), x, atol=1e-13)


@pytest.mark.parametrize("cls", [rk.FedNest, rk.AggITD, rk.LFedNest])
def test_counts_are_traced_so_compile_time_does_not_grow_with_them(cls, compilations):
    options = {"lr": rk.Rates(0.05), "neumann_step": STEP}
    terms = {} if cls is rk.AggITD else {"neumann_terms": 5}
    # From two on: a single step is a program of its own, which has no loop.
    run(EXACT, cls(**options, lower_rounds=5, lower_steps=2, upper_steps=2, **terms), rounds=2)
    with compilations.counted():
        more = {} if cls is rk.AggITD else {"neumann_terms": 50}
        run(EXACT, cls(**options, lower_rounds=50, lower_steps=7, upper_steps=3, **more), rounds=2)
    assert compilations.count == 0


def test_scaled_rates_divide_by_each_clients_steps():
    """alpha/tau_i, beta/tau_i: with equal steps the same as dividing the rates by hand."""
    options = {"neumann_step": STEP, "neumann_terms": 3, "lower_steps": 4, "upper_steps": 2}
    scaled = run(EXACT, rk.FedNest(lr=rk.Rates(0.1), scaled_rates=True, **options), rounds=3)
    by_hand = run(EXACT, rk.FedNest(lr=rk.Rates(x=0.05, y=0.025), **options), rounds=3)
    assert difference(scaled, by_hand) <= 1e-13


def test_presets_are_the_methods_they_name():
    one = QuadraticBilevel.random(clients=1, dims=(2, 3), seed=2)
    rates = rk.Rates(0.05)
    assert difference(run(one, rk.SOBA(rates), rounds=4), run(one, rk.SimFBO(lr=rates), rounds=4)) == 0


class OneClient:
    """A quadratic bilevel problem in numpy: g = y'Ay/2 - y'(Bx + c), f = y'Ey/2 - d'y + x'Rx/2 - e'x."""

    def __init__(self):
        rng = np.random.default_rng(5)
        definite = lambda n: (lambda root: root @ root.T / n + np.eye(n))(rng.normal(size=(n, n)))
        self.A, self.E, self.R = definite(3), definite(3), definite(2)
        self.B, self.c, self.d, self.e = (rng.normal(size=s) for s in ((3, 2), 3, 3, 2))

    def hypergradient(self, x, y, step, terms):
        """grad_x f - (d2 g/dx dy) v with v = step sum_{q = -1}^{terms - 2} (I - step A)^{q + 1} grad_y f."""
        b, v = self.E @ y - self.d, np.zeros(3)
        for _ in range(terms):
            v, b = v + step * b, b - step * self.A @ b
        return self.R @ x - self.e + self.B.T @ v

    def lower(self, x, y):
        return self.A @ y - self.B @ x - self.c

    def run(self, method, rounds, scope):
        example = {k: np.asarray(getattr(self, k))[None] for k in "ABERcde"}
        lower = lambda x, y, e: 0.5 * y @ e["A"] @ y - y @ (e["B"] @ x + e["c"])
        upper = lambda x, y, e: 0.5 * y @ e["E"] @ y - e["d"] @ y + 0.5 * x @ e["R"] @ x - e["e"] @ x
        problem = rk.Bilevel(upper, lower, lower_scope=scope)
        return rk.run(
            problem, method, rk.federate([example]), x=np.ones(2), y=np.zeros(3), rounds=rounds, precision="float64"
        )


def test_stocbio_is_the_published_program():
    """Algorithm 2 of Ji, Yang and Liang (2021): D lower steps, all Q + 1 terms of the series, one step on x."""
    one, x, y = OneClient(), np.ones(2), np.zeros(3)
    for _ in range(5):
        for _ in range(4):
            y = y - 0.1 * one.lower(x, y)
        x = x - 0.05 * one.hypergradient(x, y, 0.2, 6)
    found = one.run(rk.StocBiO(rk.Rates(x=0.05, y=0.1), neumann_step=0.2, neumann_terms=6, lower_steps=4), 5, "shared")
    assert np.abs(np.asarray(found.x) - x).max() <= 1e-13
    assert np.abs(np.asarray(found.y) - y).max() <= 1e-13


def test_mrbo_is_the_published_program():
    """Algorithm 1 of Yang, Ji and Liang (2021): x and y move along STORM momenta w and u, with alpha_t falling."""
    one, x, y = OneClient(), np.ones(2), np.zeros(3)
    phi = lambda x, y: one.hypergradient(x, y, 0.2, 6)
    w, u = phi(x, y), one.lower(x, y)
    for t in range(1, 6):
        alpha = 0.9 / (2 + t) ** (1 / 3)
        new = x - 0.05 * alpha * w, y - 0.1 * alpha * u
        w = phi(*new) + (1 - 0.7 * alpha**2) * (w - phi(x, y))
        u = one.lower(*new) + (1 - 0.4 * alpha**2) * (u - one.lower(x, y))
        x, y = new
    method = rk.MRBO(rk.Rates(x=0.05, y=0.1), rk.Rates(x=0.7, y=0.4), 0.9, 2.0, neumann_step=0.2, neumann_terms=6)
    found = one.run(method, 5, "local")
    assert np.abs(np.asarray(found.x) - x).max() <= 1e-13
    assert np.abs(np.asarray(found.y)[0] - y).max() <= 1e-13


def test_the_first_momentum_of_a_local_lower_level_may_have_a_batch_of_its_own():
    """Two samples of 7 (of either level) for it, and of 2 for every iteration's two points."""
    local = QuadraticBilevel.random(clients=2, dims=(2, 3), local=True, examples=9)
    drawn = lambda first: run(
        local, rk.FedBiOAccLocal(lr=rk.Rates(0.01), hypergradient=rk.Tracked(), first_batch=first), batch_size=2
    ).ledger.oracles["samples"]
    assert drawn(7) - drawn(None) == 2 * 2 * (7 - 2)


@pytest.mark.parametrize("cls", [rk.FedNest, rk.LFedNest, rk.AggITD, rk.FedBiOLocal, rk.FedBiOAccLocal])
def test_methods_say_what_they_solve(cls):
    clients = rk.federate([{"a": np.ones(2)}])
    with pytest.raises(rk.InputError, match=f"{cls.__name__}: it solves bilevel problems, and this one is single"):
        rk.run(rk.Single(lambda x, e: x * e["a"]), cls(lr=rk.Rates(0.1)), clients, x=0.0, rounds=1)


def test_scopes_that_do_not_fit_are_refused():
    local = QuadraticBilevel.random(clients=3, dims=(2, 3), local=True)
    with pytest.raises(rk.InputError, match="FedNest: it needs every sequence shared, and y, v"):
        run(local, rk.FedNest(lr=rk.Rates(0.1)))
    with pytest.raises(rk.InputError, match='FedBiOLocal: it needs lower_scope="local" and a shared x'):
        run(EXACT, rk.FedBiOLocal(lr=rk.Rates(0.1)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rk.FedNest(lr=rk.Rates(0.1), lower_solver="svgr"), "lower_solver: 'svgr' is not known"),
        (lambda: rk.FedNest(lr=rk.Rates(0.1), neumann_terms=0), "neumann_terms: 0 was given"),
        (lambda: rk.AggITD(lr=rk.Rates(0.1), lower_rounds=0), "lower_rounds: 0 was given"),
        (lambda: rk.AggITD(lr=rk.Rates(0.1), upper_steps=0), "upper_steps: 0 was given"),
        (lambda: rk.FedNest(lr=rk.Rates(x=0.1)), "lr: no rate for y"),
        (
            lambda: rk.FedNest(lr=rk.Rates(x=0.1, y=0.1, v=0.1)),
            "lr.v: 0.1 was given, and this method takes no rate for 'v'; it takes x, y",
        ),
        (lambda: rk.FedMSA(lr=rk.Rates(0.1), momentum=1.5), "momentum: 1.5 was given; 0 <= rho <= 1"),
        (lambda: rk.FedMSA(lr=rk.Rates(0.1), local_clients=9), "local_clients: 9 was given; there are 3 clients"),
    ],
)
def test_bad_settings_are_refused(make, sentence):
    with pytest.raises(rk.InputError) as error:
        run(EXACT, make())
    assert sentence in str(error.value)


def test_truncation_indices_are_part_of_the_trajectory():
    """Other seeds draw other indices; the same seed the same, on both engines."""
    method = rk.AggITD(lr=rk.Rates(0.05), neumann_step=STEP, lower_rounds=3)
    first, again, other = (run(EXACT, method, seed=seed) for seed in (1, 1, 2))
    assert difference(first, again) == 0 < difference(first, other)
    assert difference(first, run(EXACT, method, seed=1, engine="eager")) <= 1e-12


def test_jax_is_left_as_it_was():
    assert not cast(Any, jax.config).jax_enable_x64 and jnp.ones(1).dtype == jnp.float32


def test_an_exchange_costs_the_vectors_it_is_about():
    """The sizes of a 784-200-10 network: a product with the head's Hessian is 2,010 numbers each way, one step of x
    157,000; x itself goes out once in a round."""

    def lower(x, y, e):
        return 0.5 * e["a"] * jnp.vdot(y, y) - jnp.vdot(y, x[:2010])

    def upper(x, y, e):
        return 0.5 * jnp.vdot(x, x) + jnp.vdot(y, y)

    clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([2.0])}])
    method = rk.FedNest(lr=rk.Rates(0.1), neumann_terms=5, neumann_step=0.1)
    result = rk.run(rk.Bilevel(upper, lower), method, clients, x=np.zeros(157_000), y=np.zeros(2010), rounds=1)
    sent = {(parcel.phase, parcel.way, parcel.floats): times for parcel, times in result.ledger.parcels.items()}
    assert sent == {
        ("lower.gradient", "down", 157_000): 2,  # x, to two clients
        ("lower.gradient", "down", 2010): 2,  # y
        ("lower.gradient", "up", 2010): 2,
        ("lower.correct", "down", 2010): 2,  # q
        ("lower.correct", "up", 2010): 2,
        ("right_hand_side", "down", 2010): 2,  # the new y
        ("right_hand_side", "up", 2010): 2,
        ("hessian", "down", 2010): 10,  # p, five times
        ("hessian", "up", 2010): 10,
        ("hypergradient", "down", 2010): 2,  # the last p
        ("hypergradient", "up", 157_000): 2,
        ("upper.steps", "down", 157_000): 2,  # h
        ("upper.steps", "up", 157_000): 2,
    }


def spread_of_a_lower_round(**options):
    """The standard deviation, over seeds, of y after one round on g = mean of (y - e)^2 / 2, in a run of one client."""
    problem = rk.Bilevel(lambda x, y, e: 0.0 * x, lambda x, y, e: 0.5 * (y - e["a"]) ** 2)
    clients = rk.federate([{"a": np.random.default_rng(0).normal(size=60)}])
    method = rk.FedNest(lr=rk.Rates(x=0.1, y=0.01), neumann_terms=1, lower_steps=25, **options)
    start = {"x": 0.0, "y": 0.0, "rounds": 1, "batch_size": 10, "precision": "float64"}
    table = rk.sweep(problem, method, clients, over={"seed": list(range(40))}, **start)
    return np.std([float(result.y) for result in table.results])


def test_full_anchors_leave_no_noise_in_a_lower_round_and_minibatch_anchors_add_some():
    sgd = spread_of_a_lower_round(lower_solver="sgd")
    assert spread_of_a_lower_round(anchor="full") < 1e-12 < sgd
    assert spread_of_a_lower_round(anchor="minibatch") > 3 * sgd


def test_full_anchors_are_counted_as_all_examples():
    problem = rk.Bilevel(lambda x, y, e: 0.5 * (x - y) ** 2, lambda x, y, e: 0.5 * (y - e["a"]) ** 2)
    clients = rk.federate([{"a": np.arange(7.0)}])
    counted = {}
    for anchor in ("minibatch", "full"):
        for method in (rk.FedNest, rk.AggITD, rk.LFedNest):
            made = method(lr=rk.Rates(0.01), lower_steps=2, anchor=anchor)
            counted[anchor, method] = rk.run(
                problem, made, clients, x=0.0, y=0.0, rounds=1, batch_size=3
            ).ledger.samples
    for method in (rk.FedNest, rk.AggITD, rk.LFedNest):
        assert counted["full", method] - counted["minibatch", method] == 7 - 3
