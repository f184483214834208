"""What a phase can ask of its client: samples, oracles, loops, and what each of them counts."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.checks import flat, run
from properties.table import bed

EXACT = rk.exact.QuadraticBilevel.random(clients=2, dims=(2, 2), seed=0)


def lower(x, y, e):
    return 0.5 * e["s"] * jnp.vdot(y, y) - jnp.vdot(x, y)


def upper(x, y, e):
    return 0.5 * e["s"] * jnp.vdot(x, x) + jnp.vdot(x, y)


def noisy(independent: bool = False, scope: str = "shared"):
    """A bilevel problem whose examples all differ, and two clients of 6."""
    rng = np.random.default_rng(0)
    clients = rk.federate([{"s": rng.uniform(0.5, 1.5, 6)} for _ in range(2)])
    return rk.Bilevel(upper, lower, lower_scope=scope, independent=independent), clients


def asked(method, problem, clients, engine="local", **options):
    options = {"x": np.ones(2), "y": np.ones(2), "rounds": 1, "batch_size": 2, "precision": "float64"} | options
    return rk.run(problem, method, clients, engine=engine, **options)


# Samples.


@pytest.mark.parametrize("engine", ["local", "eager", rk.Eager(jit=False)], ids=["local", "eager", "plain"])
@pytest.mark.parametrize("independent", [False, True], ids=["together", "independent"])
def test_fedbiolocal_counts_the_samples_that_it_uses(independent, engine):
    """One step with 3 terms: upper for b and x, lower for y, the cross product and each Hessian product."""
    problem, clients = noisy(independent, "local")
    method = rk.FedBiOLocal(lr=rk.Rates(0.1), local_steps=2, hypergradient=rk.Neumann(3, 0.1))
    ledger = asked(method, problem, clients, engine).ledger
    draws = 6 if independent else 4  # b, x, y, cross and two products; without, one upper and one lower for four
    assert ledger.samples == 2 * 2 * draws * 2
    assert ledger.oracles["hvps"] == 2 * 2 * 2


@rk.method
class Draws:
    """Draws both levels, and uses what `uses_of` says: before, in and after a loop, and in a branch."""

    lr: rk.Rates
    where: str = rk.static(default="nowhere")

    def round(self, state, cohort):
        return state.next(z=state.z.replace(x=state.z.x + 0.0 * cohort.mean("go", state.z)))

    def go(self, client, z):
        sample = client.sample(client.key)
        g = lambda: client.lower_grad(z.x, z.y, sample)
        if self.where == "before":
            return g()
        if self.where == "loop":
            return client.loop(3, lambda carry, k, key: carry + g(), z.y.zeros())
        if self.where == "loop and after":
            return client.loop(3, lambda carry, k, key: carry + g(), z.y.zeros()) + g()
        if self.where == "branch":
            return client.choose(client.index == 0, g, z.y.zeros)
        if self.where == "carried":
            return client.loop(3, lambda carry, k, key: carry, (z.y, sample))[0]
        return z.y


@pytest.mark.parametrize("engine", ["local", "eager", rk.Eager(jit=False)], ids=["local", "eager", "plain"])
@pytest.mark.parametrize(
    ("where", "drawn"),
    {"nowhere": 0, "before": 2, "loop": 2, "loop and after": 2, "branch": 1, "carried": 4}.items(),
)
@pytest.mark.parametrize("batch", [2, None], ids=["minibatch", "all"])
def test_a_minibatch_is_counted_when_it_is_used_and_once(where, drawn, engine, batch):
    problem, clients = noisy()
    ledger = asked(Draws(rk.Rates(0.1), where), problem, clients, engine, batch_size=batch).ledger
    assert ledger.samples == drawn * (batch or 6)  # of both clients


@rk.method
class Parts:
    """Asks for every derivative, on one sample, and replies with what tells which examples it was of."""

    lr: rk.Rates

    def round(self, state, cohort):
        z = state.z
        g, h, c, f, b = cohort.mean("go", z)
        return state.next(z=z.replace(x=g + f + c, y=h, v=b))

    def go(self, client, z):
        sample, x, y, v = client.sample(client.key), z.x, z.y, z.y
        return (
            client.lower_grad(x, y, sample), client.hvp(x, y, v, sample), client.cross(x, y, v, sample),
            client.upper_grad_x(x, y, sample), client.upper_grad_y(x, y, sample),
        )  # fmt: skip


def test_independent_draws_are_those_of_every_oracle():
    """With draws of their own the derivatives are taken on five minibatches, otherwise on two."""
    for independent, minibatches in ((False, 2), (True, 5)):
        problem, clients = noisy(independent)
        assert asked(Parts(rk.Rates(0.1)), problem, clients).ledger.samples == 2 * 2 * minibatches
    one, five = (asked(Parts(rk.Rates(0.1)), *noisy(independent)) for independent in (False, True))
    assert not np.allclose(one.y, five.y)  # hvp on "hessian", not on "lower"


@pytest.mark.parametrize(
    "estimator", [rk.Neumann(4, 0.1), rk.ConjugateGradient(3), rk.Tracked()], ids=["neumann", "cg", "tracked"]
)
def test_independent_draws_are_those_of_every_estimator(estimator):
    """On all examples nothing changes; on minibatches every part has its own."""
    found = {}
    for independent in (False, True):
        problem, clients = noisy(independent, "local")
        method = rk.FedBiOLocal(lr=rk.Rates(0.1), hypergradient=estimator)
        found[independent] = (
            asked(method, problem, clients, rounds=2),
            asked(method, problem, clients, rounds=2, batch_size=None),
        )
    np.testing.assert_allclose(found[False][1].x, found[True][1].x, rtol=0, atol=1e-14)
    assert not np.allclose(found[False][0].x, found[True][0].x)
    assert found[True][0].ledger.samples > found[False][0].ledger.samples


@rk.method
class OtherKeys:
    """In every step of an epoch: a sample of the step's key, and one of another."""

    lr: rk.Rates
    local_steps: rk.Steps = rk.Epochs(1)
    size: int | None = rk.static(default=None)

    def round(self, state, cohort):
        return state.next(z=state.z - self.lr.at(state.round) * cohort.mean("go", state.z))

    def go(self, client, z):
        def step(carry, k, key):
            d = client.direction(z, client.sample(key)) + client.direction(z, client.sample(key))
            other = client.direction(z, client.sample(jax.random.fold_in(key, 1), size=self.size))
            return carry + d + other

        return client.loop(self.local_steps, step, z.zeros())


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_a_sample_in_an_epoch_is_what_its_key_says_or_refused(engine):
    clients = rk.federate([{"s": np.arange(1.0, 6.0)}, {"s": np.arange(1.0, 4.0)}])
    problem = rk.Single(lambda x, e: 0.5 * e["s"] * jnp.vdot(x, x))
    options = {"x": np.ones(2), "rounds": 1, "batch_size": 2, "engine": engine}
    with pytest.raises(rk.InputError, match=re.escape("client.sample: a key that is not the step's was given")):
        rk.run(problem, OtherKeys(0.01), clients, **options)
    ledger = rk.run(problem, OtherKeys(0.01, size=1), clients, **options).ledger
    assert ledger.samples == 2 * (5 + 3) + (3 + 2)  # twice the epoch's own, and one more in each of 3 and 2 steps
    assert rk.run(problem, OtherKeys(0.01, 4), clients, **options).ledger.samples == 2 * 4 * 3 * 2


