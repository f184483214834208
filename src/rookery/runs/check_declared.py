"""What a method declares of itself, verified: stability, the mean over cohorts, fresh draws, counts. Imports runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rookery.engines.eager import Eager
from rookery.errors import InputError
from rookery.federation.keys import round_key, run_key, sampling_key
from rookery.federation.method import keeps_state
from rookery.federation.oracles import hearing_draws
from rookery.federation.rates import Rates
from rookery.federation.sampling import All, Sampling, Uniform, Weighted
from rookery.runs.analysis import fixed_point
from rookery.runs.check_runs import RATE, SMALL, changed, checked_run, flat, with_lr
from rookery.runs.result import Result

AGGREGATES = ("unbiased", "ratio", "biased")
WEIGHTS = (0.5, 0.3, 0.2)  # of three clients with the same data
CHANCES = (0.5, 0.7, 0.8)  # of three clients; cohorts are of two, and one without client i has chance 1 - CHANCES[i]
MARGIN = 1e-9


def is_stable(method: Any, exact: Any) -> str:
    """At small step sizes a round brings the state nearer to the fixed point, on the problems that it declares."""
    kind = exact.problem.kind
    if method.stable is not None and kind not in method.stable:
        return f"not checked: it declares stability on {', '.join(method.stable) or 'no problem'}"
    small = with_lr(method, Rates(RATE / 64, x=RATE / 6400))  # nested problems may need an upper level that is slower
    try:
        radius = fixed_point(exact.problem, small, exact.clients, **exact.start(leaves=2)).radius
    except InputError as refused:
        assert "affine" in str(refused), str(refused)
        return _comes_nearer(method, exact)
    assert radius < 1 - MARGIN, (
        f"it is unstable: a round at step sizes of {RATE / 64:.2g} has spectral radius {radius:.6f}; check the sign of "
        f"its steps, or leave {kind!r} out of `stable`"
    )
    return f"spectral radius {radius:.6f} at step sizes of {RATE / 64:.2g}"


def _comes_nearer(method: Any, exact: Any) -> str:
    """Of a round that is no affine map: the distance of x to the solution falls."""
    solution, options = exact.solution(), {"sampling": All(), "batch_size": None}
    ends = [checked_run(with_lr(method, Rates(SMALL)), exact, rounds=rounds, **options) for rounds in (1, 200)]
    before, after = (float(np.abs(flat(end.sequences["x"]) - solution).max()) for end in ends)
    assert after < before, f"it moves away from the solution: from {before:.2g} to {after:.2g} in 200 rounds"
    return f"no affine map; {before:.2g} from the solution after a round, {after:.2g} after 200"


def cohorts_agree(method: Any, exact: Any) -> str:
    """After one round, two like clients give what three give, and the mean over all cohorts is the round of all clients
    where the method declares that."""
    assert method.aggregation in AGGREGATES, (
        f"aggregation must be one of {', '.join(AGGREGATES)}; got {method.aggregation!r}."
    )
    if method.participation == "all":
        return "not checked: it needs all clients"
    method = with_lr(method, Rates(SMALL))
    if method.aggregation != "biased" or not keeps_state(method):  # absent clients may count with what they keep
        like = changed(exact, clients=exact.clients.subset([0, 0, 0]))
        three, two = (
            _point(checked_run(method, like, batch_size=None, rounds=1, sampling=each), exact)
            for each in (All(), Uniform(2))
        )
        _same(three, two, "two like clients do not give what three give")
    if method.aggregation == "ratio":
        # Clients with the same data and other weights: a ratio of sums has the right mean, a product of means has not.
        same = dataclasses.replace(exact.clients.subset([0, 0, 0]), weights=np.array(WEIGHTS))
        all_of_them, mean = _over_cohorts(method, changed(exact, clients=same), exact)
        _same(all_of_them, mean, "with clients alike the mean over all cohorts is not the round of all clients")
    everybody, mean = _over_cohorts(method, exact, exact)
    off = float(np.abs(mean - everybody).max())
    if method.aggregation == "unbiased":
        _same(
            everybody,
            mean,
            "the mean over all cohorts is not the round of all clients; use cohort.mean, or "
            'declare aggregation = "ratio" or "biased"',
        )
        return "unbiased: the mean over all cohorts is the round of all clients"
    return f"{method.aggregation}, as it declares: the mean over all cohorts is off by {off:.2g}"


def _over_cohorts(method: Any, given: Any, exact: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shared sequences after one round of all clients, and their mean over all cohorts of two."""
    options = {"batch_size": None, "rounds": 1}
    everybody = _point(checked_run(method, given, sampling=All(), **options), exact)
    mean, scheme = np.zeros_like(everybody), Weighted(CHANCES)
    for absent, seed in _seeds(scheme).items():
        result = checked_run(method, given, sampling=scheme, seed=seed, **options)
        mean = mean + (1 - CHANCES[absent]) * _point(result, exact)
    return everybody, mean


def _point(result: Result, exact: Any) -> np.ndarray:
    return np.concatenate([flat(result.sequences[name]) for name in exact.problem.shared])


def _same(one: np.ndarray, other: np.ndarray, what: str) -> None:
    apart = float(np.abs(one - other).max())
    assert apart <= MARGIN * max(1.0, float(np.abs(one).max())), f"{what}: apart by {apart:.2g}"


def _seeds(scheme: Sampling) -> dict[int, int]:
    """The client that a run's first cohort leaves out -> a seed that does so."""
    found: dict[int, int] = {}
    seed = 0
    while len(found) < len(CHANCES):
        members = scheme.members(sampling_key(round_key(run_key(seed), 0)), len(CHANCES), np.float32)
        there = {int(i) for i, count in zip(members.index, members.count) if count > 0}
        (absent,) = set(range(len(CHANCES))) - there
        found.setdefault(absent, seed)
        seed += 1
    return found


def draws_and_counts(method: Any, exact: Any) -> str:
    """Against a run operation by operation: the ledger is the same, and each key is of one client in one round."""
    drawn: dict[bytes, tuple[int, int]] = {}

    def hear(client: Any, key: jax.Array) -> None:
        where = (int(client.round), int(client.index))
        other = drawn.setdefault(np.asarray(jax.random.key_data(key)).tobytes(), where)
        assert other == where, (
            f"client {where[1]} in round {where[0]} draws the same minibatch as client {other[1]} in round {other[0]}; "
            "derive the key from client.key"
        )

    method = with_lr(method, Rates(SMALL))
    with hearing_draws(hear):
        plain = checked_run(method, exact, rounds=2, engine=Eager(jit=False)).ledger
    compiled = checked_run(method, exact, rounds=2).ledger
    assert compiled.oracles == plain.oracles, f"the ledger counts {compiled.oracles}, but the run does {plain.oracles}"
    assert compiled == plain, "the ledger counts other exchanges or numbers than the run operation by operation"
    return f"{len(drawn)} keys of fresh draws; {plain.gradients} oracle calls on {plain.samples} samples in two rounds"
