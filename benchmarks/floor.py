"""The floor: how fast a round of SimFBO on this network could be if it were nothing but matrix products.

Counts the multiplications that no implementation avoids and divides by the rate at which this machine
multiplies float32 matrices (at JAX's default precision), measured in two ways: a large square product,
the machine's peak, and the network's own shapes, which no library multiplies at peak rate.

This file stands alone: it does not use the library it measures.
"""

import argparse
import time

import jax
import jax.numpy as jnp
from jax import lax

COHORT = 10  # how many clients a round draws
BATCH = 64  # examples per minibatch, one lower and one upper minibatch per local step
INPUTS, HIDDEN, CLASSES = 784, 200, 10


def step_flops():
    """Floating-point operations of the matrix products in one local step, as {part: count}.

    The hidden layer: the forward product on both batches, and inputs' @ delta on both (for grad_x f and
    for the cross term; grad_x g itself is never needed).
    The head, lower batch, 6 products: logits, their tangent h @ v, grad_y g, its tangent (the Hessian
    product), and the tangent of delta @ W2', which has two terms. Upper batch, 3: logits, grad_y f, and
    delta @ W2'.
    """
    hidden = 2 * BATCH * INPUTS * HIDDEN
    head = 2 * BATCH * HIDDEN * CLASSES
    return {"hidden": 4 * hidden, "head": (6 + 3) * head}


def best_seconds(call, *args, repeats=7):
    """The shortest of several timings of a jitted call, after one call to compile it."""
    jax.block_until_ready(call(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def peak_rate(size=2048, chain=3):
    """FLOP/s of square products a @ b @ b ...; b is scaled so that the numbers neither grow nor vanish."""
    a, b = jax.random.normal(jax.random.key(0), (2, size, size)) * size**-0.5
    call = jax.jit(lambda a, b: lax.fori_loop(0, chain, lambda _, a: a @ b, a))
    return chain * 2 * size**3 / best_seconds(call, a, b)


def shape_rate(chain=100):
    """FLOP/s of the hidden layer's own products, forward and gradient, on two batches side by side.

    Each batch has orthonormal rows, so w <- inputs' @ (inputs @ w) is a projection: every product uses
    the one before, nothing can be hoisted or dropped, the numbers keep their size, and no other work is
    needed in between. The two batches do not depend on each other, as in the method.
    """
    inputs_key, w_key = jax.random.split(jax.random.key(0))
    rows = jnp.linalg.qr(jax.random.normal(inputs_key, (INPUTS, 2 * BATCH)))[0].T
    w = jax.random.normal(w_key, (2, INPUTS, HIDDEN))

    @jax.jit
    def call(lower, upper, w_lower, w_upper):
        def step(_, w):
            return lower.T @ (lower @ w[0]), upper.T @ (upper @ w[1])

        return lax.fori_loop(0, chain, step, (w_lower, w_upper))

    return chain * step_flops()["hidden"] / best_seconds(call, rows[:BATCH], rows[BATCH:], w[0], w[1])


def floor_ms(tau=1, rates=None):
    """Floors of one round of tau local steps, in milliseconds, and what they were computed from.

    `peak_ms` is at the rate of a large square product, `shape_ms` at that of the network's own shapes.
    rates: a (peak, shape) pair in FLOP/s measured before; measured now when absent.
    """
    peak, shape = rates or (peak_rate(), shape_rate())
    flops = COHORT * tau * sum(step_flops().values())
    return {
        "tau": tau,
        "flops": flops,
        "peak_gflops": peak / 1e9,
        "shape_gflops": shape / 1e9,
        "peak_ms": 1e3 * flops / peak,
        "shape_ms": 1e3 * flops / shape,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="the matrix-product floor of a SimFBO round")
    parser.add_argument("--tau", type=int, nargs="*", default=[1, 10])
    args = parser.parse_args()
    rates = peak_rate(), shape_rate()
    for part, count in step_flops().items():
        print(f"{part} {count / 1e6:.2f} MFLOP per local step of one client")
    for tau in args.tau:
        result = floor_ms(tau, rates)
        for kind in ("peak", "shape"):
            rate, ms = result[f"{kind}_gflops"], result[f"{kind}_ms"]
            print(f"floor {kind:5s} tau={tau:<3d} {ms:8.2f} ms per round at {rate:.0f} GFLOP/s")
