"""Hand-written JAX loops of FedNest and AggITD, the yardsticks for two-loop methods.

The network, the data and the sampling of `baseline_jax`. Per round: N lower rounds with SVRG steps, T exchanged Hessian
products (FedNest) or one on every lower exchange (AggITD), the hypergradient, an upper round.

This file stands alone: it does not use the library it measures.
"""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.baseline_jax import BATCH, CLIENTS, COHORT, EXAMPLES, cross_entropy, lower_loss

N, T = 1, 5  # lower rounds, Neumann terms
LOWER_STEPS, UPPER_STEPS = 5, 1
ALPHA, BETA, LAM = 0.01, 0.01, 0.01  # upper step, lower step, Neumann step


def plus(a, b, scale=1.0):
    """a + scale b, leaf by leaf."""
    return jax.tree.map(lambda p, q: p + scale * q, a, b)


def minus(a, b):
    return plus(a, b, -1.0)


def make(method="fednest", form="map"):
    """The jitted `run(data, z, key, rounds)`; form "map" or "vmap" over the clients of an exchange."""
    grad_y = jax.grad(lower_loss, 1)

    @jax.jit
    def run(data, z, key, rounds):
        def draw(level, i, key):
            rows = i * EXAMPLES + jax.random.randint(key, (BATCH,), 0, EXAMPLES)
            return data[f"{level}_x"][rows], data[f"{level}_y"][rows]

        def exchange(phase, cohort, key):
            """The mean over the cohort of phase(i, key)."""
            keys = jax.random.split(key, COHORT)
            if form == "map":
                replies = lax.map(lambda a: phase(*a), (cohort, keys))
            else:
                replies = jax.vmap(phase)(cohort, keys)
            weights = jnp.full(COHORT, 1 / COHORT)
            return jax.tree.map(lambda r: jnp.tensordot(weights, r, 1), replies)

        def hvp(x, y, p, batch):
            return jax.jvp(lambda y: grad_y(x, y, *batch), (y,), (p,))[1]

        def gradient(x, y):
            return lambda i, key: grad_y(x, y, *draw("lower", i, key))

        def correct(x, y, q):
            def phase(i, key):
                def step(k, y_i):
                    b = draw("lower", i, jax.random.fold_in(key, k))
                    return plus(y_i, plus(minus(grad_y(x, y_i, *b), grad_y(x, y, *b)), q), -BETA)

                return minus(lax.fori_loop(0, LOWER_STEPS, step, y), y)

            return phase

        def hypergradient(x, y, p):
            def phase(i, key):
                lower_key, upper_key = jax.random.split(key)
                lower = draw("lower", i, lower_key)
                cross = jax.jvp(lambda y: jax.grad(lower_loss, 0)(x, y, *lower), (y,), (p,))[1]
                return minus(jax.grad(cross_entropy, 0)(x, y, *draw("upper", i, upper_key)), cross)

            return phase

        def upper(x, y, h):
            def phase(i, key):
                def step(k, x_i):
                    b = draw("upper", i, jax.random.fold_in(key, k))
                    grad_x = lambda at: jax.grad(cross_entropy, 0)(at, y, *b)
                    return plus(x_i, plus(minus(h, grad_x(x)), grad_x(x_i)), -ALPHA)

                return minus(lax.fori_loop(0, UPPER_STEPS, step, x), x)

            return phase

        def right_hand_side(x, y):
            return lambda i, key: jax.grad(cross_entropy, 1)(x, y, *draw("upper", i, key))

        def fednest(x, y, cohort, key):
            keys = jax.random.split(key, 5)

            def lower(t, y):
                first, second = jax.random.split(jax.random.fold_in(keys[0], t))
                q = exchange(gradient(x, y), cohort, first)
                return plus(y, exchange(correct(x, y, q), cohort, second))

            y = lax.fori_loop(0, N, lower, y)
            last = jax.random.randint(keys[1], (), 0, T)
            p = jax.tree.map(lambda a: LAM * T * a, exchange(right_hand_side(x, y), cohort, keys[2]))

            def term(t, p):
                phase = lambda i, key: hvp(x, y, p, draw("lower", i, key))
                moving = jnp.where(t < last, LAM, 0)
                return plus(p, exchange(phase, cohort, jax.random.fold_in(keys[3], t)), -moving)

            return y, lax.fori_loop(0, T, term, p), keys[4]

        def aggitd(x, y, cohort, key):
            keys = jax.random.split(key, 4)
            first = jax.random.randint(keys[0], (), 0, N + 1)

            def product(y, z, t):
                def phase(i, key):
                    return lax.cond(
                        t > first,
                        lambda: hvp(x, y, z, draw("lower", i, key)),
                        lambda: lax.cond(
                            t == first,
                            lambda: right_hand_side(x, y)(i, key),
                            lambda: jax.tree.map(jnp.zeros_like, z),
                        ),
                    )

                return phase

            def next_z(t, z, s):
                pick = lambda z, s: jnp.where(t == first, s, jnp.where(t > first, z - LAM * s, z))
                return jax.tree.map(pick, z, s)

            def lower(t, carry):
                y, z = carry
                one, two = jax.random.split(jax.random.fold_in(keys[1], t))
                both = lambda i, key: (gradient(x, y)(i, key), product(y, z, t)(i, jax.random.fold_in(key, 1)))
                q, s = exchange(both, cohort, one)
                return plus(y, exchange(correct(x, y, q), cohort, two)), next_z(t, z, s)

            y, z = lax.fori_loop(0, N, lower, (y, jax.tree.map(jnp.zeros_like, y)))
            z = next_z(N, z, exchange(product(y, z, N), cohort, keys[2]))
            return y, jax.tree.map(lambda a: LAM * (N + 1) * a, z), keys[3]

        def one_round(r, carry):
            x, y = carry
            cohort_key, key_ = jax.random.split(jax.random.fold_in(key, r))
            cohort = jnp.argsort(jax.random.bits(cohort_key, (CLIENTS,)))[:COHORT]
            y, p, rest = (fednest if method == "fednest" else aggitd)(x, y, cohort, key_)
            one, two = jax.random.split(rest)
            h = exchange(hypergradient(x, y, p), cohort, one)
            return plus(x, exchange(upper(x, y, h), cohort, two)), y

        return lax.fori_loop(0, rounds, one_round, (z["x"], z["y"]))

    return run
