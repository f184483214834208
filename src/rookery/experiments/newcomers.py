"""Newcomers: clients that were not there when something was learnt get what each client has of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from rookery.algorithms.simfbo import SimFBO
from rookery.data.federated import Clients
from rookery.errors import AdviceWarning, InputError
from rookery.federation.rates import Rates
from rookery.problems.base import Problem
from rookery.runs.result import Result
from rookery.runs.run import run


def newcomers(
    problem: Problem,
    learnt: Result | Mapping[str, Any],
    clients: Clients,
    *,
    lr: float | Rates,
    rounds: int,
    x: Any = None,
    y: Any = None,
    start: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Fits what each client has of its own, a head say, for clients that come later; what is shared stays as it is.

    Args:
      problem: what was solved, with sequences that clients keep, such as `rk.Joint(...)`.
      learnt: the result of its run, or the shared sequences by name.
      clients: the newcomers, from `rk.federate`.
      lr: the step size of their own sequences, or one each: `rk.Rates(y=0.1, v=0.1)`.
      rounds: how many steps each takes.
      x, y, start: initial values of their own sequences; those not given start at zero where the problem says how.
      options: the other arguments of `rk.run`: `batch_size`, `client_metrics`, `seed`, ...

    Returns:
      A `Result`: `result.local[i]` is newcomer i's own. Nothing is exchanged but the shared sequences, once a round.
    """
    if not isinstance(problem, Problem):
        raise InputError(f"problem: {type(problem).__name__} was given; a problem such as rk.Joint(...) is needed")
    if not problem.local:
        raise InputError(
            f"problem: in this {problem.kind} problem clients have nothing of their own; newcomers use what is shared"
        )
    known = learnt.sequences if isinstance(learnt, Result) else learnt
    if not isinstance(known, Mapping):
        raise InputError(f"learnt: {type(learnt).__name__} was given; a result, or sequences by name, is needed")
    if missing := [name for name in problem.shared if name not in known]:
        raise InputError(f"learnt: it has no {missing[0]}, which this {problem.kind} problem shares")
    if start is not None and not isinstance(start, Mapping):
        raise InputError(f"start: {start!r} was given; initial values by name are needed")
    given = dict(start or {}) | {name: value for name, value in (("x", x), ("y", y)) if value is not None}
    if twice := [name for name in given if name in problem.shared]:
        raise InputError(f"{twice[0]}: a value was given, and {twice[0]} is shared; it stays as it was learnt")
    rates = lr if isinstance(lr, Rates) else Rates(lr)
    if lacking := [name for name in problem.local if not {name, "default"} & set(rates.entries())]:
        raise InputError(
            f"lr: {lr!r} was given, and has none for {lacking[0]}; one number, or one for each of "
            f"{', '.join(problem.local)}, is needed"
        )
    still = Rates(**{name: 0.0 if name in problem.shared else rates[name] for name in problem.names})
    values = {name: known[name] for name in problem.shared} | given
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* stays where it is", AdviceWarning)  # as it should
        return run(problem, SimFBO(lr=still), clients, start=values, rounds=rounds, **options)
