"""What the STORM momenta of FedBiOAcc and its local form have in common. Imports contracts only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.federation.client import Client
from rookery.federation.method import State, struct
from rookery.vectors import Sequences


@struct
class AccState(State):
    """The server's state with the averaged momentum m."""

    m: Sequences


@struct
class StormClient:
    """A client's z before the last step of a round and its momenta there, kept for the second exchange; those of its
    own sequences stay for its next round."""

    z: Sequences
    m: Sequences
    visits: Any  # how many rounds it has been part of; its first momentum is its own


def starting_momentum(client: Client, m: Sequences, first: Callable[[], Sequences]) -> Sequences:
    """The momentum that a round starts from: the server's, but of a client's own sequences its own; where the run
    begins, or the client does, what `first` gives."""
    if not client.own:
        return client.choose(client.first, first, lambda: m)
    kept = client.state
    own = client.choose(kept.visits == 0, first, lambda: kept.m)
    return own.merged(jax.tree.map(partial(jnp.where, client.first), own.only(m.names), m))


def alpha(method: Any, client: Client, k: Any) -> Any:
    """alpha_t = delta / (u + t)^{1/3} at the round's iteration k = 0 .. I - 1, where t = 1, 2, ... counts them all."""
    t = client.round.astype(client.dtype) * method.local_steps + k + 1  # as a float: a long run has many iterations
    return method.delta / jnp.cbrt(method.offset + t)


def check_storm(method: Any, names: tuple[str, ...]) -> None:
    """Refuses step sizes that do not fall, and momenta with c alpha^2 > 1."""
    if not (method.delta > 0 and method.offset > -1):
        raise InputError(
            f"delta, offset: {method.delta}, {method.offset} were given; delta > 0 and offset > -1 are needed"
        )
    momentum = method.momentum.at(0)
    largest = max(float(momentum[name]) for name in names) * method.delta**2 / (method.offset + 1) ** (2 / 3)
    if largest > 1:
        raise InputError(
            f"momentum: c alpha^2 is {largest:.4g} at the first iteration; it must be at most 1: "
            "lower momentum or delta, or raise offset"
        )
