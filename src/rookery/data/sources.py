"""Clients' examples that are not in memory: mapped from files, in a folder of shards, or loaded by a function.

A source says how many examples each client has and what one is like, and reads those of some clients when these are
asked for. Imports only errors and files.
"""

from __future__ import annotations

import json
import re
import reprlib
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import jax
import numpy as np

from rookery.data.levels import BOTH, Level, Split
from rookery.errors import InputError, failing
from rookery.files import checksum, read_json, undamaged, write_folder, writing
from rookery.vectors import Tree

INDEX, SUMS = "shards.json", "checksums.npy"
NUMBERS = "biufc"  # kinds of arrays that are examples


@runtime_checkable
class Source(Protocol):
    """Where clients' examples come from when a round needs them; `rk.federate` takes one."""

    @property
    def sizes(self) -> Mapping[str, np.ndarray]:
        """By level ("all", or "lower" and "upper"), every client's number of examples."""
        ...

    @property
    def example(self) -> Mapping[str, Tree]:
        """By level, shape and type of one example, as `jax.ShapeDtypeStruct`."""
        ...

    def read(self, clients: np.ndarray) -> Mapping[str, Tree]:
        """By level, the examples of these clients, one client after another."""
        ...


class Numbered(Sequence[str]):
    """The names of clients that are called by their numbers: a million of them take no memory."""

    def __init__(self, count: int):
        self._length = count

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        numbers = range(self._length)[index]
        return str(numbers) if isinstance(numbers, int) else tuple(map(str, numbers))


def rows_of(level: Level, clients: np.ndarray) -> Tree:
    """The rows of some clients in flat arrays, one client after another."""
    size = np.asarray(level.size)[clients]
    starts = np.cumsum(size) - size
    offset = np.asarray(level.offset)[clients].astype(np.int64)
    taken = np.arange(size.sum(), dtype=np.int64) + np.repeat(offset - starts, size)
    return jax.tree.map(lambda leaf: np.asarray(leaf[taken]), level.rows)


def told_by(source: Source) -> tuple[dict[str, np.ndarray], dict[str, Tree]]:
    """The sizes and the example of a source, after checking that they fit each other."""
    sizes = {name: _sizes(size, None) for name, size in source.sizes.items()}
    example = dict(source.example)
    if set(sizes) not in LEVELS or set(example) != set(sizes):
        raise InputError(
            f"data: the source has sizes of the levels {_listed(sizes)} and examples of {_listed(example)}; {BOTH!r}, "
            "or 'lower' and 'upper', are needed in both"
        )
    for name, tree in example.items():
        for leaf in jax.tree.leaves(tree) or [None]:
            if not hasattr(leaf, "shape") or np.dtype(getattr(leaf, "dtype", object)).kind not in NUMBERS:
                raise InputError(
                    f"data: the source has an example of level {name!r} with {leaf!r}; the shape and type of an array "
                    "of numbers, such as jax.ShapeDtypeStruct, are needed"
                )
    return _of_one_population(sizes), example


LEVELS = ({BOTH}, {"lower", "upper"})


def _listed(names: Iterable[Any]) -> str:
    return " and ".join(map(repr, names)) or "nothing"