def test_an_epoch_inside_a_branch_is_counted():
    @rk.method
    class Sometimes:
        lr: rk.Rates
        local_steps: rk.Steps = rk.Epochs(1)

        def round(self, state, cohort):
            return state.next(z=state.z - self.lr.at(state.round) * cohort.mean("go", state.z))

        def go(self, client, z):
            def step(carry, k, key):
                taken = lambda: client.direction(z, client.sample(key))
                return carry + client.choose(k % 2 == 0, taken, z.zeros)

            return client.loop(self.local_steps, step, z.zeros())

    clients = rk.federate([{"s": np.arange(1.0, 6.0)}, {"s": np.arange(1.0, 4.0)}])
    problem = rk.Single(lambda x, e: 0.5 * e["s"] * jnp.vdot(x, x))
    for engine in ("local", "eager", rk.Eager(jit=False)):
        ledger = rk.run(problem, Sometimes(0.01), clients, x=np.ones(2), rounds=1, batch_size=2, engine=engine).ledger
        assert ledger.samples == (2 + 1) + 2  # minibatches 0 and 2 of 2, 2, 1; and 0 of 2, 1


def test_a_derivative_of_another_kind_of_problem_is_refused():
    problem = rk.Single(lambda x, e: 0.5 * e["s"] * jnp.vdot(x, x))
    clients = rk.federate([{"s": np.ones(3)}])

    @rk.method
    class Curious:
        lr: rk.Rates

        def round(self, state, cohort):
            return state.next(z=state.z.replace(x=cohort.mean("go", state.z)))

        def go(self, client, z):
            return client.hvp(z.x, z.x, z.x, client.sample(client.key))

    with pytest.raises(rk.InputError, match=r"client.hvp: it was asked for on a single problem"):
        rk.run(problem, Curious(0.1), clients, x=np.ones(2), rounds=1)


