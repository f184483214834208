"""The closed forms of the exact problems against autodiff of their losses, in float64 and with no engine."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.data.batches import shard
from rookery.data.federated import Split
from rookery.problems.exact import (
    DataCleaning,
    LinearComposition,
    LossTuning,
    Midrange,
    QuadraticBilevel,
    QuadraticConsensus,
    QuadraticMeta,
    QuadraticMinimax,
    RidgePenalties,
    bilevel,
    cleaning,
    composition,
    consensus,
    meta,
    midrange,
    minimax,
    ridge,
    tuning,
)
from rookery.problems.exact.common import flat
from rookery.vectors import Values

ALL = [
    QuadraticBilevel,
    QuadraticConsensus,
    LinearComposition,
    QuadraticMinimax,
    Midrange,
    QuadraticMeta,
    RidgePenalties,
    DataCleaning,
    LossTuning,
]


@pytest.fixture(autouse=True)
def strict_float64():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def close(actual, expected, tolerance=1e-11):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


def client_losses(exact, loss, level=None):
    """Every client's mean of a loss (or map) over its examples, as a function of the sequences."""

    def mean_over(record):
        data = record if level is None else record[level]
        return lambda *z: jnp.mean(jax.vmap(lambda e: loss(*z, e))(data), axis=0)

    return [mean_over(record) for record in exact.records]


def average(exact, functions):
    """sum p_i F_i, as a function."""
    return lambda *z: sum(p * F(*z) for p, F in zip(exact.weights.tolist(), functions, strict=True))


def averaged(exact, loss, level=None):
    return average(exact, client_losses(exact, loss, level))


def argmin(loss, x, dim):
    """The minimiser in y of a loss that is quadratic in y: one Newton step from zero."""
    y = jnp.zeros(dim)
    return -jnp.linalg.solve(jax.hessian(loss, 1)(x, y), jax.grad(loss, 1)(x, y))


def root(field, dim):
    """The zero of an affine field."""
    value, slope = compiled(lambda x: (field(x), jax.jacfwd(field)(x)), np.zeros(dim))
    return -np.linalg.solve(slope, value)


def compiled(function, *arguments):
    """The value of a function, compiled as a whole: operation by operation takes ten times as long."""
    return jax.jit(function)(*arguments)


def point(dim, seed=7):
    return np.random.default_rng(seed).standard_normal(dim)


def size(exact, name):
    return exact.start()[name].size


# E1


def test_tiny_example_has_the_published_answers():
    exact = QuadraticBilevel.tiny()
    close(exact.solution(), [2 / 3], 1e-15)
    close(exact.biased_solution("local"), [30 / 91], 1e-15)
    close(exact.biased_solution("local-hessian"), [10 / 13], 1e-15)
    close(QuadraticBilevel.tiny(local=True).solution(), [30 / 91], 1e-15)


def outer_bilevel(exact, local):
    """The upper loss as a function of x alone, the lower level solved inside by autodiff."""
    dy = size(exact, "y")
    f, g = client_losses(exact, bilevel.upper), client_losses(exact, bilevel.lower)
    if local:
        pairs = zip(f, g, strict=True)
        return average(exact, [lambda x, f=f, g=g: f(x, argmin(g, x, dy)) for f, g in pairs])
    F, G = average(exact, f), average(exact, g)
    return lambda x: F(x, argmin(G, x, dy))


@pytest.mark.parametrize("weights", [None, "random"])
@pytest.mark.parametrize("local", [False, True])
def test_bilevel_hypergradient_and_solution(weights, local):
    exact = QuadraticBilevel.random(clients=3, seed=3, weights=weights, local=local)
    outer, x = outer_bilevel(exact, local), point(2)
    close(exact.hypergradient(x), compiled(jax.grad(outer), x))
    close(exact.solution(), root(jax.grad(outer), 2))
    close(exact.hypergradient(exact.solution()), np.zeros(2))


def test_bilevel_local_bias_is_the_root_of_the_mean_local_hypergradient():
    exact = QuadraticBilevel.random(clients=3, dims=(3, 2), seed=4, weights="random")
    biased = exact.biased_solution("local")
    close(biased, root(jax.grad(outer_bilevel(exact, local=True)), 3))
    assert np.linalg.norm(biased - exact.solution()) > 1e-2


