"""FedLab's standalone pipeline: a serial trainer for all clients, and its handler of the server."""

from __future__ import annotations

import torch

from benchmarks.peers.common import Talk, Task
from benchmarks.peers.torch_model import import_torchvision, make_model, weights_of

import_torchvision()
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Clients(FedDataset):
    def __init__(self, task: Task):
        self.num = task.clients
        self.inputs, self.labels = (torch.from_numpy(array) for array in task.data())

    def get_dataset(self, id, type="train"):
        return BaseDataset(self.inputs[id], self.labels[id])

    def get_dataloader(self, id, batch_size, type="train"):
        return torch.utils.data.DataLoader(self.get_dataset(id), batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def __init__(self, handler, trainer, talk: Talk):
        super().__init__(handler, trainer)
        self.evaluate = talk.after_round  # which it calls after every round


def main(task: Task) -> None:
    controlled = task.method == "scaffold"
    trainer = (ScaffoldSerialClientTrainer if controlled else SGDSerialClientTrainer)(make_model(), task.clients)
    trainer.setup_dataset(Clients(task))
    trainer.setup_optim(task.epochs, task.batch, task.lr)
    kind = ScaffoldServerHandler if controlled else SyncServerHandler
    handler = kind(make_model(), global_round=10**9, sample_ratio=task.cohort / task.clients)
    if controlled:
        handler.setup_optim(lr=1.0)
    talk = Talk(task, lambda: weights_of(handler.model))
    talk.after_round()
    Pipeline(handler, trainer, talk).main()


if __name__ == "__main__":
    main(Task.given())
