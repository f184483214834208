"""Every client's record in a file, of which only the cohort's parts are in memory. Imports contracts only.

A record is one row of the file, all its arrays one after another; the file is as long as the population, and has no
room on the disk for clients that nobody has written yet.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.errors import StorageError
from rookery.federation.client import Record

TOUCHED = 2**28  # bytes of the file that are looked at before the process lets go of their pages
BLOCK = 4096  # clients that are copied in one go


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
        self._file = self._open(folder) if self.population else np.zeros((0, 0), np.uint8)

    def _open(self, folder: str | Path | None) -> np.ndarray:
        try:
            with tempfile.TemporaryFile(prefix="rookery-records-", dir=folder) as file:  # open as long as it is mapped
                file.truncate(self.population * self.row_bytes)
                return np.memmap(file, np.uint8, "r+", shape=(self.population, self.row_bytes))
        except OSError as error:
            raise StorageError(f"records: {str(folder)!r} cannot be written: {error.strerror}") from error

    @property
    def row_bytes(self) -> int:
        """The size of one record."""
        return self._row.itemsize

    @property
    def leaves(self) -> int:
        """How many arrays a record has."""
        return len(self._first)

    def read(self, clients: np.ndarray) -> Record:
        """The records of some clients, stacked."""
        rows = self.read_rows(clients)
        return jax.tree.unflatten(self._structure, [np.ascontiguousarray(rows[name]) for name in self._row.names or ()])

    def read_rows(self, clients: np.ndarray) -> np.ndarray:
        """The same as rows of the file."""
        if not self.leaves:
            return np.zeros(len(clients), self._row)
        rows = np.asarray(self._file[clients]).view(self._row)[:, 0]
        fresh = ~self.written[clients]
        if fresh.any():
            for i, leaf in enumerate(self._first):
                rows[str(i)][fresh] = leaf[clients[fresh]]
        self._let_go(len(clients))
        return rows

    def write(self, clients: np.ndarray, records: Record) -> None:
        """Puts the records of some clients; what is put twice is the same."""
        if not self.leaves:
            return
        rows = np.empty(len(clients), self._row)
        for i, leaf in enumerate(jax.tree.leaves(records)):
            rows[str(i)] = np.asarray(leaf)
        self.write_rows(clients, rows)

    def write_rows(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """The same from rows of the file."""
        self._file[clients] = rows.view(np.uint8).reshape(len(clients), self.row_bytes)
        self.written[clients] = self.changed[clients] = True
        self._let_go(len(clients))

    def all(self) -> Record:
        """The records of all clients, as views of the file."""
        if not self.leaves:
            return jax.tree.unflatten(self._structure, [])
        if any(np.any(leaf[:1]) or leaf.strides[0] for leaf in self._first):  # else the file's holes say the same
            fresh = np.flatnonzero(~self.written)
            for begin in range(0, len(fresh), BLOCK):
                some = fresh[begin : begin + BLOCK]
                self._file[some] = self.read_rows(some).view(np.uint8).reshape(len(some), self.row_bytes)
        rows = self._file.view(self._row)[:, 0]
        return jax.tree.unflatten(self._structure, [rows[name] for name in self._row.names or ()])

    def _let_go(self, clients: int) -> None:
        """Gives the pages of the file back to the system from time to time; what is in them stays."""
        self._looked_at += clients * max(self.row_bytes, mmap.PAGESIZE)
        mapped: Any = self._file
        if self._looked_at > TOUCHED and hasattr(mmap, "MADV_DONTNEED"):
            mapped._mmap.madvise(mmap.MADV_DONTNEED)
            self._looked_at = 0
