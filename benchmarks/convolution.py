"""The two forms of the convolution against each other: forward and backward of the CNNs on CIFAR's shapes.

Run with `python -m benchmarks.convolution`. (a) one client's weights, 50 images a step, clients one after another: how
the engine runs on a CPU; (b) ten clients' own weights under vmap, 50 images each: how it runs on an accelerator, where
the direct form becomes a grouped convolution and patches become a batch of matrix products. The form that wins (a) on
a CPU and (b) on an accelerator belongs in `rookery.tasks.models.FASTER`.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.tasks.models import CNN, Classification, lenet, wide_cnn

SHAPE, CLASSES, BATCH, CLIENTS = (32, 32, 3), 10, 50, 10
FORMS = ("direct", "patches")


def step(network: CNN) -> Any:
    """One client's gradient of the mean loss over a batch."""
    loss = Classification(network)

    def mean(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(lambda i, c: loss(params, {"input": i, "label": c}))(images, labels))

    return jax.grad(mean)


def curvature(network: CNN) -> Any:
    """One client's Hessian-vector product: what a bilevel method adds."""
    gradient = step(network)
    return lambda params, images, labels: jax.jvp(lambda p: gradient(p, images, labels), (params,), (params,))[1]


def seconds(function: Any, arguments: tuple, repeats: int) -> float:
    """The median time of a call, compilation and warm-up left out."""
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(repeats: int = 3) -> list[tuple[str, str, str, float, float]]:
    """Rows: the network, what is computed, how clients are run, and seconds for ten clients in both forms."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.random((CLIENTS, BATCH, *SHAPE)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, CLASSES, (CLIENTS, BATCH)), jnp.int32)
    rows = []
    for name, network in (("LeNet", lenet(SHAPE, CLASSES)), ("wide CNN", wide_cnn(SHAPE, CLASSES))):
        params = jax.vmap(network.init)(jax.random.split(jax.random.key(0), CLIENTS))
        for what, make in (("gradient", step), ("Hessian-vector product", curvature)):
            for way in ("(a) one by one", "(b) vmap"):
                times = []
                for form in FORMS:
                    one = make(dataclasses.replace(network, convolution=form))
                    looped = lambda p, i, c: jax.lax.map(lambda own: one(*own), (p, i, c))
                    function = looped if way.startswith("(a)") else jax.vmap(one)
                    times.append(seconds(function, (params, images, labels), repeats))
                rows.append((name, what, way, *times))
    return rows


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, {CLIENTS} clients, {BATCH} images of {SHAPE} each, milliseconds")
    print(f"{'network':10} {'computed':24} {'clients':16} {'direct':>9} {'patches':>9} {'direct/patches':>15}")
    for name, what, way, direct, patches in measure():
        print(f"{name:10} {what:24} {way:16} {direct * 1e3:9.2f} {patches * 1e3:9.2f} {direct / patches:15.2f}")


if __name__ == "__main__":
    main()
