"""Prints the XLA flags that make tests quick: their programs are tiny, and optimising them takes longer than it saves.

A flag that this XLA does not know would end the process, so they are tried first, and left out when they are not known.
"""

import os
import subprocess
import sys

FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)


def works(flags: str) -> bool:
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True).returncode == 0


if __name__ == "__main__":
    together = " ".join(FLAGS)
    print(together if works(together) else " ".join(flag for flag in FLAGS if works(flag)))
