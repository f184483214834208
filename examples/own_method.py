"""A method of one's own, compared with FedAvg at equal exchanges: local steps, then an average with momentum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk


@rk.struct
class Moving(rk.State):
    """The server's state: the point, and how it moved."""

    velocity: rk.Sequences


@rk.method
class HeavyBall:
    """FedAvg whose server goes on in the direction of its last moves.

    Args:
      lr: the local step size.
      beta: how much of the last move is kept.
      local_steps: steps that a client takes.
    """

    lr: rk.Rates
    beta: float = 0.5
    local_steps: rk.Steps = 5

    def init(self, problem, z):
        return Moving(z, rk.first_round(), velocity=z.zeros())

    def round(self, state, cohort):
        velocity = self.beta * state.velocity + cohort.mean("steps", state.z)
        return state.next(z=state.z + velocity, velocity=velocity)

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), self.local_steps).moved


def main(exchanges: int = 40) -> rk.Comparison:
    """Compares it on logistic regression over 20 clients of few digits."""
    digits = rk.data.digits()
    clients = digits.partition("dirichlet:0.2", clients=20)
    images, labels = jnp.asarray(digits.test["input"]), jnp.asarray(digits.test["label"])
    problem = rk.Single(lambda w, e: -jax.nn.log_softmax(e["input"] @ w)[e["label"]])
    found = rk.compare(
        problem,
        {"FedAvg": rk.FedAvg(lr=rk.Rates(0.2), local_steps=5), "heavy ball": HeavyBall(lr=rk.Rates(0.2))},
        clients,
        x=np.zeros((64, 10)),
        exchanges=exchanges,
        seeds=1,
        metrics=lambda z: {"accuracy": jnp.mean(jnp.argmax(images @ z.x, axis=1) == labels)},
        progress=False,
    )
    print(found)
    return found


if __name__ == "__main__":
    main()
