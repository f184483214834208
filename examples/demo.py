"""`make demo`: a representation learnt over 100 clients, and sites with wrong labels that are found.

First SimFBO and FedBiOAcc on the hyper-representation task: what they reach and what it costs. Then three sites that
code labels differently, and four hospitals, one of which has its labels swapped.
"""

from __future__ import annotations

import time
from pathlib import Path

import hospitals

import rookery as rk

METHODS = {
    "simfbo": rk.SimFBO(lr=rk.Rates(0.3), local_steps=5),
    "fedbioacc": rk.FedBiOAcc(lr=rk.Rates(0.8), local_steps=5),
}


def main(exchanges: int = 300, seeds: int = 3, out: str | Path | None = None) -> tuple[Path, Path]:
    """Runs both parts and gives the paths of their pictures."""
    out = Path(out or f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}_demo")
    print(
        "100 clients hold 1,438 handwritten digits, each of few classes (Dirichlet 0.2). Together they learn a\n"
        "hidden layer (upper level, validation examples) under a head (lower level, training examples); 10 of them\n"
        "take part in a round, and no example leaves its client.\n"
    )
    digits = out / "digits"
    found = rk.compare(
        rk.tasks.HyperRep(), METHODS, partition="dirichlet:0.2", exchanges=exchanges, seeds=1, target=0.8, out=digits
    )
    print(f"\n{found}\n\nplot in {digits / 'comparison.png'}, a page of both runs in {digits / 'report.html'}\n")
    return digits / "comparison.png", hospitals.main(exchanges, seeds, out / "hospitals")


if __name__ == "__main__":
    main()
