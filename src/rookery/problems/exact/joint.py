"""E1a with a variable of each client's own that follows x: a joint problem with a known answer. Imports problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Clients, federate
from rookery.problems.exact.consensus import QuadraticConsensus
from rookery.problems.kinds import Joint

OWN = 2  # entries of a client's own variable


def loss(x: Any, y: Any, e: Any) -> jax.Array:
    """1/2 (x - t)'A(x - t) + 1/2 |y - Bx|^2: at its best y = Bx, and x is the consensus of the first term."""
    x, y = (jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (x, y))
    gap, own = x - e["t"], y - e["B"] @ x
    return 0.5 * gap @ e["A"] @ gap + 0.5 * own @ own


@dataclass(frozen=True, eq=False)
class JointConsensus:
    """Clients that pull x to different targets, each with a y_i = B_i x of its own."""

    consensus: QuadraticConsensus

    @classmethod
    def random(cls, clients: int, dims: int, weights: Any = None, seed: int = 0) -> JointConsensus:
        """On a random consensus problem."""
        return cls(QuadraticConsensus.random(clients=clients, dims=dims, weights=weights, seed=seed))

    problem = Joint(loss)

    @property
    def weights(self) -> Any:
        return self.consensus.weights

    @property
    def clients(self) -> Clients:
        """One record of the consensus problem with a matrix B_i each."""
        size = self.consensus.solution().size
        B = np.random.default_rng(9).normal(size=(len(self.weights), OWN, size)) / 2
        records = [
            record | {"B": np.broadcast_to(own, (len(record["t"]), *own.shape))}
            for record, own in zip(self.consensus.records, B)
        ]
        return federate(records, weights=self.weights)

    def start(self, leaves: int = 1) -> dict[str, Any]:
        """Initial values."""
        return self.consensus.start(leaves) | {"y": np.zeros(OWN)}

    def solution(self) -> np.ndarray:
        """x*."""
        return self.consensus.solution()
