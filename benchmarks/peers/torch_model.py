"""The network as a PyTorch module, for the frameworks that train one."""

from __future__ import annotations

import sys

import torch

from benchmarks.peers.common import HIDDEN, INPUTS, LABELS, Weights, first_weights


def make_model() -> torch.nn.Sequential:
    """The network with the first weights."""
    layers = torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, LABELS)
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), first_weights()):
            parameter.copy_(torch.from_numpy(weight).T)  # of a vector: itself
    return model


def weights_of(model: torch.nn.Module) -> Weights:
    return tuple(parameter.detach().numpy().T for parameter in model.parameters())


def import_torchvision() -> None:
    """For frameworks that import torchvision and need none of its operators, which do not load beside the CPU build of
    PyTorch: then those that its import asks for are declared."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
