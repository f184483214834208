"""pfl-research: its algorithms over the simulated backend, with a PyTorch model.

Its SCAFFOLD (0.6.0, option II) gives other results: it takes x_i - x where the paper has x - x_i in a client's new
control variate; a loop with that sign turned gives its numbers. What it does in a round is the same work.
"""

from __future__ import annotations

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers.common import Talk, Task
from benchmarks.peers.torch_model import make_model, weights_of


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = make_model()

    def loss(self, inputs, labels):
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs, labels):
        return {}


class AfterRound(TrainingProcessCallback):
    def __init__(self, talk: Talk):
        self.talk = talk

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.talk.after_round()
        return False, Metrics()


def main(task: Task) -> None:
    inputs, labels = (torch.from_numpy(array) for array in task.data())
    rng = np.random.default_rng(0)

    def dataset(user: int) -> Dataset:
        order = torch.from_numpy(rng.permutation(task.examples))  # its epochs go through the examples as they stand
        return Dataset(raw_data=[inputs[user][order], labels[user][order]], user_id=str(user))

    clients = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(task.clients))))
    network = Network()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    common = {
        "central_num_iterations": 10**9,
        "evaluation_frequency": 10**9,
        "train_cohort_size": task.cohort,
        "val_cohort_size": 0,
    }
    if task.method == "scaffold":
        own = {"population": task.clients, "use_gradient_as_control_variate": False}
        algorithm = SCAFFOLD()
        settings = SCAFFOLDParams(**common, **own, user_state_storage=InMemoryUserStateStorage())
    else:
        algorithm, settings = FederatedAveraging(), NNAlgorithmParams(**common)
    local = NNTrainHyperParams(local_batch_size=task.batch, local_num_epochs=task.epochs, local_learning_rate=task.lr)
    talk = Talk(task, lambda: weights_of(network))
    talk.after_round()
    algorithm.run(settings, SimulatedBackend(clients, clients), model, local, callbacks=[AfterRound(talk)])


if __name__ == "__main__":
    main(Task.given())