def _of_one_population(sizes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sizes by level, after checking that they are of as many clients."""
    if len({len(size) for size in sizes.values()}) > 1:
        told = " and ".join(f"{len(size)} clients at the {name} level" for name, size in sizes.items())
        raise InputError(f"sizes: they are of {told}; both levels have the same clients")
    return sizes


def read_checked(source: Source, clients: np.ndarray, sizes: Mapping[str, np.ndarray]) -> dict[str, Tree]:
    """The examples of some clients, held against what was said of them; `sizes` are these clients'."""
    who = f"clients {clients[0]} to {clients[-1]}" if len(clients) > 1 else f"client {clients[0]}"
    with failing(f"data: reading {who}"):
        read, found = source.read(clients), {}
        for name, example in source.example.items():
            count = int(sizes[name].sum(dtype=np.int64))
            found[name] = jax.tree.map(np.asarray, read[name])
            said, told = _described(example, (count,)), _described(found[name])
            if told != said:
                what = "" if name == BOTH else f" {name}"
                raise InputError(
                    f"data: {who} are given{what} examples of {told}; by the source's sizes and example {said} "
                    "are needed"
                )
    return found


def _described(tree: Tree, ahead: tuple[int, ...] = ()) -> Tree:
    """The shapes and types of a tree's arrays."""
    return jax.tree.map(lambda leaf: f"{(*ahead, *leaf.shape)} {np.dtype(leaf.dtype)}", tree)


@dataclass(frozen=True)
class Mapped:
    """Examples of all clients in large arrays, one client after another, such as `np.load(path, mmap_mode="r")` gives.

    Args:
      rows: a pytree of arrays with a leading axis of examples; or an `rk.Split` of two.
      sizes: how many examples each client has, in the order of the arrays; one number, where all have as many; an
        `rk.Split` of two for a Split.

    >>> Mapped({"a": np.arange(6.0)}, sizes=[2, 4]).read(np.array([1]))["all"]["a"].tolist()
    [2.0, 3.0, 4.0, 5.0]
    """

    rows: Any
    sizes: Any

    def __post_init__(self):
        rows, sizes = _by_level(self.rows), _by_level(self.sizes)
        if sizes.keys() != rows.keys():
            raise InputError("sizes: rows and sizes must both be a Split, or neither")
        levels = {name: _level(name, rows[name], sizes[name]) for name in rows}
        object.__setattr__(self, "sizes", _of_one_population({name: level.size for name, level in levels.items()}))
        object.__setattr__(self, "_levels", levels)

    @property
    def example(self) -> Mapping[str, Tree]:
        return {name: jax.tree.map(_outline, level.rows) for name, level in self._levels.items()}  # type: ignore[attr-defined]

    def read(self, clients: np.ndarray) -> Mapping[str, Tree]:
        return {name: rows_of(level, clients) for name, level in self._levels.items()}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Loaded:
    """Examples that a function of the client's number gives whenever the client is drawn; it must give the same anew.

    Args:
      load: the function: a pytree of arrays with a leading axis of examples, or an `rk.Split` of two. It is called a
        round or more ahead, in another thread, by one thread at a time.
      sizes: how many examples each client has, one number per client; an `rk.Split` of two for a Split.
    """

    load: Callable[[int], Any]
    sizes: Any

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_alone"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _alone=threading.Lock())

    def __post_init__(self):
        if not callable(self.load):
            raise InputError(f"load: {self.load!r} was given; a function of a client's number is needed")
        object.__setattr__(self, "_alone", threading.Lock())
        first = _by_level(self._call(0))
        sizes = _by_level(self.sizes)
        if sizes.keys() != first.keys():
            raise InputError("sizes: what is loaded and sizes must both be a Split, or neither")
        for leaf in map(np.asarray, jax.tree.leaves(first)):
            if leaf.dtype.kind not in NUMBERS:
                raise InputError(f"load: client 0 gave an array of type {leaf.dtype}; arrays of numbers are needed")
        found = _of_one_population({name: _sizes(size, None) for name, size in sizes.items()})
        object.__setattr__(self, "sizes", found)
        object.__setattr__(
            self,
            "_example",
            {name: jax.tree.map(lambda leaf: _outline(np.asarray(leaf)), first[name]) for name in first},
        )
        self._check(0, first)  # its first client is what the others are held to

    @property
    def example(self) -> Mapping[str, Tree]:
        return self._example  # type: ignore[attr-defined]

    def read(self, clients: np.ndarray) -> Mapping[str, Tree]:
        own = [self._checked(int(client)) for client in clients]
        joined = lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])
        return {name: jax.tree.map(joined, *(client[name] for client in own)) for name in self.example}

    def _call(self, client: int) -> Any:
        with self._alone, failing(f"load: the function of client {client}"):  # type: ignore[attr-defined]
            return self.load(client)

    def _checked(self, client: int) -> Mapping[str, Tree]:
        """A client's examples by level, held against what was said of them."""
        levels = _by_level(self._call(client))
        self._check(client, levels)
        return levels

    def _check(self, client: int, levels: Mapping[str, Tree]) -> None:
        for name, example in self.example.items():
            size, tree = int(self.sizes[name][client]), levels.get(name)
            said = jax.tree.map(lambda leaf, size=size: ((size, *leaf.shape), leaf.dtype), example)
            told = jax.tree.map(lambda leaf: (np.shape(leaf), np.asarray(leaf).dtype), tree)
            if told != said:
                raise InputError(f"load: client {client} gave examples of {told}; {said} are needed")


