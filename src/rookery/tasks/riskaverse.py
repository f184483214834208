"""Risk-averse learning: a three-level compositional problem, the mean of a loss plus its upper semi-deviation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.data.partitions import Partition, deal
from rookery.memory import check_fits
from rookery.metric import Metric
from rookery.problems.kinds import Compositional
from rookery.tasks.base import Assembly, check_options
from rookery.vectors import Values

LARGEST = 4096  # of x: its Hessian is solved with


def utility(x: jax.Array, e: Any) -> jax.Array:
    """U = (b - (a'x)^2)^2 of one example."""
    return (e["b"] - jnp.dot(e["a"], x) ** 2) ** 2


def mean_map(x: Any, e: Any) -> dict[str, jax.Array]:
    """f^0: x with the mean of U beside it."""
    return {"x": x, "mean": utility(x, e)}


def spread_map(z: Any, e: Any) -> dict[str, jax.Array]:
    """f^1: the mean, and the mean square of what exceeds it."""
    return {"mean": z["mean"], "spread": jnp.maximum(0, utility(z["x"], e) - z["mean"]) ** 2}


@dataclass(frozen=True)
class Risk:
    """f^2: mean + lam sqrt(spread + delta). A class and not a closure, so that equal settings share a program."""

    lam: float
    delta: float

    def __call__(self, z: Any, e: Any) -> jax.Array:
        return z["mean"] + self.lam * jnp.sqrt(z["spread"] + self.delta)


def objective(x: jax.Array, a: jax.Array, b: jax.Array, lam: float, delta: float) -> jax.Array:
    """E[U] + lam sqrt(E[max(0, U - E U)^2] + delta), in one piece."""
    losses = (b - (a @ x) ** 2) ** 2
    mean = jnp.mean(losses)
    return mean + lam * jnp.sqrt(jnp.mean(jnp.maximum(0, losses - mean) ** 2) + delta)


@dataclass(frozen=True)
class RiskAverse:
    """A signal recovered from squared measurements, with a price on losses above their mean: three levels.

    min_x E[U] + lam sqrt(E[max(0, U - E U)^2] + delta) with U = (b - (a'x)^2)^2, which has minimisers +x* and -x*. The
    metrics are the objective and the distance to the nearer of them, found by a centralised solve in float64.
    """

    dimension: int = 10
    """Length of x."""
    examples: int = 1000
    """Number of measurements (a, b), over all clients."""
    lam: float = 0.5
    """Price of the semi-deviation."""
    delta: float = 0.01
    """Smoothing of the square root."""
    noise: float = 0.1
    """Standard deviation of the noise in b."""
    truth: Literal["unit", "gaussian"] = "unit"
    """The signal: of length 1, or standard normal."""
    adjoint: Literal["tracked", "local"] = "tracked"
    """How gradients pass the levels: tracked, exact when clients differ; local, by products of a client's own."""

    @property
    def rates(self) -> Mapping[str, float]:
        inner = ("z1", "z2", "w1", "w2") if self.adjoint == "tracked" else ("z1", "z2")
        gaussian = 0.00001 if self.adjoint == "local" else 0.000001  # losses are a hundred times as large
        return {"x": 0.001 if self.truth == "unit" else gaussian, **dict.fromkeys(inner, 0.2)}

    @property
    def batch_size(self) -> int | None:
        return None

    def measurements(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """a ~ N(0, S) with S positive definite, b = (a'u)^2 + noise for the signal u; float64."""
        rng = np.random.default_rng(seed)
        root = np.eye(self.dimension) + 0.3 * rng.normal(size=(self.dimension, self.dimension)) / self.dimension**0.5
        a = rng.normal(size=(self.examples, self.dimension)) @ root
        u = rng.normal(size=self.dimension)
        u = u / np.linalg.norm(u) if self.truth == "unit" else u
        return a, (a @ u) ** 2 + self.noise * rng.normal(size=self.examples)

    def solution(self, seed: int) -> np.ndarray:
        """+x*, by damped Newton steps on the whole objective in float64, from the spectral estimate of u."""
        a, b = self.measurements(seed)
        with jax.enable_x64(True):
            value = lambda x: objective(x, jnp.asarray(a), jnp.asarray(b), self.lam, self.delta)
            value, gradient, hessian = jax.jit(value), jax.jit(jax.grad(value)), jax.jit(jax.hessian(value))
            x = np.linalg.eigh((a * b[:, None]).T @ a)[1][:, -1]
            x = x * np.sqrt(max(b.mean(), 0.0) / np.mean((a @ x) ** 2))
            for _ in range(200):
                g, H = np.asarray(gradient(x)), np.asarray(hessian(x))
                shift = max(0.0, 1e-6 - np.linalg.eigvalsh(H)[0])
                step, length = np.linalg.solve(H + shift * np.eye(len(x)), g), 1.0
                while value(x - length * step) > value(x) and length > 1e-9:
                    length /= 2
                x = x - length * step
                if np.abs(g).max() < 1e-12:
                    break
        return x

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            dimension=(1 <= self.dimension <= LARGEST, f"a number from 1 to {LARGEST}"),
            examples=(self.examples >= clients, f"at least one for each of {clients} clients"),
            lam=(self.lam >= 0, "a number that is not negative"),
            delta=(self.delta > 0, "a positive number"),
            noise=(self.noise >= 0, "a number that is not negative"),
            truth=(self.truth in ("unit", "gaussian"), "unit or gaussian"),
            adjoint=(self.adjoint in ("tracked", "local"), "tracked or local"),
        )
        check_fits("task.examples", self.examples, "what is measured", 16 * self.examples * self.dimension)
        a, b = self.measurements(seed)
        labels = np.argsort(np.argsort(b)) * 10 // len(b)  # tenths of b, for partitions that go by label
        parts = deal(partition, labels, clients, seed)
        used = np.concatenate(parts)
        return Assembly(
            problem=Compositional((mean_map, spread_map, Risk(self.lam, self.delta)), adjoint=self.adjoint),
            clients=federate([{"a": a[own], "b": b[own]} for own in parts], weights="size"),
            x=lambda key: jax.random.normal(key, (self.dimension,), jnp.float32) / self.dimension**0.5,
            metrics=Metric(Closeness(self.lam, self.delta), a=a[used], b=b[used], solution=self.solution(seed)),
            main_metric="distance",
            falling=True,
        )


@dataclass(frozen=True)
class Closeness:
    """The objective of x, and its distance to the nearer of +x* and -x*."""

    lam: float
    delta: float

    def __call__(self, z: Values, a: jax.Array, b: jax.Array, solution: jax.Array) -> dict[str, jax.Array]:
        distance = jnp.minimum(jnp.linalg.norm(z.x - solution), jnp.linalg.norm(z.x + solution))
        return {"distance": distance, "objective": objective(z.x, a, b, self.lam, self.delta)}
