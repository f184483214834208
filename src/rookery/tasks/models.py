"""Small networks as plain pytrees, and the losses on them that tasks share. Imports data's scaling and errors.

A network is a frozen dataclass, so that equal settings share a program, with two methods: `init(key)` makes its
parameters, a dict of layers in their order; `network(params, image)` gives the logits of one example's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, Literal, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.inputs import Scale
from rookery.errors import InputError, unknown
from rookery.memory import check_fits

Layer = dict[str, jax.Array]

Convolution = Literal["direct", "patches"]
Padding = Literal["valid", "same"]
Initial = Literal["fan_in", "he", "pytorch"]


class Network(Protocol):
    """What a task needs of a network; it must be hashable and compare by value."""

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Parameters: a dict of layers, in their order."""
        ...

    def __call__(self, params: Any, image: jax.Array, /) -> jax.Array:
        """The logits of one example."""
        ...


def dense(key: jax.Array, inputs: int, outputs: int, initial: Initial = "fan_in") -> Layer:
    """A dense layer: "fan_in", normal weights of variance 1 / inputs; "he", of variance 2 / inputs, for layers before a
    ReLU; both with zero biases. "pytorch": weights and biases uniform in +-1 / sqrt(inputs), a third of the first's
    variance, as PyTorch's dense and convolutional layers start."""
    if initial not in get_args(Initial):
        raise unknown("initial", str(initial), get_args(Initial))
    if initial == "pytorch":
        bound, shapes = inputs**-0.5, ((inputs, outputs), (outputs,))
        draw = lambda number, shape: jax.random.uniform(
            jax.random.fold_in(key, number), shape, jnp.float32, -bound, bound
        )
        return {name: draw(number, shape) for number, (name, shape) in enumerate(zip(("w", "b"), shapes))}
    variance = (2 if initial == "he" else 1) / inputs
    weights = jax.random.normal(key, (inputs, outputs), jnp.float32)
    return {"w": weights / inputs**0.5 if initial == "fan_in" else weights * variance**0.5, "b": jnp.zeros(outputs)}


def apply(layer: Layer, inputs: jax.Array) -> jax.Array:
    """inputs w + b."""
    return inputs @ layer["w"] + layer["b"]


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-log softmax(logits)[label], of one example."""
    return -jax.nn.log_softmax(logits)[label]


def squared_norm(tree: Any) -> jax.Array:
    """The sum of squares of all entries."""
    return jnp.asarray(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


@dataclass(frozen=True)
class MLP:
    """Dense layers dense0, dense1, ... with ReLUs between them; no widths: a linear softmax.

    Args:
      inputs: the number of inputs.
      widths: the width of every hidden layer.
      classes: the number of outputs.
      initial: how its layers start, as `dense` says.
    """

    inputs: int
    widths: tuple[int, ...]
    classes: int
    initial: Initial = "fan_in"

    def __post_init__(self):
        _check_sizes("inputs, widths, classes", self.inputs, *self.widths, self.classes)
        weights = sum(a * b for a, b in pairwise((self.inputs, *self.widths, self.classes)))
        check_fits("widths", ", ".join(map(str, self.widths)), "the network", 4 * weights)

    def init(self, key: jax.Array) -> dict[str, Layer]:
        sizes = (self.inputs, *self.widths, self.classes)
        return _dense_layers(key, sizes, 0, self.initial)

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        return _dense_pass(params, image.reshape(-1), len(self.widths) + 1)


# The faster form by backend, as `python -m benchmarks.convolution` measured it: 5 to 18 times one by one on a CPU, and
# 1.1 to 3 times under vmap on an H200.
FASTER: dict[str, Convolution] = {"cpu": "patches", "gpu": "patches"}


def default_convolution() -> Convolution:
    """The form that is faster on this machine; where it was not measured, the CPU's."""
    return FASTER.get(jax.default_backend(), FASTER["cpu"])