@dataclass(frozen=True)
class ShardFolder:
    """Examples in a folder that `rk.data.write_shards` wrote: each shard has some clients', and is read where needed.

    Args:
      folder: the folder.
    """

    folder: str | Path

    def __post_init__(self):
        folder = Path(self.folder)
        if not (folder / INDEX).is_file():
            raise InputError(f"folder: {str(folder)!r} has no {INDEX}; one that rk.data.write_shards wrote is needed")
        index = read_json(folder / INDEX, "folder")
        with undamaged(folder / INDEX, "folder"):
            names, shards = list(index["levels"]), list(index["shards"])
            if set(names) not in LEVELS or not shards:
                raise ValueError(f"it has the levels {_listed(names)} and {len(shards)} shards")
            leaves = [number for tree in index["levels"].values() for number in tree.values()]
            for name in (*shards, *leaves):
                if not isinstance(name, str) or re.fullmatch("[0-9]{1,12}", name) is None:
                    raise ValueError(f"{name!r} is no name of a shard or of an array in it")
            if len(set(shards)) != len(shards):
                raise ValueError("a shard is in it twice")
            sums = index.get("checksums", dict.fromkeys(shards))  # a folder of an earlier version has none
            parts = [_Shard(folder / name, index["levels"], sums[name]) for name in shards]
            ends = np.cumsum([part.population for part in parts])
        for part in parts:
            if part.example != parts[0].example:
                told = [_described(each.example) for each in (part, parts[0])]
                raise InputError(
                    f"folder: {str(part.folder)!r} has examples of {told[0]}, the first shard of {told[1]}"
                )
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_begins", np.concatenate([[0], ends[:-1]]))
        object.__setattr__(
            self, "_sizes", {name: np.concatenate([part.sizes[name] for part in parts]) for name in names}
        )

    @property
    def sizes(self) -> Mapping[str, np.ndarray]:
        return self._sizes  # type: ignore[attr-defined]

    @property
    def example(self) -> Mapping[str, Tree]:
        return self._parts[0].example  # type: ignore[attr-defined]

    def read(self, clients: np.ndarray) -> Mapping[str, Tree]:
        begins: np.ndarray = self._begins  # type: ignore[attr-defined]
        shard = np.searchsorted(begins, clients, side="right") - 1
        # Runs of clients of one shard, in the order that was asked for.
        cuts = np.flatnonzero(np.diff(shard)) + 1
        found = [
            self._parts[which[0]].read(own - begins[which[0]])  # type: ignore[attr-defined]
            for own, which in zip(np.split(clients, cuts), np.split(shard, cuts))
        ]
        joined = lambda *leaves: np.concatenate(leaves)
        return {name: jax.tree.map(joined, *(part[name] for part in found)) for name in self.sizes}


