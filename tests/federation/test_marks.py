"""Oracle calls inside JAX's own loops and transformations: counted as a Python loop counts them, or refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.federation.counts import zeros
from rookery.federation.marks import Mark, Traced, mark_total, marked

CLIENTS = rk.federate([{"s": np.arange(1.0, 6.0)}, {"s": np.arange(1.0, 4.0)}])
SINGLE = rk.Single(lambda x, e: 0.5 * e["s"] * jnp.vdot(x, x))
PLAIN = rk.Eager(jit=False)
ENGINES = ["local", rk.Local(at_once=2), "eager", PLAIN, rk.Mesh(), rk.Streamed(window=2000)]
NAMES = ["local", "local-2", "eager", "plain", "mesh", "streamed"]


@rk.method
class Work:
    """Moves by what one of FORMS makes of the client's gradients."""

    lr: rk.Rates
    form: str = rk.static(default="scan")
    python: bool = rk.static(default=False)

    def round(self, state, cohort):
        return state.next(z=state.z - self.lr.at(state.round) * cohort.mean("go", state.z, state.round))

    def go(self, client, z, round):
        if self.form in REFUSED:
            return REFUSED[self.form](client, z, round)
        compiled, python = FORMS[self.form]
        return (python if self.python else compiled)(client, z)


def gradient(client, z, key):
    return client.direction(z, client.sample(key))


def keys(client, n):
    return jax.random.split(client.key, n)


def unrolled(n, fresh=True):
    """The Python loop that the other forms are held to."""

    def go(client, z):
        for key in keys(client, n):
            z = z - 0.1 * gradient(client, z, key if fresh else client.key)
        return z

    return go


def scan(client, z):
    return jax.lax.scan(lambda z, key: (z - 0.1 * gradient(client, z, key), None), z, keys(client, 5))[0]


def fori(client, z):
    drawn = keys(client, 5)
    return jax.lax.fori_loop(0, 5, lambda k, z: z - 0.1 * gradient(client, z, drawn[k]), z)


def nested(client, z):
    drawn = keys(client, 6)
    inner = lambda j, z: jax.lax.fori_loop(0, 3, lambda k, z: z - 0.1 * gradient(client, z, drawn[3 * j + k]), z)
    return jax.lax.fori_loop(0, 2, inner, z)


def once_drawn(client, z):
    """The sample is made before the loop, so it counts once, and its gradients five times."""
    sample = client.sample(client.key)
    return jax.lax.fori_loop(0, 5, lambda k, z: z - 0.1 * client.direction(z, sample), z)


def once_drawn_in_python(client, z):
    sample = client.sample(client.key)
    for _ in range(5):
        z = z - 0.1 * client.direction(z, sample)
    return z


def summed(tree):
    return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), tree)


def at_seven_points(client, z):
    """vmap over points with one sample: the gradients are counted seven times."""
    sample, factors = client.sample(client.key), jnp.arange(7.0)
    return summed(jax.vmap(lambda c: client.direction(c * z, sample))(factors))


def at_seven_points_in_python(client, z):
    sample = client.sample(client.key)
    return sum((client.direction(float(c) * z, sample) for c in range(1, 7)), client.direction(0.0 * z, sample))


def unbatched(client, z):
    """vmap over nothing that the gradient reads."""
    return summed(jax.vmap(lambda c: c * gradient(client, z, client.key))(jnp.ones(7)))


def same_seven_times(client, z):
    return sum((gradient(client, z, client.key) for _ in range(7)), z.zeros())


def mapped(batch_size):
    return lambda client, z: summed(
        jax.lax.map(lambda key: gradient(client, z, key), keys(client, 7), batch_size=batch_size)
    )


def seven_gradients(client, z):
    return sum((gradient(client, z, key) for key in keys(client, 7)), z.zeros())


def jitted_twice(client, z):
    step = jax.jit(lambda z, key: z - 0.1 * gradient(client, z, key))
    first, second = keys(client, 2)
    return step(step(z, first), second)


def same_body_twice(client, z):
    """JAX traces the body once for both loops, in the phase and inside client.loop."""
    body = lambda z, key: (z - 0.1 * gradient(client, z, key), None)
    drawn = keys(client, 2)
    z = client.loop(3, lambda z, k, key: jax.lax.scan(body, z, drawn)[0], z)
    return jax.lax.scan(body, z, drawn)[0]


def same_body_twice_in_python(client, z):
    def both(z):
        for key in keys(client, 2):
            z = z - 0.1 * gradient(client, z, key)
        return z

    return both(both(both(both(z))))


