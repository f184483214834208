"""Step sizes that are measured where a run begins, in an exchange of their own that its ledger counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery.engines.base import NO_RECORDS, Carry, Engine, PreparedRun, initial_carry
from rookery.errors import InputError
from rookery.federation.client import Record
from rookery.federation.fields import RatesField, meanings
from rookery.federation.keys import before_first_round_key
from rookery.federation.ledger import Ledger
from rookery.federation.measuring import curvature_of, largest_factor, step_sizes, terms_of
from rookery.federation.rates import Rates
from rookery.problems.base import Problem
from rookery.runs.result import RunState

NOBODY = 1000  # rounds, at most, that are drawn until somebody is there to measure


def awaited_rates(method: Any, problem: Problem) -> tuple[tuple[str, ...], Any]:
    """The sequences whose step sizes are to be measured, and the method with a number in the place of each."""
    fields = meanings(type(method)) if dataclasses.is_dataclass(type(method)) else {}
    field = fields.get("lr")
    if not (isinstance(field, RatesField) and field.auto and isinstance(problem, Problem)):
        return (), method
    lr = method.lr if isinstance(method.lr, Rates) else Rates(method.lr)
    if wrong := [rate for rate in lr.entries().values() if isinstance(rate, str) and rate != "auto"]:
        raise InputError(f"lr: {wrong[0]!r} was given; a number, a schedule or 'auto' is needed")
    names = lr.awaited(problem.names)
    given = {name: rate for name, rate in lr.entries().items() if not isinstance(rate, str)}
    return names, with_rates(method, Rates(**given), dict.fromkeys(names, 1.0)) if names else method


def with_rates(method: Any, lr: Rates, measured: Mapping[str, Any]) -> Any:
    """The method with step sizes, of which some were measured."""
    return dataclasses.replace(method, lr=lr.replace(**measured))


def measured_run(
    prepared: PreparedRun, names: tuple[str, ...], engine: Engine, ledger: Ledger, before: RunState | None
) -> tuple[PreparedRun, Ledger]:
    """A run with its step sizes measured, and its ledger with that exchange; where it goes on, as they were before."""
    if before is not None:
        if not before.rates or set(before.rates) != set(names):
            raise InputError(f"state: it has no measured step sizes of {', '.join(names)}; give lr the numbers it had")
        rates: dict[str, float] = {name: before.rates[name] for name in names}
    else:
        rates, ledger = _measure(prepared, engine, ledger, names)
    return with_measured(prepared, rates), ledger


def with_measured(prepared: PreparedRun, rates: Mapping[str, float]) -> PreparedRun:
    """A run with step sizes that were measured, in the place of those that stood for them."""
    if not rates:
        return prepared
    held = {name: np.asarray(rate, prepared.config.dtype) for name, rate in rates.items()}
    method = prepared.inputs.method
    method = with_rates(method, method.lr, held)
    return dataclasses.replace(prepared, inputs=prepared.inputs._replace(method=method), rates=dict(rates))


def measuring_run(prepared: PreparedRun) -> PreparedRun:
    """The run of one round that measures the curvatures of another's problem where that begins, on any engine."""
    # What is measured is a few numbers, once: channels are for the messages of the method.
    config, carry = dataclasses.replace(prepared.config, up=None, down=None), prepared.carry
    measuring = curvature_of(config.problem, terms_of(prepared.inputs.method).normalised)
    inputs = prepared.inputs._replace(method=measuring, key=before_first_round_key(prepared.inputs.key))
    if prepared.record is None:
        begun, record = jax.device_get(initial_carry(config, measuring, carry.state.z, carry.records.local)), None
    else:  # records are elsewhere
        begun = Carry(jax.device_get(measuring.init(config.problem, carry.state.z)), NO_RECORDS)
        record = Record(prepared.record.local, ())
    return dataclasses.replace(prepared, config=config, inputs=inputs, carry=begun, record=record)


def _measure(
    prepared: PreparedRun, engine: Engine, ledger: Ledger, names: tuple[str, ...]
) -> tuple[dict[str, float], Ledger]:
    terms, measuring = terms_of(prepared.inputs.method), measuring_run(prepared)
    session = engine.open(measuring, ledger)
    for _ in range(NOBODY):
        try:
            done = session.advance(1)
        except InputError:
            raise
        except (TypeError, ValueError, NotImplementedError) as error:  # what JAX says of a loss with one derivative
            first = str(error).strip().split("\n")[0]
            raise InputError(
                f"lr: 'auto' was given, and the directions cannot be differentiated forwards, with "
                f"{type(error).__name__}: {first}; give numbers"
            ) from error
        if done.broken:
            raise InputError(
                "lr: 'auto' was given, and the directions are not finite where the run begins; give numbers"
            )
        found = session.carry.state
        if int(found.round) > int(found.empty):
            sampling = prepared.inputs.sampling.at(int(found.round) - 1)
            factor = largest_factor(prepared.inputs.weights, sampling)
            return step_sizes(found, measuring.inputs.method, names, terms, factor), session.ledger
    raise InputError(
        f"lr: 'auto' was given, and nobody was there to measure in any of {NOBODY} rounds; give numbers, or a sampling "
        "that draws more"
    )
