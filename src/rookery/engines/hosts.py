"""Several processes, on one machine or on many, that run a program together through `jax.distributed`. Imports errors.

All of them do the same, each with its own devices. What depends on time or on a user's Ctrl-C is decided by the first
and told to the others; only the first speaks and writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
import numpy as np

from rookery.errors import InputError

COORDINATOR, PROCESSES, PROCESS = "ROOKERY_COORDINATOR", "ROOKERY_PROCESSES", "ROOKERY_PROCESS"


def environment(coordinator: str, processes: int, process: int) -> dict[str, str]:
    """What tells a process that it is one of several."""
    return {COORDINATOR: coordinator, PROCESSES: str(processes), PROCESS: str(process)}


def join(environ: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes, if the environment names any: what `rookery launch` sets, or Slurm. Before any other
    use of JAX."""
    if jax.distributed.is_initialized():
        return
    if COORDINATOR in environ:
        try:
            processes, process = int(environ[PROCESSES]), int(environ[PROCESS])
        except (KeyError, ValueError):
            raise InputError(f"{PROCESSES}, {PROCESS}: whole numbers are needed where {COORDINATOR} is set") from None
        _initialise(coordinator_address=environ[COORDINATOR], num_processes=processes, process_id=process)
    elif int(environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in environ:
        _initialise()  # which reads the rest of what Slurm sets


def _initialise(**where: str | int) -> None:
    if "cpu" in (getattr(jax.config, "jax_platforms", None) or "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(**where)  # type: ignore[arg-type]


def together() -> bool:
    """Whether this process is one of several."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def leads() -> bool:
    """Whether this process speaks and writes: the first, or the only one."""
    return not together() or jax.process_index() == 0


def agreed(number: int) -> int:
    """The first process's number, in all of them; all must ask."""
    if not together():
        return number
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def meet(name: str) -> None:
    """Waits until all processes are here."""
    if together():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
