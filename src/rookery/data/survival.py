"""Survival data of hospitals: Fed-TCGA-BRCA, from the folder that ROOKERY_DATA names. Imports errors and tables."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from rookery.data.tables import read_csv
from rookery.errors import InputError

FILES = ("brca.csv", "split.csv")
REGIONS = 6
SIZES = ((248, 63), (156, 40), (164, 42), (129, 33), (129, 33), (40, 11))  # training and test patients of each


def tcga_brca(folder: str | Path | None = None) -> list[dict[str, dict[str, np.ndarray]]]:
    """1,088 breast cancer patients of six regions, 39 features each, how long they were seen and whether they died.

    A region is `{"train": ..., "test": ...}` of `{"input": (n, 39), "time": (n,) days, "event": (n,) 0 or 1}`, divided
    as the public benchmark FLamby divides them.

    Args:
      folder: where brca.csv and split.csv are; None: `tcga_brca/` in the folder that ROOKERY_DATA names.

    Reference: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic
    Healthcare Settings", NeurIPS 2022; Liu et al., "An Integrated TCGA Pan-Cancer Clinical Data Resource", Cell 2018.
    """
    root = os.environ.get("ROOKERY_DATA")
    place = Path(folder) if folder is not None else Path(root or ".").expanduser() / "tcga_brca"
    if missing := [name for name in FILES if not (place / name).is_file()]:
        raise InputError(
            f"data: tcga_brca needs {' and '.join(FILES)} in {str(place)!r}, and {missing[0]} is not there; set "
            "ROOKERY_DATA to a folder that has tcga_brca/"
        )
    patients, split = (read_csv(place / name) for name in FILES)
    for table, needed in ((patients, ("pid", "E", "T")), (split, ("pid", "fold2"))):
        if lacking := [name for name in needed if name not in table]:
            raise InputError(
                f"data: tcga_brca in {str(place)!r} has no column {lacking[0]!r}; FLamby's files are needed"
            )
    names = [name for name in patients if name not in ("pid", "E", "T")]
    inputs = np.stack([patients[name].astype(np.float64) for name in names], axis=1)
    row_of = {str(patient): row for row, patient in enumerate(patients["pid"])}
    regions = []
    for region in range(REGIONS):
        parts = {}
        for part in ("train", "test"):
            chosen = [str(patient) for patient in split["pid"][split["fold2"] == f"{part}_{region}"]]
            rows = np.sort(np.array([row_of[patient] for patient in chosen if patient in row_of], int))
            parts[part] = {
                "input": inputs[rows],
                "time": patients["T"][rows].astype(np.float64),
                "event": patients["E"][rows].astype(np.float64),
            }
        regions.append(parts)
    found = tuple((len(each["train"]["time"]), len(each["test"]["time"])) for each in regions)
    if found != SIZES:
        raise InputError(f"data: tcga_brca in {str(place)!r} has regions of {found} patients; {SIZES} are needed")
    return regions
