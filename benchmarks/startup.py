"""`python -m benchmarks.startup`: seconds from `rookery run hyperrep simfbo` to the end of its first round.

Cold, with no compiled program kept, and warm, as every further start of the same run is. Each start is a process of its
own; the best of some counts, since other work only ever slows one down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

CHILD = """
import json, os, sys, time
begun = float(sys.argv[1])
marks = {"python": time.time() - begun}
from rookery.cli import main
from rookery.engines.local import LocalSession
from rookery.runs import run
marks["imports"] = time.time() - begun
opened, advance = LocalSession.__init__, LocalSession.advance

def opening(self, *given):
    marks["task and checks"] = time.time() - begun
    opened(self, *given)
    marks["data on the device"] = time.time() - begun

def advancing(self, rounds):
    done = advance(self, rounds)
    marks["first round" if rounds else "compiling"] = time.time() - begun
    if rounds:
        print(json.dumps(marks), file=sys.stderr, flush=True)
        os._exit(0)
    return done

LocalSession.__init__, LocalSession.advance = opening, advancing
main(["run", *sys.argv[2:]])
"""


def start(run: list[str], cache: str) -> dict[str, float]:
    """When each part of a start was over, in seconds since it began."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CHILD, str(time.time()), *run, "--rounds", "20", "--out", f"{folder}/run"]
        environment = {**os.environ, "ROOKERY_CACHE": cache}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stderr.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("run", nargs="*", default=["hyperrep", "simfbo"], help="what `rookery run` is given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as warm:
        start(options.run, warm)  # reads the package's files once, and leaves compiled programs behind
        found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as cold:
                found["cold"].append(start(options.run, cold))
            found["warm"].append(start(options.run, warm))
    best = {name: min(starts, key=lambda marks: marks["first round"]) for name, starts in found.items()}
    print(f"rookery run {' '.join(options.run)}: seconds to the end of the first round\n")
    print("| | cold | warm |\n|---|---|---|")
    before = dict.fromkeys(best, 0.0)
    for part in best["cold"]:
        print(f"| {part} | " + " | ".join(f"{best[name][part] - before[name]:.2f}" for name in best) + " |")
        before = {name: best[name][part] for name in best}
    print("| **in all** | " + " | ".join(f"**{best[name]['first round']:.2f}**" for name in best) + " |")


if __name__ == "__main__":
    main()
