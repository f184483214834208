"""A hand-written JAX loop of SimFBO, the yardstick for the engine's overhead.

What a researcher would write for one method on one model and nothing else: a two-layer network whose
hidden layer is the upper variable x and whose head is the lower variable y, many rounds in one compiled
program, data passed as arguments, the number of rounds and of local steps traced.

    z = {x, y, v};  D.y = grad_y g;  D.v = (d2g/dy2) v - grad_y f;  D.x = grad_x f - (d2g/dxdy) v
    client: z_i <- z_i - eta D_i, q_i = sum of its D_i;  server: z <- z - gamma mean(q_i)

This file stands alone: it does not use the library it measures.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CLIENTS = 100  # how many clients there are
COHORT = 10  # how many of them a round draws
EXAMPLES = 300  # examples per client, in the lower set and again in the upper set
BATCH = 64  # examples per minibatch, one lower and one upper minibatch per local step
INPUTS, HIDDEN, CLASSES = 784, 200, 10
RIDGE = 0.01  # weight of 0.5 |y|^2 in the lower loss
ETA, GAMMA = 0.05, 0.05  # client and server step sizes


def make_data(seed=0, dtype=np.float32):
    """Flat arrays of all clients' examples; client i owns rows i*EXAMPLES to (i+1)*EXAMPLES of each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, INPUTS))

    def part():
        labels = rng.integers(0, CLASSES, CLIENTS * EXAMPLES)
        inputs = 0.1 * (centres[labels] + 3.0 * rng.normal(size=(CLIENTS * EXAMPLES, INPUTS)))
        return jnp.asarray(inputs, dtype), jnp.asarray(labels, jnp.int32)

    lower_x, lower_y = part()
    upper_x, upper_y = part()
    return {"lower_x": lower_x, "lower_y": lower_y, "upper_x": upper_x, "upper_y": upper_y}


def make_point(seed=1, dtype=np.float32):
    """A starting point: small random weights, zero biases, zero adjoint."""
    rng = np.random.default_rng(seed)
    w1 = rng.normal(size=(INPUTS, HIDDEN)) / np.sqrt(INPUTS)
    w2 = rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN)
    point = {
        "x": {"w": w1, "b": np.zeros(HIDDEN)},
        "y": {"w": w2, "b": np.zeros(CLASSES)},
        "v": {"w": np.zeros((HIDDEN, CLASSES)), "b": np.zeros(CLASSES)},
    }
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), point)


def cross_entropy(x, y, inputs, labels):
    """Mean cross entropy of the network with hidden layer x and head y: the upper loss f."""
    hidden = jax.nn.relu(inputs @ x["w"] + x["b"])
    logs = jax.nn.log_softmax(hidden @ y["w"] + y["b"])
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))


def lower_loss(x, y, inputs, labels):
    """Mean cross entropy plus a ridge on the head: the lower loss g."""
    return cross_entropy(x, y, inputs, labels) + 0.5 * RIDGE * (jnp.sum(y["w"] ** 2) + jnp.sum(y["b"] ** 2))


def direction(z, lower, upper):
    """D at z on one lower and one upper minibatch.

    One forward-over-reverse pass gives grad_y g, the Hessian product and the cross term together. x is
    closed over, so nothing is spent on its (zero) tangent, and grad_x g, never used, is not computed.
    """
    x, y, v = z["x"], z["y"], z["v"]
    (_, grad_y), (cross, hvp) = jax.jvp(lambda y: jax.grad(lower_loss, (0, 1))(x, y, *lower), (y,), (v,))
    f_x, f_y = jax.grad(cross_entropy, (0, 1))(x, y, *upper)
    return {
        "x": jax.tree.map(jnp.subtract, f_x, cross),
        "y": grad_y,
        "v": jax.tree.map(jnp.subtract, hvp, f_y),
    }


def make(form="map", upload="sum"):
    """The jitted `run(data, z, key, rounds, tau, eta, gamma)`, which returns z after that many rounds.

    form: "map" runs the clients of a round one after another, "vmap" all at once.
    upload: "sum" adds up the directions, as the method is written; "difference" takes (z - z_i)/eta
    instead, the same in exact arithmetic and one large array less to carry, but it rounds worse and
    fails at eta = 0.
    """
    if form not in ("map", "vmap") or upload not in ("sum", "difference"):
        raise ValueError(f"unknown form {form!r} or upload {upload!r}")

    @jax.jit
    def run(data, z, key, rounds, tau, eta, gamma):
        def client(z, i, key):
            def step(k, state):
                z_i, q_i = state
                lower_key, upper_key = jax.random.split(jax.random.fold_in(key, k))
                a = i * EXAMPLES + jax.random.randint(lower_key, (BATCH,), 0, EXAMPLES)
                b = i * EXAMPLES + jax.random.randint(upper_key, (BATCH,), 0, EXAMPLES)
                d = direction(z_i, (data["lower_x"][a], data["lower_y"][a]), (data["upper_x"][b], data["upper_y"][b]))
                z_i = jax.tree.map(lambda p, d: p - eta * d, z_i, d)
                return z_i, jax.tree.map(jnp.add, q_i, d) if upload == "sum" else None

            start = jax.tree.map(jnp.zeros_like, z) if upload == "sum" else None
            z_i, q_i = lax.fori_loop(0, tau, step, (z, start))
            return q_i if upload == "sum" else jax.tree.map(lambda p, p_i: (p - p_i) / eta, z, z_i)

        def one_round(r, z):
            cohort_key, clients_key = jax.random.split(jax.random.fold_in(key, r))
            cohort = jnp.argsort(jax.random.bits(cohort_key, (CLIENTS,)))[:COHORT]
            keys = jax.random.split(clients_key, COHORT)
            if form == "map":
                q = lax.map(lambda a: client(z, *a), (cohort, keys))
            else:
                q = jax.vmap(client, (None, 0, 0))(z, cohort, keys)
            # A product with the weights, not .mean(axis=0): on a CPU that reduction over the leading axis
            # alone takes as long as a whole round of one local step.
            weights = jnp.full(COHORT, 1 / COHORT)
            return jax.tree.map(lambda p, q: p - gamma * jnp.tensordot(weights, q, 1), z, q)

        return lax.fori_loop(0, rounds, one_round, z)

    return run


def measure(tau=1, rounds=10, repeats=5, form="map", upload="sum"):
    """Median milliseconds per round over `repeats` runs of `rounds` rounds, compiled and warmed up before."""
    run, data, z, key = make(form, upload), make_data(), make_point(), jax.random.key(0)
    jax.block_until_ready(run(data, z, key, 2, tau, ETA, GAMMA))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        end = jax.block_until_ready(run(data, z, key, rounds, tau, ETA, GAMMA))
        times.append(1e3 * (time.perf_counter() - start) / rounds)
    if not all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(end)):
        raise FloatingPointError("the run diverged, so its time means nothing")
    return statistics.median(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SimFBO by hand in JAX, milliseconds per round")
    parser.add_argument("--tau", type=int, nargs="*", default=[1, 10])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for tau in args.tau:
        for form in ("map", "vmap"):
            for upload in ("sum", "difference"):
                ms = measure(tau, max(2, 20 // tau), args.repeats, form, upload)
                print(f"jax {form:4s} upload={upload:10s} tau={tau:<3d} {ms:8.2f} ms per round", flush=True)
