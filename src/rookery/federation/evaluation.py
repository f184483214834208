"""Metrics where the data is: what a client measures on its own test examples. Imports data and contracts.

The server learns a few numbers of each client and nothing else; single-process runs go the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

from rookery.data.batches import Batch, Shard
from rookery.federation.client import ProgramConfig, Record
from rookery.vectors import Sequences, Values

TEST = "test"  # the name of the level of test examples

ClientMetrics = Callable[[Values, Any], Mapping[str, Any]]  # of the sequences and one example


def evaluate(
    config: ProgramConfig, function: ClientMetrics, capacity: int, shard: Shard, z: Sequences, record: Record
) -> dict[str, jax.Array]:
    """The phase: the means of the metrics over a client's own test examples, at the shared sequences and its own."""
    return means(function, z.merged(record.local).trees(), shard.batch(TEST, None, capacity, config.dtype))


def means(function: ClientMetrics, values: Values, batch: Batch) -> dict[str, jax.Array]:
    """The means of the metrics over a batch."""
    return batch.mean(lambda example: dict(function(values, example)))


def metric_names(function: ClientMetrics, test: Any, z: Sequences, record: Record) -> list[str]:
    """What the metrics are called; `test` is the level of test examples."""
    example, values = jax.tree.map(lambda rows: rows[0], test.rows), z.merged(record.local).trees()
    return list(jax.eval_shape(lambda: dict(function(values, example))))


compiled_evaluation = jax.jit(evaluate, static_argnums=(0, 1, 2))


@partial(jax.jit, static_argnums=(0, 1, 2))
def evaluate_all(
    config: ProgramConfig, function: ClientMetrics, capacity: int, shards: Shard, z: Sequences, records: Record
) -> dict[str, jax.Array]:
    """The same of all clients, one after the other, in one program; offsets, sizes and records are stacked."""
    rows = {name: level.rows for name, level in shards.levels.items()}
    places = {name: (level.offset, level.size) for name, level in shards.levels.items()}

    def one(own: tuple) -> dict[str, jax.Array]:
        place, record = own
        levels = {
            name: shards.levels[name]._replace(rows=rows[name], offset=at, size=n) for name, (at, n) in place.items()
        }
        return evaluate(config, function, capacity, Shard(levels), z, record)

    return jax.lax.map(one, (places, records))