def local_hessian_field(exact, inverse):
    """sum p_i (grad_x f_i - cross_i(inverse_i(grad_y f_i))) at the shared y*(x), with own inverses."""
    G, dy = averaged(exact, bilevel.lower), size(exact, "y")

    def own(f, g):
        def direction(x, y):
            adjoint = inverse(jax.hessian(g, 1)(x, y), jax.grad(f, 1)(x, y))
            return jax.grad(f, 0)(x, y) - jax.jacfwd(jax.grad(g, 0), 1)(x, y) @ adjoint

        return direction

    pairs = zip(client_losses(exact, bilevel.upper), client_losses(exact, bilevel.lower), strict=True)
    total = average(exact, [own(f, g) for f, g in pairs])
    return lambda x: total(x, argmin(G, x, dy))


def series(step, terms):
    """s sum_{k<K} (I - s H)^k b, added up term by term."""

    def inverse(hessian, b):
        total = jnp.zeros_like(b)
        for _ in range(terms):
            total, b = total + step * b, b - step * hessian @ b
        return total

    return inverse


def test_bilevel_local_hessian_bias():
    exact = QuadraticBilevel.random(clients=3, seed=5, weights="random")
    biased = exact.biased_solution("local-hessian")
    close(biased, root(local_hessian_field(exact, jnp.linalg.solve), 2))
    assert np.linalg.norm(biased - exact.solution()) > 1e-2
    truncated = exact.local_hessian_solution(step=0.2, terms=4)
    close(truncated, root(local_hessian_field(exact, series(0.2, 4)), 2))
    close(exact.local_hessian_solution(step=0.2, terms=2000), biased)


@pytest.mark.parametrize("local", [False, True])
def test_bilevel_truncated_series(local):
    exact = QuadraticBilevel.random(clients=3, seed=6, weights="random", local=local)
    dy, x = size(exact, "y"), point(2)
    f, g = client_losses(exact, bilevel.upper), client_losses(exact, bilevel.lower)
    if not local:
        f, g = [average(exact, f)], [average(exact, g)]

    def adjoints(x):
        for F, G in zip(f, g, strict=True):
            y = argmin(G, x, dy)
            yield y, series(0.2, 5)(jax.hessian(G, 1)(x, y), jax.grad(F, 1)(x, y))

    expected = compiled(lambda x: jnp.stack([v for _, v in adjoints(x)]), x)
    close(np.reshape(exact.neumann(x, terms=5, step=0.2), (-1, dy)), expected)

    def field(x):
        rows = [
            jax.grad(F, 0)(x, y) - jax.jacfwd(jax.grad(G, 0), 1)(x, y) @ v
            for F, G, (y, v) in zip(f, g, adjoints(x), strict=True)
        ]
        return jnp.asarray(exact.weights) @ jnp.stack(rows) if local else rows[0]

    close(exact.neumann_solution(step=0.2, terms=5), root(field, 2))
    close(exact.neumann_solution(step=0.2, terms=2000), exact.solution())


def test_bilevel_series_along_a_path_is_the_mean_of_the_aggitd_estimates():
    exact, step, N = QuadraticBilevel.random(seed=8, weights="random"), 0.15, 3
    x, path = point(2), point((N + 1, 3))
    F, G = averaged(exact, bilevel.upper), averaged(exact, bilevel.lower)
    starts = [compiled(jax.grad(F, 1), x, y) for y in path]
    hessians = [np.asarray(compiled(jax.hessian(G, 1), x, y)) for y in path]
    estimates = []
    for Q in range(N + 1):
        z = np.asarray(starts[Q])
        for t in range(Q + 1, N + 1):
            z = z - step * hessians[t] @ z
        estimates.append(step * (N + 1) * z)
    close(exact.neumann(x, terms=N + 1, step=step, y=path), np.mean(estimates, axis=0))
    constant = exact.neumann(x, terms=N + 1, step=step, y=[path[0]] * (N + 1))
    close(constant, exact.neumann(x, terms=N + 1, step=step, y=path[0]))
    with pytest.raises(ValueError, match=r"y: .*4 points.*terms = 3"):
        exact.neumann(x, terms=3, step=step, y=path)


def test_bilevel_reweighted_solves_the_other_problem():
    exact = QuadraticBilevel.random(clients=3, seed=9)
    other = exact.reweighted([1, 2, 5])
    close(other.weights, [1 / 8, 2 / 8, 5 / 8])
    close(other.solution(), root(jax.grad(outer_bilevel(other, local=False)), 2))
    assert np.linalg.norm(other.solution() - exact.solution()) > 1e-2


