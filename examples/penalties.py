"""A penalty for every feature, learnt over four hospitals: hyper-parameters by gradient, from tables to a result."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import rookery as rk


def logit(w, e):
    return e["input"] @ w["slopes"] + w["offset"]


def loss(w, e):
    return jnp.logaddexp(0.0, logit(w, e)) - e["label"] * logit(w, e)


def main(rounds: int = 300) -> rk.Result:
    """Learns penalties on validation patients, and shows how every hospital fares on its own test patients."""
    clients = rk.federate(
        rk.data.heart(),  # or your own frames: {"hospital": DataFrame}, or one with by="hospital"
        label="ill",
        categories=["cp", "restecg"],
        standardise=True,
        validation=0.3,
        test=0.3,
        weights="size",
    )
    problem = rk.Bilevel(
        lower=lambda x, w, e: loss(w, e) + 0.5 * jnp.sum(jnp.exp(x) * w["slopes"] ** 2),
        upper=lambda x, w, e: loss(w, e),
    )
    result = rk.run(
        problem,
        rk.SimFBO(lr=rk.Rates(x=1.0, y=0.3, v=0.3)),
        clients,
        x=np.full(len(clients.columns), np.log(0.05)),
        y={"slopes": np.zeros(len(clients.columns)), "offset": np.zeros(())},
        rounds=rounds,
        client_metrics=lambda z, e: {
            "accuracy": ((logit(z.y, e) > 0) == (e["label"] == 1)) * 1.0,
            "loss": loss(z.y, e),
        },
    )
    print(result.clients)
    order = np.argsort(result.x)
    print("least penalised:", ", ".join(clients.columns[i] for i in order[:3]))
    print("most penalised: ", ", ".join(clients.columns[i] for i in order[-3:]))
    return result


if __name__ == "__main__":
    main()