class _Shard:
    """One shard: mapped arrays, opened when they are first read, since a process may have only so many files open."""

    def __init__(self, folder: Path, levels: Mapping[str, Mapping[str, str]], expected: str | None):
        self.folder, self.levels = folder, levels
        self.sizes = {name: _sizes(self._load(f"{name}.sizes.npy"), None) for name in levels}
        self.population = len(next(iter(self.sizes.values())))
        self.sums: np.ndarray | None = None  # of each client's examples
        if expected is not None:
            self.sums = self._load(SUMS)
            if _of_shard(self.sizes, self.sums) != expected:
                raise self._damaged(f"{SUMS} or a file of sizes")
        self.example = self._mapped().example

    def _mapped(self) -> Mapped:
        rows = {
            name: {leaf: self._load(f"{name}.{number}.npy", mmap_mode="r") for leaf, number in leaves.items()}
            for name, leaves in self.levels.items()
        }
        rows = {name: tree[""] if set(tree) == {""} else tree for name, tree in rows.items()}
        return Mapped(*(_of_levels(part) for part in (rows, self.sizes)))

    def _load(self, name: str, **options: Any) -> np.ndarray:
        try:
            return np.load(self.folder / name, **options)
        except (OSError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise InputError(
                f"folder: {name} in {str(self.folder)!r} cannot be read: {reason}; write the shards again"
            ) from None

    def read(self, clients: np.ndarray) -> Mapping[str, Tree]:
        found = self._mapped().read(clients)
        if self.sums is not None:
            ends = {name: np.cumsum(size[clients], dtype=np.int64) for name, size in self.sizes.items()}
            for place, client in enumerate(clients.tolist()):
                own: dict[str, dict[str, np.ndarray]] = {}
                for level, tree in found.items():
                    end = int(ends[level][place])
                    begin = end - int(self.sizes[level][client])
                    named = tree if isinstance(tree, Mapping) else {"": tree}
                    own[level] = {name: leaf[begin:end] for name, leaf in named.items()}
                if _of_client(own) != int(self.sums[client]):
                    raise self._damaged(f"the examples of its client {client}")
        return found

    def _damaged(self, what: str) -> InputError:
        return InputError(f"folder: {what} in {str(self.folder)!r} are not what was written; write the shards again")


def _of_client(levels: Mapping[str, Mapping[str, np.ndarray]]) -> int:
    """A checksum of one client's examples."""
    total = 0
    for _, leaves in sorted(levels.items()):
        for _, leaf in sorted(leaves.items()):
            total = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).data, total)
    return total


def _of_shard(sizes: Mapping[str, np.ndarray], sums: np.ndarray) -> str:
    """A checksum of what a shard says of its clients."""
    parts = [size for _, size in sorted(sizes.items())]
    return checksum(b"".join(np.ascontiguousarray(part).tobytes() for part in (*parts, sums)))


def write_shards(folder: str | Path, clients: Iterable[Any], *, per_shard: int = 1000) -> Path:
    """Writes clients' examples into a new folder of shards, for `rk.data.ShardFolder`, one shard at a time in memory.

    Args:
      folder: a new or empty folder.
      clients: one after another, such as a generator gives them: each an array, a mapping from names to arrays with a
        leading axis of examples, or an `rk.Split` of two such; all of the same names, shapes and types.
      per_shard: how many clients go into one shard.
    """
    if isinstance(per_shard, bool) or not isinstance(per_shard, int | np.integer) or per_shard < 1:
        raise InputError(f"per_shard: {per_shard!r} was given; a whole number of at least 1 is needed")
    if isinstance(clients, Mapping | str | Split) or not isinstance(clients, Iterable):
        raise InputError(
            f"clients: a {type(clients).__name__} was given; clients one after another are needed, such as a list or a "
            "generator gives them"
        )

    def write(aside: Path) -> None:
        names: list[str] = []
        levels: dict[str, dict[str, str]] = {}
        first: Tree = None
        held: list[dict[str, dict[str, np.ndarray]]] = []
        checksums: dict[str, str] = {}

        def finish() -> None:
            name = f"{len(names):06d}"
            with writing("folder", folder):
                checksums[name] = write_shard(aside / name)
            names.append(name)
            held.clear()

        def write_shard(shard: Path) -> str:
            shard.mkdir()
            sums, sizes = np.asarray([_of_client(client) for client in held], np.uint32), {}
            np.save(shard / SUMS, sums)
            for level, leaves in levels.items():
                size = [len(next(iter(client[level].values()))) for client in held]
                sizes[level] = np.asarray(size, np.int32)
                np.save(shard / f"{level}.sizes.npy", sizes[level])
                for leaf, number in leaves.items():
                    np.save(shard / f"{level}.{number}.npy", np.concatenate([client[level][leaf] for client in held]))
            return _of_shard(sizes, sums)

        for number, given in enumerate(clients):
            client = {level: _leaves(tree, number) for level, tree in _by_level(given).items()}
            found = _described({level: jax.tree.map(_outline, leaves) for level, leaves in client.items()})
            first = found if first is None else first
            if found != first:
                raise InputError(
                    f"clients: client {number} has examples of {found}, the first one of {first}; all must be alike"
                )
            levels = levels or {level: {leaf: str(k) for k, leaf in enumerate(tree)} for level, tree in client.items()}
            held.append(client)
            if len(held) == per_shard:
                finish()
        if held:
            finish()
        if not names:
            raise InputError("clients: no client was given; at least one is needed")
        with writing("folder", folder):
            (aside / INDEX).write_text(json.dumps({"levels": levels, "shards": names, "checksums": checksums}))

    return write_folder(folder, write)


