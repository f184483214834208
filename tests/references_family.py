"""FedVRA's family once more, in numpy, each in its own paper's form; adds to the settings of references.py.

Multipliers are kept as they are printed, not divided by the penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import rookery as rk
from references import (
    CHANCES,
    REFERENCES,
    SAMPLING_CHECKS,
    SETTINGS,
    TWO,
    UNEQUAL,
    Bed,
    Setting,
    State,
    after,
    normalised_mean,
    number,
    rates,
    steps_of,
    unbiased,
    walk,
)

Cohort = Mapping[int, float]


def rows(bed: Bed, state: State, name: str) -> np.ndarray:
    """What every client keeps; zero at first."""
    return state.get(name, np.zeros((bed.population, state["z"].size))).copy()


def vector(state: State, name: str) -> np.ndarray:
    """What the server keeps; zero at first."""
    return state.get(name, np.zeros_like(state["z"]))


def fedprox(
    bed: Bed, state: State, cohort: Cohort, lr: Any, mu: float = 0.01, local_steps: Any = 1,
    normalised: bool = False, weight_decay: float = 0.0,
) -> State:  # fmt: skip
    """Steps along g_i + mu (x_i - x), then the mean of how far they went."""
    x = state["z"]
    proximal = lambda z: weight_decay * z + mu * (z - x)
    walks = {i: walk(bed, state, i, lr, local_steps, correct=proximal) for i in cohort}
    mean = normalised_mean if normalised else unbiased
    return after(bed, state, walks, x + mean(bed, cohort, {i: its.end - x for i, its in walks.items()}))


def fednova(bed: Bed, state: State, cohort: Cohort, lr: Any, local_steps: Any = 1, weight_decay: float = 0.0) -> State:
    """x + N(Q) N((x_i - x) / Q_i)."""
    x = state["z"]
    walks = {i: walk(bed, state, i, lr, local_steps, correct=lambda z: weight_decay * z) for i in cohort}
    steps = {i: steps_of(local_steps, i) for i in cohort}
    per_step = normalised_mean(bed, cohort, {i: (its.end - x) / steps[i] for i, its in walks.items()})
    return after(bed, state, walks, x + normalised_mean(bed, cohort, steps) * per_step)


def scaffold(
    bed: Bed, state: State, cohort: Cohort, lr: Any, server_lr: float = 1.0, local_steps: Any = 1,
    weight_decay: float = 0.0,
) -> State:  # fmt: skip
    """g_i - c_i + c; option II."""
    x, c, own = state["z"], vector(state, "c"), rows(bed, state, "c_i")
    walks = {
        i: walk(bed, state, i, lr, local_steps, correct=lambda z, i=i: weight_decay * z - own[i] + c) for i in cohort
    }
    new = {
        i: own[i] - c + (x - its.end) / (rates(bed, lr, state["round"], i) * steps_of(local_steps, i))
        for i, its in walks.items()
    }
    moved = unbiased(bed, cohort, {i: its.end - x for i, its in walks.items()})
    c = c + sum(bed.weights[i] * (new[i] - own[i]) for i in cohort)
    for i in cohort:
        own[i] = new[i]
    return after(bed, state, walks, x + server_lr * moved, c=c, c_i=own)


def vrlsgd(bed: Bed, state: State, cohort: Cohort, lr: Any, local_steps: int = 1, weight_decay: float = 0.0) -> State:
    """g_i - Delta_i; Delta_i grows by (x^ - x_i) / (eta Q) when the average x^ is known."""
    x, delta = state["z"], rows(bed, state, "delta")
    walks = {
        i: walk(bed, state, i, lr, local_steps, correct=lambda z, i=i: weight_decay * z - delta[i]) for i in cohort
    }
    average = sum(bed.weights[i] * walks[i].end for i in cohort)
    result = after(bed, state, walks, np.where(bed.shared, average, x))
    for i, its in walks.items():
        delta[i] += (result["z"] - its.end) / (rates(bed, lr, state["round"], i) * local_steps)
    return result | {"delta": delta}


def feddyn(
    bed: Bed, state: State, cohort: Cohort, lr: Any, alpha: float = 0.1, local_steps: Any = 1,
    weight_decay: float = 0.0,
) -> State:  # fmt: skip
    """h and the clients' last gradients."""
    x, h, last = state["z"], vector(state, "h"), rows(bed, state, "last")
    walks = {
        i: walk(bed, state, i, lr, local_steps, correct=lambda z, i=i: weight_decay * z - last[i] + alpha * (z - x))
        for i in cohort
    }
    for i, its in walks.items():
        last[i] -= alpha * (its.end - x)
    h = h - alpha * sum(bed.weights[i] * (walks[i].end - x) for i in cohort)
    mean = normalised_mean(bed, cohort, {i: its.end for i, its in walks.items()})
    return after(bed, state, walks, mean - h / alpha, h=h, last=last)


