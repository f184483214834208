"""Readers: from the files that public datasets come in to numpy arrays. Imports only errors.

Every reader takes paths and refuses what is damaged, cut short or of another kind, in one sentence that names the
file. Nothing that a file says is ever run: pickles are read by an unpickler that knows arrays and plain values only.
What a file unpacks to is bounded before memory is taken for it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rookery.errors import InputError

__all__ = ["CIFAR10_BATCHES", "Images", "Records", "cifar10", "contents", "idx", "labelled_csv", "libsvm"]

# The batches of CIFAR-10, the test batch last.
CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR10_SHAPE = (3, 32, 32)  # as stored: channels first
CIFAR10_CLASSES = 10

# What the dense form of a sparse file may take, in bytes, and what any file may unpack to.
DENSE_LIMIT = 2 << 30

# A file may unpack to this much whatever its size, and beyond that to this multiple of its size: no data packs better.
UNPACKED_FREELY, UNPACKED_TIMES = 64 << 20, 200

# What a text of numbers may have, in bytes: its words take some twenty times as much while they are read.
TEXT_LIMIT = 256 << 20

LARGEST_DIMENSIONS = 32  # of an array in an idx file: as many as every version of numpy has

# No number is written longer; what is longer is no number, and would blow up the array of texts.
LONGEST_NUMBER = 64

# The first bytes of a packed file -> what opens it.
_PACKINGS: Mapping[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}


class Images(NamedTuple):
    """Images, flat in the order height, width, channel, in unsigned bytes, and their labels as int32."""

    input: np.ndarray
    label: np.ndarray


class Records(NamedTuple):
    """Records as float32, their labels 0, ..., C - 1 as int32, and what the labels were in the file, sorted."""

    input: np.ndarray
    label: np.ndarray
    values: tuple[Any, ...]


def contents(path: Path) -> bytes:
    """All bytes of a file, unpacked where it is packed by gzip, xz or bzip2, whatever it is called."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror}); a file is needed") from None
    for start, opener in _PACKINGS.items():
        if stored.startswith(start):
            with _whole(path, "a packed file"), opener(io.BytesIO(stored)) as packed:
                return _bounded(path, packed.read, len(stored))
    return stored


def _bounded(path: Path, read: Any, stored: int) -> bytes:
    """Everything that `read(size)` gives, bit by bit, unless it is more than a file of this size may unpack to."""
    parts, total = [], 0
    while part := read(1 << 20):
        parts.append(part)
        total += len(part)
        _check_unpacked(path, total, stored)
    return b"".join(parts)


def _check_unpacked(path: Path, size: int, stored: int) -> None:
    limit = min(max(UNPACKED_FREELY, UNPACKED_TIMES * stored), DENSE_LIMIT)
    if size > limit:
        raise InputError(f"{path}: it unpacks to more than {limit >> 20} MiB, from {stored} bytes; that is no data")


def _text(path: Path) -> bytes:
    """The contents of a file of numbers as text."""
    text = contents(path)
    if len(text) > TEXT_LIMIT:
        raise InputError(
            f"{path}: it has {len(text) / 2**20:.1f} MiB of text; at most {TEXT_LIMIT / 2**20:g} MiB are allowed"
        )
    return text


def idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in an idx file, the format of MNIST, packed or not."""
    content = contents(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path}: it does not begin as idx files of unsigned bytes do; one of them is needed")
    if content[3] > LARGEST_DIMENSIONS:
        raise InputError(f"{path}: its array has {content[3]} dimensions; at most {LARGEST_DIMENSIONS} are allowed")
    begin = 4 + 4 * content[3]
    if len(content) < begin:
        raise InputError(f"{path}: it ends after {len(content)} bytes; an idx file of {begin} or more is needed")
    shape = struct.unpack(f">{content[3]}I", content[4:begin])
    if len(content) - begin != prod(shape):
        raise InputError(
            f"{path}: it holds {len(content) - begin} numbers where its header says {prod(shape)}; "
            "a whole idx file is needed"
        )
    with _whole(path, "an idx file"):
        return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def libsvm(path: Path, features: int | None = None, values: Sequence[float] | None = None) -> Records:
    """The records of a LIBSVM text file (`label index:value index:value ...`), dense, packed or not.

    Args:
      path: the file. Indices count from 1 and ascend in every line; empty lines are skipped.
      features: the number of features, by default the largest index.
      values: the labels the file may have, sorted; by default those that it has.
    """
    text = _text(path)
    begin, is_label, pairs = _tokens(text)
    if not begin.size or (pairs != ~is_label).any():
        raise InputError(f"{path}: it does not read as lines of a label and pairs index:value; a LIBSVM file is needed")
    numbers = _numbers(path, text.replace(b":", b" ").split())
    if numbers.size != begin.size + pairs.sum():
        raise InputError(f"{path}: it has a pair index:value with an empty side; a LIBSVM file is needed")
    place = np.cumsum(1 + pairs) - 1 - pairs  # where a token's first number lies among all numbers
    row, index = np.cumsum(is_label)[~is_label] - 1, numbers[place[~is_label]]
    ascending = (np.diff(index) > 0) | (np.diff(row) > 0)
    if not ascending.all() or (index < 1).any() or (index % 1).any():
        raise InputError(
            f"{path}: its indices are not whole numbers that ascend from 1 on in every line; a LIBSVM file is needed"
        )
    rows, width = int(is_label.sum()), int(index.max(initial=1))
    if features is not None and width > features:
        raise InputError(f"{path}: it has a feature number {width}; at most {features} are allowed")
    width = features or width
    if 4 * rows * width > DENSE_LIMIT:
        raise InputError(
            f"{path}: its {rows} records of {width} features would take {4 * rows * width / 2**30:.1f} GiB; "
            f"at most {DENSE_LIMIT / 2**30:g} GiB are allowed"
        )
    dense = np.zeros((rows, width), np.float32)
    dense[row, index.astype(int) - 1] = numbers[place[~is_label] + 1]
    return Records(dense, *_labels(path, numbers[place[is_label]], values))


def labelled_csv(path: Path) -> Records:
    """The records of a file of comma-separated numbers with a word for the class at the end of every line, packed or
    not."""
    lines = [line.split(b",") for line in _text(path).splitlines() if line.strip()]
    widths = {len(line) for line in lines}
    if len(widths) != 1 or widths == {1}:
        raise InputError(f"{path}: its lines are not of one length; lines of numbers and a class are needed")
    numbers = _numbers(path, [cell.strip() for line in lines for cell in line[:-1]])
    with _whole(path, "a file of numbers and classes"):
        words = np.array([line[-1].strip().decode("ascii") for line in lines])
    return Records(numbers.reshape(len(lines), -1).astype(np.float32), *_labels(path, words, None))


def cifar10(paths: Sequence[Path]) -> tuple[Images, Images]:
    """The training and the test images of CIFAR-10.

    Args:
      paths: one archive, `cifar-10-python.tar.gz` or `cifar-10-binary.tar.gz`; or the six batches in their order, the
        test batch last: of the first archive (`data_batch_1`), of the second (`data_batch_1.bin`), or packed as
        arrays `y` and `x_d2` (`.npz`).
    """
    batches = list(_archive(paths[0])) if len(paths) == 1 else [_batch(path) for path in paths]
    *train, test = batches
    return Images(*(np.concatenate(arrays) for arrays in zip(*train))), test


def _batch(path: Path) -> Images:
    """One batch of CIFAR-10, by the ending of its name."""
    if path.suffix == ".npz":
        return _packed_batch(path)
    return _stored_batch(path, path.name, contents(path))


def _archive(path: Path) -> Iterator[Images]:
    """The batches in an archive of CIFAR-10, in their order; nothing is written to disk."""
    found, unpacked = {}, io.BytesIO(contents(path))
    with _whole(path, "an archive of CIFAR-10"), tarfile.open(fileobj=unpacked, mode="r:") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            file = archive.extractfile(member) if name.stem in CIFAR10_BATCHES else None
            if file is not None:
                found[name.stem] = _stored_batch(path, name.name, file.read())
    missing = [name for name in CIFAR10_BATCHES if name not in found]
    if missing:
        raise InputError(f"{path}: it has no {missing[0]}; all six batches of CIFAR-10 are needed")
    return (found[name] for name in CIFAR10_BATCHES)


def _stored_batch(path: Path, name: str, content: bytes) -> Images:
    """One batch of the binary or the Python form, by its name, in a file or an archive."""
    if name.endswith(".bin"):
        return _binary_batch(path, name, content)
    return _python_batch(path, name, content)


def _binary_batch(path: Path, name: str, content: bytes) -> Images:
    """Records of one byte for the label and 3,072 for the image."""
    record = 1 + prod(CIFAR10_SHAPE)
    if not content or len(content) % record:
        raise InputError(f"{path}: {name} has {len(content)} bytes; a multiple of {record} is needed")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _channels_last(path, name, records[:, 1:], records[:, 0])


def _python_batch(path: Path, name: str, content: bytes) -> Images:
    """A pickled mapping of `data`, an array of unsigned bytes, and `labels`, a list of integers."""
    with _whole(path, f"the batch {name} of CIFAR-10"):
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        _, shape, dtype, by_columns, raw = batch[b"data"].state
        kind, labels = dtype.arguments[0], batch[b"labels"]
        if kind not in ("u1", b"u1"):
            # Lists that hold themselves many times over have no text that could be written.
            named = repr(kind) if isinstance(kind, str | bytes) else type(kind).__name__
            raise TypeError(f"its array is of type {named[:20]}, not of unsigned bytes")
        data = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")
        if type(labels) is not list or not all(type(label) is int and 0 <= label < 256 for label in labels):
            raise TypeError("its labels are no list of whole numbers from 0 to 255")
    return _channels_last(path, name, data, np.array(labels, np.uint8))


def _packed_batch(path: Path) -> Images:
    """An archive of `y`, the labels, and `x_d2`, how every pixel differs from its neighbours and the second channel."""
    with _whole(path, "a packed batch of CIFAR-10"):
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no npz archive")
        with zipfile.ZipFile(path) as archive:
            _check_unpacked(path, sum(member.file_size for member in archive.infolist()), path.stat().st_size)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            labels, residual = stored["y"], stored["x_d2"]
        if residual.shape[1:] != CIFAR10_SHAPE or not residual.dtype == labels.dtype == np.uint8:
            raise ValueError(f"x_d2 is of shape {residual.shape} and type {residual.dtype}, y of type {labels.dtype}")
    # Unsigned bytes wrap around: all of it is modulo 256.
    data = np.cumsum(np.cumsum(residual, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    data[:, 0] += data[:, 1]
    data[:, 2] += data[:, 1]
    return _channels_last(path, path.name, data.reshape(len(data), -1), labels)


def _channels_last(path: Path, name: str, data: np.ndarray, labels: np.ndarray) -> Images:
    """Images stored channel by channel as images stored pixel by pixel, once there is a label for each."""
    if data.ndim != 2 or data.shape[1] != prod(CIFAR10_SHAPE) or labels.shape != data.shape[:1]:
        raise InputError(
            f"{path}: {name} has images of shape {data.shape} and labels of shape {labels.shape}; "
            f"{prod(CIFAR10_SHAPE)} bytes and one label for every image are needed"
        )
    if labels.size and labels.max() >= CIFAR10_CLASSES:
        raise InputError(f"{path}: {name} has a label {labels.max()}; at most {CIFAR10_CLASSES - 1} is allowed")
    images = data.reshape(-1, *CIFAR10_SHAPE).transpose(0, 2, 3, 1).reshape(data.shape)
    return Images(images, labels.astype(np.int32))


class _Recipe:
    """What a pickle says of an array or a dtype, kept and not followed: numpy would trust the file."""

    state: Any = None

    def __init__(self, *arguments):
        self.arguments = arguments

    def __setstate__(self, state):
        self.state = state


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2, and no other encoding."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds text encoded by {encoding!r}")
    return text.encode("latin1")


# What no batch needs: sets, classes by other ways, objects from elsewhere.
_NEEDLESS = (
    pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.PERSID,
    pickle.BINPERSID, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip


# The one that is written in Python: on damaged bytes the one in C may ask for all of the memory.
class _PlainUnpickler(pickle._Unpickler):
    """Reads numbers, texts, bytes, lists, mappings and arrays; refuses every other class and function.

    Nothing that was read is changed by a pickle, but for lists, mappings and what stands for an array; and keys are
    texts, since the hash of nested tuples that share their parts takes for ever.
    """

    ADMITTED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _Recipe,
        ("numpy._core.multiarray", "_reconstruct"): _Recipe,
        ("numpy", "ndarray"): _Recipe,
        ("numpy", "dtype"): _Recipe,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name in the pickle."""
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return self.ADMITTED[module, name]

    stack: list[Any]  # what has been read, and how the original goes on with it
    load_build: Callable[[], None]
    load_setitem: Callable[[], None]
    load_setitems: Callable[[], None]
    load_dict: Callable[[], None]

    def _build(self) -> None:
        if not isinstance(self.stack[-2], _Recipe):
            raise pickle.UnpicklingError("it sets the attributes of something that has none")
        self.load_build()

    def _setitem(self) -> None:
        self._check_keys([self.stack[-2]])
        self.load_setitem()

    def _setitems(self) -> None:
        self._check_keys(self.stack[::2])
        self.load_setitems()

    def _dict(self) -> None:
        self._check_keys(self.stack[::2])
        self.load_dict()

    def _check_keys(self, keys: list[Any]) -> None:
        if not all(isinstance(key, str | bytes) for key in keys):
            raise pickle.UnpicklingError("it has a key that is no text")

    dispatch: ClassVar[Any] = {
        **{code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in _NEEDLESS},
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _setitem,
        pickle.SETITEMS[0]: _setitems,
        pickle.DICT[0]: _dict,
    }


