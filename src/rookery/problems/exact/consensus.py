"""E1a, the quadratic that local steps bias; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.errors import InputError
from rookery.problems.exact import draws
from rookery.problems.exact.common import (
    apply,
    bar,
    flat,
    means,
    normalised,
    product_means,
    solve,
    truncation,
    zeros,
)
from rookery.problems.kinds import Single


def loss(x, e):
    """1/2 (x - t)'A(x - t)."""
    gap = flat(x) - e["t"]
    return 0.5 * jnp.dot(gap, e["A"] @ gap)


@dataclass(frozen=True, eq=False)
class QuadraticConsensus:
    """E1a: clients that pull one variable to different targets with different curvature.

    The specification writes the variable as y, because it is E1's lower level; as a single-level problem it
    is called x here. Client i holds the mean over its examples of 1/2 (x - t)'A(x - t), which is, up to a
    constant,

        f_i(x) = 1/2 (x - y_i)'A_i(x - y_i),   A_i = mean A,   y_i = A_i^-1 mean(A t),

    so that x* = bar(A)^-1 bar(A_i y_i). After tau_i local steps of size eta the server moves by Q_i (y_i -
    x), and averaging these stops at bar(Q)^-1 bar(Q_i y_i) with

        FedAvg    Q_i = I - (I - eta A_i)^tau_i
        FedProx   Q_i = [I - (I - eta (A_i + mu I))^tau_i] (A_i + mu I)^-1 A_i
        FedNova   Q_i = FedAvg's / tau_i

    Args:
      records: one dict per client with A and t, each with a leading axis of examples.
      weights: p_i, with sum 1.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray

    @classmethod
    def random(cls, clients=4, dims=3, heterogeneity=1.0, seed=0, examples=None, weights=None) -> QuadraticConsensus:
        """A well-conditioned instance; dims is the dimension of x."""
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients)
        A = draws.positive(rng, sizes, dims, heterogeneity)
        records = draws.zipped(A=A, t=draws.anchors(rng, A, heterogeneity))
        return cls(records, draws.weights_of(weights, clients, seed))

    @property
    def problem(self):
        """The single-level problem; every instance shares the same loss."""
        return Single(loss)

    @property
    def clients(self):
        """The clients' examples with their weights."""
        return federate(list(self.records), weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x."""
        return zeros(leaves, x=self.records[0]["t"].shape[1])

    def reweighted(self, weights) -> QuadraticConsensus:
        """The same clients with other weights, scaled to sum to one."""
        return replace(self, weights=normalised(weights, len(self.records)))

    def targets(self) -> np.ndarray:
        """y_i, every client's own minimiser, one per row."""
        return solve(means(self.records, "A"), product_means(self.records, "A", "t"))

    def hypergradient(self, x) -> np.ndarray:
        """bar(A) x - bar(A_i y_i): with one level, the gradient."""
        A, At = means(self.records, "A"), product_means(self.records, "A", "t")
        return bar(self.weights, A) @ np.asarray(x, dtype=np.float64) - bar(self.weights, At)

    def solution(self) -> np.ndarray:
        """x* = bar(A)^-1 bar(A_i y_i)."""
        return self._fixed_point(means(self.records, "A"))

    def optimum(self) -> dict:
        """x at the solution."""
        return {"x": self.solution()}

    def reweighted_solution(self, weights) -> np.ndarray:
        """x* under other weights; p_i tau_i gives what unequal numbers of ever smaller steps solve."""
        return self.reweighted(weights).solution()

    def fedavg_solution(self, lr, steps) -> np.ndarray:
        """Where FedAvg stops; lr is eta, steps is tau for all clients or one tau_i for each."""
        return self._fixed_point(self._progress(means(self.records, "A"), lr, steps))

    def fedprox_solution(self, lr, steps, mu) -> np.ndarray:
        """Where FedProx stops; mu is the weight of its proximal term mu/2 |x_i - x|^2."""
        A = means(self.records, "A")
        damped = A + mu * np.eye(A.shape[-1])
        return self._fixed_point(self._progress(damped, lr, steps) @ np.linalg.solve(damped, A))

    def fednova_solution(self, lr, steps) -> np.ndarray:
        """Where FedNova stops: FedAvg's progress of every client divided by its number of steps."""
        progress = self._progress(means(self.records, "A"), lr, steps)
        return self._fixed_point(progress / self._steps(steps)[:, None, None])

    def _steps(self, steps) -> np.ndarray:
        clients = len(self.records)
        counts = np.asarray(steps)
        if counts.shape not in ((), (clients,)) or counts.dtype.kind not in "iu" or counts.min() < 1:
            raise InputError(f"steps: {steps!r} was given; it must be an integer of at least 1, or {clients} of them")
        return np.broadcast_to(counts, (clients,))

    def _progress(self, matrices: np.ndarray, lr: float, steps) -> np.ndarray:
        """I - (I - eta M_i)^tau_i, client by client."""
        return np.stack([truncation(M, lr, tau) for M, tau in zip(matrices, self._steps(steps), strict=True)])

    def _fixed_point(self, Q: np.ndarray) -> np.ndarray:
        """bar(Q)^-1 bar(Q_i y_i)."""
        return solve(bar(self.weights, Q), bar(self.weights, apply(Q, self.targets())))