def inside_client_loop(client, z):
    def step(z, k, key):
        body = lambda z, j: (z - 0.1 * gradient(client, z, jax.random.fold_in(key, j)), None)
        return jax.lax.scan(body, z, jnp.arange(4))[0]

    return client.loop(3, step, z)


def inside_client_loop_in_python(client, z):
    def step(z, k, key):
        for j in range(4):
            z = z - 0.1 * gradient(client, z, jax.random.fold_in(key, j))
        return z

    return client.loop(3, step, z)


def inside_epoch(client, z):
    """Two gradients on the minibatch of every step of an epoch."""

    def step(z, k, key):
        return jax.lax.fori_loop(0, 2, lambda j, z: z - 0.1 * gradient(client, z, key), z)

    return client.loop(rk.Epochs(2), step, z)


def inside_epoch_in_python(client, z):
    def step(z, k, key):
        for _ in range(2):
            z = z - 0.1 * gradient(client, z, key)
        return z

    return client.loop(rk.Epochs(2), step, z)


def in_a_branch(client, z):
    """Only the first client takes the three gradients, and only it uses the sample."""
    sample = client.sample(client.key)
    step = lambda k, z: z - 0.1 * client.direction(z, sample)
    return client.choose(client.index == 0, lambda: jax.lax.fori_loop(0, 3, step, z), lambda: z)


def in_a_branch_in_python(client, z):
    sample = client.sample(client.key)

    def three():
        w = z
        for _ in range(3):
            w = w - 0.1 * client.direction(w, sample)
        return w

    return client.choose(client.index == 0, three, lambda: z)


def loop_in_vmap(client, z):
    """client.loop inside vmap, with steps that are known when the program runs: 2 at one client and 3 at the other."""

    def walk(c):
        return client.loop(
            rk.StepsBy(lambda i, t: i + 2, 3), lambda z, k, key: z - 0.1 * gradient(client, z, key), c * z
        )

    return summed(jax.vmap(walk)(jnp.arange(3.0)))


def loop_in_vmap_in_python(client, z):
    walk = lambda c: client.loop(
        rk.StepsBy(lambda i, t: i + 2, 3), lambda z, k, key: z - 0.1 * gradient(client, z, key), c * z
    )
    return walk(0.0) + walk(1.0) + walk(2.0)


FORMS = {
    "scan": (scan, unrolled(5)),
    "fori": (fori, unrolled(5)),
    "nested": (nested, unrolled(6)),
    "once drawn": (once_drawn, once_drawn_in_python),
    "seven points": (at_seven_points, at_seven_points_in_python),
    "unbatched": (unbatched, same_seven_times),
    "map": (mapped(None), seven_gradients),
    "map in batches": (mapped(3), seven_gradients),
    "jit": (jitted_twice, unrolled(2)),
    "checkpoint": (
        lambda client, z: jax.checkpoint(lambda z: z - 0.1 * gradient(client, z, client.key))(z),
        unrolled(1, fresh=False),
    ),
    "same body": (same_body_twice, same_body_twice_in_python),
    "client.loop": (inside_client_loop, inside_client_loop_in_python),
    "epoch": (inside_epoch, inside_epoch_in_python),
    "branch": (in_a_branch, in_a_branch_in_python),
    "loop in vmap": (loop_in_vmap, loop_in_vmap_in_python),
}
REFUSED = {
    "while": lambda client, z, round: jax.lax.while_loop(
        lambda c: c[1] < 3, lambda c: (c[0] - 0.1 * gradient(client, c[0], client.key), c[1] + 1), (z, 0)
    )[0],
    "traced fori": lambda client, z, round: jax.lax.fori_loop(
        0, round + 2, lambda k, z: z - 0.1 * gradient(client, z, client.key), z
    ),
    "cond": lambda client, z, round: jax.lax.cond(
        client.index == 0, lambda: gradient(client, z, client.key), lambda: z
    ),
    "switch": lambda client, z, round: jax.lax.switch(
        client.index, [lambda: z, lambda: gradient(client, z, client.key)]
    ),
    "cg": lambda client, z, round: jax.scipy.sparse.linalg.cg(lambda v: gradient(client, v, client.key), z)[0],
    "loop in scan": lambda client, z, round: jax.lax.scan(
        lambda z, _: (client.loop(2, lambda z, k, key: z - 0.1 * gradient(client, z, key), z), None), z, length=3
    )[0],
    "choose in scan": lambda client, z, round: jax.lax.scan(
        lambda z, _: (client.choose(client.index == 0, lambda: gradient(client, z, client.key), lambda: z), None),
        z,
        length=3,
    )[0],
    "derivative": lambda client, z, round: jax.jvp(lambda z: gradient(client, z, client.key), (z,), (z,))[1],
    "pulled back": lambda client, z, round: jax.vjp(lambda z: gradient(client, z, client.key), z)[1](z)[0],
    "derivative of loop": lambda client, z, round: jax.jvp(
        lambda z: client.loop(2, lambda z, k, key: z - 0.1 * gradient(client, z, key), z), (z,), (z,)
    )[1],
}
MESSAGES = {
    "while": r"client.sample was called inside jax.lax.while_loop .* use client.loop instead.",
    "traced fori": r"a jax.lax.fori_loop of unknown length, .* use client.loop instead.",
    "cond": r"client.sample was called inside jax.lax.cond .* use client.choose instead.",
    "switch": r"jax.lax.switch, where it may not run; use client.choose instead.",
    "cg": r"use client.loop instead.",
    "loop in scan": r"client.loop was called inside jax's scan, .* use client.loop or client.choose around it.",
    "choose in scan": r"client.choose was called inside jax's scan, .* use client.loop or client.choose around it.",
    "derivative": r"client.direction was differentiated in a phase, .* use client.hvp, client.cross or client.direction_along",
    "pulled back": r"client.direction was differentiated in a phase",
    "derivative of loop": r"client.loop was differentiated in a phase",
}