@dataclass(frozen=True)
class CNN:
    """Blocks of a k x k convolution, a ReLU and a 2 x 2 max pool (conv0, ...), then dense layers (dense0, ...).

    Args:
      shape: (height, width, channels) of an image.
      channels: the channels of every block.
      kernel: k.
      widths: the widths of the dense layers before the output.
      classes: the number of outputs.
      padding: "valid", an image shrinks by k - 1 at every convolution, or "same", it does not.
      convolution: "direct", XLA's own, or "patches", the shifted images stacked and multiplied by a matrix; the numbers
        are the same, the speed is not. By default what is faster on this machine.
      initial: how its layers start, as `dense` says, with k^2 channels for inputs in a convolution.
    """

    shape: tuple[int, int, int]
    channels: tuple[int, ...]
    kernel: int
    widths: tuple[int, ...]
    classes: int
    padding: Padding = "valid"
    convolution: Convolution = field(default_factory=default_convolution)
    initial: Initial = "fan_in"

    def __post_init__(self):
        if len(self.shape) != 3:
            raise InputError(f"shape: {self.shape} was given; (height, width, channels) of an image is needed")
        _check_sizes("shape, channels, kernel, widths, classes", *self.shape, *self.channels, self.kernel)
        _check_sizes("widths, classes", *self.widths, self.classes)
        if self.padding not in get_args(Padding):
            raise unknown("padding", str(self.padding), get_args(Padding))
        if self.convolution not in get_args(Convolution):
            raise unknown("convolution", str(self.convolution), get_args(Convolution))
        if self.padding == "same" and self.kernel % 2 == 0:
            raise InputError(f"kernel: {self.kernel} was given; same padding needs an odd one")
        if min(self.sides[-1]) < 1:
            raise InputError(
                f"kernel: {self.kernel} was given with {len(self.channels)} blocks of padding {self.padding!r}, and "
                f"nothing is left of images of {self.shape[0]} x {self.shape[1]}; fewer blocks or a smaller kernel is "
                "needed"
            )

    @property
    def sides(self) -> list[tuple[int, int]]:
        """Height and width of the images before each block, and after the last."""
        lost = self.kernel - 1 if self.padding == "valid" else 0
        sides = [self.shape[:2]]
        for _ in self.channels:
            sides.append(((sides[-1][0] - lost) // 2, (sides[-1][1] - lost) // 2))
        return sides

    def init(self, key: jax.Array) -> dict[str, Layer]:
        layers, inputs, blocks = {}, self.shape[2], len(self.channels)
        for n, outputs in enumerate(self.channels):
            flat = dense(jax.random.fold_in(key, n), self.kernel**2 * inputs, outputs, self.initial)
            layers[f"conv{n}"] = flat | {"w": flat["w"].reshape(self.kernel, self.kernel, inputs, outputs)}
            inputs = outputs
        sizes = (prod(self.sides[-1]) * inputs, *self.widths, self.classes)
        return layers | _dense_layers(key, sizes, blocks, self.initial)

    def __call__(self, params: Any, image: jax.Array) -> jax.Array:
        convolve = direct if self.convolution == "direct" else patches
        for n in range(len(self.channels)):
            layer = params[f"conv{n}"]
            image = pool(jax.nn.relu(convolve(image, layer["w"], self.padding) + layer["b"]))
        return _dense_pass(params, image.reshape(-1), len(self.widths) + 1)


def _dense_layers(key: jax.Array, sizes: tuple[int, ...], first: int, initial: Initial) -> dict[str, Layer]:
    """Dense layers of these sizes; the n-th layer of a network is drawn from the key folded with n."""
    return {
        f"dense{n}": dense(jax.random.fold_in(key, first + n), inputs, outputs, initial)
        for n, (inputs, outputs) in enumerate(pairwise(sizes))
    }


def _dense_pass(params: Any, values: jax.Array, layers: int) -> jax.Array:
    for n in range(layers - 1):
        values = jax.nn.relu(apply(params[f"dense{n}"], values))
    return apply(params[f"dense{layers - 1}"], values)


def _check_sizes(names: str, *sizes: int) -> None:
    if any(size < 1 for size in sizes):
        raise InputError(f"{names}: {min(sizes)} was given; every size must be at least 1")


def direct(image: jax.Array, w: jax.Array, padding: Padding) -> jax.Array:
    """The convolution of (height, width, channels) with (k, k, channels, outputs), stride 1, by XLA's own."""
    return jax.lax.conv_general_dilated(
        image[None], w, (1, 1), padding.upper(), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]


def patches(image: jax.Array, w: jax.Array, padding: Padding) -> jax.Array:
    """The same, as one product: the k^2 shifted images side by side, times w as a matrix."""
    k = w.shape[0]
    if padding == "same":
        image = jnp.pad(image, ((k // 2, k // 2), (k // 2, k // 2), (0, 0)))
    height, width = image.shape[0] - k + 1, image.shape[1] - k + 1
    shifted = [image[i : i + height, j : j + width] for i in range(k) for j in range(k)]
    return jnp.concatenate(shifted, axis=-1) @ w.reshape(-1, w.shape[-1])


def pool(image: jax.Array) -> jax.Array:
    """The maximum of every 2 x 2 square; an odd last row or column is left out."""
    height, width, channels = image.shape[0] // 2, image.shape[1] // 2, image.shape[2]
    return image[: 2 * height, : 2 * width].reshape(height, 2, width, 2, channels).max(axis=(1, 3))


def lenet(shape: tuple[int, ...], classes: int, initial: Initial = "fan_in") -> CNN:
    """LeNet's shape: two blocks of 6 and 16 channels, dense layers of 120 and 84.

    The kernel is 5 x 5 without padding from 16 x 16 pixels on; smaller images, of which that would leave nothing, get
    3 x 3 with padding, from 4 x 4 pixels on.
    """
    if len(shape) != 3 or min(shape[:2]) < 4:
        raise InputError(f"shape: {shape} was given; a LeNet needs images of at least 4 x 4 pixels")
    kernel, padding = (5, "valid") if min(shape[:2]) >= 16 else (3, "same")
    height, width, channels = shape
    return CNN((height, width, channels), (6, 16), kernel, (120, 84), classes, padding, initial=initial)


def wide_cnn(shape: tuple[int, ...], classes: int, initial: Initial = "fan_in") -> CNN:
    """FedVRA's network: two blocks of 64 channels, 5 x 5 without padding, dense layers of 384 and 192."""
    if len(shape) != 3 or min(shape[:2]) < 16:
        raise InputError(f"shape: {shape} was given; this network needs images of at least 16 x 16 pixels")
    height, width, channels = shape
    return CNN((height, width, channels), (64, 64), 5, (384, 192), classes, initial=initial)


class OfClasses:
    """A loss of labelled examples under a network: labels that are no class of the network's are refused."""

    network: Any

    def fault(self, rows: Any) -> tuple[int, str] | None:
        """The first row whose label the network cannot give, and a sentence about it; None: there is none, or the
        network does not say how many classes it tells apart."""
        classes = getattr(self.network, "classes", None)
        if classes is None or not isinstance(rows, Mapping) or "label" not in rows:
            return None
        labels = np.asarray(rows["label"])
        bad = np.flatnonzero((labels < 0) | (labels >= classes) | (labels != np.floor(labels)))
        if not bad.size:
            return None
        told = f"its label is {labels[bad[0]]}, and the network tells {classes} classes, 0 to {classes - 1}"
        return int(bad[0]), told


@dataclass(frozen=True)
class OnStored:
    """A network on inputs as they are stored: they are scaled inside the program."""

    network: Network
    scale: Scale

    @property
    def classes(self) -> int | None:
        """The classes that the network tells apart, where it says so."""
        return getattr(self.network, "classes", None)

    def init(self, key: jax.Array) -> dict[str, Any]:
        return self.network.init(key)

    def __call__(self, params: Any, stored: jax.Array) -> jax.Array:
        return self.network(params, self.scale.image(stored))


@dataclass(frozen=True)
class Classification(OfClasses):
    """Cross-entropy of one example, plus decay / 2 |params|^2."""

    network: Network
    decay: float = 0.0

    def __call__(self, params: Any, e: Any) -> jax.Array:
        loss = cross_entropy(self.network(params, e["input"]), e["label"])
        return loss + 0.5 * self.decay * squared_norm(params) if self.decay else loss
