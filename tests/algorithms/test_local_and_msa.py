"""FedBiO with local lower levels and its estimators; FedMSA on every nesting."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from rookery.data.partitions import IID
from rookery.problems.exact import LinearComposition, QuadraticBilevel, QuadraticMeta
from rookery.problems.kinds import Compositional

LOCAL = {
    "E1": QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=1, local=True),
    "E5": QuadraticMeta.random(clients=3, dims=2, weights="random", seed=5),
}
EXACTLY = {"tracked": rk.Tracked(), "conjugate-gradient": rk.ConjugateGradient(8)}


def solve(exact, method):
    return rk.fixed_point(exact.problem, method, exact.clients, **exact.start(leaves=2)).flat("x")


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("estimator", EXACTLY)
def test_exact_estimators_are_exact_at_one_step(name, estimator):
    exact = LOCAL[name]
    for method in (
        rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=EXACTLY[estimator]),
        rk.FedBiOAccLocal(lr=rk.Rates(0.1), local_steps=1, hypergradient=EXACTLY[estimator]),
        rk.FedBiOAccLocal(lr=rk.Rates(0.1), local_steps=2, hypergradient=EXACTLY[estimator]),
    ):
        np.testing.assert_allclose(solve(exact, method), exact.solution(), atol=1e-9)


def test_neumann_has_its_closed_form_truncation_bias():
    exact = LOCAL["E1"]
    for terms in (1, 3, 8):
        method = rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=rk.Neumann(terms, 0.2))
        np.testing.assert_allclose(solve(exact, method), exact.neumann_solution(0.2, terms), atol=1e-10)
    acc = rk.FedBiOAccLocal(lr=rk.Rates(0.1), hypergradient=rk.Neumann(3, 0.2))
    np.testing.assert_allclose(solve(exact, acc), exact.neumann_solution(0.2, 3), atol=1e-10)
    assert np.abs(exact.neumann_solution(0.2, 3) - exact.solution()).max() > 0.01


@pytest.mark.parametrize(("cls", "steps"), [(rk.FedBiOLocal, 4), (rk.FedBiOAccLocal, 5)])
def test_more_steps_cost_order_eta(cls, steps):
    exact = LOCAL["E1"]

    def error(scale):
        method = cls(lr=rk.Rates(0.1 * scale), local_steps=steps, hypergradient=rk.Tracked())
        return np.abs(solve(exact, method) - exact.solution()).max()

    coarse, fine = error(2**-5), error(2**-6)
    assert coarse > 1e-8 and abs(coarse / fine / 2 - 1) < 0.05


def test_tracked_fedbio_local_is_fedbio_on_local_scope():
    options = {"sampling": rk.Uniform(2), "batch_size": 2, "seed": 4}
    local = run(LOCAL["E1"], rk.FedBiOLocal(lr=rk.Rates(0.05), local_steps=3, hypergradient=rk.Tracked()), **options)
    assert difference(local, run(LOCAL["E1"], rk.FedBiO(lr=rk.Rates(0.05), local_steps=3), **options)) <= 1e-13


@pytest.mark.parametrize("estimator", [rk.Neumann(3, 0.1), rk.ConjugateGradient(3), rk.Tracked()])
@pytest.mark.parametrize(("cls", "exchanges", "up", "down"), [(rk.FedBiOLocal, 1, 1, 1), (rk.FedBiOAccLocal, 2, 2, 3)])
def test_engines_agree_and_only_x_travels(cls, exchanges, up, down, estimator):
    method = cls(lr=rk.Rates(0.05), local_steps=2, hypergradient=estimator)
    options = {"rounds": 10, "sampling": rk.Uniform(2), "batch_size": 2}
    compiled, eager = (run(LOCAL["E1"], method, engine=engine, **options) for engine in ("local", "eager"))
    assert difference(compiled, eager) <= 1e-12 and compiled.ledger == eager.ledger
    assert compiled.ledger.exchanges == 10 * exchanges
    assert compiled.ledger.floats_up == 10 * 2 * up * 2 and compiled.ledger.floats_down == 10 * 2 * down * 2


def test_estimators_are_refused_when_they_are_none():
    with pytest.raises(rk.InputError, match=r"hypergradient: 'cg' was given; rk.Neumann\(terms, step\)"):
        run(LOCAL["E1"], rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient="cg"))
    with pytest.raises(rk.InputError, match="terms: 0 was given"):
        run(LOCAL["E1"], rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=rk.Neumann(0)))


def test_conjugate_gradients_say_when_the_hessian_is_not_positive_definite():
    def lower(x, y, e):
        return 0.5 * (y[0] ** 2 - y[1] ** 2) * e["a"] - x * y[0]

    problem = rk.Bilevel(lambda x, y, e: y[0] + y[1] + x, lower, lower_scope="local")
    clients = rk.federate([{"a": np.array([1.0])}])
    method = rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=rk.ConjugateGradient(2))
    with pytest.warns(rk.DivergenceWarning, match="x"):
        result = rk.run(problem, method, clients, x=0.5, y=np.zeros(2), rounds=3)
    assert result.status == "diverged" and result.divergence is not None and result.divergence.round == 1


def test_conjugate_gradients_rest_when_they_are_done():
    """More iterations than y has entries, and a right-hand side of zero."""
    problem = rk.Bilevel(lambda x, y, e: e["b"] * y[0] + x**2, lambda x, y, e: y @ y - x * y[1], lower_scope="local")
    for b in (0.0, 1.0):
        clients = rk.federate([{"b": np.array([b])}])
        method = rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=rk.ConjugateGradient(50))
        result = rk.run(problem, method, clients, x=0.5, y=np.zeros(2), rounds=50)
        assert abs(float(result.x)) < 1e-4


@pytest.mark.parametrize("dims", [(2, 3), (2, 3, 2), (2, 2, 3, 2)])
def test_fedmsa_on_any_number_of_levels(dims):
    """Exact with tracked adjoints, at the predicted wrong point with products of local Jacobians."""
    exact = LinearComposition.random(clients=3, dims=dims, weights="random", seed=len(dims))
    method = rk.FedMSA(lr=rk.Rates(0.05), local_steps=4, momentum=0.5, local_clients=3)
    np.testing.assert_allclose(solve(exact, method), exact.solution(), atol=1e-10)
    local = Compositional(exact.problem.maps, adjoint="local")
    point = rk.fixed_point(local, method, exact.clients, **exact.start(leaves=2))
    np.testing.assert_allclose(point.flat("x"), exact.biased_solution("local-jacobian"), atol=1e-10)
    assert np.abs(exact.biased_solution("local-jacobian") - exact.solution()).max() > 1e-3


@pytest.mark.parametrize("name", ["E1", "E2", "E3"])
def test_fedmsa_does_not_move_at_the_solution(name):
    exact = bed(name)
    optimum = {n: value for n, value in exact.optimum().items() if n in exact.problem.names}
    given = exact.start()
    method = rk.FedMSA(lr=rk.Rates(0.1), local_steps=5, momentum=0.3)
    result = rk.run(
        exact.problem, method, exact.clients, rounds=4, precision="float64",
        **{name: optimum[name] for name in given},
        start={name: value for name, value in optimum.items() if name not in given},
    )  # fmt: skip
    for name, value in optimum.items():
        np.testing.assert_allclose(flat(result.sequences[name]), value, atol=1e-12)


def test_fedmsa_on_single_level_and_on_a_users_field():
    clients = rk.federate([{"a": np.array([1.0])}, {"a": np.array([3.0])}])
    method = rk.FedMSA(lr=rk.Rates(0.3), local_steps=3, momentum=0.5)
    single = rk.run(rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), method, clients, x=0.0, rounds=60)
    field = rk.Field(lambda z, e: {"x": z.x - z.u, "u": z.u - e["a"]}, ["x", "u"])
    own = rk.run(field, method, clients, x=0.0, start={"u": 0.0}, rounds=60)
    assert abs(float(single.x) - 2.0) < 1e-5 and abs(float(own.x) - 2.0) < 1e-4


def test_fedmsa_needs_fewer_exchanges_than_simfbo_at_its_best_step():
    """Zero noise, K = 20: exchanges to 1e-6 of the solution, each method over the same grid of steps."""
    exact = QuadraticBilevel.random(clients=5, dims=(3, 4), heterogeneity=0.3, seed=0)
    solution = exact.solution()
    steps = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8]

    def best(method, per_round):
        table = rk.sweep(
            exact.problem, method, exact.clients, over={"lr.default": steps}, rounds=600, every=1, precision="float64",
            metrics=lambda z: {"error": abs(z.x - solution).max()}, stop={"error": lambda e: e < 1e-6}, **exact.start(),
        )  # fmt: skip
        reached = [row["exchanges"] for row in table.rows if row["status"] == "stopped"]
        assert all(count % per_round == 0 for count in reached)
        return min(reached)

    simfbo = best(rk.SimFBO(lr=rk.Rates(0.1)), 1)
    fedmsa = best(rk.FedMSA(lr=rk.Rates(0.1), local_steps=20, local_clients=5), 2)
    assert fedmsa < simfbo
    print(f"exchanges to 1e-6: FedMSA {fedmsa}, SimFBO {simfbo}")


# Rounds that nobody is part of


def beginning_late(empty):
    """Everybody from some round on, and before it nobody, to the precision of a probability."""
    return rk.Bernoulli(lambda t: jnp.where(t < empty, 1e-30, 1.0))


@pytest.mark.parametrize("engine", ["local", "eager"])
@pytest.mark.parametrize(
    "method",
    [
        rk.FedBiOAcc(lr=rk.Rates(0.05), local_steps=2, delta=900.0, offset=1e9),
        rk.FedMSA(lr=rk.Rates(0.05), local_steps=3, momentum=0.25, local_clients=3),
        rk.FedBiOAccLocal(lr=rk.Rates(0.05), local_steps=2, delta=900.0, offset=1e9, hypergradient=rk.Tracked()),
    ],
)
def test_a_method_begins_where_its_first_clients_are(method, engine):
    """With step sizes that do not depend on the round, empty rounds before the first change nothing but its number."""
    local = isinstance(method, rk.FedBiOAccLocal)
    exact = rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 2), seed=0)
    problem = dataclasses.replace(exact.problem, lower_scope="local") if local else exact.problem
    start = {name: np.ones_like(value) for name, value in exact.start().items()}
    options = {"precision": "float64", "engine": engine, **start}
    at_once = rk.run(problem, method, exact.clients, rounds=3, **options)
    late = rk.run(problem, method, exact.clients, rounds=5, sampling=beginning_late(2), **options)
    assert late.ledger.exchanges == at_once.ledger.exchanges
    assert np.abs(at_once.x - start["x"]).max() > 1e-3
    np.testing.assert_allclose(late.x, at_once.x, rtol=0, atol=2e-8)  # 1e-9 apart: delta / (u + t)^(1/3)
    first = rk.run(problem, method, exact.clients, rounds=3, sampling=beginning_late(2), **options)
    assert np.abs(first.x - start["x"]).max() > 1e-4


@pytest.mark.parametrize("sampled", [False, True])
def test_fedbioacc_with_own_lower_levels_is_its_local_form(sampled):
    """Own sequences stay with their momenta; with a tracked v both forms are one method."""
    exact = QuadraticBilevel.random(clients=4, dims=(2, 3), local=True, examples=6, seed=4)
    shared = {"lr": rk.Rates(0.05), "local_steps": 3, "momentum": rk.Rates(0.5), "delta": 0.8, "offset": 2.0}
    options = {"batch_size": 2, "rounds": 4, "precision": "float64", "sampling": rk.Uniform(2) if sampled else None}
    one, other = (
        rk.run(exact.problem, method, exact.clients, **exact.start(), **options)
        for method in (rk.FedBiOAcc(**shared), rk.FedBiOAccLocal(**shared, hypergradient=rk.Tracked()))
    )
    for name in ("x", "y", "v"):
        np.testing.assert_allclose(flat(one.sequences[name]), flat(other.sequences[name]), atol=1e-14)


def test_fedbioacc_cleans_data_whose_weights_stay_with_their_clients():
    """x is each client's own, y all share: the wrong labels lose their weight."""
    task = rk.tasks.Cleaning(noise=0.4)
    assembled = task.assemble(IID(), clients=5, seed=0)
    assert assembled.problem.local == ("x",)
    method = rk.FedBiOAcc(lr=rk.Rates(x=100.0, y=0.5, v=0.5), delta=0.9, offset=0.0)
    result = rk.run(
        assembled.problem, method, assembled.clients, x=assembled.x, y=assembled.y, rounds=60, metrics=assembled.metrics
    )
    assert result.history["f1"][-1] > result.history["f1"][0] + 0.2


def test_steps_may_be_a_function_of_client_and_round():
    """Client i takes 1 + (i * i + t) % 3 steps in round t: with a constant slope of 1, so far it goes."""
    clients = rk.federate([{"a": np.ones(1)} for _ in range(3)])
    method = rk.FedAvg(lr=rk.Rates(1.0), local_steps=rk.StepsBy(lambda i, t: 1 + (i * i + t) % 3, most=3))
    result = rk.run(rk.Single(lambda x, e: -x * e["a"]), method, clients, x=0.0, rounds=2)
    steps = [[1 + (i * i + t) % 3 for i in range(3)] for t in range(2)]
    assert float(result.x) == pytest.approx(sum(np.mean(row) for row in steps))
