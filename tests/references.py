"""Every method once more, in numpy, from its formulas: the judges of trajectories. Imports rookery to build problems.

The direction fields here are linear, D_i(z) = M_i z + b_i over one flat point z, so a reference needs no derivatives.
The methods' functions move the clients' points themselves, step by step as the formulas are printed; the library
carries sums instead. Mutation tests call `agrees` with other classes in a method's place.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import jax
import numpy as np
import optax

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.problems.exact import QuadraticBilevel

TOLERANCE = 1e-12


# Problems: the library's, and the same in closed form.


@dataclass(frozen=True, eq=False)
class Bed:
    """Clients with linear direction fields, for the library and for a reference.

    parts: where each sequence lies in the flat point; its order is the problem's.
    sets: the projections of the sequences that have one.
    leaves: 2 splits every sequence into a pytree of two leaves.
    """

    problem: Any
    clients: rk.Clients
    matrices: np.ndarray
    offsets: np.ndarray
    parts: dict[str, slice]
    sets: dict[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)
    leaves: int = 1

    @property
    def population(self) -> int:
        return len(self.matrices)

    @property
    def weights(self) -> np.ndarray:
        return self.clients.weights

    @property
    def shared(self) -> np.ndarray:
        """Which entries of a point are shared."""
        mask = np.zeros(self.offsets.shape[1], bool)
        for name in self.problem.shared:
            mask[self.parts[name]] = True
        return mask

    def direction(self, i: int, z: np.ndarray) -> np.ndarray:
        return self.matrices[i] @ z + self.offsets[i]

    def project(self, z: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
        """z with those of the named sequences that have a set put into it."""
        z = z.copy()
        for name in names:
            if name in self.sets:
                z[self.parts[name]] = self.sets[name](z[self.parts[name]])
        return z

    def start(self) -> np.ndarray:
        """A point of no meaning, in the sets."""
        z = np.random.default_rng(7).uniform(0.2, 1.0, self.offsets.shape[1])
        return self.project(z, tuple(self.parts))

    def tree(self, vector: np.ndarray) -> Any:
        half = (vector.size + 1) // 2
        return {"a": vector[:half], "b": vector[half:]} if self.leaves == 2 else vector

    def run(self, method: Any, rounds: int, **options: Any) -> rk.Result:
        """The library's run from the same start."""
        z = self.start()
        start = {name: self.tree(z[part]) for name, part in self.parts.items()}
        return rk.run(
            self.problem, method, self.clients, rounds=rounds, every=rounds, start=start, precision="float64", **options
        )


def _parts(**sizes: int) -> dict[str, slice]:
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends)}


def _bilevel(clients: int = 3, local: bool = False) -> Bed:
    """E1: D.x = R(x - e) + B'v, D.y = A y - B x - c, D.v = A v - E(y - d)."""
    exact = QuadraticBilevel.random(clients=clients, dims=(2, 3), weights="random", seed=1, local=local)
    dx, dy = exact.dims
    matrices, offsets = [], []
    for record in exact.records:
        A, B, c, E, R = (record[key].mean(axis=0) for key in "ABcER")
        Ed = np.mean([E @ d for E, d in zip(record["E"], record["d"])], axis=0)
        Re = np.mean([R @ e for R, e in zip(record["R"], record["e"])], axis=0)
        none = np.zeros((dy, dy))
        matrices.append(np.block([[R, np.zeros((dx, dy)), B.T], [-B, A, none], [np.zeros((dy, dx)), -E, A]]))
        offsets.append(np.concatenate([-Re, -c, Ed]))
    return Bed(exact.problem, exact.clients, np.stack(matrices), np.stack(offsets), _parts(x=dx, y=dy, v=dy), leaves=2)


def _affine(z, e):
    """D = M z + b, part by part."""
    point = jax.numpy.concatenate([z.x, z.y, z.v])
    moved = e["M"] @ point + e["b"]
    dx, dy = z.x.size, z.y.size
    return {"x": moved[:dx], "y": moved[dx : dx + dy], "v": moved[dx + dy :]}


def _field() -> Bed:
    """E1 given by its direction field in closed form: nothing to differentiate, so it compiles fastest."""
    exact = bed_of("bilevel")
    records = [{"M": M[None], "b": b[None]} for M, b in zip(exact.matrices, exact.offsets)]
    problem = rk.Field(_affine, sequences=["x", "y", "v"])
    return Bed(problem, rk.federate(records, exact.weights), exact.matrices, exact.offsets, exact.parts)


