"""A client's record, version by version, in memory and on its own disk. Imports files and the client's contract.

A version is on disk before its answer is on its way, so who was told of an answer can count on it: a worker that is
killed comes back with what it had. One file each, written aside and renamed; a file that is damaged is as good as lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors

from rookery.errors import MessageError
from rookery.federation.client import Record
from rookery.files import fill_folder, remove_leftovers, writing

ENDING, ANSWER = ".record", "answer"


class Attempt(NamedTuple):
    """One try at a round: its place (what comes before the first round has 0, round t has t + 1), which try of the
    server process it is, and of which server process: later ones have names that sort later."""

    base: int
    number: int
    session: str

    @classmethod
    def of(cls, given: Any) -> Attempt:
        """The one that a list of these three says."""
        if not isinstance(given, list) or [type(part) for part in given] != [int, int, str]:
            raise MessageError("message: it does not say which attempt at a round it belongs to")
        return cls(*given)


class Version(NamedTuple):
    """A client's record after a round that it took part in, by the attempt that made it so; and, while that goes on,
    the exchange that was the last to change it, with the answer that was given."""

    attempt: Attempt
    record: Record
    exchange: int = -1
    answer: bytes = b""


BEGINNING = Attempt(-1, 0, "")  # what a record that no round has changed comes from


class Versions:
    """The versions of one client's record, oldest first; the last may be tentative.

    Args:
      record: what it begins with, and what every version is like.
      folder: where they are kept; what is there already is taken up. None: in memory alone.
    """

    def __init__(self, record: Record, folder: Path | None = None):
        self.folder = folder if jax.tree.leaves(record) else None  # what is nothing needs no disk
        folder = self.folder
        self.all = [Version(BEGINNING, record)]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            found = [self._read(path, record) for path in folder.glob(f"*{ENDING}")]
            known = sorted((each for each in found if each is not None), key=lambda each: each.attempt[:2])
            self.all = known or self.all
            self.become(self.all)

    def become(self, versions: Sequence[Version]) -> None:
        """Keeps these versions and no others; new ones are on disk when this returns."""
        if self.folder is not None:
            names = {_name(each.attempt): each for each in versions}
            there = {path.name for path in self.folder.glob(f"*{ENDING}")}
            for name, version in names.items():
                if name not in there:
                    self._write(name, version)
            for name in there - set(names):
                (self.folder / name).unlink(missing_ok=True)
        self.all = list(versions)

    def replace(self, version: Version) -> None:
        """Takes a version in the place of the one of the same attempt, if there is one, else as the newest."""
        if self.folder is not None:  # before what it replaces is gone
            self._write(_name(version.attempt), version)
        self.all = [*(each for each in self.all if each.attempt != version.attempt), version]

    def _write(self, name: str, version: Version) -> None:
        assert self.folder is not None
        leaves = {str(i): np.array(leaf, order="C") for i, leaf in enumerate(jax.tree.leaves(version.record))}
        leaves[ANSWER] = np.frombuffer(version.answer, np.uint8)
        told = {"attempt": json.dumps(list(version.attempt)), "exchange": str(version.exchange)}
        with writing("record", self.folder):
            fill_folder(self.folder, lambda aside: safetensors.save_file(leaves, aside / name, told), last=name)

    def _read(self, path: Path, like: Record) -> Version | None:
        """What a file holds; None where it is no version of such a record."""
        try:
            with safe_open(path, "numpy") as file:
                told = file.metadata() or {}
                attempt, exchange = Attempt.of(json.loads(told.get("attempt", "null"))), int(told["exchange"])
                leaves = [file.get_tensor(str(i)) for i in range(len(file.keys()) - 1)]
                answer = file.get_tensor(ANSWER).tobytes()
        except (OSError, ValueError, KeyError, SafetensorError):
            return None
        wanted = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(like)]
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != wanted:
            return None
        return Version(attempt, jax.tree.unflatten(jax.tree.structure(like), leaves), exchange, answer)


def _name(attempt: Attempt) -> str:
    """What a version's file is called."""
    return f"{attempt.base + 1:09d}-{attempt.number}{ENDING}"
