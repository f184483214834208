"""Checkpoints of records that are in a file: each has what changed since the one before. Imports engines and files.

A segment is a folder `records/round-000000120` with clients.npy (who) and rows.npy (their records, as rows of bytes).
Segments put one after another, in their order, are the records of a checkpoint; when they hold clients twice as often
as need be, a whole one takes their place.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from rookery.engines.records import RecordStore
from rookery.errors import InputError
from rookery.federation.client import Record
from rookery.files import remove_folder, write_folder

FOLDER, CLIENTS, ROWS = "records", "clients.npy", "rows.npy"

Segment = dict[str, str]  # its name, and the checksums of its files by theirs


def write_changed(folder: Path, round: int, store: RecordStore, before: Sequence[Segment]) -> list[Segment]:
    """Writes what has changed in a store since the segments before; gives those that make up its records now."""
    if not store.leaves:
        return []
    own = np.flatnonzero(store.changed)
    known = [np.load(folder / FOLDER / segment["name"] / CLIENTS) for segment in before]
    everybody = np.unique(np.concatenate([own, *known]))
    held = len(own) + sum(map(len, known))
    if held > 2 * len(everybody):
        own, before = everybody, []
    if not len(own):
        return list(before)
    name = f"round-{round:09d}"
    target = folder / FOLDER / name
    if target.exists():  # of an earlier life of this run, or of one that went on further before
        remove_folder(target)

    def write(aside: Path) -> None:
        np.save(aside / CLIENTS, own)
        with (aside / ROWS).open("wb") as file:  # by calls, which a full disk refuses; it kills who writes to its pages
            told = {"descr": "|u1", "fortran_order": False, "shape": (len(own), store.row_bytes)}
            np.lib.format.write_array_header_1_0(file, told)
            for some in store.blocks(own):
                file.write(store.read_rows(some).data)

    write_folder(target, write)
    return [*before, {"name": name, **{file: _checksum(target / file) for file in (CLIENTS, ROWS)}}]


def damage(folder: Path, segments: Sequence[Segment]) -> str | None:
    """What is wrong with segments; None: nothing."""
    for segment in segments:
        for file in (CLIENTS, ROWS):
            path = folder / FOLDER / segment["name"] / file
            if not path.is_file() or _checksum(path) != segment[file]:
                return f"{FOLDER}/{segment['name']}/{file} is missing or does not match its checksum"
    return None


def replay(folder: Path, segments: Sequence[Segment], first: Record, into: str | Path | None = None) -> Record:
    """All records as segments have them, on top of what they began as; in a file of the folder `into`."""
    store = RecordStore(first, into)
    for segment in segments:
        clients = np.load(folder / FOLDER / segment["name"] / CLIENTS)
        rows = np.load(folder / FOLDER / segment["name"] / ROWS, mmap_mode="r")
        if rows.shape != (len(clients), store.row_bytes) or clients.max(initial=0) >= store.population:
            raise InputError("state: it belongs to another problem, method, population or precision than this run's")
        begin = 0
        for some in store.blocks(clients):
            store.write_rows(some, np.ascontiguousarray(rows[begin : begin + len(some)]))
            begin += len(some)
    return store.all()


def remove_unused(folder: Path, find_used: Callable[[], Collection[str]]) -> None:
    """Removes the segments that no checkpoint names, where there are any at all."""
    if not (folder / FOLDER).is_dir():
        return
    used = find_used()
    for path in (folder / FOLDER).glob("round-*"):
        if path.name not in used:
            remove_folder(path)
    if not used:
        with contextlib.suppress(OSError):  # something of the user's own is in it
            (folder / FOLDER).rmdir()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
