"""Where randomness comes from: key of the run -> round -> exchange counter -> client index. Imports nothing.

Every draw of a run is a function of these, so it is the same on every engine.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_SAMPLING, _EXCHANGE, _STEPS, _SELECT, _SERVER, _WHOLE = range(6)  # what is drawn in a round
_VALUES, _BEFORE = 2**32 - 1, 2**32 - 2  # in the place of a round: initial values, and what comes before the first
_LOOP, _ORDER, _AUGMENT, _CHANNEL = (
    2**31 - 1,
    2**31 - 2,
    2**31 - 3,
    2**31 - 4,
)  # at a client: they never meet its own samples


def run_key(seed: Any) -> jax.Array:
    """The key of a run."""
    return jax.random.key(seed)


def start_key(run: jax.Array, index: Any) -> jax.Array:
    """For initial values: index 0 for the shared ones, i + 1 for those of client i."""
    return jax.random.fold_in(jax.random.fold_in(run, _VALUES), index)


def round_key(run: jax.Array, number: Any) -> jax.Array:
    """The key of round 0, 1, ... of a run."""
    return jax.random.fold_in(run, number)


def before_first_round_key(run: jax.Array) -> jax.Array:
    """The key of what a method does once, before its first round."""
    return jax.random.fold_in(run, jnp.uint32(_BEFORE))


def loop_key(key: jax.Array) -> jax.Array:
    """For a client's loop, made once before it; every step folds in its number."""
    return jax.random.fold_in(key, _LOOP)


def order_key(key: jax.Array) -> jax.Array:
    """For the orders of a client's examples in the epochs of a loop; every epoch folds in its number."""
    return jax.random.fold_in(key, _ORDER)


def augment_key(key: jax.Array, draw: int) -> jax.Array:
    """For the augmentation of one of the draws of a sample."""
    return jax.random.fold_in(jax.random.fold_in(key, draw), _AUGMENT)


def _domain(key: jax.Array, domain: int, number: Any) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, domain), number)


def sampling_key(round: jax.Array) -> jax.Array:
    """For drawing the cohort."""
    return _domain(round, _SAMPLING, 0)


def exchange_key(round: jax.Array, exchange: Any) -> jax.Array:
    """For one exchange; a client folds in its index."""
    return _domain(round, _EXCHANGE, exchange)


def client_key(exchange: jax.Array, index: Any) -> jax.Array:
    """For one client in one exchange."""
    return jax.random.fold_in(exchange, index)


def channel_key(client: jax.Array) -> jax.Array:
    """For what a channel draws of one client's reply in one exchange."""
    return jax.random.fold_in(client, _CHANNEL)


def steps_key(round: jax.Array, index: Any) -> jax.Array:
    """For a client's number of local steps: the same in all exchanges of a round."""
    return _domain(round, _STEPS, index)


def whole_round_key(round: jax.Array, index: Any) -> jax.Array:
    """For what a client draws once for all exchanges of a round."""
    return _domain(round, _WHOLE, index)


def stream_key(steps: jax.Array, stream: int) -> jax.Array:
    """For one of the random schedules of a method, by its number; the first has the key of the steps itself."""
    return jax.random.fold_in(steps, stream) if stream else steps


def select_key(round: jax.Array, exchange: Any) -> jax.Array:
    """For picking some of a cohort."""
    return _domain(round, _SELECT, exchange)


def server_key(round: jax.Array) -> jax.Array:
    """For the server program's own draws."""
    return _domain(round, _SERVER, 0)