def fedadmm(
    bed: Bed, state: State, cohort: Cohort, lr: Any, gamma: float = 0.1, local_steps: Any = 1,
    weight_decay: float = 0.0,
) -> State:  # fmt: skip
    """x <- sum_i p_i (x_i - lambda_i / gamma) over everybody, absent clients at x."""
    x, dual = state["z"], rows(bed, state, "dual")
    walks = {
        i: walk(bed, state, i, lr, local_steps, correct=lambda z, i=i: weight_decay * z - dual[i] + gamma * (z - x))
        for i in cohort
    }
    for i, its in walks.items():
        dual[i] += gamma * (x - its.end)
    ends = [walks[i].end if i in walks else x for i in range(bed.population)]
    new = sum(p * (end - multiplier / gamma) for p, end, multiplier in zip(bed.weights, ends, dual))
    return after(bed, state, walks, new, dual=dual)


def fedpd(
    bed: Bed, state: State, cohort: Cohort, lr: Any, eta: float = 1.0, local_steps: Any = 1, weight_decay: float = 0.0
) -> State:
    """One local round and an aggregation; without skipping."""
    x, dual = state["z"], rows(bed, state, "dual")
    walks = {
        i: walk(bed, state, i, lr, local_steps, correct=lambda z, i=i: weight_decay * z + dual[i] + (z - x) / eta)
        for i in cohort
    }
    centres = {}
    for i, its in walks.items():
        dual[i] += (its.end - x) / eta
        centres[i] = its.end + eta * dual[i]
    return after(bed, state, walks, sum(bed.weights[i] * centres[i] for i in cohort), dual=dual)


def _server_step(bed: Bed, state: State, cohort: Cohort, moved: dict, options: dict) -> dict[str, Any]:
    """Steps 14, 19 and 20 of FedVRA."""
    at, p = state["round"], bed.weights
    gamma = [number(options.get("gamma", 0.1), at, i) for i in range(bed.population)]
    beta = 1 / sum(p[i] * gamma[i] for i in range(bed.population))
    dual, common = rows(bed, state, "dual"), vector(state, "common")
    d = options.get("d", "inverse-probability")
    for i in cohort:
        rise = number(options.get("a", 1.0), at, i) * gamma[i] * -moved[i]
        dual[i] += rise
        common = common + p[i] * rise
    steps = {i: steps_of(options.get("local_steps", 1), i) for i in cohort}
    share = sum(p[i] for i in cohort)
    factor = {
        "inverse-probability": lambda i: 1 / cohort[i],
        "equal-progress": lambda i: sum(p[j] * steps[j] for j in cohort) / share / (steps[i] * share),
    }.get(d if isinstance(d, str) else "", lambda i: number(d, at, i))
    new = state["z"] + beta * sum(p[i] * factor(i) * gamma[i] * moved[i] for i in cohort) - beta * common
    return {"z": new, "dual": dual, "common": common}


def fedvra(bed: Bed, state: State, cohort: Cohort, lr: Any, **options: Any) -> State:
    """Algorithm 1."""
    x, dual = state["z"], rows(bed, state, "dual")
    decay = options.get("weight_decay", 0.0)

    def pull(i: int):
        gamma = number(options.get("gamma", 0.1), state["round"], i)
        return lambda z: decay * z - dual[i] + gamma * (z - x)

    steps = options.get("local_steps", 1)
    walks = {i: walk(bed, state, i, lr, steps, correct=pull(i)) for i in cohort}
    done = _server_step(bed, state, cohort, {i: its.end - x for i, its in walks.items()}, options)
    return after(bed, state, walks, done.pop("z"), **done)


