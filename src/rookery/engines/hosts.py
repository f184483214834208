"""Several processes, on one machine or on many, that run a program together through `jax.distributed`. Imports errors.

All of them do the same, each with its own devices. What depends on time or on a user's Ctrl-C is decided by the first
and told to the others; only the first speaks and writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
import numpy as np

from rookery.errors import InputError, failing

COORDINATOR, PROCESSES, PROCESS = "ROOKERY_COORDINATOR", "ROOKERY_PROCESSES", "ROOKERY_PROCESS"
STEP = "SLURM_STEP_NODELIST"  # what Slurm sets for what `srun` starts, and not for the script around it
TASKS = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")  # of the job, and of the step, which may be a shell alone


def environment(coordinator: str, processes: int, process: int) -> dict[str, str]:
    """What tells a process that it is one of several."""
    return {COORDINATOR: coordinator, PROCESSES: str(processes), PROCESS: str(process)}


def join(environ: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes, if the environment names any: what `rookery launch` sets, or a step of Slurm. Before
    any other use of JAX."""
    if jax.distributed.is_initialized():
        return
    if COORDINATOR in environ:
        processes, process = (_whole(environ, name) for name in (PROCESSES, PROCESS))
        if not 0 <= process < processes:
            raise InputError(
                f"{PROCESS}: {process} was given with {PROCESSES}={processes}; a whole number from 0 to "
                f"{PROCESSES} - 1 is needed"
            )
        host, _, port = environ[COORDINATOR].rpartition(":")
        if not host or not _is_whole(port) or not 0 < int(port) < 2**16:
            raise InputError(f"{COORDINATOR}: {environ[COORDINATOR]!r} was given; host:port is needed")
        _initialise(coordinator_address=environ[COORDINATOR], num_processes=processes, process_id=process)
    elif STEP in environ and min([_whole(environ, name) for name in TASKS if name in environ], default=1) > 1:
        _initialise()  # which reads what Slurm sets


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _whole(environ: Mapping[str, str], name: str) -> int:
    given = environ.get(name)
    if given is None or not _is_whole(given):
        told = "nothing" if given is None else repr(given)
        raise InputError(f"{name}: {told} was given; a whole number is needed")
    return int(given)


def _initialise(**where: str | int) -> None:
    if "cpu" in (getattr(jax.config, "jax_platforms", None) or "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM, which interrupts a run
    with failing("jax.distributed: to join the other processes"):
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