def _saddle_loss(x, y, e):
    """F = 1/2 x'P x + x'Q y - 1/2 y'S y + r'x + s'y."""
    return 0.5 * x @ e["P"] @ x + x @ e["Q"] @ y - 0.5 * y @ e["S"] @ y + e["r"] @ x + e["s"] @ y


def _joint_loss(x, y, e):
    """f = 1/2 x'P x + x'Q y + 1/2 y'S y + r'x + s'y."""
    return 0.5 * x @ e["P"] @ x + x @ e["Q"] @ y + 0.5 * y @ e["S"] @ y + e["r"] @ x + e["s"] @ y


def _records(dx: int, dy: int, clients: int = 3) -> list[dict]:
    rng = np.random.default_rng(11)
    spread = lambda dim: np.diag(rng.uniform(1.0, 2.0, dim))[None]
    return [
        {
            "P": spread(dx),
            "S": spread(dy),
            "Q": rng.normal(size=(1, dx, dy)) / 2,
            "r": 2 * rng.normal(size=(1, dx)),
            "s": 2 * rng.normal(size=(1, dy)),
        }
        for _ in range(clients)
    ]


WEIGHTS = np.array([0.5, 0.2, 0.3])


def _single_loss(x, e):
    """f = 1/2 x'P x + r'x."""
    return 0.5 * x @ e["P"] @ x + e["r"] @ x


def _single(bounded: bool = False) -> Bed:
    """One level: D.x = P x + r."""
    records = [{"P": record["P"], "r": record["r"]} for record in _records(3, 1)]
    matrices, offsets = (np.stack([record[key][0] for record in records]) for key in "Pr")
    problem = rk.Single(_single_loss, x_set=rk.Ball(0.6) if bounded else None)
    sets: dict[str, Any] = {"x": lambda x: into_ball(x, 0.6)} if bounded else {}
    return Bed(problem, rk.federate(records, WEIGHTS), matrices, offsets, _parts(x=3), sets=sets)


def _minimax() -> Bed:
    """x in a ball, y in the simplex: D.x = P x + Q y + r, D.y = S y - Q'x - s."""
    records = _records(2, 3)
    matrices = [np.block([[r["P"][0], r["Q"][0]], [-r["Q"][0].T, r["S"][0]]]) for r in records]
    offsets = [np.concatenate([r["r"][0], -r["s"][0]]) for r in records]
    problem = rk.Minimax(_saddle_loss, x_set=rk.Ball(0.6), y_set=rk.Simplex())
    sets = {"x": lambda x: into_ball(x, 0.6), "y": into_simplex}
    return Bed(
        problem, rk.federate(records, WEIGHTS), np.stack(matrices), np.stack(offsets), _parts(x=2, y=3), sets=sets
    )


def _joint(bounded: bool = True) -> Bed:
    """Shared x in a ball, each client's own y in the simplex: D.x = P x + Q y + r, D.y = Q'x + S y + s."""
    records = _records(2, 3)
    matrices = [np.block([[r["P"][0], r["Q"][0]], [r["Q"][0].T, r["S"][0]]]) for r in records]
    offsets = [np.concatenate([r["r"][0], r["s"][0]]) for r in records]
    problem = (
        rk.Joint(_joint_loss, client_set=rk.Simplex(), server_set=rk.Ball(0.6)) if bounded else rk.Joint(_joint_loss)
    )
    sets = {"x": lambda x: into_ball(x, 0.6), "y": into_simplex} if bounded else {}
    return Bed(
        problem, rk.federate(records, WEIGHTS), np.stack(matrices), np.stack(offsets), _parts(x=2, y=3), sets=sets
    )


_BEDS: dict[str, Callable[[], Bed]] = {
    "bilevel": _bilevel,
    "field": _field,
    "one client": lambda: _bilevel(clients=1),
    "local lower level": lambda: _bilevel(local=True),
    "minimax with sets": _minimax,
    "joint with sets": _joint,
    "joint without sets": lambda: _joint(bounded=False),
    "single": _single,
    "single with a set": lambda: _single(bounded=True),
}


@cache
def bed_of(name: str) -> Bed:
    return _BEDS[name]()


def into_ball(v: np.ndarray, radius: float) -> np.ndarray:
    length = np.sqrt(v @ v)
    return v * (radius / length) if length > radius else v


