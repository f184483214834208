"""By hand: one jitted program of all rounds, client after client, without anything that a library would add."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.common import Talk, Task, first_weights


def loss(x, inputs, labels):
    w1, b1, w2, b2 = x
    logits = jax.nn.relu(inputs @ w1 + b1) @ w2 + b2
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1))


def local(task: Task, x, correction, inputs, labels, client, key):
    """The weights after a client's epochs."""

    def epoch(x, key):
        order = jax.random.permutation(key, task.examples).reshape(-1, task.batch)

        def step(x, batch):
            grads = jax.grad(loss)(x, inputs[client, batch], labels[client, batch])
            if correction is not None:
                grads = jax.tree.map(jnp.add, grads, correction)
            return jax.tree.map(lambda w, g: w - task.lr * g, x, grads), None

        return jax.lax.scan(step, x, order)[0], None

    return jax.lax.scan(epoch, x, jax.random.split(key, task.epochs))[0]


def round_of(task: Task, inputs, labels, state, key):
    """One round; state: the weights and, of SCAFFOLD, the server's and all clients' control variates."""
    x, c, own = state
    draw, *keys = jax.random.split(key, task.cohort + 1)
    cohort = jax.random.choice(draw, task.clients, (task.cohort,), replace=False)
    zeros = jax.tree.map(jnp.zeros_like, x)

    def one(total, member):
        client, key, c_i = member
        correction = jax.tree.map(jnp.subtract, c, c_i) if own is not None else None
        moved = jax.tree.map(jnp.subtract, local(task, x, correction, inputs, labels, client, key), x)
        new = jax.tree.map(lambda d, k: -d / (task.steps * task.lr) - k, moved, correction) if own is not None else None
        change = jax.tree.map(jnp.subtract, new, c_i) if own is not None else None
        return jax.tree.map(jnp.add, total, (moved, change)), new

    old = jax.tree.map(lambda all_clients: all_clients[cohort], own)
    (moved, change), new = jax.lax.scan(
        one, (zeros, zeros if own is not None else None), (cohort, jnp.stack(keys), old)
    )
    x = jax.tree.map(lambda w, d: w + d / task.cohort, x, moved)
    if own is not None:
        c = jax.tree.map(lambda a, d: a + d / task.clients, c, change)
        own = jax.tree.map(lambda all_clients, rows: all_clients.at[cohort].set(rows), own, new)
    return x, c, own


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def advance(task: Task, inputs, labels, state, key, first, rounds):
    body = lambda t, state: round_of(task, inputs, labels, state, jax.random.fold_in(key, t))
    return jax.lax.fori_loop(first, first + rounds, body, state)


def main(task: Task) -> None:
    inputs, labels = (jnp.asarray(array) for array in task.data())
    x = tuple(jnp.asarray(w) for w in first_weights())
    controlled = task.method == "scaffold"
    c = jax.tree.map(jnp.zeros_like, x) if controlled else None
    own = jax.tree.map(lambda w: jnp.zeros((task.clients, *w.shape), w.dtype), x) if controlled else None
    state, key, done = (x, c, own), jax.random.key(0), 0

    def go(rounds: int) -> None:
        nonlocal state, done
        state = jax.block_until_ready(advance(task, inputs, labels, state, key, done, rounds))
        done += rounds

    Talk(task, lambda: tuple(np.asarray(w) for w in state[0])).serve(go)


if __name__ == "__main__":
    main(Task.given())
