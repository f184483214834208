"""Personalised learning: a body that all clients share, a head of each one's own, and a head for who comes later."""

from __future__ import annotations

import numpy as np

import rookery as rk

STEPS = {"lr": rk.Rates(0.2), "local_steps": 5}


def main(exchanges: int = 100, clients: int = 100) -> dict[str, float]:
    """Compares what is whose, then fits heads of newcomers; gives the mean accuracy of clients by form."""
    task = rk.tasks.Personalised
    methods = {
        "a body and own heads": (task(form="heads"), rk.FedAvg(**STEPS)),
        "the same, nested": (task(form="nested"), rk.SimFBO(**STEPS)),
        "one network for all": (task(form="shared"), rk.FedAvg(**STEPS)),
        "everybody alone": (task(form="alone"), rk.FedAvg(**STEPS)),
    }
    found = rk.compare(task(), methods, clients, exchanges=exchanges, seeds=1, progress=False)
    reached = {label: float(histories[0]["accuracy mean"][-1]) for label, histories in found.histories.items()}
    for label, accuracy in reached.items():
        print(f"{label:<22} {accuracy:.1%} of each client's own test examples, on average")

    # A tenth of the clients is left out of the learning, and comes when it is over.
    parts = task().assemble(rk.Dirichlet(0.1), clients=clients, seed=0)
    late = range(0, clients, 10)
    there = parts.clients.subset([i for i in range(clients) if i not in late])
    learnt = rk.run(parts.problem, rk.FedAvg(**STEPS), there, x=parts.x, y=parts.y, rounds=exchanges, batch_size=16)
    newcomers = parts.clients.subset(list(late))
    fitted = rk.newcomers(
        parts.problem, learnt, newcomers, lr=0.2, rounds=200, y=parts.y, client_metrics=parts.client_metrics
    )
    assert fitted.clients is not None
    reached["newcomers"] = float(np.mean(fitted.clients["accuracy"]))
    print(f"newcomers, own heads   {reached['newcomers']:.1%}, under the body that the others had learnt")
    return reached


if __name__ == "__main__":
    main()
