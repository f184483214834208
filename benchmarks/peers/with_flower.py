"""Flower's simulation: a ServerApp with its FedAvg, and clients as tasks of its Ray backend.

SCAFFOLD, which it has not, with the same strategy: a client sends c + |C|/n (c_i^+ - c_i) beside its weights, whose
mean over the cohort is the new c, and keeps c_i in the state of its context.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.common import Talk, Task
from benchmarks.peers.torch_model import make_model


def tensors(record: ArrayRecord, kind: str) -> dict[str, torch.Tensor]:
    return {name[2:]: value for name, value in record.to_torch_state_dict().items() if name[0] == kind}


def record_of(x: dict, c: dict) -> ArrayRecord:
    return ArrayRecord({f"x/{name}": w for name, w in x.items()} | {f"c/{name}": w for name, w in c.items()})


def train(task: Task, message: Message, context: Context) -> Message:
    torch.set_num_threads(1)  # a task has one core
    client = context.node_config["partition-id"]
    inputs, labels = (torch.from_numpy(array[client].copy()) for array in task.data(mapped=True))
    given = message.content["arrays"]
    x, c = tensors(given, "x"), tensors(given, "c")
    own = context.state["own"].to_torch_state_dict() if "own" in context.state else {k: 0 * v for k, v in c.items()}
    model = make_model()
    model.load_state_dict(x)
    optimiser = torch.optim.SGD(model.parameters(), lr=task.lr)
    for _ in range(task.epochs):
        for batch in torch.randperm(task.examples).split(task.batch):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            for name, parameter in model.named_parameters():
                if c:
                    parameter.grad += c[name] - own[name]
            optimiser.step()
    after = {name: w.detach() for name, w in model.state_dict().items()}
    if c:
        change = {k: (x[k] - after[k]) / (task.steps * task.lr) - c[k] for k in c}
        context.state["own"] = ArrayRecord({k: own[k] + change[k] for k in c})
        c = {k: c[k] + task.cohort / task.clients * change[k] for k in c}
    reply = {"arrays": record_of(after, c), "metrics": MetricRecord({"num-examples": task.examples})}
    return Message(content=RecordDict(reply), reply_to=message)


def main(task: Task) -> None:
    server, client = ServerApp(), ClientApp()

    @client.train()
    def train_client(message: Message, context: Context) -> Message:
        return train(task, message, context)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        x = make_model().state_dict()
        arrays = record_of(x, {name: 0 * w for name, w in x.items()} if task.method == "scaffold" else {})
        share = {"fraction_train": task.cohort / task.clients, "fraction_evaluate": 0.0}
        strategy = FedAvg(**share, min_train_nodes=task.cohort, min_available_nodes=task.clients)

        def go(rounds: int) -> None:
            nonlocal arrays
            arrays = strategy.start(grid, arrays, rounds, train_config=ConfigRecord()).arrays

        weights = lambda: tuple(w.numpy().T for w in tensors(arrays, "x").values())
        Talk(task, weights).serve(go)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=task.clients, backend_config=resources)


if __name__ == "__main__":
    main(Task.given())