def into_simplex(a: np.ndarray) -> np.ndarray:
    """The nearest probability vector: of the largest support for which the threshold lies below all its entries."""
    largest = np.sort(a)[::-1]
    for size in range(a.size, 0, -1):
        threshold = (largest[:size].sum() - 1) / size
        if largest[size - 1] > threshold:
            return np.maximum(a - threshold, 0)
    raise AssertionError("the support of one entry always fits")


# Methods. `state` holds z, every client's own sequences as the rows of `own`, the round, and what a method adds;
# `cohort` is {client: its inclusion probability}.

State = dict[str, Any]


def number(given: Any, at: int, i: int | None = None) -> float:
    """A number, a schedule's, or a client's own."""
    if isinstance(given, rk.PerClient):
        return given.table[i]
    return cast(float, given(at)) if callable(given) else given


def rates(bed: Bed, given: Any, at: int, i: int | None = None) -> np.ndarray:
    """Step sizes as one number per entry of a point."""
    given = given if isinstance(given, rk.Rates) else rk.Rates(given)
    values = {name: number(given[name], at, i) for name in bed.parts}
    return np.concatenate([np.full(part.stop - part.start, values[name]) for name, part in bed.parts.items()])


def steps_of(given: Any, i: int) -> int:
    return given.steps[i] if isinstance(given, rk.FixedSteps) else given


def coefficient(given: Any, k: int, i: int, at: int) -> float:
    if given is None:
        return 1.0
    if callable(given):
        return cast(float, given(k, i, at))
    table = np.asarray(given)
    return float(table[k] if table.ndim == 1 else table[i][k])


def unbiased(bed: Bed, cohort: Mapping[int, float], replies: Mapping[int, Any]) -> Any:
    """M(r) = sum_C (p_i / pi_i) r_i."""
    return sum(bed.weights[i] / cohort[i] * replies[i] for i in cohort)


def normalised_mean(bed: Bed, cohort: Mapping[int, float], replies: Mapping[int, Any]) -> Any:
    """N(r) = sum_C p_i r_i / sum_C p_i."""
    return sum(bed.weights[i] * replies[i] for i in cohort) / sum(bed.weights[i] for i in cohort)


@dataclass
class Walk:
    """A client's local steps: where they end, sum_k a_k D_i(z_i^k), and sum_k |a_k|."""

    end: np.ndarray
    total: np.ndarray
    work: float


def walk(
    bed: Bed, state: State, i: int, lr: Any, local_steps: Any, coefficients: Any = None, correct: Any = None
) -> Walk:
    """tau_i times z_i <- z_i - eta a_k D_i(z_i), the client's own sequences kept in their sets after every step.

    `correct(z_i)` is added to the shared part of every direction.
    """
    eta = rates(bed, lr, state["round"], i)
    z = np.where(bed.shared, state["z"], state["own"][i])
    terms, amounts = [], []
    for k in range(steps_of(local_steps, i)):
        a = coefficient(coefficients, k, i, state["round"])
        d = bed.direction(i, z)
        if correct is not None:
            d = np.where(bed.shared, d + correct(z), d)
        z = bed.project(z - eta * a * d, bed.problem.local)
        terms.append(a * d)
        amounts.append(abs(a))
    return Walk(z, np.sum(terms, axis=0), sum(amounts))


def after(bed: Bed, state: State, walks: Mapping[int, Walk], z: np.ndarray, **more: Any) -> State:
    """The state of the next round: z in its sets, and the walkers' own sequences where their walks ended."""
    own = state["own"].copy()
    for i, its in walks.items():
        own[i] = its.end
    z = bed.project(z, bed.problem.shared)
    return {**state, "z": z, "own": own, "round": state["round"] + 1, **more}


def keep_in_ball(bed: Bed, state: State, radius: float | None) -> State:
    """v <- v min(1, r / ||v||)."""
    if radius is None:
        return state
    z, part = state["z"].copy(), bed.parts["v"]
    z[part] = into_ball(z[part], radius)
    return {**state, "z": z}


# Drift control, in the papers' form: with multipliers, not divided by the penalty.


def corrections(bed: Bed, state: State, drift: Any) -> Callable[[int], Any]:
    """What is added to the directions of client i."""
    z, own, common = state["z"], state.get("duals_own"), state.get("duals")
    zero = np.zeros_like(z)
    if isinstance(drift, rk.ControlVariates):
        own, common = (np.zeros((bed.population, z.size)), zero) if own is None else (own, common)
        return lambda i: lambda z_i: common - own[i]
    if isinstance(drift, rk.Duals):
        gamma = rates(bed, drift.gamma, 0)
        return lambda i: lambda z_i: gamma * (z_i - z) - (zero if own is None else own[i])
    return lambda i: None


