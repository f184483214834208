"""Bilevel with and without second derivatives: the time and memory of one local direction, and of a round of SimFBO.

Run with `python -m benchmarks.penalty`, on a CPU or a GPU. Three networks: an MLP 784-200-10, LeNet and a small causal
transformer on characters of the standard library's own source. x is every layer but the last, y the last one with a
ridge ("head"), or both are whole networks ("whole": y fits the training loss drawn to x, as in meta-learning). Times
are taken by turns; memory is what the compiled program needs beside its arguments and its result.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import statistics
import string
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.data.batches import Batch
from rookery.tasks.models import MLP, cross_entropy, dense, lenet, squared_norm
from rookery.vectors import Values

CLASSES, EXAMPLES = 10, 64  # of the images, and of each client at either level
FORMS = {"Hessian-vector": None, "penalty": rk.Penalty(100.0), "two penalties": rk.Penalty((100.0, 200.0))}
ALPHABET = string.printable


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A causal transformer: the logits of the next character at every place of a text.

    Blocks are x <- x + attention(norm(x)), x <- x + mlp(norm(x)), with learned places and no biases in attention.
    """

    length: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 2

    def init(self, key: jax.Array) -> dict[str, Any]:
        keys = iter(jax.random.split(key, 4 * self.blocks + 3))
        scaled = lambda *shape: jax.random.normal(next(keys), shape, jnp.float32) / shape[0] ** 0.5
        layers: dict[str, Any] = {
            "embed": {"of": scaled(len(ALPHABET), self.width), "at": scaled(self.length, self.width)}
        }
        for n in range(self.blocks):
            layers[f"block{n}"] = {
                "qkv": scaled(self.width, 3 * self.width),
                "out": scaled(self.width, self.width),
                "up": dense(next(keys), self.width, 4 * self.width),
                "down": dense(next(keys), 4 * self.width, self.width),
            }
        return layers | {"last": dense(next(keys), self.width, len(ALPHABET))}

    def __call__(self, params: Any, text: jax.Array) -> jax.Array:
        values = params["embed"]["of"][text] + params["embed"]["at"][: text.shape[0]]
        for n in range(self.blocks):
            layer = params[f"block{n}"]
            values = values + self.attention(layer, norm(values)) @ layer["out"]
            inner = jax.nn.gelu(norm(values) @ layer["up"]["w"] + layer["up"]["b"])
            values = values + inner @ layer["down"]["w"] + layer["down"]["b"]
        return norm(values) @ params["last"]["w"] + params["last"]["b"]

    def attention(self, layer: Any, values: jax.Array) -> jax.Array:
        length = values.shape[0]
        q, k, v = jnp.moveaxis((values @ layer["qkv"]).reshape(length, 3, self.heads, -1), 1, 0)
        scores = jnp.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
        past = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf))
        return jnp.einsum("hij,jhd->ihd", weights, v).reshape(length, -1)


def norm(values: jax.Array) -> jax.Array:
    """Every row to mean 0 and variance 1."""
    centred = values - values.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def of_image(network: Any, params: Any, e: Any) -> jax.Array:
    """The loss of an image."""
    return cross_entropy(network(params, e["input"]), e["label"])


def of_text(network: Any, params: Any, e: Any) -> jax.Array:
    """The mean loss of the next character of a text."""
    return jnp.mean(jax.vmap(cross_entropy)(network(params, e["text"][:-1]), e["text"][1:]))


def head_problem(loss: Callable) -> rk.Bilevel:
    """x and y are the layers of one network."""
    return rk.Bilevel(
        upper=lambda x, y, e: loss(x | y, e), lower=lambda x, y, e: loss(x | y, e) + 0.005 * squared_norm(y)
    )


def whole_problem(loss: Callable) -> rk.Bilevel:
    """x and y are networks, y drawn to x."""
    near = lambda x, y: squared_norm(jax.tree.map(jnp.subtract, x, y))
    return rk.Bilevel(upper=lambda x, y, e: loss(y, e), lower=lambda x, y, e: loss(y, e) + 0.5 * near(x, y))


