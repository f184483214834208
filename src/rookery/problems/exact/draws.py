"""Random, well-conditioned client data for the exact problems; imports errors and numpy.

Every draw uses the same random numbers whatever `heterogeneity` is, so that it scales one fixed difference.
A *family* is a list with one stack of examples per client; the mean of a stack is the client's own value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rookery.errors import InputError
from rookery.problems.exact.common import apply, normalised, solve, transpose


def generator(seed: int) -> np.random.Generator:
    """The source of everything drawn for one problem, except its weights."""
    return np.random.default_rng([seed, 0])


def weights_of(weights, clients: int, seed: int) -> np.ndarray:
    """Equal weights for None, unequal ones for "random", the given ones scaled to sum to one otherwise."""
    if weights is None:
        return np.full(clients, 1.0 / clients)
    if isinstance(weights, str):
        if weights != "random":
            raise InputError(f'weights: {weights!r} was given; allowed are None, "random" and one number per client')
        # A source of their own, so that asking for weights leaves the data as it was.
        weights = np.random.default_rng([seed, 1]).uniform(0.5, 2.0, clients)
    return normalised(weights, clients)


def sizes_of(examples, clients: int, pattern: Sequence[int] = (1, 2, 3)) -> list[int]:
    """Examples per client: one number for all, a number for each, or the ragged pattern over and over."""
    if clients < 1:
        raise InputError(f"clients: {clients!r} was given; there must be at least 1")
    if examples is None:
        sizes = [pattern[i % len(pattern)] for i in range(clients)]
    elif np.ndim(examples) == 0:
        sizes = [int(examples)] * clients
    else:
        sizes = [int(size) for size in examples]
    if len(sizes) != clients or min(sizes) < 1:
        raise InputError(f"examples: {examples!r} was given; it must be a number of at least 1, or {clients} of them")
    return sizes


def zipped(**families: Sequence) -> tuple[dict, ...]:
    """One record per client out of named families."""
    return tuple(dict(zip(families, stacks, strict=True)) for stacks in zip(*families.values(), strict=True))


def repeated(value: float, sizes: Sequence[int]) -> list[np.ndarray]:
    """The family in which every example carries the same number."""
    return [np.full(size, float(value)) for size in sizes]


def function_of(matrix: np.ndarray, scalar) -> np.ndarray:
    """A scalar function applied to the eigenvalues of a symmetric matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * scalar(values)) @ vectors.T


def symmetric(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Symmetric matrices of spectral norm one."""
    raw = rng.standard_normal((count, dim, dim))
    raw = raw + transpose(raw)
    return raw / np.linalg.norm(raw, ord=2, axis=(1, 2), keepdims=True)


def positive_centres(rng, clients: int, dim: int, heterogeneity: float) -> np.ndarray:
    """Symmetric positive definite client means around one with eigenvalues in [1, 2].

    Clients differ in the logarithm of the matrix, so they stay positive definite at any heterogeneity.
    """
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    common = (basis * np.log(np.linspace(1.0, 2.0, dim))) @ basis.T
    return np.stack([function_of(common + heterogeneity * own, np.exp) for own in 0.6 * symmetric(rng, clients, dim)])


def positive_examples(rng, centres: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Symmetric positive definite examples around every client's mean, which they keep."""
    family = []
    for centre, size in zip(centres, sizes, strict=True):
        noise = symmetric(rng, size, centre.shape[0])
        noise = noise - noise.mean(axis=0)
        # The centred noise has norm at most 2, so an example keeps 40 % of its client's least curvature.
        family.append(centre + 0.3 * np.linalg.eigvalsh(centre)[0] * noise)
    return family


def positive(rng, sizes: Sequence[int], dim: int, heterogeneity: float) -> list[np.ndarray]:
    """A family of symmetric positive definite matrices."""
    return positive_examples(rng, positive_centres(rng, len(sizes), dim, heterogeneity), sizes)


def free_centres(rng, clients: int, shape: tuple[int, ...], heterogeneity: float) -> np.ndarray:
    """Client means of arrays without structure.

    Matrices have a spectral norm around one and differ by less: products of them stay well-conditioned.
    """
    scale, difference = (1.0, 1.0) if len(shape) < 2 else (max(shape) ** -0.5, 0.5)
    common = rng.standard_normal(shape)
    return scale * (common + difference * heterogeneity * rng.standard_normal((clients, *shape)))


def free_examples(rng, centres: np.ndarray, sizes: Sequence[int], spread: float = 0.5) -> list[np.ndarray]:
    """Examples around every client's mean, which they keep."""
    family = []
    for centre, size in zip(centres, sizes, strict=True):
        noise = rng.standard_normal((size, *centre.shape))
        family.append(centre + spread * (noise - noise.mean(axis=0)))
    return family


def free(rng, sizes: Sequence[int], shape: tuple[int, ...], heterogeneity: float) -> list[np.ndarray]:
    """A family of arrays without structure."""
    return free_examples(rng, free_centres(rng, len(sizes), shape, heterogeneity), sizes)


def anchors(rng, matrices: list[np.ndarray], heterogeneity: float) -> list[np.ndarray]:
    """Vectors t for a family of matrices A: a client's mean of A t is its mean of A times its own t_i.

    So the client's mean of 1/2 (y - t)'A(y - t) has its minimum at t_i. Vectors drawn apart from the matrices
    would move it, and clients would differ by chance even where heterogeneity is 0.
    """
    sizes, dim = [len(stack) for stack in matrices], matrices[0].shape[-1]
    centres = np.stack([stack.mean(axis=0) for stack in matrices])
    pulls = free_examples(rng, apply(centres, free_centres(rng, len(sizes), (dim,), heterogeneity)), sizes)
    return [solve(stack, pull) for stack, pull in zip(matrices, pulls, strict=True)]