def controlled(
    bed: Bed, state: State, cohort: Mapping[int, float], drift: Any, walks: Mapping[int, Walk], q: np.ndarray, eta: Any
) -> tuple[np.ndarray, State]:
    """The direction of the server's step, and the new duals."""
    z, p = state["z"], bed.weights
    own = state.get("duals_own", np.zeros((bed.population, z.size))).copy()
    common = state.get("duals", np.zeros_like(z))
    if isinstance(drift, rk.ControlVariates):
        new = {i: own[i] - common + its.total / its.work for i, its in walks.items()}
        common = common + sum(p[i] * (new[i] - own[i]) for i in cohort)
    elif isinstance(drift, rk.Duals):
        gamma, now = rates(bed, drift.gamma, 0), state["round"]
        rise = {i: number(drift.a, now, i) * gamma * (z - its.end) for i, its in walks.items()}
        new = {i: own[i] + rise[i] for i in cohort}
        common = common + sum(p[i] * rise[i] for i in cohort)
        if isinstance(drift.d, (float, rk.PerClient)):
            q = cast(np.ndarray, sum(p[i] * number(drift.d, now, i) * walks[i].total for i in cohort))
        q = q + common / gamma / rates(bed, eta, now)
    else:
        return q, {}
    for i in cohort:
        own[i] = new[i]
    return q, {"duals": common, "duals_own": own}


def served(bed: Bed, state: State, server: Any, d: np.ndarray, gamma: Any) -> tuple[np.ndarray, State]:
    """The server's step along d: plain, or gradient descent with momentum."""
    plain = state["z"] - gamma * d
    if server is None:
        return plain, {}
    per: dict[str, Any] = server if isinstance(server, dict) else dict.fromkeys(bed.parts, server)
    momentum, z = state.get("velocity", np.zeros_like(d)), plain.copy()
    velocity = momentum.copy()
    for name, optimiser in per.items():
        part = bed.parts[name]
        velocity[part] = optimiser.options["momentum"] * momentum[part] + d[part]
        z[part] = state["z"][part] - optimiser.options["learning_rate"] * velocity[part]
    return z, {"velocity": velocity}


def simfbo(
    bed: Bed,
    state: State,
    cohort: Mapping[int, float],
    lr: Any,
    server_lr: Any = None,
    local_steps: Any = 1,
    coefficients: Any = None,
    radius: float | None = None,
    drift: Any = None,
    server: Any = None,
) -> State:
    """z <- z - gamma M(q), then v into its ball."""
    correct = corrections(bed, state, drift)
    walks = {i: walk(bed, state, i, lr, local_steps, coefficients, correct(i)) for i in cohort}
    gamma = rates(bed, server_lr or lr, state["round"])
    q = unbiased(bed, cohort, {i: its.total for i, its in walks.items()})
    q, duals = controlled(bed, state, cohort, drift, walks, q, lr)
    z, kept = served(bed, state, server, q, gamma)
    return keep_in_ball(bed, after(bed, state, walks, z, **duals, **kept), radius)


def shrofbo(
    bed: Bed,
    state: State,
    cohort: Mapping[int, float],
    lr: Any,
    server_lr: Any = None,
    local_steps: Any = 1,
    coefficients: Any = None,
    radius: float | None = None,
    drift: Any = None,
    server: Any = None,
) -> State:
    """z <- z - rho gamma M(q / ||a||_1) with rho = N(||a||_1), then v into its ball."""
    correct = corrections(bed, state, drift)
    walks = {i: walk(bed, state, i, lr, local_steps, coefficients, correct(i)) for i in cohort}
    gamma = rates(bed, server_lr or lr, state["round"])
    h = unbiased(bed, cohort, {i: its.total / its.work for i, its in walks.items()})
    rho = normalised_mean(bed, cohort, {i: its.work for i, its in walks.items()})
    q, duals = controlled(bed, state, cohort, drift, walks, rho * h, lr)
    z, kept = served(bed, state, server, q, gamma)
    return keep_in_ball(bed, after(bed, state, walks, z, **duals, **kept), radius)


