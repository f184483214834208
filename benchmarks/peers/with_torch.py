"""A bare PyTorch loop, client after client: what there is without a framework."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.peers.common import Talk, Task, Weights, first_weights

Tensors = list[torch.Tensor]


def gradients(x: Tensors, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits = torch.relu(inputs @ x[0] + x[1]) @ x[2] + x[3]
    return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), x)


class Loop:
    def __init__(self, task: Task):
        self.task = task
        self.inputs, self.labels = (torch.from_numpy(array) for array in task.data())
        self.x = [torch.from_numpy(w) for w in first_weights()]
        self.c = [torch.zeros_like(w) for w in self.x]
        self.own: dict[int, Tensors] = {}  # control variates, of clients that have taken part
        self.rng = np.random.default_rng(0)

    def local(self, client: int, correction: Tensors | None) -> Tensors:
        """The weights after a client's epochs."""
        task, x = self.task, [w.clone().requires_grad_() for w in self.x]
        for _ in range(task.epochs):
            order = torch.randperm(task.examples)
            for batch in order.split(task.batch):
                grads = gradients(x, self.inputs[client, batch], self.labels[client, batch])
                with torch.no_grad():
                    for k, w in enumerate(x):
                        w.sub_(grads[k] if correction is None else grads[k] + correction[k], alpha=task.lr)
        return [w.detach() for w in x]

    def round(self) -> None:
        task, controlled = self.task, self.task.method == "scaffold"
        moved, changed = ([torch.zeros_like(w) for w in self.x] for _ in range(2))
        for client in self.rng.choice(task.clients, task.cohort, replace=False):
            own = self.own.get(client, [torch.zeros_like(w) for w in self.x]) if controlled else None
            after = self.local(client, [c - c_i for c, c_i in zip(self.c, own)] if controlled else None)
            for k, w in enumerate(after):
                moved[k] += w - self.x[k]
                if controlled:
                    changed[k] += (self.x[k] - w) / (task.steps * task.lr) - self.c[k]
            if controlled:
                new = lambda k: own[k] - self.c[k] + (self.x[k] - after[k]) / (task.steps * task.lr)
                self.own[client] = [new(k) for k in range(len(after))]
        for k in range(len(self.x)):
            self.x[k] += moved[k] / task.cohort
            self.c[k] += changed[k] / task.clients

    def weights(self) -> Weights:
        return tuple(w.numpy() for w in self.x)

    def go(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round()


if __name__ == "__main__":
    loop = Loop(Task.given())
    Talk(loop.task, loop.weights).serve(loop.go)
