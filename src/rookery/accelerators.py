"""What XLA is told before it first looks for an accelerator. Imports nothing of rookery.

A round on a GPU is made of short kernels, so that launching them is much of its time. XLA records them as one graph,
and by default leaves out loops and branches, of which rounds are made.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.util import find_spec

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
RECORDED = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,COLLECTIVES,WHILE,CONDITIONAL,DYNAMIC_SLICE_FUSION"


def has_gpu() -> bool:
    """Whether JAX was installed with what it needs on a GPU."""
    return any(find_spec(name) is not None for name in PLUGINS)


def record_loops(environment: MutableMapping[str, str], gpu: bool) -> None:
    """Asks XLA to record loops and branches as well, unless the user has set flags of their own, were they empty."""
    if gpu and "XLA_FLAGS" not in environment and environment.get("JAX_PLATFORMS") != "cpu":
        environment["XLA_FLAGS"] = f"--xla_gpu_enable_command_buffer={RECORDED}"