def fedbio(
    bed: Bed,
    state: State,
    cohort: Mapping[int, float],
    lr: Any,
    local_steps: Any = 1,
    drift: Any = None,
    server: Any = None,
) -> State:
    """z <- z + M(z_i - z)."""
    correct = corrections(bed, state, drift)
    walks = {i: walk(bed, state, i, lr, local_steps, correct=correct(i)) for i in cohort}
    if drift is None:
        moved = unbiased(bed, cohort, {i: its.end - state["z"] for i, its in walks.items()})
        z, kept = served(bed, state, server, -moved, 1.0)
        return after(bed, state, walks, z, **kept)
    eta = rates(bed, lr, state["round"])
    q = unbiased(bed, cohort, {i: its.total for i, its in walks.items()})
    q, duals = controlled(bed, state, cohort, drift, walks, q, lr)
    z, kept = served(bed, state, server, eta * q, 1.0)
    return after(bed, state, walks, z, **duals, **kept)


def fedavg(
    bed: Bed,
    state: State,
    cohort: Mapping[int, float],
    lr: Any,
    local_steps: Any = 1,
    normalised: bool = False,
    weight_decay: float = 0.0,
    server: Any = None,
) -> State:
    """z <- z + M(z_i - z), or N(z_i), which is McMahan's mean of the points."""
    walks = {i: walk(bed, state, i, lr, local_steps, correct=lambda z: weight_decay * z) for i in cohort}
    if normalised:
        points = normalised_mean(bed, cohort, {i: its.end for i, its in walks.items()})
        return after(bed, state, walks, points)
    moved = unbiased(bed, cohort, {i: its.end - state["z"] for i, its in walks.items()})
    z, kept = served(bed, state, server, -moved, 1.0)
    return after(bed, state, walks, z, **kept)


def fedbioacc(
    bed: Bed,
    state: State,
    cohort: Mapping[int, float],
    lr: Any,
    local_steps: int = 1,
    momentum: Any = None,
    delta: float = 1.0,
    offset: float = 1.0,
) -> State:
    """z_i' = z_i - eta alpha_t m_i, m_i <- D_i(z_i') + (1 - c alpha_t^2)(m_i - D_i(z_i)); every I-th time averaged."""
    eta = rates(bed, lr, state["round"])
    c = rates(bed, rk.Rates(1.0) if momentum is None else momentum, state["round"])
    direction = bed.direction
    z = dict.fromkeys(cohort, state["z"])
    m = {i: direction(i, z[i]) if state["round"] == 0 else state["m"] for i in cohort}
    t = state.get("t", 0)
    for _ in range(local_steps - 1):
        t += 1
        alpha = delta / (offset + t) ** (1 / 3)
        for i in cohort:
            new = z[i] - eta * alpha * m[i]
            m[i] = direction(i, new) + (1 - c * alpha**2) * (m[i] - direction(i, z[i]))
            z[i] = new
    t += 1
    alpha = delta / (offset + t) ** (1 / 3)
    moved = unbiased(bed, cohort, {i: z[i] - eta * alpha * m[i] - state["z"] for i in cohort})
    result = after(bed, state, {}, state["z"] + moved, t=t)
    new = result["z"]
    momenta = {i: direction(i, new) + (1 - c * alpha**2) * (m[i] - direction(i, z[i])) for i in cohort}
    return {**result, "m": unbiased(bed, cohort, momenta)}


REFERENCES: dict[str, Callable[..., State]] = {
    "simfbo": simfbo,
    "shrofbo": shrofbo,
    "fedbio": fedbio,
    "fedavg": fedavg,
    "fedbioacc": fedbioacc,
}


# Settings, and the judgement.


@dataclass(frozen=True)
class Setting:
    """A method with some options on some problem; `probabilities` samples cohorts of two clients with these pi_i."""

    name: str
    method: str
    bed: str = "bilevel"
    options: dict[str, Any] = field(default_factory=dict)
    probabilities: tuple[float, ...] | None = None
    rounds: int = 3


def label(setting: Setting) -> str:
    return f"{setting.method}: {setting.name}".replace(" ", "-")


LR = rk.Rates(x=0.07, y=0.11, v=0.05)
SERVER_LR = rk.Rates(x=0.05, y=0.03, v=0.2)
FALLING = rk.Rates(lambda r: 0.1 / (1 + r), v=lambda r: 0.05 * (1 + r))
GROWING = rk.Rates(lambda r: 0.03 * (1 + r), v=0.1)
TWO = rk.Rates(x=0.15, y=0.25)
UNEQUAL = rk.FixedSteps([1, 2, 4])
PER_CLIENT = np.array([[0.5, 1.5, -0.5, 2.0], [1.0, -0.6, 0.7, 0.3], [-1.0, 0.4, 1.2, 0.8]])
CHANCES = (0.9, 0.6, 0.5)


