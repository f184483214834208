"""How long it takes to trace and to compile a round of every method: `python -m benchmarks.compile_times`.

Without a cache of compiled programs, on the quadratic bilevel problem or, where a method solves none, on the first that
it does; seconds, the best of three.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.engines.local import Local, advance
from rookery.runs.check import PROBLEMS, fits
from rookery.runs.prepare import precision_context, prepare

TURNS = 3


def measure(name: str) -> tuple[float, float]:
    """Seconds to trace and lower a method's rounds, and to compile them."""
    method = METHODS[name].method(lr=rk.Rates(0.1))
    exact = PROBLEMS[next(kind for kind in ("bilevel", *PROBLEMS) if fits(method, kind))]()
    sampling = rk.All() if method.participation == "all" else rk.Uniform(2)
    traced, compiled = [], []
    with precision_context("float32"):
        prepared = prepare(
            exact.problem, method, exact.clients, sampling=sampling, batch_size=2, seed=0, precision="float32",
            **exact.start(),
        )  # fmt: skip
        for _ in range(TURNS):
            jax.clear_caches()
            begun = time.perf_counter()
            lowered = advance.lower(Local().program(prepared), prepared.inputs, prepared.carry, jnp.int32(1))
            middle = time.perf_counter()
            lowered.compile()
            traced.append(middle - begun)
            compiled.append(time.perf_counter() - middle)
    return min(traced), min(compiled)


def main() -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    print("| method | trace and lower, s | compile, s |\n|---|---|---|")
    for name in METHODS:
        traced, compiled = measure(name)
        print(f"| {name} | {traced:.2f} | {compiled:.2f} |", flush=True)


if __name__ == "__main__":
    main()