def fedvrau(
    bed: Bed, state: State, cohort: Cohort, lr: Any, client_lr: float = 0.1, client_steps: Any = 1,
    client_set: Any = None, server_set: Any = None, **options: Any,
) -> State:  # fmt: skip
    """Algorithm 3: first y_i at the server's x, then x_i."""
    x, dual, own = state["z"], rows(bed, state, "dual"), state["own"].copy()
    y_part, moved = bed.parts["y"], {}
    decay = options.get("weight_decay", 0.0)
    for i in cohort:
        z = np.where(bed.shared, x, own[i])
        for _ in range(steps_of(client_steps, i)):
            z[y_part] -= client_lr * bed.direction(i, z)[y_part]
            if client_set is None:
                z = bed.project(z, ("y",))
            else:
                z[y_part] = client_set.numpy(z[y_part])
        gamma, eta = number(options.get("gamma", 0.1), state["round"], i), rates(bed, lr, state["round"], i)
        for _ in range(steps_of(options.get("local_steps", 1), i)):
            d = bed.direction(i, z) + decay * z - dual[i] + gamma * (z - x)
            z = np.where(bed.shared, z - eta * d, z)
        own[i], moved[i] = z, np.where(bed.shared, z - x, 0)
    done = _server_step(bed, state, cohort, moved, options)
    new = done.pop("z")
    if server_set is None:
        new = bed.project(new, bed.problem.shared)
    else:
        new = np.where(bed.shared, server_set.numpy(new), new)
    return {**state, "z": new, "own": own, "round": state["round"] + 1, **done}


def _slope(x, e):
    return x @ e["row"]


def fedpd_skips(cls: type | None = None, engine: Any = "local") -> None:
    """R local rounds between aggregations: as many gradients as P(R = r) = (1 - p) p^(r-1) makes likely; 1 at p = 0."""
    clients = rk.federate([{"row": np.eye(40)}])
    for skip, rounds, low, high in ((0.75, 100, 3.2, 5.0), (0.3, 100, 1.2, 1.7), (0.0, 5, 1.0, 1.0)):
        method = (cls or rk.FedPD)(lr=0.01, skip=skip, local_steps=2)
        result = rk.run(rk.Single(_slope), method, clients, x=np.zeros(40), rounds=rounds, engine=engine)
        assert result.ledger.exchanges == rounds
        assert low <= result.ledger.oracles["gradients"] / (2 * rounds) <= high


def fedpd_draws(cls: type | None = None, engine: Any = "local") -> None:
    """The gradient of an example's loss is its own unit vector, so x shows which were drawn: new ones in every local
    round."""
    clients = rk.federate([{"row": np.eye(40)}])
    method = (cls or rk.FedPD)(lr=1.0, eta=1e6, skip=0.95)
    result = rk.run(rk.Single(_slope), method, clients, x=np.zeros(40), rounds=1, batch_size=1, seed=1, engine=engine)
    assert result.ledger.samples > 4 and (np.abs(result.x) > 0.5).sum() > result.ledger.samples / 2


def _two_slopes(x, y, e):
    return (x + y) @ e["row"]


def fedvrau_draws(cls: type | None = None, engine: Any = "local") -> None:
    """As for FedPD: every step on y and every step on x draws an example of its own."""
    clients = rk.federate([{"row": np.eye(40)}])
    method = (cls or rk.FedVRAU)(lr=1.0, gamma=0.0, local_steps=6, client_lr=1.0, client_steps=6)
    start = {"x": np.zeros(40), "y": np.zeros(40)}
    result = rk.run(rk.Joint(_two_slopes), method, clients, **start, rounds=1, batch_size=1, engine=engine)
    x, y = (np.abs(point) > 0.5 for point in (result.x, result.local[0]["y"]))
    assert x.sum() > 3 and y.sum() > 3 and (x != y).any()


FAMILY = {
    "fedprox": fedprox,
    "fednova": fednova,
    "scaffold": scaffold,
    "vrlsgd": vrlsgd,
    "feddyn": feddyn,
    "fedadmm": fedadmm,
    "fedpd": fedpd,
    "fedvra": fedvra,
    "fedvrau": fedvrau,
}