def signed(k, i, r):
    """a_k of client i in round r, in either sign."""
    return 0.5 + 0.25 * k - 0.4 * i + 0.1 * r


def _single_loop(method: str) -> list[Setting]:
    """SimFBO's and ShroFBO's settings; the first uses everything at once, so it tells the most."""
    return [
        Setting(
            "everything",
            method,
            "field",
            options={
                "lr": FALLING,
                "server_lr": GROWING,
                "local_steps": UNEQUAL,
                "coefficients": PER_CLIENT,
                "radius": 0.7,
            },
            probabilities=CHANCES,
        ),
        Setting("tau=1", method, options={"lr": LR}),
        Setting("tau=3", method, options={"lr": LR, "local_steps": 3}),
        Setting("unequal", method, options={"lr": FALLING, "local_steps": UNEQUAL}),
        Setting("server_lr", method, options={"lr": LR, "server_lr": SERVER_LR, "local_steps": 3}),
        Setting(
            "coefficients as a list", method, options={"lr": LR, "local_steps": 3, "coefficients": [0.5, 2.0, -1.0]}
        ),
        Setting("coefficients as a function", method, options={"lr": LR, "local_steps": 3, "coefficients": signed}),
        Setting("radius", method, options={"lr": LR, "local_steps": 2, "radius": 0.4}),
        Setting("radius that is wide", method, options={"lr": LR, "local_steps": 2, "radius": 40.0}),
        Setting("one client", method, "one client", {"lr": LR, "local_steps": 3}),
        Setting(
            "local lower level",
            method,
            "local lower level",
            {"lr": FALLING, "server_lr": GROWING, "local_steps": UNEQUAL, "coefficients": PER_CLIENT},
            probabilities=CHANCES,
        ),
        Setting("minimax with sets", method, "minimax with sets", {"lr": TWO, "local_steps": 2}),
        Setting("joint with sets", method, "joint with sets", {"lr": TWO, "local_steps": UNEQUAL}),
        *_drifting(method, {"server_lr": SERVER_LR, "coefficients": PER_CLIENT}),
        _served(method),
    ]


def _drifting(method: str, options: dict[str, Any]) -> list[Setting]:
    """With each drift control, on shared sequences and beside local ones."""
    lr = rk.Rates(lambda r: 0.1 / (1 + r), v=0.07)
    controls = {
        "control variates": rk.ControlVariates(),
        "duals": rk.Duals(gamma=rk.Rates(x=0.5, y=0.8, v=0.3), a=0.7),
        "duals each": rk.Duals(
            gamma=rk.Rates(x=0.5, y=0.8, v=0.3), a=rk.PerClient([0.4, 1.1, 0.8]), d=rk.PerClient([1.5, 0.6, 1.2])
        ),
    }
    found = [
        Setting(name, method, "field", {"lr": lr, "local_steps": UNEQUAL, "drift": drift, **options}, CHANCES)
        for name, drift in controls.items()
    ]
    beside = {"lr": TWO, "local_steps": UNEQUAL, "drift": rk.ControlVariates()}
    return [*found, Setting("control variates beside own", method, "joint with sets", beside, CHANCES)]


def _served(method: str) -> Setting:
    """Momentum on the server, for two of three sequences."""
    optimiser = lambda lr: rk.ServerOptimiser(optax.sgd, learning_rate=lr, momentum=0.6)
    server = {"x": optimiser(0.3), "v": optimiser(0.2)}
    return Setting("server", method, "field", {"lr": LR, "local_steps": UNEQUAL, "server": server}, CHANCES)


def _averaging(method: str) -> list[Setting]:
    """What FedBiO and FedAvg have in common."""
    return [
        Setting("sampled", method, "field", {"lr": FALLING, "local_steps": UNEQUAL}, probabilities=CHANCES),
        Setting("one step", method, options={"lr": LR}),
        Setting("three steps", method, options={"lr": LR, "local_steps": 3}),
        Setting("one client", method, "one client", {"lr": LR, "local_steps": 3}),
        Setting(
            "local lower level",
            method,
            "local lower level",
            {"lr": FALLING, "local_steps": UNEQUAL},
            probabilities=CHANCES,
        ),
        Setting("minimax with sets", method, "minimax with sets", {"lr": TWO, "local_steps": 2}),
        Setting("joint with sets", method, "joint with sets", {"lr": TWO, "local_steps": UNEQUAL}),
        _served(method),
    ]


