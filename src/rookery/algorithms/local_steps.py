"""Local descent on a direction field: the client's side of every single-loop method. Imports contracts only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InputError, failing
from rookery.federation.client import Client
from rookery.federation.method import static, struct
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs, Steps, largest_steps
from rookery.problems.base import Problem
from rookery.vectors import Sequences


@struct
class CoefficientFunction:
    """a_k as the user's function of (k, client index, round)."""

    function: Callable[[Any, Any, Any], Any] = static()


def wrap_coefficients(coefficients: Any) -> Any:
    """Coefficients as a pytree: a function becomes structure, a table stays traced."""
    return CoefficientFunction(coefficients) if callable(coefficients) else coefficients


def check_coefficients(coefficients: Any, steps: Steps, population: int) -> None:
    """Refuses a table of coefficients that does not reach every local step."""
    if coefficients is None:
        return
    if isinstance(coefficients, CoefficientFunction):
        with failing("coefficients: the function of a traced (k, client, round)"):
            given = jax.eval_shape(lambda *at: coefficients.function(*at), *[jnp.int32(0)] * 3)
        if getattr(given, "shape", None) != ():
            raise InputError(f"coefficients: the function gives {given}; one number is needed")
        return
    if isinstance(steps, Epochs):
        raise InputError("coefficients: a table was given, and epochs have no fixed number of steps; give a function")
    table, most = np.asarray(coefficients), largest_steps(steps)
    if table.ndim not in (1, 2) or (table.ndim == 2 and table.shape[0] != population):
        raise InputError(
            f"coefficients: shape {table.shape} was given; a_k as (steps,), a_ik as ({population}, steps), "
            "or a function of (k, client, round) is needed"
        )
    if table.shape[-1] < most:
        raise InputError(
            f"coefficients: {table.shape[-1]} were given; a client may take {most} steps, one each is needed"
        )


def check_radius(radius: Any, problem: Problem) -> None:
    """Refuses a ball for v that is empty, or that has no v."""
    if radius is not None and not ("v" in problem.shared and radius > 0):
        raise InputError(
            f"radius: {radius} was given; a positive number, on a problem with a shared adjoint v, is allowed"
        )


def coefficient(coefficients: Any, client: Client, k: Any) -> Any:
    """a_k of a client in this round."""
    if isinstance(coefficients, CoefficientFunction):
        return coefficients.function(k, client.index, client.round)
    table = jnp.asarray(coefficients)
    return table[k] if table.ndim == 1 else table[client.index, k]


@dataclass(frozen=True)
class Descent:
    """Where local steps led: z_i - z and q_i of the shared sequences, and ||a_i||_1; q is empty where it was not asked
    for."""

    moved: Sequences
    q: Sequences
    norm: Any


Correct = Callable[[Sequences, Sequences], Sequences]  # of a direction and the point it was taken at, both shared


def descend(
    client: Client,
    z: Sequences,
    eta: Rates,
    work: Any,
    coefficients: Any = None,
    correct: Correct | None = None,
    key: jax.Array | None = None,
    total: bool = True,
) -> Descent:
    """tau_i steps z_i <- z_i - eta a_k D_i(z_i; fresh sample) from z_i = z, with q_i = sum_k a_k D_i(z_i^k).

    `work` is a number of steps, a schedule of them, or epochs. `correct` changes the shared part of every direction.
    `total`: whether q_i is needed; a loop that need not carry it is faster.
    Local sequences start where the client left them, are projected onto their sets after every step, and stay on the
    client at their last iterate.
    """

    def step(carry: tuple, k: Any, key: Any) -> tuple:
        z_i, q, norm = carry
        d = client.direction(z_i, client.sample(key))
        if correct is not None:
            d = d.merged(correct(client.shared(d), client.shared(z_i)))
        if coefficients is not None:
            a = coefficient(coefficients, client, k)
            d, norm = d * a, norm + jnp.abs(a)
        return client.project_local(z_i - eta * d), q + client.shared(d) if total else q, norm

    norm = jnp.zeros((), client.dtype)
    nothing = z.zeros() if total else Sequences({})
    z_i, q, norm = client.loop(work, step, (client.enter(z), nothing, norm), key)
    if coefficients is None:
        norm = client.steps(work).astype(client.dtype)
    return Descent(client.leave(z_i) - z, q, norm)
