"""How much a machine holds, and the sentence when something is larger. Imports only errors."""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path

import jax

from rookery.errors import InputError

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of what this process is part of, on Linux


@cache
def available() -> int:
    """The bytes of memory that this machine has for arrays, on its device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return 2**40
    limit = _LIMIT.read_text().strip() if _LIMIT.is_file() else ""
    return min(physical, int(limit)) if limit.isdecimal() else physical


def check_fits(argument: str, given: object, what: str, size: int) -> None:
    """Refuses what takes more bytes than the machine has."""
    if size > available():
        raise InputError(
            f"{argument}: {given} was given; {what} takes {size / 2**30:.4g} GiB, and this machine has "
            f"{available() / 2**30:.4g} GiB"
        )


_MAPS = Path("/proc/self/maps")
_MANY_MAPS = 30_000  # Linux gives a process 65,530


def free_compiled_programs() -> None:
    """Drop compiled programs if their memory maps use up what Linux gives a process, which would end it."""
    if _MAPS.is_file() and _MAPS.read_bytes().count(b"\n") > _MANY_MAPS:
        jax.clear_caches()
        gc.collect()
