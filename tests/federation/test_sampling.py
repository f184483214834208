"""Sampling: cohorts have the promised sizes and inclusion probabilities, and their means are unbiased."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

N = 6
DRAWS = 40_000
PROBABILITIES = np.array([0.1, 0.3, 0.35, 0.5, 0.75, 1.0])

SCHEMES = {
    "all": rk.All(),
    "uniform": rk.Uniform(2),
    "with-replacement": rk.WithReplacement(3),
    "bernoulli": rk.Bernoulli(0.4),
    "bernoulli-each": rk.Bernoulli(PROBABILITIES),
    "weighted": rk.Weighted(PROBABILITIES),
}


def counts(scheme, draws=DRAWS):
    """How often each client was drawn in each of many rounds, (draws, N)."""

    def one(key):
        members = scheme.members(key, N, jnp.float32)
        return jnp.zeros(N, jnp.int32).at[members.index].add(members.count), members

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), draws))


@pytest.mark.parametrize("name", SCHEMES)
def test_inclusion_and_expected_counts_are_those_observed(name):
    scheme = SCHEMES[name]
    drawn, _ = counts(scheme)
    spread = 5 * 0.6 / DRAWS**0.5  # five standard errors of a mean of counts
    np.testing.assert_allclose(drawn.mean(axis=0), scheme.expected(N), atol=spread)
    np.testing.assert_allclose((drawn > 0).mean(axis=0), scheme.inclusion(N), atol=spread)


@pytest.mark.parametrize("name", SCHEMES)
def test_slots_are_filled_first_by_index_and_never_twice(name):
    scheme = SCHEMES[name]
    drawn, members = counts(scheme, 500)
    index, count = np.asarray(members.index), np.asarray(members.count)
    assert index.shape[1] == scheme.slots(N)
    for row, k in zip(index, count):
        present = (k > 0).sum()
        assert (k[:present] > 0).all() and (np.diff(row[:present]) > 0).all()
    sizes = drawn.sum(axis=1)
    if name in ("uniform", "with-replacement", "weighted"):
        assert (sizes == {"uniform": 2, "with-replacement": 3, "weighted": 3}[name]).all()
    if name in ("uniform", "weighted"):
        assert drawn.max() == 1


def test_every_pair_is_equally_likely_under_uniform():
    drawn, _ = counts(rk.Uniform(2))
    pairs = dict.fromkeys(itertools.combinations(range(N), 2), 0)
    for row in np.asarray(drawn):
        pairs[tuple(np.flatnonzero(row))] += 1
    observed = np.array(list(pairs.values())) / DRAWS
    np.testing.assert_allclose(observed, 1 / 15, atol=5 * (1 / 15 / DRAWS) ** 0.5)


@pytest.mark.parametrize("m, population", [(1, 1), (3, 6), (5, 6), (6, 6)])
def test_every_set_is_equally_likely_under_uniform(m, population):
    draw = jax.jit(jax.vmap(lambda key: jnp.sort(rk.Uniform(m).draw(key, population)[0])))
    sets = dict.fromkeys(itertools.combinations(range(population), m), 0)
    for row in np.asarray(draw(jax.random.split(jax.random.key(1), DRAWS))):
        sets[tuple(row.tolist())] += 1
    np.testing.assert_allclose(np.array(list(sets.values())) / DRAWS, 1 / len(sets), atol=5 * DRAWS**-0.5 / 2)


def test_a_cohort_may_be_counted_by_numpy():
    key = jax.random.key(0)
    for scheme in (rk.Uniform, rk.WithReplacement):
        np.testing.assert_array_equal(scheme(np.int64(3)).draw(key, 8)[0], scheme(3).draw(key, 8)[0])


@pytest.mark.parametrize("m, population", [(7, 8), (64, 64), (100, 120), (30, 2**31 - 1)])
def test_a_cohort_is_that_of_floyds_method_step_by_step(m, population):
    for seed in range(10):
        key = jax.random.key(seed)
        last = np.arange(population - m, population)
        taken: list[int] = []
        for t, j in zip(np.asarray(jax.random.randint(key, (m,), 0, last + 1, dtype=jnp.int32)).tolist(), last):
            taken.append(int(j) if t in taken else t)
        assert rk.Uniform(m).draw(key, population)[0].tolist() == taken


@pytest.mark.parametrize("name", ["uniform", "with-replacement", "bernoulli-each", "weighted"])
def test_means_are_unbiased_under_every_scheme(name):
    """One exchange of a method that changes nothing, averaged over many rounds of a run."""
    values = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])
    weights = np.array([0.3, 0.1, 0.2, 0.15, 0.05, 0.2])
    scheme = SCHEMES[name]
    factors = lambda m: m.count * jnp.asarray(weights)[m.index] / m.expected
    _, members = counts(scheme)
    means = jax.vmap(lambda m: jnp.sum(factors(m) * jnp.asarray(values)[m.index]))(members)
    error = np.std(means) / DRAWS**0.5
    assert abs(np.mean(means) - weights @ values) < 5 * error


def test_selecting_some_of_a_cohort_keeps_means_unbiased():
    members = rk.Uniform(4).members(jax.random.key(1), N, jnp.float32)
    few = jax.vmap(lambda key: members.select(2, key))(jax.random.split(jax.random.key(2), 2000))
    assert few.index.shape == (2000, 2) and np.isin(few.index, members.index).all()
    np.testing.assert_allclose(few.expected, 4 / 6 * 2 / 4, rtol=1e-6)
    shares = [(np.asarray(few.index) == i).any(axis=1).mean() for i in np.asarray(members.index)]
    np.testing.assert_allclose(shares, 0.5, atol=5 * (0.25 / 2000) ** 0.5)
    none = members.when(False)
    assert none.present == 0 and members.when(True).present == 4


@pytest.mark.parametrize("precision", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("clients", [1000])
def test_weighted_never_draws_a_client_twice(clients, precision):
    """Sums of floating-point lengths are rounded, and a point near the end of one client may fall on it again."""
    p = np.random.default_rng(0).uniform(0.05, 1, clients)
    p[:300] = 1.0
    p[300:] *= (clients // 2 - 300) / p[300:].sum()
    scheme = rk.Weighted(p)
    draw = jax.jit(jax.vmap(lambda key: scheme.draw(key, clients)[0]))
    with jax.enable_x64(precision == jnp.float64):
        drawn = np.sort(np.asarray(draw(jax.random.split(jax.random.key(0), 2000))))
    assert drawn.shape == (2000, clients // 2)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert (drawn[:, :300] == np.arange(300)).all()  # those that are always there
    observed = np.bincount(drawn.ravel(), minlength=clients) / 2000
    assert np.abs(observed - p).max() < 6 * (0.25 / 2000) ** 0.5


def test_weighted_draws_the_same_in_both_precisions():
    draws = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            draws.append(np.asarray(SCHEMES["weighted"].draw(jax.random.key(3), N)[0]))
    np.testing.assert_array_equal(*draws)


@pytest.mark.parametrize(
    ("p", "sentence"),
    [
        (lambda t: jnp.where(t < 5, 0.5, 1.5), "sampling: p = 1.5 was given in round 5; 0 <= p <= 1 is needed"),
        (lambda t: 0.9 - 0.1 * t, "sampling: p = .* was given in round (9|10)"),
        (lambda t: jnp.where(t < 700, 0.5, jnp.nan), "sampling: p = nan was given in round 700"),
        (
            lambda t: 0.5 if t < 3 else 0.1,
            r"sampling: p\(t\) of a traced round t fails, with TracerBoolConversionError",
        ),
        (lambda t: jnp.ones(2) / 2, r"sampling: p has shape \(2,\)"),
    ],
)
def test_a_schedule_that_leaves_its_range_in_some_round_is_refused(p, sentence):
    clients = rk.federate([{"a": np.ones(1)}] * 3)
    with pytest.raises(rk.InputError, match=sentence):
        rk.run(
            rk.Single(lambda x, e: x * e["a"]), rk.FedAvg(lr=0.1), clients, x=0.0, rounds=1000, sampling=rk.Bernoulli(p)
        )


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        (rk.Uniform(2**40), "sampling: a cohort of 1099511627776 was given; a whole number from 1 to 2147483647"),
        (rk.WithReplacement(2**31), "sampling: a cohort of 2147483648 was given"),
        (rk.Bernoulli("a"), "sampling: p = 'a' was given; 0 < p <= 1 is needed"),
        (rk.Bernoulli(np.nan), "sampling: p = nan was given"),
        (rk.Weighted(np.array([np.nan, 1, 1, 1, 1, 1])), "sampling: a probability of nan was given"),
        (rk.Uniform(7), "sampling: a cohort of 7 was given; the population has 6 clients"),
        (rk.Uniform(0), "sampling: a cohort of 0 was given"),
        (rk.Uniform(2.5), "sampling: a cohort of 2.5 was given"),
        (rk.WithReplacement(0), "sampling: a cohort of 0 was given"),
        (rk.Bernoulli(1.5), "sampling: p = 1.5 was given; 0 < p <= 1 is needed"),
        (rk.Bernoulli(0.0), "sampling: p = 0.0 was given"),
        (rk.Bernoulli(np.ones(3)), "sampling: p has shape (3,)"),
        (rk.Weighted(np.full(6, 0.3)), "sampling: the probabilities sum to 1.8; they must sum to a whole cohort size"),
        (rk.Weighted(np.full(5, 0.4)), "sampling: 5 probabilities were given for 6 clients"),
        (rk.Weighted(np.array([0.5, 1.5, 0.25, 0.25, 0.25, 0.25])), "sampling: a probability of 1.5 was given"),
    ],
)
def test_bad_schemes_are_refused_in_a_sentence(scheme, sentence):
    with pytest.raises(rk.InputError) as error:
        scheme.check(N)
    assert sentence in str(error.value)


def test_probabilities_that_are_no_numbers_are_refused():
    with pytest.raises(rk.InputError, match="sampling: 'many' was given; one probability per client is needed"):
        rk.Weighted("many")