def _leaves(tree: Tree, client: int) -> dict[str, np.ndarray]:
    """The arrays of a client: by name, or one alone."""
    named = tree if isinstance(tree, Mapping) else {"": tree}
    for name, leaf in named.items():
        nested = isinstance(leaf, tuple | list | Mapping)
        if not isinstance(name, str) or nested or np.asarray(leaf).dtype.kind not in NUMBERS:
            kind = type(leaf).__name__ if nested else np.asarray(leaf).dtype
            beside = f" by the name {name!r}" if isinstance(tree, Mapping) else ""
            raise InputError(
                f"clients: client {client} has a {kind}{beside}; an array of numbers, a mapping from names to such, or "
                "an rk.Split of two of these is needed"
            )
    found = {name: np.asarray(leaf) for name, leaf in named.items()}
    lengths = {leaf.shape[:1] for leaf in found.values()}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        told = ", ".join(f"{name} {leaf.shape}".strip() for name, leaf in found.items()) or "nothing"
        raise InputError(
            f"clients: client {client} has arrays of the shapes {told}; all need a leading axis of as many examples, "
            "one at least"
        )
    return found


def _by_level(given: Any) -> dict[str, Any]:
    return {"lower": given.lower, "upper": given.upper} if isinstance(given, Split) else {BOTH: given}


def _of_levels(levels: Mapping[str, Any]) -> Any:
    return levels[BOTH] if BOTH in levels else Split(**levels)


def _level(name: str, rows: Tree, sizes: Any) -> Level:
    """Flat arrays with where every client's rows begin, after checking that they are of one length."""
    leaves = jax.tree.leaves(rows)
    if (
        not leaves
        or not all(hasattr(leaf, "dtype") and np.ndim(leaf) for leaf in leaves)
        or len({len(leaf) for leaf in leaves}) != 1
    ):
        raise InputError(f"rows: the {name} level needs arrays with a leading axis of examples, all of one length")
    for leaf in leaves:
        if leaf.dtype.kind not in NUMBERS:
            raise InputError(f"rows: an array of type {leaf.dtype} was given; arrays of numbers are needed")
    size = _sizes(sizes, len(leaves[0]))
    if size.sum(dtype=np.int64) != len(leaves[0]):
        raise InputError(f"sizes: they sum to {size.sum(dtype=np.int64)}, and there are {len(leaves[0])} examples")
    return Level(rows, np.cumsum(size, dtype=np.int64) - size, size)


def _sizes(sizes: Any, total: int | None) -> np.ndarray:
    try:
        array = np.asarray(sizes)
    except ValueError:  # rows of different lengths, or a Split
        array = np.zeros(0)
    if array.ndim == 0 and total is not None and array.dtype.kind in "iu" and array > 0:
        array = np.full(total // int(array), array)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or array.min() < 1 or array.max() >= 2**31:
        raise InputError(f"sizes: {reprlib.repr(sizes)} was given; one whole number of at least 1 per client is needed")
    return array.astype(np.int32)


def _outline(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
