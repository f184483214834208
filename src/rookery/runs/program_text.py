"""The text of a run's program: what JAX compiles, with all its constants."""

from __future__ import annotations

import jax.numpy as jnp

from rookery.engines.base import PreparedRun
from rookery.engines.local import Local, advance, start
from rookery.federation.method import has_start
from rookery.metric import Metrics, measure, split
from rookery.runs.own_metrics import OwnMetrics


def program_text(prepared: PreparedRun, metrics: Metrics, own: OwnMetrics | None) -> str:
    """Trace the rounds of a run, the start of its method and its metrics, and return them as text. Equal texts compute
    the same numbers from the same inputs. Every engine runs the same phases, so this one program speaks for all."""
    program, inputs, carry = Local().program(prepared), prepared.inputs, prepared.carry
    traced = [advance.trace(program, inputs, carry, jnp.int32(1))]
    if has_start(inputs.method):
        traced.append(start.trace(program, inputs, carry))
    measured = [metrics] if own is None else [metrics, own.metric(prepared.config.dtype, own.largest)]
    for function, arrays in map(split, measured):
        traced.append(measure.trace(function, carry.values(), arrays))
    texts = [each.lower().as_text() for each in traced]
    return "\n".join(texts)