@contextmanager
def _whole(path: Path, kind: str) -> Iterator[None]:
    """Makes one sentence with the file's name of whatever a decoder raises on damaged bytes."""
    try:
        yield
    except InputError:
        raise
    # Decoders raise anything on damaged bytes: a pickle alone some ten kinds of errors.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: it does not read as {kind} ({reason}); it is damaged or of another kind") from None


def _tokens(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the words of a text begin, which of them are the first of a line, and the number of colons in each."""
    code = np.frombuffer(text, np.uint8)
    is_blank = np.isin(np.arange(256), list(b" \t\n\r\v\f"))[code]
    begin = np.flatnonzero(~is_blank & np.concatenate([[True], is_blank[:-1]]))
    line = np.searchsorted(np.flatnonzero(code == ord("\n")), begin)
    owner = np.searchsorted(begin, np.flatnonzero(code == ord(":")), side="right") - 1
    return begin, np.diff(line, prepend=-1) > 0, np.bincount(owner, minlength=begin.size)


def _numbers(path: Path, words: Iterable[bytes]) -> np.ndarray:
    """Words as numbers, every one of them finite as a float32."""
    words = list(words)
    long = next((word for word in words if len(word) > LONGEST_NUMBER or b"\0" in word), None)
    if long is not None:
        raise InputError(f"{path}: it has {long[:20]!r}... where a number is needed")
    try:
        numbers = np.array(words, bytes).astype(np.float64)
    except ValueError as error:
        raise InputError(f"{path}: it has a word where a number is needed ({error})") from None
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise InputError(f"{path}: it has numbers that are not finite in single precision")
    return numbers


def _labels(path: Path, found: np.ndarray, values: Sequence[Any] | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Labels as 0, ..., C - 1 in the order of what they were, and what they were."""
    allowed = np.unique(found if values is None else np.asarray(values))
    strange = np.setdiff1d(found, allowed)
    if strange.size:
        raise InputError(f"{path}: it has a label {strange[0]}; allowed are {', '.join(map(str, allowed.tolist()))}")
    return np.searchsorted(allowed, found).astype(np.int32), tuple(allowed.tolist())