_MOMENTUM = rk.Rates(x=0.9, y=0.4, v=lambda r: 0.3 + 0.2 * r)

SETTINGS = [
    *_single_loop("simfbo"),
    *_single_loop("shrofbo"),
    *_averaging("fedbio"),
    *_drifting("fedbio", {}),
    *_averaging("fedavg"),
    Setting(
        "normalised",
        "fedavg",
        options={"lr": LR, "local_steps": UNEQUAL, "normalised": True},
        probabilities=CHANCES,
    ),
    Setting("decay", "fedavg", options={"lr": LR, "local_steps": UNEQUAL, "weight_decay": 0.3}, probabilities=CHANCES),
    Setting(
        "everything",
        "fedbioacc",
        "field",
        options={"lr": FALLING, "local_steps": 3, "momentum": _MOMENTUM, "delta": 0.8, "offset": 1.7},
        probabilities=CHANCES,
    ),
    *(Setting(f"I={steps}", "fedbioacc", options={"lr": LR, "local_steps": steps}) for steps in (1, 2, 3)),
    Setting("defaults", "fedbioacc", options={"lr": LR}, rounds=4),
    Setting("one client", "fedbioacc", "one client", {"lr": LR, "local_steps": 2, "delta": 0.8}),
    Setting("minimax with sets", "fedbioacc", "minimax with sets", {"lr": TWO, "local_steps": 2}),
]


def cohorts(setting: Setting) -> list[dict[int, float]]:
    """Every cohort that a round may have, with the inclusion probabilities."""
    population = bed_of(setting.bed).population
    if setting.probabilities is None:
        return [dict.fromkeys(range(population), 1.0)]
    return [{i: setting.probabilities[i] for i in members} for members in itertools.combinations(range(population), 2)]


@cache
def outcomes(name: str) -> tuple[State, ...]:
    """Where a setting's reference may end: one state for every sequence of cohorts."""
    setting = next(s for s in SETTINGS if label(s) == name)
    bed = bed_of(setting.bed)
    z = bed.start()
    first: State = {"z": z, "own": np.tile(z, (bed.population, 1)), "round": 0}
    ends = [first]
    for _ in range(setting.rounds):
        ends = [
            REFERENCES[setting.method](bed, state, cohort, **setting.options)
            for state in ends
            for cohort in cohorts(setting)
        ]
    return tuple(ends)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def gap(bed: Bed, state: State, result: rk.Result) -> float:
    """The largest difference between a run's last point and a reference's, local sequences client by client."""
    gaps = []
    for name, part in bed.parts.items():
        if name in bed.problem.local:
            pairs = [(flat(own[name]), state["own"][i][part]) for i, own in enumerate(result.local)]
        else:
            pairs = [(flat(result.sequences[name]), state["z"][part])]
        gaps += [np.abs(mine - other).max() for mine, other in pairs]
    return float(np.max(gaps))


