"""A PyTorch module in a federated run, and what was learnt back in PyTorch. Needs `pip install 'rookery[torch]'`."""

from __future__ import annotations

import jax

import rookery as rk


def main(rounds: int = 20) -> float:
    """Trains a small convolutional network over ten clients, and judges it in PyTorch; gives its accuracy there."""
    import torch

    def make():
        nn = torch.nn
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 10)
        )

    digits = rk.data.digits()
    network = rk.adapters.from_torch(make, shape=(8, 8, 1))
    result = rk.run(
        rk.Single(lambda w, e: -jax.nn.log_softmax(network(w, digits.scale.image(e["input"])))[e["label"]]),
        rk.FedAvg(lr=0.1, local_steps=5),
        digits.partition("dirichlet:0.5", clients=10),
        x=network.init,
        rounds=rounds,
        batch_size=16,
    )
    module = make()
    module.load_state_dict(network.state_dict(result.x))
    images = torch.tensor(digits.test["input"]).reshape(-1, 1, 8, 8)
    with torch.no_grad():
        right = module(images).argmax(dim=1).numpy() == digits.test["label"]
    print(f"{right.mean():.1%} of the test digits, told by PyTorch with the weights that were learnt here")
    return float(right.mean())


if __name__ == "__main__":
    main()
