"""What the exact problems share: flat vectors, start values, averages; imports errors, and jax for `flat`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError, unknown


def flat(tree):
    """The leaves of a pytree, raveled and joined in tree order: the vector of the formulas."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def require(argument: str, given: str, allowed: Iterable[str]) -> None:
    """Refuses a name that is not among the allowed ones."""
    if given not in allowed:
        raise unknown(argument, given, allowed)


def normalised(weights, clients: int) -> np.ndarray:
    """Positive client weights, one per client, scaled to sum to one."""
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (clients,) or not np.all(weights > 0) or not np.all(np.isfinite(weights)):
        raise InputError(f"weights: {weights.tolist()} was given; {clients} positive numbers are needed")
    return weights / weights.sum()


def leaves_of(vector: np.ndarray, leaves: int):
    """The vector itself, or a pytree of two leaves that `flat` joins to the same vector."""
    if leaves == 1:
        return vector
    if leaves != 2 or vector.size < 2:
        allowed = "1 or 2" if vector.size > 1 else "1, as the sequence has dimension 1"
        raise InputError(f"leaves: {leaves!r} was given; it must be {allowed}")
    half = (vector.size + 1) // 2
    return {"a": vector[:half], "b": vector[half:]}


def zeros(leaves: int, **dims: int) -> dict:
    """Start values: a zero vector of the given dimension for every named sequence."""
    return {name: leaves_of(np.zeros(dim), leaves) for name, dim in dims.items()}


def bar(weights: np.ndarray, stack: np.ndarray) -> np.ndarray:
    """sum p_i M_i over a stack whose first axis is the client."""
    return np.tensordot(weights, stack, axes=1)


def means(records: Sequence[dict], key: str) -> np.ndarray:
    """Every client's mean over its examples, stacked along a first axis of clients."""
    return np.stack([record[key].mean(axis=0) for record in records])


def product_means(records: Sequence[dict], matrix: str, vector: str) -> np.ndarray:
    """Every client's mean of matrix times vector, which is not the product of the two means."""
    return np.stack([np.einsum("kij,kj->ki", r[matrix], r[vector]).mean(axis=0) for r in records])


def apply(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Matrix times vector, client by client; either may lack the axis of clients."""
    return (matrices @ vectors[..., None])[..., 0]


def solve(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Inverse matrix times vector, client by client; either may lack the axis of clients."""
    return np.linalg.solve(matrices, vectors[..., None])[..., 0]


def transpose(matrices: np.ndarray) -> np.ndarray:
    """Transpose of the last two axes."""
    return np.swapaxes(matrices, -1, -2)


def truncation(matrix: np.ndarray, step: float, terms: int) -> np.ndarray:
    """W = I - (I - step A)^terms, the part of the inverse that a number of steps or series terms reaches."""
    identity = np.eye(matrix.shape[-1])
    return identity - np.linalg.matrix_power(identity - step * matrix, int(terms))


def softmax(logits: np.ndarray) -> np.ndarray:
    """exp(z) / sum exp(z), safe for large entries."""
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
