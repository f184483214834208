"""What all tests share: the compilation cache, and a count of compilations."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

# Before JAX starts: tests run on the CPU, and keep compiled programs between runs.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax
import pytest

# Tracing makes objects by the million and hardly any rubbish: looking for it takes a sixth of the time.
gc.set_threshold(100_000, 20, 100)

# The longest files, those first whose tests wait for other processes: so that nobody waits for them in the end.
LONG = ("test_page.py", "test_frameworks.py", "test_wheel.py", "test_processes.py", "test_kills.py")
LONG += ("test_properties.py", "test_docs.py", "test_reproduce.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


_lowered = [0]


def _listen(event: str, duration: float, **_: object) -> None:
    # Tracing to an MLIR module precedes every compilation, also one that the cache on disk then spares.
    if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
        _lowered[0] += 1


jax.monitoring.register_event_duration_secs_listener(_listen)


class Compilations:
    """How many programs were compiled inside a `with compilations.counted()` block."""

    count = 0

    @contextlib.contextmanager
    def counted(self):
        before = _lowered[0]
        yield self
        self.count = _lowered[0] - before


MAPS = Path("/proc/self/maps")
_tests = [0]


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Compiled programs hold memory maps, of which Linux gives a process 65,530; before they run out, drop them."""
    yield
    _tests[0] += 1  # counting them takes as long as a short test does
    if _tests[0] % 20 == 0 and MAPS.is_file() and MAPS.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def compilations() -> Compilations:
    if os.environ.get("ROOKERY_VERIFY_PROGRAMS") == "1":
        pytest.skip("every run traces its program again to compare it")
    return Compilations()