def images(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    labels = rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
    return {"input": rng.random((EXAMPLES, *shape)).astype(np.float32), "label": labels}


def texts(rng: np.random.Generator, length: int) -> dict[str, np.ndarray]:
    """Stretches of the source of modules that come with Python."""
    source = "".join(inspect.getsource(module) for module in (argparse, inspect, dataclasses, statistics))
    codes = np.array([ALPHABET.index(c) for c in source if c in ALPHABET], np.int32)
    begins = rng.integers(0, len(codes) - length - 1, EXAMPLES)
    return {"text": np.stack([codes[b : b + length + 1] for b in begins])}


def settings(length: int, width: int, blocks: int) -> dict[str, tuple[Any, Callable, Callable]]:
    """By name: a network, its loss of one example, and a client's examples."""
    shape, transformer = (32, 32, 3), Transformer(length, width, blocks=blocks)
    return {
        "MLP 784-200-10": (MLP(784, (200,), CLASSES), of_image, partial(images, shape=(28, 28, 1))),
        "LeNet": (lenet(shape, CLASSES), of_image, partial(images, shape=shape)),
        f"transformer {blocks} x {width}": (transformer, of_text, partial(texts, length=length)),
    }


def point(problem: rk.Bilevel, x: Any, y: Any) -> Values:
    """Where a direction is taken: what is not given, near what is."""
    z = problem.complete(Values(x=x, y=y), lambda level: None)
    nudged = lambda tree: jax.tree.map(lambda leaf: leaf + 0.01, tree)
    return Values({name: tree if name in ("x", "y") else nudged(tree) for name, tree in z.items()})


def one_direction(problem: rk.Bilevel, z: Values, data: Any, size: int) -> tuple[Callable, tuple]:
    """D_i(z) on a minibatch of each level, and what it is called with."""
    # On one minibatch the compiler would find the two levels' losses alike, and take the gradient of one of them.
    index = {level: jnp.arange(size, dtype=jnp.int32) + n * size for n, level in enumerate(("lower", "upper"))}

    def direction(z: Values, rows: Any, index: dict[str, jax.Array]) -> Values:
        batch = lambda level: Batch(rows, jnp.int32(0), jnp.int32(EXAMPLES), index[level], EXAMPLES, jnp.float32)
        return problem.direction(z, {draw: batch(level) for draw, level in problem.draws.items()})

    return direction, (z, jax.tree.map(jnp.asarray, data), index)


def temporary(compiled: Any) -> float:
    """MiB that a compiled program needs beside its arguments and its result."""
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def by_turns(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """The median seconds of each, one after the other so that all see the same machine."""
    for call in calls:
        jax.block_until_ready(call())
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for taken, call in zip(times, calls, strict=True):
            begun = time.perf_counter()
            jax.block_until_ready(call())
            taken.append(time.perf_counter() - begun)
    return [statistics.median(taken) for taken in times]


def round_seconds(problem: rk.Bilevel, clients: Any, x: Any, y: Any, size: int, steps: int) -> Callable[[int], float]:
    """The seconds of a round of SimFBO, from runs of many."""
    method = rk.SimFBO(lr=rk.Rates(1e-4), local_steps=steps)

    def timed(rounds: int) -> float:
        begun = time.perf_counter()
        rk.run(problem, method, clients, x=x, y=y, rounds=rounds, batch_size=size)
        return time.perf_counter() - begun

    timed(2)
    return timed


def measure(args: argparse.Namespace) -> Iterator[list[str]]:
    """The rows of the table, as they are measured."""
    for name, (network, loss, examples) in settings(args.length, args.width, args.blocks).items():
        rng, layers = np.random.default_rng(0), network.init(jax.random.key(0))
        data = [examples(rng) for _ in range(args.clients)]
        of = partial(loss, network)
        *body, last = layers
        parts = {
            "head": (head_problem(of), {layer: layers[layer] for layer in body}, {last: layers[last]}),
            "whole": (whole_problem(of), layers, layers),
        }
        for what, (base, x, y) in parts.items():
            problems = [dataclasses.replace(base, by=by) for by in FORMS.values()]
            compiled, calls = [], []
            for problem in problems:
                function, arguments = one_direction(problem, point(problem, x, y), data[0], args.batch)
                compiled.append(jax.jit(function).lower(*arguments).compile())
                calls.append(partial(compiled[-1], *arguments))
            times = by_turns(calls, args.repeats)
            clients = rk.federate(data)
            timers = [round_seconds(problem, clients, x, y, args.batch, args.steps) for problem in problems]
            # What a run costs besides its rounds is in both, and goes with the difference.
            few, many = 1, 1 + args.rounds
            turns = [[(timer(many) - timer(few)) / args.rounds for timer in timers] for _ in range(3)]
            rounds = [statistics.median(column) for column in zip(*turns, strict=True)]
            for form, memory, seconds, of_round in zip(FORMS, map(temporary, compiled), times, rounds, strict=True):
                yield [name, what, form, f"{memory:.1f}", f"{seconds * 1e3:.2f}", f"{of_round * 1e3:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for option, default, text in (
        ("batch", 32, "examples of a minibatch"),
        ("clients", 4, "clients of a round"),
        ("steps", 5, "local steps of a round"),
        ("rounds", 5, "rounds that are timed"),
        ("repeats", 15, "directions that are timed"),
        ("length", 64, "characters of a text"),
        ("width", 64, "width of the transformer"),
        ("blocks", 2, "blocks of the transformer"),
    ):
        parser.add_argument(f"--{option}", type=int, default=default, help=text)
    args = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}: minibatches of {args.batch}, {args.clients} clients x {args.steps} steps\n")
    titles = ["network", "y", "form", "direction, MiB", "direction, ms", "round, ms"]
    for row in chain((titles, ["---"] * 3 + ["---:"] * 3), measure(args)):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
