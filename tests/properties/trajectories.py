"""Where every method stood after a few rounds when it was last looked at: `python -m properties.trajectories` in tests/
writes it anew, after a change that is meant to move it."""

from __future__ import annotations

import json
from pathlib import Path

import rookery as rk
from properties.checks import flat, run
from properties.table import CASES, bed, by_name, on_beds

KEPT = Path(__file__).parent / "trajectories.json"
PAIRS = on_beds(CASES)


def name_of(case, name) -> str:
    return f"{by_name(case)}-{name}"


def now(case, name) -> dict[str, list[float]]:
    """All sequences after five rounds with sampled clients and minibatches, in float64."""
    result = run(bed(name), case.make(rk.Rates(0.02)), rounds=5, seed=7, **case.noisy)
    return {sequence: flat(tree).tolist() for sequence, tree in result.sequences.items()}


if __name__ == "__main__":
    KEPT.write_text(json.dumps({name_of(*pair): now(*pair) for pair in PAIRS}, indent=0))
