"""Small networks as plain pytrees. Imports nothing of rookery."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Layer = dict[str, jax.Array]


def dense(key: jax.Array, inputs: int, outputs: int) -> Layer:
    """A dense layer with weights of variance 1/inputs and zero biases."""
    return {"w": jax.random.normal(key, (inputs, outputs), jnp.float32) / inputs**0.5, "b": jnp.zeros(outputs)}


def apply(layer: Layer, inputs: jax.Array) -> jax.Array:
    """inputs w + b."""
    return inputs @ layer["w"] + layer["b"]


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-log softmax(logits)[label], of one example."""
    return -jax.nn.log_softmax(logits)[label]


def squared_norm(layer: Layer) -> jax.Array:
    """The sum of squares of all entries."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(layer)), start=jnp.zeros((), layer["w"].dtype))
