"""FedJAX: its FedAvg, and SCAFFOLD, which it has not, written with its `for_each_client`."""

from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.common import NAMES, Talk, Task, first_weights

jax.tree_map = jax.tree_util.tree_map  # FedJAX calls it by the name of older releases


def loss(x, batch, _=None):
    logits = jax.nn.relu(batch["x"] @ x["w1"] + x["b1"]) @ x["w2"] + x["b2"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=-1))


def tree(function, *trees):
    return jax.tree_util.tree_map(function, *trees)


def scaffold(task: Task, batching) -> fedjax.FederatedAlgorithm:
    """Server's state: the weights, c, and c_i of the clients that have taken part."""

    def begin(shared, c_i):
        return {"x": shared["x"], "correction": tree(jnp.subtract, shared["c"], c_i)}

    def step(state, batch):
        descend = lambda x, g, k: x - task.lr * (g + k)
        return state | {"x": tree(descend, state["x"], jax.grad(loss)(state["x"], batch), state["correction"])}

    def end(shared, state):
        moved = tree(jnp.subtract, state["x"], shared["x"])
        return moved, tree(lambda d, k: -d / (task.steps * task.lr) - k, moved, state["correction"])

    train = fedjax.for_each_client(begin, step, end)

    def init(x):
        return {"x": x, "c": tree(jnp.zeros_like, x), "own": {}}

    def apply(state, clients):
        x, c, own = state["x"], state["c"], dict(state["own"])
        zeros = tree(jnp.zeros_like, x)
        batches = [(i, data.shuffle_repeat_batch(batching), own.get(i, zeros)) for i, data, _ in clients]
        for i, (moved, new) in train({"x": state["x"], "c": state["c"]}, batches):
            x = tree(lambda a, d: a + d / task.cohort, x, moved)
            c = tree(lambda a, n, o: a + (n - o) / task.clients, c, new, own.get(i, zeros))
            own[i] = new
        return {"x": x, "c": c, "own": own}, {}

    return fedjax.FederatedAlgorithm(init, apply)


def main(task: Task) -> None:
    inputs, labels = task.data()
    data = {str(i).encode(): {"x": inputs[i], "y": labels[i].astype(np.int32)} for i in range(task.clients)}
    clients = fedjax.InMemoryFederatedData(data)
    batching = fedjax.ShuffleRepeatBatchHParams(batch_size=task.batch, num_epochs=task.epochs)
    if task.method == "scaffold":
        algorithm = scaffold(task, batching)
    else:
        grad = jax.grad(loss)
        sgd = fedjax.optimizers.sgd
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(grad, sgd(task.lr), sgd(1.0), batching)
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, num_clients=task.cohort, seed=0)
    state = algorithm.init({name: jnp.asarray(w) for name, w in zip(NAMES, first_weights())})
    point = lambda: state["x"] if task.method == "scaffold" else state.params

    def go(rounds: int) -> None:
        nonlocal state
        for _ in range(rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(point())

    Talk(task, lambda: tuple(np.asarray(point()[name]) for name in NAMES)).serve(go)


if __name__ == "__main__":
    main(Task.given())
