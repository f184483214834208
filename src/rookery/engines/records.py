"""Every client's record in a file, of which only the cohort's parts are in memory. Imports contracts only.

A record is one row of the file, all its arrays one after another; the file is as long as the population, and of pages
in which nobody has been written yet the disk has nothing. Rows are written by calls, since a disk that is full refuses
these, and kills the process that writes to a mapped page.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.data.federated import aligned
from rookery.errors import StorageError
from rookery.federation.client import Record

TOUCHED = 2**28  # bytes of the file that are looked at before the process lets go of their pages
COPIED = 2**26  # bytes of records that are copied in one go, about
LARGE = 2**14  # bytes of a record from which on a call moves it sooner than the system its pages
BUFFERS = 1000  # that a call takes at most
WRITTEN = "written to"


class RecordStore:
    """The records of a population. Those that were never written are what they began as.

    Args:
      first: all records as they begin, stacked over clients; views of one row take no memory.
      folder: where the file is, which has no name and is gone with the process; None: the system's temporary folder.
    """

    def __init__(self, first: Record, folder: str | Path | None = None):
        leaves, self._structure = jax.tree.flatten(first)
        self._first = [np.asarray(leaf) for leaf in leaves]
        fields = [(str(i), leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(self._first)]
        self._row = np.dtype(fields)
        self.population = len(self._first[0]) if leaves else 0
        self.written = np.zeros(self.population, bool)
        self.changed = np.zeros(self.population, bool)  # since the last checkpoint
        self._looked_at = 0
        self._where = str(tempfile.gettempdir() if folder is None else folder)
        if self.population:
            self._open(folder)

    def _open(self, folder: str | Path | None) -> None:
        with self._told():
            file = tempfile.TemporaryFile(prefix="rookery-records-", dir=folder, buffering=0)  # noqa: SIM115
            weakref.finalize(self, file.close)
            file.truncate(self.population * self.row_bytes)
            self._number = file.fileno()
            self._rows = np.memmap(file, np.uint8, "r", shape=(self.population, self.row_bytes))

    @contextlib.contextmanager
    def _told(self, what: str = WRITTEN) -> Iterator[None]:
        """Says in a sentence that the disk refuses something."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"folder: clients' records cannot be {what} {self._where!r}: {error.strerror}; "
                f"{'free some space there, or ' if what == WRITTEN else ''}name another with rk.Streamed(folder=...)"
            ) from error

    @property
    def row_bytes(self) -> int:
        """The size of one record."""
        return self._row.itemsize

    @property
    def leaves(self) -> int:
        """How many arrays a record has."""
        return len(self._first)

    def blocks(self, clients: np.ndarray) -> list[np.ndarray]:
        """Clients in parts whose records may be copied in one go."""
        most = max(1, COPIED // max(1, self.row_bytes))
        return np.split(clients, range(most, len(clients), most))

    def read(self, clients: np.ndarray) -> Record:
        """The records of some clients, stacked."""
        if self._is_large:
            return jax.tree.unflatten(self._structure, self._read_each(clients))
        rows = self.read_rows(clients)
        return jax.tree.unflatten(self._structure, [np.ascontiguousarray(rows[name]) for name in self._row.names or ()])

    def read_rows(self, clients: np.ndarray) -> np.ndarray:
        """The same as rows of the file."""
        if not self.leaves:
            return np.zeros(len(clients), self._row)
        rows, known = np.empty(len(clients), self._row), self.written[clients]
        self._as_bytes(rows)[known] = self._rows[clients[known]]
        fresh = clients[~known]
        for i, leaf in enumerate(self._first):
            rows[str(i)][~known] = leaf[fresh]
        self._let_go(len(clients))
        return rows

    @property
    def _is_large(self) -> bool:
        return self.row_bytes >= LARGE and hasattr(os, "preadv")

    def _read_each(self, clients: np.ndarray) -> list[np.ndarray]:
        """The arrays of some clients' records, stacked: each record is read to where it belongs."""
        leaves = [aligned((len(clients), *leaf.shape[1:]), leaf.dtype) for leaf in self._first]
        known = self.written[clients]
        self._move(os.preadv, clients[known], leaves, np.flatnonzero(known))
        for made, leaf in zip(leaves, self._first):
            made[~known] = leaf[clients[~known]]
        return leaves

    def _move(self, call: Any, clients: np.ndarray, leaves: list[np.ndarray], places: np.ndarray) -> None:
        """Reads or writes the records of some clients, a call for each, from or to their places in stacked arrays."""
        contents = [leaf.reshape(len(leaf), -1).view(np.uint8) for leaf in leaves if leaf.size]
        with self._told("read from" if call is os.preadv else WRITTEN):
            for client, place in zip(clients.tolist(), places.tolist()):
                _whole(call, self._number, [content[place] for content in contents], client * self.row_bytes)

    def _as_bytes(self, rows: np.ndarray) -> np.ndarray:
        return rows.view(np.uint8).reshape(len(rows), self.row_bytes)

    def write(self, clients: np.ndarray, records: Record, places: np.ndarray | None = None) -> None:
        """Puts the records of some clients, which are at some places of stacked ones, or are all of them; what is put
        twice is the same."""
        if not self.leaves:
            return
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(records)]
        places = np.arange(len(clients)) if places is None else places
        if self._is_large:
            whole = [np.ascontiguousarray(leaf, own.dtype) for leaf, own in zip(leaves, self._first)]
            self._move(os.pwritev, np.asarray(clients, np.int64), whole, places)
            self.written[clients] = self.changed[clients] = True
            return
        rows = np.empty(len(clients), self._row)
        for i, leaf in enumerate(leaves):
            rows[str(i)] = leaf[places]
        self.write_rows(clients, rows)

    def write_rows(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """The same from rows of the file."""
        self._put(clients, rows)
        self.changed[clients] = True

    def _put(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows; those of neighbours in one go."""
        clients = np.asarray(clients, np.int64)  # places in the file go beyond 32 bits
        ends = np.flatnonzero(np.diff(clients, append=-1) != 1) + 1
        begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        content, size = self._as_bytes(rows).reshape(-1).data, self.row_bytes
        with self._told():
            for begin, end, at in zip(*((some * size).tolist() for some in (begins, ends, clients[begins]))):
                _whole(_write_at, self._number, [content[begin:end]], at)
        self.written[clients] = True

    def all(self) -> Record:
        """The records of all clients, as views of the file."""
        if not self.leaves:
            return jax.tree.unflatten(self._structure, [])
        if any(np.any(leaf[:1]) or leaf.strides[0] for leaf in self._first):  # else the file's holes say the same
            fresh = np.flatnonzero(~self.written)
            for some in self.blocks(fresh):
                rows = self.read_rows(some)
                told = self._as_bytes(rows).any(axis=1)
                self._put(some[told], rows[told])
                self.written[some] = True
        rows = self._rows.view(self._row)[:, 0]
        return jax.tree.unflatten(self._structure, [rows[name] for name in self._row.names or ()])

    def _let_go(self, clients: int) -> None:
        """Gives the pages of the file back to the system from time to time; what is in them stays."""
        self._looked_at += clients * max(self.row_bytes, mmap.PAGESIZE)
        mapped: Any = self._rows
        if self._looked_at > TOUCHED and hasattr(mmap, "MADV_DONTNEED"):
            mapped._mmap.madvise(mmap.MADV_DONTNEED)
            self._looked_at = 0


def _whole(call: Any, number: int, parts: list[Any], at: int) -> None:
    """Has a call read or write all of some buffers, however much of them it takes at a time: a disk that is nearly full
    takes a part."""
    while parts:
        moved = call(number, parts[:BUFFERS], at)
        if not moved:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        at += moved
        while parts and moved >= len(parts[0]):
            moved -= len(parts.pop(0))
        if moved:
            parts[0] = parts[0][moved:]


def _write_at_on_windows(number: int, parts: list[Any], at: int) -> int:
    os.lseek(number, at, os.SEEK_SET)
    return os.write(number, parts[0])


_write_at = getattr(os, "pwritev", _write_at_on_windows)
