"""`make demo`: two methods learn a common representation over 100 clients, on real digits.

SimFBO and FedBiOAcc on the hyper-representation task: what they reach, what it costs, and both against the exchanges,
the bytes and the gradients that they took.
"""

from __future__ import annotations

import time
from pathlib import Path

import rookery as rk

METHODS = {
    "simfbo": rk.SimFBO(lr=rk.Rates(0.3), local_steps=5),
    "fedbioacc": rk.FedBiOAcc(lr=rk.Rates(0.8), local_steps=5),
}


def main(exchanges: int = 300, out: str | Path | None = None) -> Path:
    """Runs the demo and gives the path of its plot."""
    out = Path(out or f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}_demo")
    print(
        "100 clients hold 1,438 handwritten digits, each of few classes (Dirichlet 0.2). Together they learn a\n"
        "hidden layer (upper level, validation examples) under a head (lower level, training examples); 10 of them\n"
        "take part in a round, and no example leaves its client.\n"
    )
    found = rk.compare(
        rk.tasks.HyperRep(), METHODS, partition="dirichlet:0.2", exchanges=exchanges, seeds=1, target=0.8, out=out
    )
    print(f"\n{found}\n\nplot in {out / 'comparison.png'}, a page of both runs in {out / 'report.html'}")
    return out / "comparison.png"


if __name__ == "__main__":
    main()
