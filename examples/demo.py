"""`make demo`: two methods learn a common representation over 100 clients, on real digits.

Runs SimFBO and FedBiOAcc on the hyper-representation task, shows what they reached and what it cost, and draws both
against the number of exchanges.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

import rookery as rk
from rookery.cli.commands import watched
from rookery.cli.show import show_results
from rookery.experiments.experiment import Experiment, Options, launch
from rookery.runs.folder import make_folder
from rookery.runs.plot import plot_histories
from rookery.tasks.hyperrep import HyperRep

METHODS = {
    "simfbo": rk.SimFBO(lr=rk.Rates(0.3), local_steps=5),
    "fedbioacc": rk.FedBiOAcc(lr=rk.Rates(0.8), local_steps=5),
}


def main(rounds: int = 300, root: str | Path = "runs") -> Path:
    """Runs the demo and gives the path of its plot."""
    console = Console(highlight=False)
    console.print(
        "100 clients hold 1,438 handwritten digits, each of few classes (Dirichlet 0.2). Together they learn a "
        "hidden layer (upper level, validation examples) under a head (lower level, training examples); 10 of them "
        "take part in a round, and no example leaves its client.\n"
    )
    folder = make_folder("hyperrep_demo", root)
    results = {}
    for name, method in METHODS.items():
        options = Options(rounds=rounds, partition="dirichlet:0.2")
        experiment = Experiment("hyperrep", HyperRep(), name, method, options)
        with watched(experiment, console) as callbacks:
            results[name], _ = launch(experiment, folder / name, callbacks)
    console.print()
    show_results(console, results)
    histories = {name: result.history for name, result in results.items()}
    plot = plot_histories(histories, "accuracy", folder / "plot.png", title="hyper-representation on digits")
    console.print(f"\nplot in {plot}, each run's results in the folders beside it", soft_wrap=True, markup=False)
    return plot


if __name__ == "__main__":
    main()
