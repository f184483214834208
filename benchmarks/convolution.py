"""The two forms of the convolution against each other: forward and backward of the CNNs on CIFAR's shapes.

Run with `python -m benchmarks.convolution`. (a) one client's weights, 50 images a step, clients one after another: how
the engine runs on a CPU; (b) ten clients' own weights under vmap, 50 images each: how it runs on an accelerator, where
the direct form becomes a grouped convolution and patches become a batch of matrix products. The form that wins (a) on
a CPU and (b) on an accelerator belongs in `rookery.tasks.models.FASTER`. The floor is the matrix products that no form
avoids, at the machine's peak rate for large ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.floor import peak_rate
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


# How many products of a layer's size are needed: in the first layer, whose inputs are data, and in the others. A
# gradient has the product forward, that with its weights' gradient and, but for the first, that with its inputs'. Of a
# Hessian-vector product the tangents of these have two terms each, or one where inputs are data.
NEEDED = {"gradient": (2, 3), "Hessian-vector product": (3, 8)}


def products(network: CNN, what: str) -> float:
    """Floating-point operations of the matrix products for all clients."""
    sizes, inputs, sides = [], network.shape[2], network.sides
    for channels, (height, width) in zip(network.channels, sides):
        lost = network.kernel - 1 if network.padding == "valid" else 0
        sizes.append((height - lost) * (width - lost) * network.kernel**2 * inputs * channels)
        inputs = channels
    dense = (math.prod(sides[-1]) * inputs, *network.widths, network.classes)
    sizes += [a * b for a, b in itertools.pairwise(dense)]
    first, others = NEEDED[what]
    return 2.0 * CLIENTS * BATCH * (first * sizes[0] + others * sum(sizes[1:]))


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


def measure(repeats: int = 3) -> list[tuple[str, str, str, float, float, float]]:
    """Rows: the network, what is computed, how clients are run, seconds for ten clients in both forms, and at least."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.random((CLIENTS, BATCH, *SHAPE)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, CLASSES, (CLIENTS, BATCH)), jnp.int32)
    rows, rate = [], peak_rate()
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
                rows.append((name, what, way, *times, products(network, what) / rate))
    return rows


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, {CLIENTS} clients, {BATCH} images of {SHAPE} each, milliseconds")
    print(f"{'network':10} {'computed':24} {'clients':16} {'direct':>9} {'patches':>9} {'direct/patches':>15}"
          f" {'floor':>9} {'patches/floor':>14}")  # fmt: skip
    for name, what, way, direct, patches, floor in measure():
        print(f"{name:10} {what:24} {way:16} {direct * 1e3:9.2f} {patches * 1e3:9.2f} {direct / patches:15.2f}"
              f" {floor * 1e3:9.2f} {patches / floor:14.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