# E1a


def local_steps(exact, lr, steps, mu=0.0, normalise=False):
    """One averaged round minus its start, every client taking its own number of gradient steps."""
    losses = client_losses(exact, consensus.loss)

    def own(loss, tau):
        def difference(x):
            y = x
            for _ in range(tau):
                y = y - lr * (jax.grad(loss)(y) + mu * (y - x))
            return (y - x) / (tau if normalise else 1)

        return difference

    return average(exact, [own(loss, tau) for loss, tau in zip(losses, steps, strict=True)])


def test_consensus_fixed_points_of_local_steps():
    exact, steps = QuadraticConsensus.random(clients=3, seed=1, weights="random"), (2, 5, 1)
    close(exact.solution(), root(jax.grad(averaged(exact, consensus.loss)), 3))
    x = point(3)
    close(exact.hypergradient(x), compiled(jax.grad(averaged(exact, consensus.loss)), x))
    close(exact.fedavg_solution(0.1, steps), root(local_steps(exact, 0.1, steps), 3))
    close(exact.fedavg_solution(0.1, 3), root(local_steps(exact, 0.1, (3, 3, 3)), 3))
    close(exact.fedavg_solution(0.1, 1), exact.solution())
    close(exact.fedprox_solution(0.1, steps, mu=0.7), root(local_steps(exact, 0.1, steps, mu=0.7), 3))
    close(exact.fedprox_solution(0.1, steps, mu=0.0), exact.fedavg_solution(0.1, steps))
    close(exact.fednova_solution(0.1, steps), root(local_steps(exact, 0.1, steps, normalise=True), 3))


def test_consensus_targets_are_the_clients_own_minimisers():
    exact = QuadraticConsensus.random(clients=3, seed=2)
    for loss, target in zip(client_losses(exact, consensus.loss), exact.targets(), strict=True):
        close(target, root(jax.grad(loss), 3))


