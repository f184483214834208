"""The two-loop methods, those with local lower levels and FedMSA once more, in numpy: see references.py.

Here lower problems may be curved, so that every derivative depends on x and on y, and a round may draw something of its
own: a truncation index, or the clients that take local steps. Every possible draw is tried, as every cohort is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import references
import rookery as rk
from references import CHANCES, TOLERANCE, WEIGHTS, Bed, State, made, steps_of, unbiased
from rookery.algorithms.registry import METHODS
from rookery.engines.eager import Eager
from rookery.federation.client import Client
from rookery.federation.keys import round_key, run_key, server_key

# Problems.

_PARTS = {"x": slice(0, 2), "y": slice(2, 5), "v": slice(5, 8)}
X, Y, V = _PARTS.values()


@dataclass(frozen=True, eq=False)
class Nested(Bed):
    """E1, bent: g_i has (a'x + 0.1 |x|^2) |y|^2 / 2 + r sum(y^3) / 3 more, f_i has (b'x + 0.15 |x|^2) (h'y) more."""

    bends: tuple[dict[str, Any], ...] = ()

    def _bent(self, i: int, x: np.ndarray) -> float:
        return self.bends[i]["a"] @ x + self.bends[i]["k"] * x @ x

    def lower_grad(self, i: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        M, bend = self.matrices[i], self.bends[i]
        return M[Y, X] @ x + M[Y, Y] @ y + self.offsets[i][Y] + self._bent(i, x) * y + bend["r"] * y**2

    def hessian(self, i: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bend = self.bends[i]
        return self.matrices[i][Y, Y] + self._bent(i, x) * np.eye(3) + 2 * bend["r"] * np.diag(y)

    def cross(self, i: int, x: np.ndarray, y: np.ndarray, v: np.ndarray) -> np.ndarray:
        bend = self.bends[i]
        return self.matrices[i][Y, X].T @ v + (y @ v) * (bend["a"] + 2 * bend["k"] * x)

    def upper_grad_x(self, i: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bend = self.bends[i]
        linear = self.matrices[i][X, X] @ x + self.offsets[i][X]
        return linear + (bend["h"] @ y) * (bend["b"] + 0.3 * x) + bend["r"] * x**2

    def upper_grad_y(self, i: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bend = self.bends[i]
        return -self.matrices[i][V, Y] @ y - self.offsets[i][V] + (bend["b"] @ x + 0.15 * x @ x) * bend["h"]

    def hypergradient(self, i: int, x: np.ndarray, y: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.upper_grad_x(i, x, y) - self.cross(i, x, y, v)

    def direction(self, i: int, z: np.ndarray) -> np.ndarray:
        x, y, v = z[X], z[Y], z[V]
        adjoint = self.hessian(i, x, y) @ v - self.upper_grad_y(i, x, y)
        return np.concatenate([self.hypergradient(i, x, y, v), self.lower_grad(i, x, y), adjoint])


def _lower(x, y, e):
    quadratic = 0.5 * y @ e["A"] @ y - y @ (e["B"] @ x + e["c"])
    return quadratic + 0.5 * (e["a"] @ x + e["k"] * x @ x) * (y @ y) + e["r"] * jnp.sum(y**3) / 3


def _upper(x, y, e):
    own = 0.5 * y @ e["E"] @ y - e["Ed"] @ y + 0.5 * x @ e["R"] @ x - e["Re"] @ x
    return own + (e["b"] @ x + 0.15 * x @ x) * (e["h"] @ y) + e["r"] * jnp.sum(x**3) / 3


def _straight(clients: int = 3) -> tuple[dict[str, Any], ...]:
    return tuple({"a": np.zeros(2), "b": np.zeros(2), "h": np.zeros(3), "r": 0.0, "k": 0.0} for _ in range(clients))


def _curved(local: bool = False, seen_above: bool = True) -> Nested:
    """The bent problem, one example per client."""
    rng = np.random.default_rng(3)
    linear = references.bed_of("bilevel")
    bends, records = [], []
    matrices, offsets = linear.matrices.copy(), linear.offsets.copy()
    for M, o in zip(matrices, offsets):
        bend = {
            "a": 0.15 * rng.normal(size=2),
            "b": rng.normal(size=2),
            "h": rng.normal(size=3) * seen_above,
            "r": rng.uniform(0.1, 0.3),
            "k": 0.1,
        }
        M[V, Y] *= seen_above
        o[V] *= seen_above
        record = {"A": M[Y, Y], "B": -M[Y, X], "c": -o[Y], "E": -M[V, Y], "Ed": o[V], "R": M[X, X], "Re": -o[X]}
        bends.append(bend)
        records.append({key: np.asarray(value)[None] for key, value in (record | bend).items()})
    problem = rk.Bilevel(upper=_upper, lower=_lower, lower_scope="local" if local else "shared")
    return Nested(problem, rk.federate(records, WEIGHTS), matrices, offsets, _PARTS, bends=tuple(bends))


def _of_e1(name: str) -> Nested:
    """E1 itself, in pytrees of two leaves."""
    bed = references.bed_of(name)
    given = {f.name: getattr(bed, f.name) for f in dataclasses.fields(Bed)}
    assert bed.parts == _PARTS
    return Nested(**given, bends=_straight())


_BEDS: dict[str, Callable[[], Bed]] = {
    "curved": _curved,
    "curved and local": lambda: _curved(local=True),
    "y unseen above": lambda: _curved(local=True, seen_above=False),
    "E1": lambda: _of_e1("bilevel"),
    "E1 and local": lambda: _of_e1("local lower level"),
    "field": lambda: references.bed_of("field"),
    "minimax with sets": lambda: references.bed_of("minimax with sets"),
}


@cache
def bed_of(name: str) -> Any:
    return _BEDS[name]()


# Methods: (bed, state, cohort, what the round draws, options).

PUBLISHED = rk.Neumann(terms=10, step=0.1)  # the default estimator

Cohort = Mapping[int, float]


def rate(given: Any, name: str, at: int, steps: int = 1, scaled: bool = False) -> float:
    value = given[name](at) if callable(given[name]) else given[name]
    return value / steps if scaled else value


def rates_of(bed: Bed, given: Any, at: int, names: tuple[str, ...]) -> np.ndarray:
    """One number per entry of a point, 0 for sequences that do not move."""
    result = np.zeros(bed.offsets.shape[1])
    for name in names:
        result[bed.parts[name]] = rate(given, name, at)
    return result


def lower_round(bed: Nested, cohort: Cohort, x: Any, y: Any, beta: dict, tau: dict, solver: str) -> np.ndarray:
    """y after one lower round, from the clients' own points."""
    q = unbiased(bed, cohort, {i: bed.lower_grad(i, x, y) for i in cohort})
    ends = {}
    for i in cohort:
        y_i = y.copy()
        for _ in range(tau[i]):
            g = bed.lower_grad(i, x, y_i)
            y_i = y_i - beta[i] * (g if solver == "sgd" else g - bed.lower_grad(i, x, y) + q)
        ends[i] = y_i
    return y + unbiased(bed, cohort, {i: ends[i] - y for i in cohort})


def upper_round(bed: Nested, cohort: Cohort, x: Any, y: Any, h: Any, alpha: dict, tau: dict) -> np.ndarray:
    """x after the upper round."""
    ends = {}
    for i in cohort:
        x_i = x.copy()
        for _ in range(tau[i]):
            x_i = x_i - alpha[i] * (h - bed.upper_grad_x(i, x, y) + bed.upper_grad_x(i, x_i, y))
        ends[i] = x_i
    return x + unbiased(bed, cohort, {i: ends[i] - x for i in cohort})


@dataclass(frozen=True)
class TwoLoops:
    """The settings that the two-loop methods have in common, with their published defaults."""

    lr: Any
    neumann_step: float = 0.01
    neumann_terms: int = 5
    lower_rounds: int = 1
    lower_steps: Any = 1
    upper_steps: Any = 1
    lower_solver: str = "svrg"
    scaled_rates: bool = False

    def tau(self, cohort: Cohort, which: str) -> dict[int, int]:
        return {i: steps_of(self.lower_steps if which == "y" else self.upper_steps, i) for i in cohort}

    def rate(self, cohort: Cohort, which: str, at: int) -> dict[int, float]:
        tau = self.tau(cohort, which)
        return {i: rate(self.lr, which, at, tau[i], self.scaled_rates) for i in cohort}

    def lower(self, bed: Nested, state: State, cohort: Cohort, x: Any, y: Any) -> np.ndarray:
        beta = self.rate(cohort, "y", state["round"])
        return lower_round(bed, cohort, x, y, beta, self.tau(cohort, "y"), self.lower_solver)

    def upper(self, bed: Nested, state: State, cohort: Cohort, x: Any, y: Any, p: Any) -> np.ndarray:
        h = unbiased(bed, cohort, {i: bed.hypergradient(i, x, y, p) for i in cohort})
        return upper_round(bed, cohort, x, y, h, self.rate(cohort, "x", state["round"]), self.tau(cohort, "x"))


def _after(state: State, *parts: np.ndarray) -> State:
    return {**state, "z": np.concatenate(parts), "round": state["round"] + 1}


def fednest(bed: Nested, state: State, cohort: Cohort, index: int, **options: Any) -> State:
    """p = lambda T prod over T' of (I - lambda M(H_i)) applied to M(grad_y f_i)."""
    its = TwoLoops(**options)
    x, y = state["z"][X], state["z"][Y]
    for _ in range(its.lower_rounds):
        y = its.lower(bed, state, cohort, x, y)
    H = unbiased(bed, cohort, {i: bed.hessian(i, x, y) for i in cohort})
    b = unbiased(bed, cohort, {i: bed.upper_grad_y(i, x, y) for i in cohort})
    shrink = np.linalg.matrix_power(np.eye(3) - its.neumann_step * H, index)
    p = its.neumann_step * its.neumann_terms * shrink @ b
    return _after(state, its.upper(bed, state, cohort, x, y, p), y, p)


def lfednest(
    bed: Nested, state: State, cohort: Cohort, index: int, whole_series: bool = False, **options: Any
) -> State:
    """The same with each client's own Hessian, at each of its points x_i; or the sum of all terms."""
    its = TwoLoops(**options)
    x, y = state["z"][X], state["z"][Y]
    for _ in range(its.lower_rounds):
        y = its.lower(bed, state, cohort, x, y)
    alpha, tau = its.rate(cohort, "x", state["round"]), its.tau(cohort, "x")
    ends = {}
    for i in cohort:
        x_i = x
        for _ in range(tau[i]):
            factor, T = np.eye(3) - its.neumann_step * bed.hessian(i, x_i, y), its.neumann_terms
            powers = [np.linalg.matrix_power(factor, k) for k in range(T)]
            shrink = sum(powers) if whole_series else T * powers[index]
            p = its.neumann_step * shrink @ bed.upper_grad_y(i, x_i, y)
            x_i = x_i - alpha[i] * bed.hypergradient(i, x_i, y, p)
        ends[i] = x_i
    moved = unbiased(bed, cohort, {i: ends[i] - x for i in cohort})
    return _after(state, x + moved, y, state["z"][V])


def aggitd(bed: Nested, state: State, cohort: Cohort, index: int, **options: Any) -> State:
    """p = lambda (N + 1) (I - lambda H(y^N)) ... (I - lambda H(y^{Q+1})) M(grad_y f_i(x, y^Q))."""
    its = TwoLoops(**options)
    x, path = state["z"][X], [state["z"][Y]]
    for _ in range(its.lower_rounds):
        path.append(its.lower(bed, state, cohort, x, path[-1]))
    z = unbiased(bed, cohort, {i: bed.upper_grad_y(i, x, path[index]) for i in cohort})
    for y in path[index + 1 :]:
        z = z - its.neumann_step * unbiased(bed, cohort, {i: bed.hessian(i, x, y) @ z for i in cohort})
    p = its.neumann_step * (its.lower_rounds + 1) * z
    return _after(state, its.upper(bed, state, cohort, x, path[-1], p), path[-1], p)


def commfedbio(
    bed: Nested,
    state: State,
    cohort: Cohort,
    seed: int,
    lr: Any,
    form: str = "iterative",
    adjoint_rounds: int = 5,
    sketch: int = 10,
    lower_rounds: int = 1,
    lower_steps: Any = 1,
) -> State:
    """v by T steps with M(H_i) and M(grad_y f_i), or by the sketched system with S1 and S2 written out."""
    x, y, v, r = state["z"][X], state["z"][Y], state["z"][V], state["round"]
    tau, beta = {i: steps_of(lower_steps, i) for i in cohort}, dict.fromkeys(cohort, rate(lr, "y", r))
    for _ in range(lower_rounds):
        y = lower_round(bed, cohort, x, y, beta, tau, "sgd")
    H = unbiased(bed, cohort, {i: bed.hessian(i, x, y) for i in cohort})
    b = unbiased(bed, cohort, {i: bed.upper_grad_y(i, x, y) for i in cohort})
    if form == "sketched":
        S1, S2 = count_sketches(seed, r, sketch, b.size)
        v = S1.T @ np.linalg.lstsq(S2 @ H @ S1.T, S2 @ b, rcond=None)[0]
    else:
        for _ in range(adjoint_rounds):
            v = v - rate(lr, "v", r) * (H @ v - b)
    h = unbiased(bed, cohort, {i: bed.hypergradient(i, x, y, v) for i in cohort})
    return _after(state, x - rate(lr, "x", r) * h, y, v)


def count_sketches(seed: int, round: int, rows: int, size: int) -> list[np.ndarray]:
    """S1 and S2 of a round, of `rows` and of twice as many: one bit is the sign of an entry, the others its row."""
    both = jax.random.split(server_key(round_key(run_key(seed), round)))
    made = []
    for key, count in zip(both, (rows, 2 * rows)):
        drawn = np.asarray(jax.random.bits(key, (1, size), jnp.uint32))[0]
        S = np.zeros((count, size))
        S[(drawn // 2) % count, np.arange(size)] = 1.0 - 2.0 * (drawn % 2)
        made.append(S)
    return made


def fedmsa(
    bed: Bed,
    state: State,
    cohort: Cohort,
    chosen: tuple[int, ...],
    lr: Any,
    local_steps: int = 1,
    momentum: float = 1.0,
    local_clients: int = 1,
) -> State:
    """Momentum over the cohort, SPIDER steps at the chosen; in the first round rho = 1, K = 1."""
    first = state["round"] == 0
    rho, K = (1.0, 1) if first else (momentum, local_steps)
    z, eta = state["z"], rates_of(bed, lr, state["round"], tuple(bed.parts))
    D = bed.direction
    if first:
        d = unbiased(bed, cohort, {i: D(i, z) for i in cohort})
    else:
        kept = lambda i: (1 - rho) * (state["d"] - D(i, state["previous"]))
        d = unbiased(bed, cohort, {i: D(i, z) + kept(i) for i in cohort})
    ends = {}
    for i in chosen:
        points, d_k = [z, z], d
        for _ in range(K):
            d_k = D(i, points[-1]) + d_k - D(i, points[-2])
            points.append(points[-1] - eta * d_k)
        ends[i] = points[-1]
    share = len(chosen) / len(cohort)
    moved = unbiased(bed, {i: cohort[i] * share for i in chosen}, {i: ends[i] - z for i in chosen})
    new = bed.project(z + moved, bed.problem.shared)
    return {**state, "z": new, "round": state["round"] + 1, "previous": z, "d": d}


def adjoint(bed: Nested, i: int, z: np.ndarray, estimator: Any) -> np.ndarray:
    """v of an estimator: the series term by term, or the best point of the Krylov space."""
    H, b = bed.hessian(i, z[X], z[Y]), bed.upper_grad_y(i, z[X], z[Y])
    if type(estimator).__name__ == "Neumann":
        s = estimator.step
        return s * sum(np.linalg.matrix_power(np.eye(3) - s * H, k) @ b for k in range(estimator.terms))
    if type(estimator).__name__ == "Tracked":
        return z[V]
    if not b.any():
        return b
    size = min(estimator.iterations, 3)
    K, _ = np.linalg.qr(np.stack([np.linalg.matrix_power(H, k) @ b for k in range(size)], axis=1))
    return K @ np.linalg.solve(K.T @ H @ K, K.T @ b)


def own_field(bed: Nested, i: int, z: np.ndarray, estimator: Any) -> np.ndarray:
    """F_i(z), 0 for a v that is not tracked."""
    tracked = bed.direction(i, z)[V] if type(estimator).__name__ == "Tracked" else np.zeros(3)
    v = adjoint(bed, i, z, estimator)
    return np.concatenate([bed.hypergradient(i, z[X], z[Y], v), bed.lower_grad(i, z[X], z[Y]), tracked])


def names_of(estimator: Any) -> tuple[str, ...]:
    return ("x", "y", "v") if type(estimator).__name__ == "Tracked" else ("x", "y")


def fedbio_local(
    bed: Nested,
    state: State,
    cohort: Cohort,
    _: None,
    lr: Any,
    local_steps: Any = 1,
    hypergradient: Any = PUBLISHED,
) -> State:
    """tau_i simultaneous steps on x_i and the client's own; x <- x + M(x_i - x)."""
    eta = rates_of(bed, lr, state["round"], names_of(hypergradient))
    own = state["own"].copy()
    for i in cohort:
        z = np.where(bed.shared, state["z"], own[i])
        for _step in range(steps_of(local_steps, i)):
            z = z - eta * own_field(bed, i, z, hypergradient)
        own[i] = z
    moved = unbiased(bed, cohort, {i: own[i] - state["z"] for i in cohort})
    return {**state, "z": state["z"] + moved, "own": own, "round": state["round"] + 1}


def fedbioacc_local(
    bed: Nested,
    state: State,
    cohort: Cohort,
    _: None,
    lr: Any,
    local_steps: int = 1,
    momentum: Any = None,
    delta: float = 1.0,
    offset: float = 1.0,
    hypergradient: Any = PUBLISHED,
) -> State:
    """STORM momenta; that of x is the server's from the second round on, the others are the client's."""
    names, r = names_of(hypergradient), state["round"]
    eta = rates_of(bed, lr, r, names)
    c = rates_of(bed, rk.Rates(1.0) if momentum is None else momentum, r, names)
    F = lambda i, z: own_field(bed, i, z, hypergradient)
    alpha = [delta / (offset + r * local_steps + k + 1) ** (1 / 3) for k in range(local_steps)]
    own, momenta = state["own"].copy(), dict(state.get("momenta", {}))
    old = {}
    for i in cohort:
        z = np.where(bed.shared, state["z"], own[i])
        m = momenta.get(i, F(i, z))
        if r > 0:
            m = np.where(bed.shared, state["m"], m)
        for a in alpha[:-1]:
            new = z - eta * a * m
            m = F(i, new) + (1 - c * a**2) * (m - F(i, z))
            z = new
        old[i], momenta[i] = z, m
        own[i] = z - eta * alpha[-1] * m
    z = state["z"] + unbiased(bed, cohort, {i: own[i] - state["z"] for i in cohort})
    for i in cohort:
        new = np.where(bed.shared, z, own[i])
        momenta[i] = F(i, new) + (1 - c * alpha[-1] ** 2) * (momenta[i] - F(i, old[i]))
    m = unbiased(bed, cohort, {i: momenta[i] for i in cohort})
    return {**state, "z": z, "own": own, "round": r + 1, "momenta": momenta, "m": m}


REFERENCES: dict[str, Callable[..., State]] = {
    "fednest": fednest,
    "lfednest": lfednest,
    "aggitd": aggitd,
    "commfedbio": commfedbio,
    "fedmsa": fedmsa,
    "fedbiolocal": fedbio_local,
    "fedbioacclocal": fedbioacc_local,
    "fedbioacc": partial(fedbioacc_local, hypergradient=rk.Tracked()),  # with local sequences
}


# Settings, and the judgement.


@dataclass(frozen=True)
class Setting:
    """A method with some options on some problem; `probabilities` samples cohorts of two clients with these pi_i."""

    name: str
    method: str
    bed: str = "curved"
    options: dict[str, Any] = field(default_factory=dict)
    probabilities: tuple[float, ...] | None = None
    rounds: int = 2


def label(setting: Setting) -> str:
    return f"{setting.method}: {setting.name}".replace(" ", "-")


FALLING = rk.Rates(x=lambda r: 0.3 / (1 + r), y=lambda r: 0.1 * (1 + r))
PLAIN = rk.Rates(x=0.2, y=0.15)
LOWER, UPPER = rk.FixedSteps([2, 1, 3]), rk.FixedSteps([3, 2, 1])
NEST = {"lr": FALLING, "neumann_step": 0.15, "lower_rounds": 2, "lower_steps": LOWER, "upper_steps": UPPER}


def _two_loops(method: str) -> list[Setting]:
    terms = {} if method == "aggitd" else {"neumann_terms": 3}
    make = lambda name, bed="curved", **changes: Setting(name, method, bed, NEST | terms | changes)
    return [
        dataclasses.replace(make("everything", scaled_rates=True), probabilities=CHANCES),
        make("unequal steps"),
        dataclasses.replace(make("sgd", lower_solver="sgd"), probabilities=CHANCES),
        Setting("defaults", method, options={"lr": PLAIN}),
        make("E1", "E1", lr=PLAIN),
        make("E1 sgd", "E1", lower_solver="sgd", scaled_rates=True),
    ]


SERIES, GRADIENTS, TRACKED = rk.Neumann(4, 0.15), rk.ConjugateGradient(2), rk.Tracked()
THREE = rk.Rates(x=lambda r: 0.2 / (1 + r), y=0.15, v=lambda r: 0.1 * (1 + r))
STORM = {"momentum": rk.Rates(0.9, y=lambda r: 0.4 + 0.1 * r), "delta": 0.8, "offset": 1.7}


def _own_lower(method: str) -> list[Setting]:
    place, acc = "curved and local", method == "fedbioacclocal"
    steps = 3 if acc else rk.FixedSteps([1, 2, 3])
    more = STORM if acc else {}
    make = lambda name, estimator, bed=place, **changes: Setting(
        name, method, bed, {"lr": FALLING, "local_steps": steps, "hypergradient": estimator} | more | changes
    )
    of_estimators = [  # which one method can judge for both
        make("many conjugate gradients", rk.ConjugateGradient(5), "E1 and local"),
        Setting("default series", method, place, {"lr": PLAIN, "hypergradient": rk.Neumann(), "local_steps": 2}),
        Setting("default gradients", method, place, {"lr": PLAIN, "hypergradient": rk.ConjugateGradient()}),
    ]
    return [
        dataclasses.replace(make("series", SERIES), probabilities=CHANCES, rounds=3),
        make("conjugate gradients", GRADIENTS),
        dataclasses.replace(make("tracked", TRACKED, lr=THREE), probabilities=CHANCES, rounds=3),
        Setting("defaults", method, place, {"lr": PLAIN}),
        *(make(f"I={count}", TRACKED, "E1 and local", lr=THREE, local_steps=count) for count in (1, 2)),
        make("one term", rk.Neumann(1, 0.2)),
        make("y unseen above", GRADIENTS, "y unseen above"),
        *([] if acc else of_estimators),
    ]


def _comm() -> list[Setting]:
    options = {"lr": THREE, "adjoint_rounds": 3, "lower_rounds": 2, "lower_steps": LOWER}
    make = lambda name, bed="curved", **changes: Setting(name, "commfedbio", bed, options | changes)
    sketched = {"form": "sketched", "sketch": 3, "adjoint_rounds": 1}
    sketched["lr"] = rk.Rates(**{name: rate for name, rate in THREE.entries().items() if name != "v"})
    return [
        dataclasses.replace(make("everything"), probabilities=CHANCES, rounds=3),
        dataclasses.replace(make("sketched", **sketched), probabilities=CHANCES),
        Setting("defaults", "commfedbio", options={"lr": rk.Rates(0.15)}),
        Setting("default sketch", "commfedbio", options={"lr": rk.Rates(0.15), "form": "sketched"}),
        make("E1", "E1"),
        make("E1 sketched", "E1", **sketched),
    ]


_MSA = {"lr": rk.Rates(lambda r: 0.1 / (1 + r), v=lambda r: 0.05 * (1 + r)), "local_steps": 3, "momentum": 0.6}

SETTINGS = [
    *_two_loops("fednest"),
    *_two_loops("lfednest"),
    Setting(
        "whole series",
        "lfednest",
        options={"lr": rk.Rates(x=0.1, y=0.2), "neumann_step": 0.15, "neumann_terms": 4, "upper_steps": 2}
        | {"lower_solver": "sgd", "lower_steps": 3, "whole_series": True},
        probabilities=CHANCES,
    ),
    *_two_loops("aggitd"),
    *_comm(),
    Setting("rho = 0", "fedmsa", "field", _MSA | {"momentum": 0.0}, CHANCES, rounds=3),
    Setting("everything", "fedmsa", "field", _MSA, CHANCES, rounds=3),
    Setting("all take steps", "fedmsa", "field", _MSA | {"local_clients": 3}, rounds=3),
    Setting("defaults", "fedmsa", "field", {"lr": references.LR}, rounds=3),
    Setting("K=1", "fedmsa", "field", _MSA | {"local_clients": 2, "local_steps": 1}, rounds=3),
    Setting("curved", "fedmsa", "curved", _MSA | {"local_clients": 2}, rounds=3),
    Setting("minimax with sets", "fedmsa", "minimax with sets", _MSA | {"lr": references.TWO}, rounds=3),
    *_own_lower("fedbiolocal"),
    *_own_lower("fedbioacclocal"),
    *(
        Setting(
            f"local I={steps}", "fedbioacc", "curved and local", {"lr": THREE, "local_steps": steps} | STORM, CHANCES, 3
        )
        for steps in (1, 3)
    ),
]


def draws(setting: Setting, cohort: Cohort) -> list[Any]:
    """What a round of the method may draw."""
    options = setting.options
    if options.get("whole_series"):
        return [0]
    if setting.method in ("fednest", "lfednest"):
        return list(range(options.get("neumann_terms", 5)))
    if setting.method == "aggitd":
        return list(range(options.get("lower_rounds", 1) + 1))
    if setting.method == "fedmsa":
        return list(itertools.combinations(cohort, min(options.get("local_clients", 1), len(cohort))))
    if setting.method == "commfedbio":
        return [SEEDS.get(setting.method, SEED)]  # what its sketches are drawn with
    return [None]


def cohorts(setting: Setting) -> list[dict[int, float]]:
    population = bed_of(setting.bed).population
    if setting.probabilities is None:
        return [dict.fromkeys(range(population), 1.0)]
    return [{i: setting.probabilities[i] for i in two} for two in itertools.combinations(range(population), 2)]


@cache
def outcomes(name: str) -> tuple[State, ...]:
    """Where a reference may end: one state for every sequence of cohorts and draws."""
    setting = next(s for s in SETTINGS if label(s) == name)
    bed = bed_of(setting.bed)
    z = bed.start()
    ends: list[State] = [{"z": z, "own": np.tile(z, (bed.population, 1)), "round": 0}]
    for _ in range(setting.rounds):
        ends = [
            REFERENCES[setting.method](bed, state, cohort, draw, **setting.options)
            | {"drawn": (*state.get("drawn", ()), draw)}
            for state in ends
            for cohort in cohorts(setting)
            for draw in draws(setting, cohort)
        ]
    return tuple(ends)


# Seeds whose first two truncation indices have something to do: test_engines_draw_the_same says which they are.
SEEDS = {"fednest": 2, "lfednest": 2, "aggitd": 0}
SEED = 3  # of the others


def nearest(setting: Setting, cls: type | None = None, engine: Any = "local") -> tuple[int, float]:
    """The outcome that the library's run is nearest to, and how near."""
    bed = bed_of(setting.bed)
    method = made(setting.method, cls, setting.options)
    sampling = None if setting.probabilities is None else rk.Weighted(setting.probabilities)
    result = bed.run(method, setting.rounds, sampling=sampling, seed=SEEDS.get(setting.method, SEED), engine=engine)
    gaps = [references.gap(bed, state, result) for state in outcomes(label(setting))]
    return int(np.argmin(gaps)), float(np.min(gaps))


def agrees(setting: Setting, cls: type | None = None, engine: Any = "local") -> None:
    """The library's run ends where the reference does for one sequence of cohorts and draws."""
    _, gap = nearest(setting, cls, engine)
    assert gap <= TOLERANCE, f"{label(setting)}: {gap:.3g} from the nearest reference"


# What no full batch shows: which samples a method takes. Every oracle call of one client is written down, with a number
# for its sample: the same number is the same draw.

_CALLS = {"lower_grad": "g", "hvp": "h", "cross": "c", "upper_grad_x": "x", "upper_grad_y": "y", "direction": "d"}


@contextlib.contextmanager
def listening(heard: list[tuple[str, bytes]]) -> Iterator[None]:
    """Inside the block every client's oracle calls are heard; phases must not be compiled."""
    kept = {name: getattr(Client, name) for name in _CALLS}

    def heard_by(name: str) -> Callable[..., Any]:
        levels = {"x": ("upper",), "y": ("upper",), "d": ("lower", "upper")}.get(_CALLS[name], ("lower",))

        def call(self: Client, *arguments: Any) -> Any:
            index = arguments[-1].index
            heard.append((_CALLS[name], b"".join(np.asarray(index[level]).tobytes() for level in levels)))
            return kept[name](self, *arguments)

        return call

    try:
        for name in _CALLS:
            setattr(Client, name, heard_by(name))
        yield
    finally:
        for name, original in kept.items():
            setattr(Client, name, original)


@contextlib.contextmanager
def ranges_of_draws(ranges: list[tuple[int, int]]) -> Iterator[None]:
    """Inside the block the bounds of every single whole number that is drawn are written down."""
    original = jax.random.randint

    def draw(key: Any, shape: tuple, low: Any, high: Any, **options: Any) -> jax.Array:
        if shape == ():
            ranges.append((int(low), int(high)))
        return original(key, shape, low, high, **options)

    jax.random.randint = draw
    try:
        yield
    finally:
        jax.random.randint = original


def numbered(heard: list[tuple[str, bytes]]) -> str:
    """The calls in order, samples numbered as they come: "g0 g1 g1"."""
    numbers: dict[bytes, int] = {}
    return " ".join(f"{letter}{numbers.setdefault(sample, len(numbers))}" for letter, sample in heard)


def renumbered(calls: str) -> str:
    """The same with names of samples in place of numbers: "ga gb gb"."""
    return numbered([(call[0], call[1:].encode()) for call in calls.split()])


def _scalar_lower(x, y, e):
    return 0.5 * e["s"] * y * y - x * y


def _scalar_upper(x, y, e):
    return 0.5 * e["s"] * x * x + x * y


@cache
def _many_examples(local: bool) -> tuple[Any, rk.Clients]:
    data = {"s": np.random.default_rng(5).uniform(0.5, 1.5, 40)}
    problem = rk.Bilevel(_scalar_upper, _scalar_lower, lower_scope="local" if local else "shared")
    return problem, rk.federate([data])


_BATCH = 12


def calls_of(method: Any, rounds: int, local: bool) -> tuple[str, list[tuple[int, int]]]:
    """The calls of a run; the ledger counts every sample once."""
    problem, clients = _many_examples(local)
    heard: list[tuple[str, bytes]] = []
    ranges: list[tuple[int, int]] = []
    with listening(heard), ranges_of_draws(ranges):
        result = rk.run(
            problem, method, clients, x=0.4, y=0.3, rounds=rounds, batch_size=_BATCH, engine=Eager(jit=False), seed=1
        )
    drawn = sum(2 if letter == "d" else 1 for letter in {sample: letter for letter, sample in heard}.values())
    counted = result.ledger.oracles["samples"] / _BATCH
    assert counted == drawn, f"{counted} samples for {drawn}"
    return numbered(heard), ranges


@dataclass(frozen=True)
class Listened:
    """A method's calls in some rounds: one of these, in which equal letters after an oracle's are the same sample."""

    method: str
    options: dict[str, Any]
    calls: tuple[str, ...]
    rounds: int = 1
    local: bool = False
    index: int = 0  # how many values its random index may have; 0, it has none


_TWO = {"lr": rk.Rates(0.1), "lower_steps": 2, "upper_steps": 2}
_COMM = {"lr": rk.Rates(0.1), "lower_steps": 2}
_SVRG, _SGD, _UPPER, _SAME = "gp gp gq gq", "gp gq", "xm xm xn xn", "xe xe xe xe"
_FACTORS = ("", "h1", "h1 h2", "h1 h2 h3")

_DEEP = 2  # lower rounds, so many that a gradient and a Hessian product meet in one exchange


def _deep(q: int) -> str:
    """AggITD's calls with its index at q."""
    rounds = [
        f"ga{t} {f'yb{t}' if t == q else f'hc{t}' if t > q else ''} gp{t} gp{t} gq{t} gq{t}" for t in range(_DEEP)
    ]
    return f"{' '.join(rounds)} {'yb' if q == _DEEP else 'hc'} xe cf {_UPPER}"


LISTENED = [
    Listened("fednest", _TWO | {"neumann_terms": 2}, (f"ga {_SVRG} yb hc hd xe cf {_SAME}",), index=2),
    Listened(
        "fednest", _TWO | {"neumann_terms": 2, "lower_solver": "sgd"}, (f"{_SGD} yb hc hd xe cf {_SAME}",), index=2
    ),
    Listened("aggitd", _TWO, (f"ga yb {_SVRG} hc xe cf {_UPPER}", f"ga {_SVRG} yb xe cf {_UPPER}"), index=2),
    Listened("aggitd", _TWO | {"lower_rounds": _DEEP}, tuple(_deep(q) for q in range(_DEEP + 1)), index=_DEEP + 1),
    Listened(
        "aggitd",
        _TWO | {"lower_solver": "sgd"},
        (f"{_SGD} yb hc xe cf {_UPPER}", f"{_SGD} yb xe cf {_UPPER}"),
        index=2,
    ),
    Listened(
        "lfednest",
        _TWO | {"neumann_terms": 4},
        tuple(
            f"ga {_SVRG} yu {factors} xu cv yw {factors.replace('h', 'hh')} xw cz" for factors in _FACTORS[1:]
        ),  # some, at this seed
        index=4,
    ),
    Listened(
        "lfednest",
        _TWO | {"neumann_terms": 3, "whole_series": True, "lower_solver": "sgd"},
        (f"{_SGD} yu h1 h2 xu cv yw h3 h4 xw cz",),
    ),
    Listened("commfedbio", _COMM | {"adjoint_rounds": 2}, (f"{_SGD} ha yb hc yd xe cf",)),
    Listened("commfedbio", _COMM | {"form": "sketched", "sketch": 3}, (f"{_SGD} ha ha ha yb xe cf",)),
    Listened("fedmsa", {"lr": rk.Rates(0.1), "local_steps": 3, "momentum": 0.5}, ("da da db db dc dc dd dd",), 2),
    *(
        Listened("fedbiolocal", {"lr": rk.Rates(0.1), "local_steps": 2, "hypergradient": estimator}, (calls,), 1, True)
        for estimator, calls in (
            (rk.Neumann(3, 0.1), "ya h1 h2 xa ck gk yb h3 h4 xb cl gl"),
            (rk.ConjugateGradient(2), "ya hk hk xa ck gk yb hl hl xb cl gl"),
            (rk.Tracked(), "da db"),
        )
    ),
    Listened(
        "fedbioacc",
        {"lr": rk.Rates(0.1), "local_steps": 3},
        ("da db db dc dc dd dd de de df df dg dg",),
        2,
        True,
    ),
    Listened(
        "fedbioacclocal",
        {"lr": rk.Rates(0.1), "local_steps": 3, "hypergradient": rk.Tracked()},
        ("da db db dc dc dd dd de de df df dg dg",),
        2,
        True,
    ),
    Listened(
        "fedbioacclocal",
        {"lr": rk.Rates(0.1), "local_steps": 2, "hypergradient": rk.Neumann(2, 0.1)},
        ("ya h1 xa ck gk yb yb h2 h2 xb cl gl xb cl gl yc yc h3 h3 xc cm gm xc cm gm",),
        1,
        True,
    ),
]


def samples_are_as_said(listened: Listened, cls: type | None = None) -> None:
    """Fresh where fresh ones are due, the same where both terms need the same; indices drawn from their range."""
    method = made(listened.method, cls, listened.options)
    calls, ranges = calls_of(method, listened.rounds, listened.local)
    assert ranges == ([(0, listened.index)] if listened.index else []), f"{listened.method}: drawn from {ranges}"
    assert calls in {renumbered(expected) for expected in listened.calls}, f"{listened.method}: {calls}"


def first_round_is_short(cls: type | None = None) -> None:
    """FedMSA's first round draws one sample (of both levels): its one step is along d itself."""
    problem, clients = _many_examples(False)
    method = (cls or METHODS["fedmsa"].method)(lr=rk.Rates(0.1), local_steps=3, momentum=0.5)
    result = rk.run(problem, method, clients, x=0.4, y=0.3, rounds=1, batch_size=_BATCH, engine="eager")
    assert result.ledger.oracles["samples"] == 2 * _BATCH


def first_batch_is_taken_once(name: str, cls: type | None = None) -> None:
    """On local sequences `first_batch` is the size of the first momentum's draws; the others are of the run's size."""
    problem, clients = _many_examples(True)
    options = {"local_steps": 2, "hypergradient": rk.Tracked()} if name == "fedbioacclocal" else {"local_steps": 2}
    options["lr"] = rk.Rates(0.1)
    for first, drawn in ((7, 7), (None, _BATCH)):
        method = made(name, cls, options | {"first_batch": first})
        result = rk.run(problem, method, clients, x=0.4, y=0.3, rounds=3, batch_size=_BATCH, engine="eager")
        assert result.ledger.oracles["samples"] == 2 * (drawn + 3 * 2 * _BATCH)


@rk.struct
class Unsized(rk.Tracked):
    """An estimator whose `fields` takes no size."""

    def fields(self, client: Client, points: Any, key: Any) -> list[rk.Sequences]:  # type: ignore[override]
        return rk.Tracked.fields(self, client, points, key)


def estimators_need_no_size(cls: type | None = None) -> None:
    """An estimator of the user's own, without a size, gives what it gives with one."""
    problem, clients = _many_examples(True)
    cls = cls or METHODS["fedbioacclocal"].method
    methods = [cls(lr=rk.Rates(0.1), local_steps=2, hypergradient=each) for each in (rk.Tracked(), Unsized())]
    ends = [rk.run(problem, method, clients, x=0.4, y=0.3, rounds=2, engine="eager") for method in methods]
    assert float(ends[0].x) == float(ends[1].x)


def visits_are_counted(name: str, cls: type | None = None) -> None:
    """A client's state says how many rounds the client took part in."""
    bed, rounds = bed_of("curved and local"), 3
    result = bed.run(made(name, cls, {"lr": rk.Rates(0.1)}), rounds, sampling=rk.Uniform(2), seed=SEED, engine="eager")
    visits = np.asarray(result.state.leaves[-1])
    assert visits.sum() == 2 * rounds and visits.min() >= 0, visits


def sampling_checks(name: str) -> list[Callable[..., None]]:
    """The checks of a method's samples, each a function of a class."""
    heard = [
        lambda cls=None, listened=listened: samples_are_as_said(listened, cls)
        for listened in LISTENED
        if listened.method == name
    ]
    more: list[Callable[..., None]] = []
    if name == "fedmsa":
        more = [first_round_is_short]
    if name in ("fedbioacc", "fedbioacclocal"):
        more = [partial(first_batch_is_taken_once, name), partial(visits_are_counted, name)]
    if name == "fedbioacclocal":
        more.append(estimators_need_no_size)
    return [*heard, *more]