def ran(form, python=False, engine="local", **options):
    options = {"x": np.ones(2), "rounds": 2, "batch_size": 2, "precision": "float64"} | options
    return rk.run(SINGLE, Work(0.01, form, python), CLIENTS, engine=engine, **options)


@pytest.mark.parametrize("form", FORMS)
def test_calls_in_jax_loops_count_as_in_python_loops(form):
    ours, python = ran(form), ran(form, python=True)
    assert ours.ledger == python.ledger
    assert ours.ledger.gradients > 0
    np.testing.assert_allclose(ours.x, python.x, rtol=0, atol=1e-13)
    assert ran(form, engine=PLAIN).ledger == ours.ledger


def test_counts_in_a_scan_are_the_numbers_of_the_loop():
    ledger = ran("scan").ledger
    assert (ledger.gradients, ledger.samples) == (2 * 2 * 5, 2 * 2 * 5 * 2)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("form", ["client.loop", "loop in vmap", "branch"])
def test_counts_in_jax_loops_are_equal_on_every_engine(form, engine):
    assert ran(form, engine=engine).ledger == ran(form).ledger


@pytest.mark.parametrize("form", REFUSED)
def test_calls_of_unknown_number_are_refused(form):
    for engine in ("local", "eager"):
        with pytest.raises(rk.InputError, match=MESSAGES[form]):
            ran(form, engine=engine)


def test_losses_may_use_loops_branches_and_vmap():
    def loss(x, e):
        walked = jax.lax.scan(lambda c, _: (0.9 * c, None), x, length=3)[0]
        chosen = jax.lax.cond(e["s"] > 2.0, lambda: walked, lambda: 2.0 * walked)
        late = jax.lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, jax.lax.stop_gradient(x[0]))
        return 0.5 * e["s"] * jnp.sum(jax.vmap(lambda c: c * c)(chosen)) + 0.0 * late

    result = rk.run(rk.Single(loss), rk.FedAvg(lr=0.01, local_steps=3), CLIENTS, x=np.ones(2), rounds=2, batch_size=2)
    assert (result.ledger.gradients, result.ledger.samples) == (2 * 2 * 3, 2 * 2 * 3 * 2)


def test_a_traced_program_has_no_marks():
    mark = Mark("client.direction", lambda mark, times: None, (("gradients", 1),))

    def function(x):
        mark_total(zeros(4), mark)
        return jax.lax.scan(lambda c, _: (marked(jnp.sin(c), mark), None), marked(x, mark), length=5)[0]

    def bare(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=5)[0]

    traced = Traced(function, jnp.ones(2))
    assert [times for _, times in traced.marks] == [1, 1, 5]
    assert traced.totals == 1
    ours, right = (jax.make_jaxpr(f)(jnp.ones(2)) for f in (lambda x: traced(x)[0], bare))
    assert [str(each.primitive) for each in ours.eqns][-1:] == [str(each.primitive) for each in right.eqns]
    assert "counted" not in str(ours)