class Low(rk.Projection):
    """Entries at most 0.3, for the library and for a reference."""

    def __init__(self):
        super().__init__(lambda tree: __import__("jax").numpy.minimum(tree, 0.3))

    @staticmethod
    def numpy(a: np.ndarray) -> np.ndarray:
        return np.minimum(a, 0.3)


LOW = Low()
FALLING = rk.Rates(lambda r: 0.2 / (1 + r))


def _family(name: str, sampled: bool = True, unequal: bool = True, joint: bool = True, **options: Any) -> list[Setting]:
    """A method with its own options: sampled and unequal with weight decay, plain, and beside clients' own variables."""
    steps = UNEQUAL if unequal else 3
    chances = CHANCES if sampled else None
    everything = {"lr": FALLING, "local_steps": steps, "weight_decay": 0.2, **options}
    found = [Setting("everything", name, "single", everything, chances)]
    found += [
        Setting("plain", name, "single", {"lr": 0.1, **options}),
        Setting("steps", name, "single", {"lr": 0.1, "local_steps": 3, **options}),
    ]
    if joint:
        found.append(
            Setting("joint with sets", name, "joint with sets", {"lr": TWO, "local_steps": steps, **options}, chances)
        )
    return found


EACH = {"gamma": rk.PerClient([0.4, 0.9, 0.6]), "a": rk.PerClient([0.5, 1.2, 0.8]), "d": rk.PerClient([1.5, 0.7, 1.1])}
VRA = {"gamma": 0.6, "a": 0.8}

REFERENCES |= FAMILY
SAMPLING_CHECKS |= {"fedpd": [fedpd_skips, fedpd_draws], "fedvrau": [fedvrau_draws]}
SETTINGS += [
    *_family("fedprox", mu=0.7),
    Setting("normalised", "fedprox", "single", {"lr": 0.1, "mu": 0.7, "local_steps": UNEQUAL, "normalised": True}, CHANCES),
    Setting("defaults", "fedprox", "single", {"lr": 0.3, "local_steps": 3}),
    *_family("fednova"),
    *_family("scaffold", server_lr=0.7),
    Setting("defaults", "scaffold", "single", {"lr": 0.1, "local_steps": 3}),
    *_family("vrlsgd", sampled=False, unequal=False),
    *_family("feddyn", alpha=0.7),
    Setting("defaults", "feddyn", "single", {"lr": 0.1, "local_steps": 3}),
    *_family("fedadmm", gamma=0.8),
    Setting("defaults", "fedadmm", "single", {"lr": 0.1, "local_steps": 3}),
    *_family("fedpd", sampled=False, joint=False, eta=1.6),
    Setting("defaults", "fedpd", "single", {"lr": 0.1, "local_steps": 3}),
    Setting("with a set", "fedpd", "single with a set", {"lr": 0.3, "local_steps": 3}),
    *_family("fedvra", **VRA),
    Setting("each its own", "fedvra", "single", {"lr": rk.PerClient([0.1, 0.2, 0.15]), "local_steps": UNEQUAL, **EACH}, CHANCES),
    Setting("equal progress", "fedvra", "single", {"lr": 0.1, "local_steps": UNEQUAL, **VRA, "d": "equal-progress"}, CHANCES),
    Setting("a schedule", "fedvra", "single", {"lr": 0.1, "gamma": 0.5, "a": lambda r: 0.5 + 0.3 * r, "d": lambda r: 1.2 - 0.2 * r}, CHANCES),
    Setting("defaults", "fedvra", "single", {"lr": 0.1, "local_steps": 3}),
    Setting(
        "everything", "fedvrau", "joint with sets",
        {"lr": FALLING, "local_steps": UNEQUAL, "client_lr": 0.3, "client_steps": rk.FixedSteps([3, 1, 2]), "weight_decay": 0.2, **EACH}, CHANCES,
    ),
    Setting(
        "sets of its own", "fedvrau", "joint without sets",
        {"lr": 0.1, "local_steps": 2, "client_lr": 0.3, "client_steps": 2, "client_set": LOW, "server_set": LOW, **VRA}, CHANCES,
    ),
    Setting("equal progress", "fedvrau", "joint without sets", {"lr": 0.1, "local_steps": UNEQUAL, **VRA, "d": "equal-progress"}, CHANCES),
    Setting("defaults", "fedvrau", "joint without sets", {"lr": 0.1}),
]  # fmt: skip