def options_of(cls: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a class: one from a fresh module gets components of the kinds that its module knows."""
    options = dict(options)
    for name, function in (("hypergradient", "moves_of"), ("drift", "check_drift")):
        given = options.get(name)
        if given is not None:
            kinds = cls.check.__globals__[function].__globals__  # of the file that the method's own module has read
            values = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
            if type(values.get("d")).__name__ == "InverseProbability":
                values["d"] = "inverse-probability"
            options[name] = kinds[type(given).__name__](**values)
    return options


def made(name: str, cls: type | None, options: Mapping[str, Any]) -> Any:
    """The method with these options, or another class in its place."""
    owner: Any = cls or METHODS[name].method
    return owner(**options_of(owner, options))


def agrees(setting: Setting, cls: type | None = None, engine: Any = "local") -> None:
    """The library's run ends where the reference does; under sampling, where it does for one sequence of cohorts.

    Which cohorts a seed draws is no business of a method, so all of them are tried: two that differ lie far apart.
    """
    bed = bed_of(setting.bed)
    method = made(setting.method, cls, setting.options)
    sampling = None if setting.probabilities is None else rk.Weighted(setting.probabilities)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*\(a \+ d\) eta gamma Q~")  # trajectories are compared, not ends
        result = bed.run(method, setting.rounds, sampling=sampling, seed=3, engine=engine)
    gaps = [gap(bed, state, result) for state in outcomes(label(setting))]
    assert min(gaps) <= TOLERANCE, f"{label(setting)}: {min(gaps):.3g} from the nearest reference"


# What no full batch shows: which samples a method takes. On f(x; e) = e x the direction is the example itself.


def _slope_loss(x, e):
    return e["slope"] * x


@cache
def _slopes() -> tuple[Any, rk.Clients, np.ndarray]:
    slopes = np.random.default_rng(5).normal(size=40)
    return rk.Single(_slope_loss), rk.federate([{"slope": slopes}]), slopes


def _distance_to_one_example(method: Any, rounds: int, length: float, engine: Any) -> float:
    """How far the run's move is from `length` times a single example."""
    problem, clients, slopes = _slopes()
    result = rk.run(problem, method, clients, x=0.0, rounds=rounds, batch_size=1, precision="float64", engine=engine)
    return float(np.abs(float(result.x) + length * slopes).min())


def samples_are_fresh(name: str, cls: type | None = None, engine: Any = "local") -> None:
    """Local steps do not go back to one example: their sum is not a multiple of any."""
    cls = cls or METHODS[name].method
    steps, lr = 6, 0.1
    length = lr * steps
    if name == "fedbioacc":
        length = lr * sum((1 + t) ** (-1 / 3) for t in range(1, steps + 1))
    assert _distance_to_one_example(cls(lr=lr, local_steps=steps), 1, length, engine) > 1e-6


def samples_are_shared_by_both_points(cls: type | None = None, engine: Any = "local") -> None:
    """FedBiOAcc with c = 0: D at the new and at the old point cancel, so the first momentum stays for ever."""
    cls = cls or METHODS["fedbioacc"].method
    steps, rounds, lr = 3, 2, 0.1
    length = lr * sum((1 + t) ** (-1 / 3) for t in range(1, rounds * steps + 1))
    method = cls(lr=lr, local_steps=steps, momentum=rk.Rates(0.0))
    assert _distance_to_one_example(method, rounds, length, engine) <= TOLERANCE


def first_batch_is_taken_once(cls: type | None = None, engine: Any = "local") -> None:
    """FedBiOAcc draws `first_batch` examples for the first momentum, and the run's batch in every iteration."""
    problem, clients, _ = _slopes()
    method = (cls or METHODS["fedbioacc"].method)(lr=0.1, local_steps=2, first_batch=7)
    result = rk.run(problem, method, clients, x=0.0, rounds=3, batch_size=2, engine=engine)
    assert result.ledger.oracles["samples"] == 7 + 3 * 2 * 2


def work_is_the_norm(descend: Callable[..., Any], engine: Any = "local") -> None:
    """`descend` gives ||a_i||_1 itself; in ShroFBO a wrong sign of it cancels."""

    @rk.method
    class Probe:
        """x <- x + the work of three local steps."""

        lr: rk.Rates
        descend: Callable[..., Any] = rk.static()

        def round(self, state: rk.State, cohort: rk.Cohort) -> rk.State:
            work = cohort.mean("work", state.z)
            return state.next(z=state.z.map(lambda name, vector: rk.Vector(vector.tree + work)))

        def work(self, client: rk.Client, z: rk.Sequences) -> Any:
            return self.descend(client, z, self.lr.at(client.round), 3, np.array([0.5, -2.0, 1.0])).norm

    problem, clients, _ = _slopes()
    result = rk.run(problem, Probe(0.1, descend), clients, x=0.0, rounds=1, precision="float64", engine=engine)
    assert abs(float(result.x) - 3.5) <= TOLERANCE


SAMPLING_CHECKS: dict[str, list[Callable[..., None]]] = {}  # those of other files


def sampling_checks(name: str) -> list[Callable[..., None]]:
    """The checks of a method's samples, each a function of (cls, engine); a method without a reference has none."""
    if name not in ("simfbo", "shrofbo", "fedbio", "fedavg", "fedbioacc"):
        return SAMPLING_CHECKS.get(name, [])
    fresh: Callable[..., None] = lambda cls=None, engine="local": samples_are_fresh(name, cls, engine)
    if name == "fedbioacc":
        return [fresh, samples_are_shared_by_both_points, first_batch_is_taken_once]
    return [fresh]
