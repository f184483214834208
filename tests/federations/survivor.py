"""A server that tests kill: python survivor.py FOLDER EXACT METHOD ROUNDS, with a process for every site."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from federations.conftest import SITES, exact
from federations.test_processes import CASES
from rookery.engines.messaging import OnFailure
from rookery.experiments.loopback import federate

if __name__ == "__main__":
    folder, case, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if (folder / "config.json").is_file():
        federate(None, folder)
    else:
        experiment = exact(*CASES[case], rounds=rounds, checkpoint_every="1")
        federate(experiment, folder, dict.fromkeys(SITES), OnFailure("wait"))
