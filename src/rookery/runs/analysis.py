"""Compute the fixed point of a method on a linear field exactly: without iteration or noise, in float64.

On a quadratic bilevel, linear compositional or quadratic minimax problem one full-batch round is an affine map of the
whole state. The run's own program is evaluated at zero and at each unit vector, which gives the map. Its fixed point,
spectral radius and conserved quantities follow by linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from rookery.data.batches import shard
from rookery.data.federated import Clients
from rookery.engines.base import Carry, PreparedRun
from rookery.engines.local import Local, advance, copied
from rookery.errors import InputError
from rookery.federation.sampling import All
from rookery.problems.base import Problem
from rookery.runs.prepare import precision_context, prepare
from rookery.runs.retracing import code_of, current_code
from rookery.vectors import Values


@dataclass(frozen=True)
class FixedPoint:
    """The fixed point of a round: its sequences, and the spectral radius of the round off its unit eigenvalues."""

    sequences: Values
    radius: float

    def flat(self, name: str) -> np.ndarray:
        """One sequence as a flat vector."""
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(self.sequences[name])])


def fixed_point(
    problem: Problem,
    method: Any,
    clients: Clients,
    *,
    x: Any = None,
    y: Any = None,
    start: Any = None,
    round: int = 1,
    seed: int = 0,
) -> FixedPoint:
    """Compute the fixed point of a method's full-batch round on a problem with a linear field. All clients take part.

    Args:
      method: Method, or a list of methods that are equally likely in every round. With a list the result is the fixed
        point in expectation, for instance over all values of a random truncation index.
      round: Number of the round. Methods may have step sizes that depend on it, and a special round 0 (first momenta).

    The other arguments are those of `rk.run`.

    Raises:
      InputError: The round is not an affine map, which is checked at a random point.
    """
    methods = method if isinstance(method, list) else [method]
    maps = [round_map(problem, each, clients, x=x, y=y, start=start, round=round, seed=seed) for each in methods]
    return maps[0].fixed_point(maps)


@dataclass(frozen=True)
class RoundMap:
    """One full-batch round of all clients as an affine map w -> matrix w + offset of all floating-point numbers of a
    run.

    Attributes:
      first: w at the start of the run.
      carry: State of the run that `first` was taken from.
    """

    matrix: np.ndarray
    offset: np.ndarray
    first: np.ndarray
    carry: Carry

    def conserved(self, matrix: np.ndarray | None = None) -> np.ndarray:
        """Rows l with l'w the same after a round as before: the left null space of I - T."""
        gap = np.eye(len(self.matrix)) - (self.matrix if matrix is None else matrix)
        left, sizes, _ = np.linalg.svd(gap)
        return left[:, sizes < 1e-10 * sizes.max()].T

    def fixed_point(self, maps: list[RoundMap] | None = None) -> FixedPoint:
        """The fixed point of the mean of some maps; of this map alone by default."""
        maps = maps or [self]
        matrix, offset = (np.mean(parts, axis=0) for parts in ([m.matrix for m in maps], [m.offset for m in maps]))
        # A conserved quantity, such as lambda - sum omega_i lambda_i, makes I - T singular. Its first value decides.
        conserved = self.conserved(matrix)
        system = np.concatenate([np.eye(len(matrix)) - matrix, conserved])
        target = np.concatenate([offset, conserved @ self.first])
        solution = np.linalg.lstsq(system, target, rcond=None)[0]
        eigenvalues = np.linalg.eigvals(matrix)
        moving = eigenvalues[np.abs(eigenvalues - 1) > 1e-7]
        _, back = _flat_floats(self.carry)
        with jax.enable_x64(True):
            values = jax.device_get(back(solution).values())
        return FixedPoint(values, float(np.abs(moving).max(initial=0.0)))


def round_map(
    problem: Problem, method: Any, clients: Clients, *, round: int = 1, seed: int = 0, **initial: Any
) -> RoundMap:
    """The map of a method's full-batch round; the arguments are those of `fixed_point`, `initial` its x, y and start.

    Raises:
      InputError: The round is not an affine map, because of the problem's field or of the method.
    """
    if clients.streamed:
        raise InputError("clients: their examples are not in memory; fixed_point needs them in memory.")
    if clients.absent:
        raise InputError(
            f"clients: the rows of {clients.absent[0]!r} are at another party; fixed_point needs them here."
        )
    options = {**initial, "sampling": All(), "batch_size": None, "seed": seed}
    code = [code_of(problem, method, clients, **initial)]
    with precision_context("float64"), current_code(code):
        prepared = prepare(problem, method, clients, precision="float64", **options)
        program = Local().program(prepared)
        carry = prepared.carry._replace(state=_at_round(prepared.carry.state, round))
        first, back = _flat_floats(carry)
        probe = np.random.default_rng(0).normal(size=first.shape)

        def round_of(w: np.ndarray) -> np.ndarray:
            after = advance(program, prepared.inputs, copied(back(w)), jnp.int32(1))[0]
            return _flat_floats(after)[0]

        offset = round_of(np.zeros(first.shape))
        matrix = np.stack([round_of(unit) - offset for unit in np.eye(first.size)], axis=1)
        if not np.allclose(matrix @ probe + offset, round_of(probe), rtol=1e-8, atol=1e-8):
            raise InputError(_cause(problem, clients, method, prepared))
        return RoundMap(matrix, offset, first, carry)


def _cause(problem: Problem, clients: Clients, method: Any, prepared: PreparedRun) -> str:
    """The reason why a round is not an affine map: the problem's field is not linear, or the method is not."""

    def direction(point: np.ndarray) -> np.ndarray:
        flat, back = ravel_pytree(prepared.carry.values())
        own = shard(prepared.inputs.levels, 0)
        capacity = dict(prepared.config.capacity)
        values = back(jnp.asarray(point))
        for name in problem.local:
            values[name] = jax.tree.map(lambda leaf: leaf[0], values[name])
        batches = {name: own.batch(level, None, capacity[level], flat.dtype) for name, level in problem.draws.items()}
        return np.asarray(ravel_pytree(dict(problem.direction(values, batches)))[0])

    size = ravel_pytree(prepared.carry.values())[0].shape
    one, two = np.random.default_rng(1).normal(size=(2, *size))
    if np.allclose(direction(one + two), direction(one) + direction(two) - direction(0 * one), atol=1e-8):
        return f"method: a round of {type(method).__name__} is not an affine map of the state; fixed_point needs one"
    return "problem: a round is not an affine map of the state; fixed_point needs a linear field"


def _at_round(state: Any, round: int) -> Any:
    return type(state)(**{**vars(state), "round": jnp.int32(round)})


def flat_floats(carry: Carry) -> np.ndarray:
    """All floating-point numbers of a carry as one vector."""
    return _flat_floats(carry)[0]


def _flat_floats(carry: Carry) -> tuple[np.ndarray, Callable[[np.ndarray], Carry]]:
    """All floating-point numbers of a carry as one vector, and the way back."""
    leaves, structure = jax.tree.flatten(carry)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)]
    flat, unravel = ravel_pytree([jnp.asarray(leaves[i]) for i in places])

    def back(vector: np.ndarray) -> Carry:
        filled = list(leaves)
        for place, leaf in zip(places, unravel(jnp.asarray(vector))):
            filled[place] = leaf
        return jax.tree.unflatten(structure, filled)

    return np.asarray(flat), back
