"""fluke: its own FedAvg and SCAFFOLD, on clients that are given."""

from __future__ import annotations

import torch

from benchmarks.peers.common import LABELS, Talk, Task
from benchmarks.peers.torch_model import import_torchvision, make_model, weights_of

import_torchvision()
from fluke import DDict  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.algorithms.scaffold import SCAFFOLD  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402


def main(task: Task) -> None:
    inputs, labels = (torch.from_numpy(array) for array in task.data())
    loader = lambda x, y: FastDataLoader(x, y, num_labels=LABELS, batch_size=task.batch, shuffle=True)
    loaders = [loader(x, y) for x, y in zip(inputs, labels)]
    data = DummyDataContainer(loaders, [None] * task.clients, None, LABELS)
    settings = DDict(
        client=DDict(
            batch_size=task.batch,
            local_epochs=task.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=task.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
        model=make_model(),
    )
    algorithm = {"fedavg": FedAVG, "scaffold": SCAFFOLD}[task.method](task.clients, DataSplitter(data), settings)
    go = lambda rounds: algorithm.run(rounds, task.cohort / task.clients, finalize=False)
    Talk(task, lambda: weights_of(algorithm.server.model)).serve(go)


if __name__ == "__main__":
    main(Task.given())
