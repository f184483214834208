"""Damaged run folders: whatever is cut, flipped, lost or of another type, the command says so in a sentence or goes on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
import rookery.runs.folder
from fuzz.harness import command, half_written

CASES, MANY = 60, 4000
BLOCK = 60

SMALL = ["hyperrep", "simfbo", "--rounds", "6", "--clients", "6", "--cohort", "3", "--task.hidden", "4", "--every", "1"]
WRONG = [
    None,
    True,
    -1,
    1.5,
    10**30,
    "x",
    "",
    [],
    [1],
    {},
    {"class": "Rates"},
    {"class": 5},
    {"class": "array"},
    "1e400",
    {"class": "Nothing"},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An ended run, one that was interrupted in the middle, a comparison, and a study's page with its cells."""
    root = tmp_path_factory.mktemp("folders")
    assert command(["run", *SMALL, "--out", str(root / "ended")])[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rk.runs.folder.HistoryFile, "__call__", _interrupted_at(4))
        assert command(["run", *SMALL, "--checkpoint-every", "1", "--out", str(root / "cut")])[0] == 130
    sizes = ["--clients", "6", "--cohort", "3", "--task.hidden", "4", "--every", "1"]
    compare = ["compare", "hyperrep", "simfbo", "fedbio", *sizes, "--exchanges", "3", "--seeds", "1"]
    assert command([*compare, "--out", str(root / "compared")])[0] == 0
    return root, compare


def _interrupted_at(round):
    real = rk.runs.folder.HistoryFile.__call__

    def call(self, number, row):
        real(self, number, row)
        if number == round:
            raise KeyboardInterrupt

    return call


def damage(path: Path, draw: random.Random) -> str:
    """Damages a file in one of many ways, and says how."""
    how = draw.choice(["cut", "flip", "delete", "empty", "garbage", "folder", "swap", "json", "json", "json"])
    content = path.read_bytes()
    if how == "json" and path.suffix == ".json":
        changed = _mutated(json.loads(content), draw)
        path.write_text(json.dumps(changed))
    elif how == "cut":
        path.write_bytes(content[: draw.randrange(len(content) or 1)])
    elif how == "flip":
        flipped = bytearray(content or b"x")
        for _ in range(draw.choice([1, 1, 5])):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(flipped))
    elif how == "delete":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "swap":
        others = [other for other in path.parent.iterdir() if other.is_file()]
        path.write_bytes(draw.choice(others).read_bytes())
    else:
        path.write_bytes(
            b"" if how == "empty" else draw.randbytes(draw.randrange(200)) + b"[" * draw.choice([1, 100_000])
        )
    return how


def _mutated(value, draw):
    """Some json with one value, somewhere in it, of another type, lost, or in another place."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: _mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        return [*value[:place], _mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(WRONG)


def attack(seeds, folders, tmp_path):
    root, compare = folders
    whole = load_file(root / "ended" / "sequences.safetensors")
    for seed in seeds:
        draw = random.Random(seed)
        kind = draw.choice(["ended", "cut", "cut", "compared"])
        folder = tmp_path / "folder"
        shutil.copytree(root / kind, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png")
        damaged = draw.choice(files)
        how = damage(damaged, draw)
        case = (seed, kind, damaged.relative_to(folder), how)
        if kind == "compared" and draw.random() < 0.6:
            words = [*compare, "--out", str(folder)]
        else:
            words = draw.choice(
                [
                    ["resume", str(folder)],
                    ["resume", str(folder)],
                    ["report", str(folder), "-o", str(tmp_path / "page.html")],
                ]
            )
        status, said = command(words)
        assert not half_written(folder), case
        # Where it went on, the numbers are those of a run that was left alone, unless it was told to be another.
        if words[0] == "resume" and status == 0 and damaged.name not in ("config.json", "result.json"):
            now = load_file(folder / "sequences.safetensors")
            for name, array in whole.items():
                np.testing.assert_array_equal(now[name], array, str(case))
            if kind == "cut":
                assert rk.Result.load(folder).history["round"].tolist() == list(range(7)), case
        if status == 2:
            assert said.strip().split("\n")[-1].startswith("rookery: "), (case, said)
        for child in tmp_path.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_damaged_folders(block, folders, tmp_path):
    attack(range(block * BLOCK, (block + 1) * BLOCK), folders, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("block", range(CASES // BLOCK, MANY // BLOCK))
def test_many_damaged_folders(block, folders, tmp_path):
    attack(range(block * BLOCK, (block + 1) * BLOCK), folders, tmp_path)
