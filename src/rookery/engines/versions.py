"""A client's record, version by version, in memory and on its own disk. Imports files and the client's contract.

A version is on disk before its answer is on its way, so who was told of an answer can count on it: a worker that is
killed comes back with what it had. One file each, written aside and renamed. A file says which run, client and version
it is of, and has a digest of all that it holds. One that is damaged, or is of another client or run, is set aside and
named when that version is needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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
REFUSED = ".refused"  # added to the name of a file that is set aside


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


class Owner(NamedTuple):
    """Whose a client state is: the run's name, and the client's number in it."""

    run: str = ""
    client: int = 0


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
      owner: Whose it is; files of others are refused.
    """

    def __init__(self, record: Record, folder: Path | None = None, owner: Owner | None = None):
        self.owner = owner or Owner()
        self.refused: list[str] = []  # sentences about files that were not as they must be
        self.folder = folder if jax.tree.leaves(record) else None  # what is nothing needs no disk
        folder = self.folder
        self.all = [Version(BEGINNING, record)]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            found = [self._taken_up(path, record) for path in sorted(folder.glob(f"*{ENDING}"))]
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

    def lost(self, whole: str) -> str:
        """The sentence for a version that is needed and not here, with what is known of it."""
        if not self.refused:
            return f"{whole} is lost"
        return f"{whole} is lost: {self.refused[0]}; restore the file from a backup, or begin the run anew"

    def _write(self, name: str, version: Version) -> None:
        assert self.folder is not None
        leaves = {str(i): np.array(leaf, order="C") for i, leaf in enumerate(jax.tree.leaves(version.record))}
        leaves[ANSWER] = np.frombuffer(version.answer, np.uint8)
        said = {"attempt": json.dumps(list(version.attempt)), "exchange": str(version.exchange)}
        said |= {"run": self.owner.run, "client": str(self.owner.client)}
        said["digest"] = _digest(said, leaves)
        with writing("record", self.folder):
            fill_folder(self.folder, lambda aside: safetensors.save_file(leaves, aside / name, said), last=name)

    def _taken_up(self, path: Path, like: Record) -> Version | None:
        """The version in a file; a file that must not be used is set aside."""
        try:
            return self._read(path, like)
        except MessageError as error:
            self.refused.append(f"{path.name} {error}")
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            self.refused.append(f"{path.name} is damaged")
        with writing("record", path):
            path.replace(path.with_name(path.name + REFUSED))
        return None

    def _read(self, path: Path, like: Record) -> Version:
        """What a file holds; refuses one that is not of this client, this run and its own name."""
        with safe_open(path, "numpy") as file:
            said = dict(file.metadata() or {})
            leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        if "digest" not in said:
            raise MessageError("was written by an earlier version of Rookery")
        if said.pop("digest") != _digest(said, leaves):
            raise MessageError("is damaged")
        if said["client"] != str(self.owner.client):
            raise MessageError(f"is of client {said['client']}, and this is client {self.owner.client}")
        if said["run"] != self.owner.run:
            raise MessageError("is of another run")
        attempt, answer = Attempt.of(json.loads(said["attempt"])), leaves.pop(ANSWER).tobytes()
        if path.name != _name(attempt):
            raise MessageError(f"holds {_name(attempt)}")
        held = [leaves[str(i)] for i in range(len(leaves))]
        wanted = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(like)]
        if [(leaf.shape, leaf.dtype) for leaf in held] != wanted:
            raise MessageError("has arrays of other shapes or types than this client's state")
        return Version(attempt, jax.tree.unflatten(jax.tree.structure(like), held), int(said["exchange"]), answer)


def _digest(said: Mapping[str, str], leaves: Mapping[str, np.ndarray]) -> str:
    """A digest of all that a file holds. It tells damage and mix-ups, not malice: it has no key."""
    total = hashlib.blake2b(json.dumps(sorted(said.items())).encode(), digest_size=16)
    for name, leaf in sorted(leaves.items()):
        total.update(f"{name} {leaf.dtype} {leaf.shape} ".encode())
        total.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
    return total.hexdigest()


def _name(attempt: Attempt) -> str:
    """What a version's file is called."""
    return f"{attempt.base + 1:09d}-{attempt.number}{ENDING}"