# Random numbers of steps.


@rk.method
class TwoSchedules:
    """Replies with both numbers of steps that a client draws."""

    lr: rk.Rates
    one: rk.Steps = rk.steps(default=1)
    other: rk.Steps = rk.steps(default=1)

    def round(self, state, cohort):
        return state.next(z=state.z.replace(x=cohort.sum("drawn")))

    def drawn(self, client):
        both = jnp.stack([client.steps(self.one), client.steps(self.other)]).astype(client.dtype)
        return rk.Vector(both * (client.index == 0) / client.weight)


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_two_random_schedules_of_a_method_are_independent(engine):
    problem = rk.Single(lambda x, e: jnp.vdot(x, e["s"] * x))
    clients = rk.federate([{"s": np.ones(3)}, {"s": np.ones(3)}])
    schedule = rk.RandomSteps(1, 1000)

    def drawn(method, rounds):
        return np.asarray(rk.run(problem, method, clients, x=np.ones(2), rounds=rounds, engine=engine).x)

    pairs = np.array([drawn(TwoSchedules(0.1, schedule, schedule), rounds) for rounds in (1, 2, 3, 4)])
    assert (pairs[:, 0] != pairs[:, 1]).all()
    alone = np.array([drawn(TwoSchedules(0.1, 1, schedule), rounds) for rounds in (1, 2)])
    np.testing.assert_array_equal(alone[:, 1], pairs[:2, 0])  # the only one of a method draws as the first of two


# Traced once.


class Traces:
    """How often each phase of a method was traced."""

    def __init__(self):
        self.of: dict[str, int] = {}

    def count(self, name):
        self.of[name] = self.of.get(name, 0) + 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_phase_is_traced_once_at_any_depth(depth):
    traces = Traces()

    @rk.method
    class Nested:
        lr: rk.Rates

        def round(self, state, cohort):
            def body(cohort, t, z):
                return z - 0.1 * cohort.mean("go", z)

            for _ in range(depth):
                inner = body
                body = lambda cohort, t, z, inner=inner: cohort.repeat(2, inner, z)
            return state.next(z=body(cohort, 0, state.z))

        def go(self, client, z):
            traces.count("go")

            def step(carry, k, key):
                traces.count("step")
                inner = lambda carry, k, key: (traces.count("inner"), carry + client.direction(z, client.sample(key)))[
                    1
                ]
                return client.loop(2, inner, carry)

            return client.loop(2, step, z.zeros())

    result = run(bed("E1"), Nested(rk.Rates(0.01)), rounds=2)
    assert traces.of == {"go": 1, "step": 1, "inner": 1}
    assert result.ledger.oracles["gradients"] == 2 * 3 * 2**depth * 4 * 3


@rk.method
class LaterToAll:
    """In a loop in a loop: x to one client, then, outside of the inner loop, to everybody."""

    lr: rk.Rates

    def round(self, state, cohort):
        x = state.z.x

        def inner(cohort, t, carry):
            return carry + cohort.select(1).sum("ones", x)

        def outer(cohort, t, carry):
            return cohort.repeat(3, inner, carry) + cohort.sum("ones", x)

        total = cohort.repeat(4, outer, jnp.zeros(()))
        return state.next(z=state.z.replace(x=x * (1 + 0 * total)))

    def ones(self, client, x):
        return jnp.ones(())


def test_what_everybody_got_in_an_iteration_travels_to_nobody_in_the_next():
    ledgers = [
        run(bed("E1"), LaterToAll(rk.Rates(0.1)), rounds=2, engine=engine).ledger for engine in ("local", "eager")
    ]
    assert ledgers[0] == ledgers[1]
    dim = flat(run(bed("E1"), LaterToAll(rk.Rates(0.1)), rounds=1).x).size
    assert ledgers[0].floats_down == 2 * dim * (3 * 1 + 3)  # three times to one, as each is another, then to all three
