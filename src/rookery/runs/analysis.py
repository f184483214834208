"""The fixed point of a method on a linear field, exactly: no iteration, no noise, float64.

On a quadratic bilevel, linear compositional or quadratic minimax problem one full-batch round is an affine map of the
whole state: the program that runs it is asked where zero and each unit vector go, and its fixed point and its spectral
radius are had by linear algebra.
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
from rookery.engines.base import Carry, Inputs, PreparedRun
from rookery.engines.local import Local, Program, advance, copied
from rookery.errors import InputError
from rookery.federation.sampling import All
from rookery.problems.base import Problem
from rookery.runs.prepare import precision_context, prepare
from rookery.runs.retracing import code_of, current_code
from rookery.vectors import Values


@dataclass(frozen=True)
class FixedPoint:
    """Where a method comes to rest: the sequences, and the spectral radius of a round off its unit eigenvalues."""

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
    """The fixed point of a method's full-batch round on a problem with a linear field, all clients taking part.

    Args:
      method: the method; or a list of methods, equally likely in every round: the fixed point in expectation, for
        instance over all values of a random truncation index.
      round: the number that the round counter is held at, for methods whose step sizes depend on it; round 0 may be
        special (first momenta), so 1 is the default.

    The other arguments are those of `rk.run`. The result is meaningless when the field is not linear, which is
    checked at a random point.
    """
    if clients.streamed:
        raise InputError("clients: their examples are not in memory, which fixed_point needs")
    options = {"x": x, "y": y, "start": start, "sampling": All(), "batch_size": None, "seed": seed}
    methods = method if isinstance(method, list) else [method]
    code = [code_of(problem, each, clients, x=x, y=y, start=start) for each in methods]
    with precision_context("float64"), current_code(code):
        prepared = [prepare(problem, each, clients, precision="float64", **options) for each in methods]
        program = Local().program(prepared[0])
        carry = prepared[0].carry._replace(state=_at_round(prepared[0].carry.state, round))
        cause = _cause(problem, clients, methods[0], prepared[0])
        return _solve(program, [one.inputs for one in prepared], carry, cause)


def _cause(problem: Problem, clients: Clients, method: Any, prepared: PreparedRun) -> Callable[[], str]:
    """What to say when a round is no affine map: whether it is the problem's field or the method that is not linear."""

    def direction(point: np.ndarray) -> np.ndarray:
        flat, back = ravel_pytree(prepared.carry.values())
        own = shard(prepared.inputs.levels, 0)
        capacity = dict(prepared.config.capacity)
        values = back(jnp.asarray(point))
        for name in problem.local:
            values[name] = jax.tree.map(lambda leaf: leaf[0], values[name])
        batches = {name: own.batch(level, None, capacity[level], flat.dtype) for name, level in problem.draws.items()}
        return np.asarray(ravel_pytree(dict(problem.direction(values, batches)))[0])

    def said() -> str:
        size = ravel_pytree(prepared.carry.values())[0].shape
        one, two = np.random.default_rng(1).normal(size=(2, *size))
        linear = np.allclose(direction(one + two), direction(one) + direction(two) - direction(0 * one), atol=1e-8)
        if linear:
            return (
                f"method: a round of {type(method).__name__} is not an affine map of the state; fixed_point needs one"
            )
        return "problem: a round is not an affine map of the state; fixed_point needs a linear field"

    return said


def _at_round(state: Any, round: int) -> Any:
    return type(state)(**{**vars(state), "round": jnp.int32(round)})


def _floats(carry: Carry) -> tuple[list[Any], Any]:
    """The floating-point leaves of a carry, and the way back."""
    leaves, structure = jax.tree.flatten(carry)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)]

    def back(floats: list[Any]) -> Carry:
        filled = list(leaves)
        for place, leaf in zip(places, floats):
            filled[place] = leaf
        return jax.tree.unflatten(structure, filled)

    return [jnp.asarray(leaves[i]) for i in places], back


def _affine(program: Program, inputs: Inputs, carry: Carry, probe: np.ndarray) -> tuple[np.ndarray, ...]:
    """T and b of a round w -> T w + b, and where it takes a probe."""
    floats, back = _floats(carry)
    flat, unravel = ravel_pytree(floats)

    def round_of(w: np.ndarray) -> np.ndarray:
        after = advance(program, inputs, copied(back(unravel(jnp.asarray(w)))), jnp.int32(1))[0]
        return np.asarray(ravel_pytree(_floats(after)[0])[0])

    offset = round_of(np.zeros(flat.shape))
    return np.stack([round_of(unit) - offset for unit in np.eye(flat.size)], axis=1), offset, round_of(probe)


def _solve(program: Program, inputs: list[Inputs], carry: Carry, cause: Callable[[], str]) -> FixedPoint:
    floats, back = _floats(carry)
    flat, unravel = ravel_pytree(floats)
    first = np.asarray(flat)
    probe = np.random.default_rng(0).normal(size=first.shape)
    maps = [_affine(program, each, carry, probe) for each in inputs]
    matrix, offset, at_probe = (np.mean(parts, axis=0) for parts in zip(*maps))
    if not np.allclose(matrix @ probe + offset, at_probe, rtol=1e-8, atol=1e-8):
        raise InputError(cause())
    gap = np.eye(len(matrix)) - matrix
    # A conserved quantity, such as lambda - sum omega_i lambda_i, makes I - T singular: its value at the start decides.
    left, sizes, _ = np.linalg.svd(gap)
    conserved = left[:, sizes < 1e-10 * sizes.max()].T
    system = np.concatenate([gap, conserved])
    target = np.concatenate([offset, conserved @ first])
    solution = np.linalg.lstsq(system, target, rcond=None)[0]
    eigenvalues = np.linalg.eigvals(matrix)
    moving = eigenvalues[np.abs(eigenvalues - 1) > 1e-7]
    values = jax.device_get(back(unravel(jnp.asarray(solution))).values())
    return FixedPoint(values, float(np.abs(moving).max(initial=0.0)))