def test_consensus_unequal_steps_solve_the_reweighted_problem_to_first_order():
    exact, steps = QuadraticConsensus.random(clients=3, seed=3, weights="random"), np.array([2, 5, 1])
    limit = exact.reweighted_solution(exact.weights * steps)
    assert np.linalg.norm(limit - exact.solution()) > 1e-2
    errors = [np.linalg.norm(exact.fedavg_solution(2.0**-k, steps) - limit) for k in (10, 11)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    errors = [np.linalg.norm(exact.fednova_solution(2.0**-k, steps) - exact.solution()) for k in (10, 11)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("steps", [0, 1.5, (1, 2), (1, 0, 2)])
def test_consensus_refuses_impossible_steps(steps):
    with pytest.raises(ValueError, match=r"steps: .* was given; it must be an integer"):
        QuadraticConsensus.random(clients=3).fedavg_solution(0.1, steps)


# E2


def averaged_maps(exact):
    maps = [composition.Affine(n) for n in range(1, exact.depth + 1)]
    return [averaged(exact, f) for f in (*maps, composition.terminal)]


@pytest.mark.parametrize("dims", [(2, 3), (3, 2, 4, 2)])
def test_composition_hypergradient_and_solution(dims):
    exact = LinearComposition.random(clients=3, dims=dims, seed=1, weights="random")
    maps, x = averaged_maps(exact), point(dims[0])
    gradient = jax.grad(lambda x: reduce(lambda z, f: f(z), maps, x))
    close(exact.hypergradient(x), compiled(gradient, x))
    close(exact.solution(), root(gradient, dims[0]))

    def sequences(x):
        inner = [x]
        for f in maps[:-1]:
            inner.append(f(inner[-1]))
        adjoints = [jax.grad(maps[-1])(inner[-1])]
        for n in reversed(range(1, exact.depth)):
            adjoints.insert(0, jax.vjp(maps[n], inner[n])[1](adjoints[0])[0])
        return inner[1:], adjoints

    optimum = exact.optimum()
    for n, (z, w) in enumerate(zip(*compiled(sequences, optimum["x"]), strict=True), start=1):
        close(optimum[f"z{n}"], z)
        close(optimum[f"w{n}"], w)


def test_composition_local_jacobian_bias():
    exact = LinearComposition.random(clients=3, dims=(2, 3, 4), seed=2, weights="random")
    maps = averaged_maps(exact)
    locals_of = [client_losses(exact, f) for f in (composition.Affine(1), composition.Affine(2))]
    last = client_losses(exact, composition.terminal)

    def field(x):
        z1 = maps[0](x)
        z2 = maps[1](z1)
        pulled = [
            jax.jacfwd(first)(x).T @ jax.jacfwd(second)(z1).T @ jax.grad(end)(z2)
            for first, second, end in zip(*locals_of, last, strict=True)
        ]
        return jnp.asarray(exact.weights) @ jnp.stack(pulled)

    biased = exact.biased_solution("local-jacobian")
    close(biased, root(field, 2))
    assert np.linalg.norm(biased - exact.solution()) > 1e-2


def test_composition_needs_a_map():
    with pytest.raises(ValueError, match=r"dims: \(2,\) was given"):
        LinearComposition.random(dims=(2,))


# E3


def test_minimax_saddle():
    exact = QuadraticMinimax.random(clients=3, dims=(3, 2), seed=1, weights="random")
    F = averaged(exact, minimax.loss)
    saddle = root(jax.grad(lambda z: F(z[:3], z[3:])), 5)
    optimum = exact.optimum()
    close(optimum["x"], saddle[:3])
    close(optimum["y"], saddle[3:])
    x = point(3)
    negated = averaged(exact, minimax.negated)
    close(exact.hypergradient(x), compiled(jax.grad(lambda x: F(x, argmin(negated, x, 2))), x))
    # The adjoint of the bilevel form: a multiple of grad_y F, which is zero at the maximiser.
    close(optimum["v"], compiled(jax.grad(F, 1), optimum["x"], optimum["y"]))


# E4


def test_midrange_is_the_best_worst_case():
    exact = Midrange.random(clients=5, seed=1, weights="random")
    x, y = exact.optimum()["x"], exact.optimum()["y"]
    grid = x + np.linspace(-3, 3, 2001)
    values = [exact.value(at) for at in grid]
    assert exact.value(x) <= min(values) and np.argmin(values) == 1000
    F = averaged(exact, midrange.loss)
    # Linear in lambda, so its gradient holds the clients' losses: none is above that of the two that count.
    losses = np.asarray(compiled(jax.grad(F, 1), x, y))
    close(losses.max(), exact.value(x))
    close(losses[y > 0], np.full(2, losses.max()))
    close(y.sum(), 1)
    close(compiled(jax.grad(F, 0), x, y), [0.0])
    c = np.array([record["c"].mean() for record in exact.records])
    shares = np.random.default_rng(0).dirichlet(np.ones(5))
    close(compiled(F, x, shares), shares @ (0.5 * (x - c) ** 2))
    close(exact.biased_solution("mean"), [exact.weights @ c])
    assert abs(exact.biased_solution("mean") - x) > 1e-2


# E5


def test_meta_hypergradient_and_solution():
    exact, x = QuadraticMeta.random(clients=3, seed=1, weights="random", lam=0.7), point(3)
    pairs = zip(client_losses(exact, meta.upper, "upper"), client_losses(exact, meta.lower, "lower"), strict=True)
    outer = average(exact, [lambda x, f=f, g=g: f(x, argmin(g, x, 3)) for f, g in pairs])
    close(exact.hypergradient(x), compiled(jax.grad(outer), x))
    close(exact.solution(), root(jax.grad(outer), 3))
    for g, y in zip(client_losses(exact, meta.lower, "lower"), exact.lower_solution(x), strict=True):
        close(y, compiled(lambda x, g=g: argmin(g, x, 3), x))


# E6


def test_ridge_penalties():
    exact, x = RidgePenalties.random(clients=3, seed=1, weights="random"), point(3)
    F, G = averaged(exact, ridge.upper, "upper"), averaged(exact, ridge.lower, "lower")
    inner = jax.jit(lambda x: argmin(G, x, 3))
    outer = jax.jit(jax.value_and_grad(lambda x: F(x, inner(x))))
    close(exact.lower_solution(x), inner(x))
    close(exact.value(x), outer(x)[0])
    close(exact.hypergradient(x), outer(x)[1])
    best = exact.solution()
    close(exact.hypergradient(best), np.zeros(3))
    close(outer(best)[0], 0)
    close(outer(best)[1], np.zeros(3))
    ratio = exact.target / exact.coefficients
    assert np.all((ratio > 0) & (ratio < 1))
    identity = sum(
        p * np.mean([X.T @ X for X in record["lower"]["features"]], axis=0)
        for p, record in zip(exact.weights, exact.records, strict=True)
    )
    close(identity, np.eye(3))


# E7


def test_cleaning_default_weights_give_the_formula_over_all_samples():
    exact = DataCleaning.random(clients=3, seed=1)
    N, real = sum(exact.sizes), np.arange(max(exact.sizes)) < np.array(exact.sizes)[:, None]
    x = point(real.shape)
    s, z = 1 / (1 + np.exp(-x[real])), np.concatenate([record["lower"]["z"] for record in exact.records])
    w = s @ z / (s.sum() + exact.C * N)
    close(exact.lower_solution(x), w)
    t = sum(p * record["upper"]["t"].mean(0) for p, record in zip(exact.weights, exact.records, strict=True))
    v = (w - t) / (s.mean() + exact.C)
    close(exact.adjoint(x), v)
    close(exact.hypergradient(x)[real], -s * (1 - s) * ((w - z) @ v) / N)
    close(exact.hypergradient(x)[~real], np.zeros((~real).sum()))


def test_cleaning_hypergradient():
    exact = DataCleaning.random(clients=3, seed=2, weights="random")
    x = point((3, max(exact.sizes)))
    g = client_losses(exact, cleaning.lower, "lower")
    F = averaged(exact, cleaning.upper, "upper")
    G = average(exact, [lambda x, w, g=g, i=i: g(x[i], w) for i, g in enumerate(g)])
    close(exact.lower_solution(x), compiled(lambda x: argmin(G, x, 3), x))
    close(exact.hypergradient(x), compiled(jax.grad(lambda x: F(x, argmin(G, x, 3))), x))
    # What a client computes for its own logits, -(d2 g_i/dx_i dw) v, leaves its weight out.
    w, v = exact.lower_solution(x), exact.adjoint(x)
    for i, loss in enumerate(g):
        cross = np.asarray(compiled(jax.jacfwd(jax.grad(loss, 0), 1), x[i], w))
        close(exact.hypergradient(x)[i], exact.weights[i] * -(cross @ v))


def test_cleaning_descent_finds_the_corrupted_samples():
    exact = DataCleaning.random(seed=3)
    x = np.zeros((4, max(exact.sizes)))
    assert exact.auc(x) == 0.5
    first = exact.hypergradient(x)
    for row, bad in zip(first, exact.corrupted, strict=True):
        assert np.all(row[: bad.size][bad] > 0) and np.all(row[: bad.size][~bad] < 0)
    before = exact.value(x)
    for _ in range(50):
        x = x - 20.0 * exact.hypergradient(x)
    assert exact.auc(x) > 0.97
    assert exact.value(x) < 0.05 * before


# E8


def test_loss_tuning_is_logit_adjustment():
    exact, x = LossTuning.random(clients=3, seed=1, weights="random"), point(4)
    F, G = averaged(exact, tuning.upper, "upper"), averaged(exact, tuning.lower, "lower")
    parts = (jax.grad(G, 1), jax.hessian(G, 1), jax.jacfwd(jax.grad(G, 0), 1), jax.grad(F, 1))
    derivatives = jax.jit(lambda x, z: [part(x, z) for part in parts])
    for at in (x, exact.solution()):
        z = exact.lower_solution(at)
        lower_gradient, hessian, cross, upper_gradient = map(np.asarray, derivatives(at, z))
        close(lower_gradient, np.zeros(4))
        close(hessian @ np.ones(4), np.zeros(4))
        # The pseudo-inverse is the inverse off the null vector 1; grad_y F has no part along it.
        v = np.linalg.pinv(hessian, hermitian=True, rcond=1e-10) @ upper_gradient
        close(exact.hypergradient(at), -cross @ v)
    close(exact.hypergradient(exact.solution()), np.zeros(4))
    close(exact.solution().sum(), 0)
    shift = exact.solution() - np.log(exact.frequencies)
    close(shift, np.full(4, shift[0]))
    close(compiled(F, x, np.zeros(4)), np.log(4.0))
    close(exact.frequencies.sum(), 1)


# What all have in common


@pytest.mark.parametrize("kind", ALL)
def test_data_are_ragged_weighted_and_reproducible(kind):
    exact, again = kind.random(seed=5), kind.random(seed=5, weights="random")
    first, other = jax.tree.leaves(list(exact.records)), jax.tree.leaves(list(again.records))
    if kind not in (RidgePenalties, Midrange):  # their data must fit the weights
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    if kind is not DataCleaning:  # its default is by size
        close(exact.weights, np.full(4, 1 / 4))
    close(again.weights.sum(), 1)
    assert again.weights.min() > 0 and np.ptp(again.weights) > 1e-2
    lengths = [{len(leaf) for leaf in jax.tree.leaves(r.get("lower", r))} for r in exact.records]
    assert all(len(own) == 1 for own in lengths) and len(set().union(*lengths)) > 1
    fixed = kind.random(clients=2, examples=[3, 2], weights=[3, 1])
    close(fixed.weights, [0.75, 0.25])
    assert [len(jax.tree.leaves(r.get("lower", r))[0]) for r in fixed.records] == [3, 2]


def loss_functions(exact):
    """(loss, level, arguments) rows at a random point, for every loss of the problem."""
    z = {name: point(value.shape, seed=len(name)) for name, value in exact.start().items()}
    modules = {
        QuadraticBilevel: bilevel,
        QuadraticMeta: meta,
        RidgePenalties: ridge,
        DataCleaning: cleaning,
        LossTuning: tuning,
    }
    if type(exact) in modules:
        module, split = modules[type(exact)], not isinstance(exact, QuadraticBilevel)
        return [(getattr(module, level), level if split else None, z) for level in ("lower", "upper")]
    if isinstance(exact, LinearComposition):
        inner = {"z": np.concatenate([point(2), z["x"]])}
        return [(composition.Affine(1), None, z), (composition.terminal, None, inner)]
    module = {QuadraticConsensus: consensus, QuadraticMinimax: minimax, Midrange: midrange}[type(exact)]
    return [(module.loss, None, z)]


def every_derivative(exact, loss, level, z):
    """The derivatives of every client's own loss in every sequence."""
    losses = client_losses(exact, loss, level)
    return compiled(lambda *z: [jax.jacfwd(own, range(len(z)))(*z) for own in losses], *z.values())


@pytest.mark.parametrize("kind", [k for k in ALL if k not in (Midrange, DataCleaning)])
def test_no_heterogeneity_means_identical_clients(kind):
    same, apart = kind.random(3, seed=6, heterogeneity=0.0), kind.random(2, seed=6)
    for loss, level, z in loss_functions(same):
        gradients = every_derivative(same, loss, level, z)
        for other in gradients[1:]:
            jax.tree.map(close, gradients[0], other)
    differences = []
    for loss, level, z in loss_functions(apart):
        first, second = every_derivative(apart, loss, level, z)
        differences += [np.abs(a - b).max() for a, b in zip(first, second, strict=True)]
    assert max(differences) > 1e-2


def test_no_heterogeneity_means_no_bias():
    exact = QuadraticBilevel.random(seed=6, heterogeneity=0.0, weights="random")
    close(exact.biased_solution("local"), exact.solution())
    close(exact.biased_solution("local-hessian"), exact.solution())
    close(
        Midrange.random(heterogeneity=0.0).biased_solution("mean"),
        Midrange.random(heterogeneity=0.0).solution(),
    )
    cleaning_targets = [r["upper"]["t"].mean(0) for r in DataCleaning.random(heterogeneity=0.0).records]
    for other in cleaning_targets[1:]:
        close(other, cleaning_targets[0])


@pytest.mark.parametrize("kind", [QuadraticBilevel, QuadraticConsensus, QuadraticMinimax, QuadraticMeta])
@pytest.mark.parametrize("heterogeneity", [0.0, 1.0, 3.0])
def test_every_example_has_positive_symmetric_curvature(kind, heterogeneity):
    exact = kind.random(clients=3, examples=5, heterogeneity=heterogeneity)
    for record in exact.records:
        for part in (record.get("lower", record), record.get("upper", record)):
            for name in set(part) & {"A", "E", "R"}:
                matrices = part[name]
                close(matrices, np.swapaxes(matrices, 1, 2))
                assert np.linalg.eigvalsh(matrices).min() > 0


@pytest.mark.parametrize("kind", ALL)
def test_losses_take_any_pytree(kind):
    exact = kind.random(seed=7)
    if kind is Midrange:
        with pytest.raises(ValueError, match=r"leaves: 2 was given; it must be 1"):
            exact.start(leaves=2)
        return
    two = exact.start(leaves=2)
    for name, value in exact.start().items():
        assert set(two[name]) == {"a", "b"}
        close(flat(two[name]), value)
    for loss, level, z in loss_functions(exact):
        split = [{"a": value[:1], "b": value[1:]} for value in z.values()]
        example = jax.tree.map(lambda leaf: leaf[-1], exact.records[1][level] if level else exact.records[1])
        close(compiled(loss, *split, example), compiled(loss, *z.values(), example))
    with pytest.raises(ValueError, match=r"leaves: 3 was given; it must be 1 or 2"):
        exact.start(leaves=3)


@pytest.mark.parametrize("kind", ALL)
def test_instances_share_their_functions_and_hand_over_their_data(kind):
    exact = kind.random(seed=8, weights="random")
    assert exact.problem == kind.random(seed=9).problem
    assert hash(exact.problem) == hash(kind.random(seed=9).problem)
    assert tuple(exact.start()) == exact.problem.given
    clients = exact.clients
    close(clients.weights, exact.weights)
    for i, record in enumerate(exact.records):
        held = clients.client(i)
        held = {"lower": held.lower, "upper": held.upper} if isinstance(held, Split) else held
        jax.tree.map(close, held, record)


def full_direction(problem, clients, values):
    """sum p_i D_i for shared sequences; D_i client by client, from row i of the value, for local ones."""

    levels = jax.tree.map(jnp.asarray, dict(clients.levels))

    @jax.jit
    def of_client(i):
        own = shard(levels, i)
        batches = {
            name: own.batch(level, None, int(clients.level(level).size.max()), jnp.float64)
            for name, level in problem.draws.items()
        }
        z = {n: jnp.asarray(values[n])[i] if n in problem.local else jnp.asarray(values[n]) for n in problem.names}
        return problem.direction(Values(z), batches)

    directions = [of_client(i) for i in range(clients.population)]
    total = {name: jnp.stack([d[name] for d in directions]) for name in problem.names}
    return {n: d if n in problem.local else jnp.asarray(clients.weights) @ d for n, d in total.items()}


@pytest.mark.parametrize(
    ("exact", "problem"),
    [
        (QuadraticBilevel.random(clients=3, weights="random"), "problem"),
        (QuadraticBilevel.random(clients=3, weights="random", local=True), "problem"),
        (QuadraticConsensus.random(clients=3, weights="random"), "problem"),
        (LinearComposition.random(clients=3, weights="random"), "problem"),
        (QuadraticMinimax.random(clients=3, weights="random"), "problem"),
        (QuadraticMinimax.random(clients=3, weights="random"), "bilevel"),
        (QuadraticMeta.random(clients=3, weights="random"), "problem"),
        (RidgePenalties.random(clients=3, weights="random"), "problem"),
        (LossTuning.random(clients=3, weights="random"), "problem"),
    ],
    ids=lambda value: getattr(type(value), "__name__", value) if not isinstance(value, str) else value,
)
def test_the_direction_field_vanishes_at_the_optimum(exact, problem):
    kind = getattr(exact, problem)
    with jax.numpy_dtype_promotion("standard"):
        direction = full_direction(kind, exact.clients, exact.optimum())
    assert set(direction) == set(kind.names)
    for value in direction.values():
        close(value, np.zeros(value.shape))


@pytest.mark.parametrize("kind", [QuadraticBilevel, LinearComposition, Midrange])
def test_an_unknown_bias_is_refused(kind):
    with pytest.raises(ValueError, match=r"kind: 'nonsense' is not known; allowed are "):
        kind.random().biased_solution("nonsense")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0}, r"clients: 0 was given"),
        ({"examples": 0}, r"examples: 0 was given"),
        ({"examples": [1, 2]}, r"examples: \[1, 2\] was given; .* or 4 of them"),
        ({"weights": "size"}, r"weights: 'size' was given; allowed are None, \"random\""),
        ({"weights": [1, 0, 1, 1]}, r"weights: .* was given; 4 positive numbers"),
    ],
)
def test_impossible_instances_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        QuadraticBilevel.random(**arguments)
    with pytest.raises(ValueError, match=r"lower_scope: 'nowhere' is not known"):
        QuadraticBilevel((), np.ones(1), "nowhere")
    with pytest.raises(ValueError, match=r"x: shape \(3,\) was given"):
        DataCleaning.random().hypergradient(np.zeros(3))
    with pytest.raises(ValueError, match=r"noise: 1.5 was given"):
        DataCleaning.random(noise=1.5)
