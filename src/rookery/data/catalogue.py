"""The catalogue: every dataset by its name, from a folder, the cache or the network. Imports only errors and data.

A dataset that lies in files is looked for in the folder that ROOKERY_DATA names, then in the cache, and is otherwise
downloaded into the cache. In either folder it may lie in a folder of its own (`mnist/`, `fashion_mnist/`, `cifar10/`,
`libsvm/`) or directly. The cache is the folder that ROOKERY_CACHE names, else `rookery` in XDG_CACHE_HOME, else
`~/.cache/rookery`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rookery.data import formats
from rookery.data.checked_file import checked_path, is_checked_file, with_checked_column
from rookery.data.datasets import Dataset, breast_cancer, digits, heart, standardising, wine
from rookery.data.download import ChecksumError, DownloadError, checksum_of, fetch
from rookery.data.inputs import Scale
from rookery.data.own_tables import TableOptions, read_tables
from rookery.data.partitions import Natural, Partition
from rookery.data.parts import hold_out
from rookery.data.scaling import Standardise, refuse_without_clients, scaled_by_own
from rookery.data.schema import read_schema
from rookery.data.tables import Reading, Records, read_csv, records_of
from rookery.errors import AdviceWarning, InputError, unknown

__all__ = ["DATASETS", "by_column", "cache_folder", "load"]

# How a file may be packed: what may stand at the end of its name.
PACKINGS = (".gz", ".xz", ".bz2", "")

# The fraction of each class that is held out where there is no test file.
HELD_OUT = 1 / 5

LOCAL, TABLE = "libsvm:", "csv:"  # what stands before the path of a file, or of tables, of one's own

# Examples of the training and of the test file, where there is one.
ROWS: dict[str, tuple[int, ...]] = {
    "mnist": (60_000, 10_000),
    "fashion_mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "a9a": (32_561, 16_281),
    "w8a": (49_749, 14_951),
    "german": (1_000,),
    "magic": (19_020,),
}

# Checksums that were published, or that verified files have, by the name of the file.
CHECKSUMS: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
    "a9a": {
        "a9a": "sha256:7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca",
        "a9a.t": "sha256:1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    },
    "w8a": {"w8a": "sha256:b464b4f6ce6a5d9e181ffc793e19a04751036273722312398ef7673705014902"},
    "german": {"german.numer_scale": "sha256:e461161650598fda2988f2a4c3b592634bbcae1c0eec382c94ceda5f30d4dab4"},
    "magic": {"magic04.data": "sha256:042bcf99730d7e53b60e998fe2f2474b08dcb049672113bf2d79f06d1bfd846c"},
    "cifar10": {
        "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
    },
}

_LIBSVM = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",)

# Where the files of a dataset are, all of them at every address.
MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion_mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
    "a9a": _LIBSVM,
    "w8a": _LIBSVM,
    "german": _LIBSVM,
    "magic": ("https://archive.ics.uci.edu/ml/machine-learning-databases/magic/",),
}


def load(
    name: str,
    *,
    label: str = "",
    categories: Sequence[str] = (),
    missing: Literal["refuse", "drop"] = "refuse",
    standardise: Standardise = "pooled",
    schema: str = "",
    checked: str = "",
) -> Dataset:
    """A dataset by its name in `DATASETS`; or one's own: a LIBSVM file as `libsvm:PATH`, a csv file per client as
    `csv:FOLDER`, or one csv file with a column that says whose a row is, as `csv:FILE#COLUMN`.

    Args:
      name: Name of the dataset.
      label: Column of a csv file to learn; empty: its only column with a known name (label, target, class, y, outcome,
        diagnosis or num, in any case). A file without such a column, or with several, is refused.
      categories: Columns of a csv file that hold words or codes; each becomes one column per value.
      missing: "refuse" rows of a csv file with empty cells, or "drop" them.
      standardise: How inputs of csv files and of heart are scaled: "pooled", by mean and standard deviation over all
        training examples; "client", over each client's own; "robust", by each client's own median and interquartile
        range, clipped to 10 on either side; "none".
      schema: Path of a schema (`rookery schema` writes one). It gives label, inputs, categories and classes, and every
        csv file must keep its rules.
      checked: Column of 0 and 1 that says whose label was checked. It is no input: `dataset.train["checked"]` has it.

    What was loaded is kept: loading it again is immediate, as long as its files are the same. Its arrays are
    read-only. A file of one's own has `PATH.t` beside it for its test set; else a fifth of each class is held out.

    >>> load("digits").train["input"].shape
    (1438, 64)
    """
    rules = read_schema(schema) if schema else None
    return load_with(name, TableOptions(label, tuple(categories), missing, standardise, rules, checked))


def load_with(name: str, options: TableOptions) -> Dataset:
    """The same, with the options of a table in one value."""
    if not isinstance(name, str):
        raise InputError(f"data: {name!r} was given; the name of a dataset is needed, such as 'mnist'")
    if (given := _STANDING_IN.get()) is not None and name == given.name:
        return given
    if name.startswith(TABLE):
        return _load_table(name, options)
    if name not in DATASETS and not name.startswith(LOCAL):
        raise unknown("data", name, [*DATASETS, f"{LOCAL}PATH", f"{TABLE}PATH"])
    options.refuse_for(name, ("standardise",) if name == "heart" else ())
    if name == "heart":
        return _load(_HeartReader(options.standardise))
    if name.startswith(LOCAL):
        return _load_local(name)
    return DATASETS[name][1]()


_STANDING_IN: ContextVar[Dataset | None] = ContextVar("standing_in", default=None)


@contextlib.contextmanager
def standing_in(dataset: Dataset) -> Iterator[None]:
    """While the block lasts, what is loaded by the name of this dataset is this dataset: a federation's, say, of which
    one has but a part."""
    token = _STANDING_IN.set(dataset)
    try:
        yield
    finally:
        _STANDING_IN.reset(token)


def cache_folder() -> Path:
    """Where downloads go."""
    if folder := os.environ.get("ROOKERY_CACHE"):
        return Path(folder).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "rookery"


def _data_folder() -> Path | None:
    """The folder that ROOKERY_DATA names, if it names one."""
    given = os.environ.get("ROOKERY_DATA")
    if not given:
        return None
    folder = Path(given).expanduser().absolute()
    if not folder.is_dir():
        raise InputError(f"ROOKERY_DATA: {given!r} was given; a folder is needed")
    return folder


@dataclass(frozen=True, eq=False)
class _Stored:
    """A dataset that lies in files.

    Args:
      name: what it is called.
      folder: the folder its files may lie in.
      read: its files, in the order of a form -> the dataset.
      download: the files that are downloaded.
      forms: the alternatives of files it may consist of, without the endings of packings.
      lesser: further alternatives, without a test file: enough in a folder of one's own, not in the cache, where the
        test file may just not have arrived.
      namesake: a dataset with files of the same names; what is known to be its is not taken for this one's.
      recognise: tells the dataset by its content, or refuses it, where the packing is not the published one and what
        was packed has no published checksum.
    """

    name: str
    folder: str
    read: Callable[..., Dataset]
    download: tuple[str, ...]
    forms: tuple[tuple[str, ...], ...]
    lesser: tuple[tuple[str, ...], ...] = ()
    namesake: str | None = None
    recognise: Callable[[Dataset, Path], Dataset] | None = None

    def __call__(self) -> Dataset:
        """The dataset, from where it is found first."""
        data, cache = _data_folder(), cache_folder()
        source = self._find(data, self.forms + self.lesser) if data else None
        if source:
            if len(source) < len(self.forms[0]) and self.lesser:
                warnings.warn(
                    f"{self.name}: there is no test file beside {source[0]}; a fifth of it is held out instead, which "
                    "is not the published test set",
                    AdviceWarning,
                    stacklevel=3,
                )
            return _load(self._checked, source)
        source = self._find(cache, self.forms)
        if source:
            try:
                return _load(self._checked, source)
            except InputError:  # a wrong file does not stay in the cache
                for path in source:
                    path.unlink(missing_ok=True)
        return self._downloaded(data, cache)

    def _find(self, root: Path, forms: tuple[tuple[str, ...], ...]) -> tuple[Path, ...] | None:
        """The files of the first form that is there as a whole."""
        for form in forms:
            for place in (root / self.folder, root):
                paths = tuple(path for name in form if (path := _packed(place / name)))
                if len(paths) == len(form) and not self._is_namesakes(paths[0]):
                    return paths
        return None

    def _is_namesakes(self, path: Path) -> bool:
        if path.parent.name == self.folder or self.namesake is None:
            return False
        return checksum_of(path, "md5") in CHECKSUMS[self.namesake].values()

    def _downloaded(self, data: Path | None, cache: Path) -> Dataset:
        """The dataset, downloaded into the cache."""
        known, place = CHECKSUMS.get(self.name, {}), cache / self.folder
        try:
            source = tuple(
                fetch([mirror + name for mirror in MIRRORS[self.name]], place / name, known.get(name))
                for name in self.download
            )
        except DownloadError as error:
            raise InputError(
                f"data: {self.name!r} is not in ROOKERY_DATA{f'={data}' if data else ' (which is not set)'} nor in the "
                f"cache folder {cache}, and could not be downloaded ({error}); set ROOKERY_DATA to a folder that has "
                f"{', '.join(self.download)}, or put what is missing into {place}"
            ) from None
        try:
            return _load(self._checked, source)
        except InputError:
            # What has no checksum was not checked before: a wrong file must not stay.
            for path in source:
                if path.name not in known:
                    path.unlink(missing_ok=True)
            raise

    def _checked(self, *paths: Path) -> Dataset:
        """The dataset in some files, each of them checked where its checksum is known."""
        known, anew = CHECKSUMS.get(self.name, {}), None
        for path in paths:
            expected, inside = known.get(path.name), known.get(_unpacked_name(path))
            if expected is None and inside is None:
                continue
            if expected is not None and (found := checksum_of(path, expected.partition(":")[0])) == expected:
                continue
            # Packed by somebody else, maybe: then what was packed tells.
            if inside is not None and path.suffix in PACKINGS[:-1]:
                expected = inside
                found = checksum_of(BytesIO(formats.contents(path)), expected.partition(":")[0])
            elif self.recognise is not None and path.suffix in PACKINGS[:-1]:
                anew = anew or path
                continue
            if found != expected:
                raise ChecksumError(f"{path}: {expected} is expected and {found} was found; remove or replace the file")
        dataset = self.read(*paths)
        return dataset if anew is None or self.recognise is None else self.recognise(dataset, anew)


def _packed(path: Path) -> Path | None:
    """The file, by its own name or by that of a packed one."""
    candidates = (path.with_name(path.name + packing) for packing in PACKINGS)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _load(read: Callable[..., Dataset], source: tuple[Path, ...] = ()) -> Dataset:
    """What a reader makes of files, read once as long as they are the same."""
    return _kept(read, source, tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in source))


@lru_cache(maxsize=8)
def _kept(read: Callable[..., Dataset], source: tuple[Path, ...], _stamps: tuple) -> Dataset:
    dataset = read(*source)
    # All who load it share it.
    for part in (dataset.train, dataset.test):
        for array in part.values():
            array.flags.writeable = False
    return dataset


def _load_local(name: str) -> Dataset:
    """A LIBSVM file of one's own, with its test file where there is one."""
    path = Path(name.removeprefix(LOCAL)).expanduser().absolute()
    if not path.is_file():
        raise InputError(f"data: {name!r} was given; the path of a LIBSVM file is needed")
    test = _packed(path.with_name(f"{_unpacked_name(path)}.t"))
    return _load(_local, (path, test) if test else (path,))


def by_column(name: str, partition: Partition) -> tuple[str, Partition]:
    """Data and a partition, where `natural:COLUMN` of a csv file is put as `natural` of `csv:FILE#COLUMN`: the column
    says whose a row is, and is no input."""
    if isinstance(partition, Natural) and partition.column and name.startswith(TABLE) and "#" not in name:
        if Path(name.removeprefix(TABLE)).expanduser().is_dir():
            raise InputError(
                f"partition: natural:{partition.column} was given with {name!r}, a folder with a file per client; "
                "natural alone is needed"
            )
        return f"{name}#{partition.column}", Natural()
    return name, partition


def _load_table(name: str, options: TableOptions) -> Dataset:
    """Tables of one's own: a folder with a csv file per client, or one file, with the column that says whose a row is
    behind a #."""
    path, _, column = name.removeprefix(TABLE).partition("#")
    place = Path(path).expanduser().absolute()
    if place.is_dir():
        if column:
            raise InputError(f"data: {name!r} was given; a column is named of one file, and {path!r} is a folder")
        return _load(_reader(options), tuple(sorted(place.glob("*.csv"))) or (place,))
    if not place.is_file():
        raise InputError(f"data: {name!r} was given; csv:FOLDER, a csv file per client, or csv:FILE#COLUMN is needed")
    return _load(_reader(options, column or None), (place,))


def _reader(options: TableOptions, column: str | None = None) -> _TableReader:
    """The reader of tables, with the file of checked records where the options name one."""
    if not is_checked_file(options.checked):
        return _TableReader(options, column)
    options.refuse_checked_file_with_schema()
    path = checked_path(options.checked)
    return _TableReader(options, column, path, (path.stat().st_mtime_ns, path.stat().st_size))


@dataclass(frozen=True)
class _TableReader:
    """Makes a dataset of csv files; equal readers share what was read."""

    options: TableOptions
    column: str | None = None
    checked_file: Path | None = None
    stamp: tuple[int, int] | None = None  # of this file: another one is read anew

    def __call__(self, *paths: Path) -> Dataset:
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        paths = tuple(path for path in paths if path != self.checked_file and not path.is_dir())
        if not paths:
            raise InputError(f"data: {str(folder)!r} holds no csv file; one per client is needed")
        single, column = len(paths) == 1, self.column
        tables: Any = {path.stem: read_csv(path) for path in paths}
        options = self.options
        if self.checked_file is not None:
            tables, checked = with_checked_column(tables, str(self.checked_file))
            options = replace(options, checked=checked)
        records = read_tables(tables[paths[0].stem] if column else tables, column, options)
        name = paths[0].stem if single else paths[0].parent.name
        return _of_records(name, records, bool(column) or not single, self.options.standardise)


@dataclass(frozen=True)
class _HeartReader:
    """Makes a dataset of the four hospitals' patients, ready for tasks."""

    standardise: Standardise = "pooled"

    def __call__(self) -> Dataset:
        reading = Reading(label="ill", categories=("cp", "restecg"))
        return _of_records("heart", records_of(heart(), None, reading), True, self.standardise)


def _of_records(name: str, records: Records, owned: bool, standardise: Standardise) -> Dataset:
    """A dataset of clients' records; a fifth of every client's examples of each class is held out for the test set, in
    a way that depends on no other client."""
    labels = np.concatenate([own["label"] for own in records.data])
    owner = np.repeat(np.arange(len(records.data)), [len(own["label"]) for own in records.data])
    called = f"data: the held-out fraction of {name}"
    held = [hold_out(called, own["label"], HELD_OUT, seed=0, rare=True) for own in records.data]
    if not owned:
        refuse_without_clients(standardise, name)
    inputs = np.concatenate(
        [scaled_by_own(own["input"][~where], own["input"], standardise) for own, where in zip(records.data, held)]
    )
    held_out = np.concatenate(held)
    parts = [{"input": inputs[where].astype(np.float32), "label": labels[where]} for where in (~held_out, held_out)]
    if "checked" in records.data[0]:
        checked = np.concatenate([own["checked"] for own in records.data])
        parts = [part | {"checked": checked[where]} for part, where in zip(parts, (~held_out, held_out))]
    return Dataset(
        name,
        parts[0],
        parts[1],
        len(records.classes),
        standardising(parts[0]["input"]) if standardise == "pooled" else None,  # type: ignore[arg-type]
        tuple(map(str, records.classes)),
        owner[~held_out] if owned else None,
        records.names if owned else (),
        records.columns,
        owner[held_out] if owned else None,
        records.label,
        standardise,
    )


def _local(*paths: Path) -> Dataset:
    return _records(_unpacked_name(paths[0]), *_libsvm_parts(paths))


def _unpacked_name(path: Path) -> str:
    return path.stem if path.suffix in PACKINGS else path.name


def _libsvm_parts(paths: Sequence[Path], features: int | None = None) -> list[formats.Records]:
    """The records of a training file, and of a test file with the same features and labels."""
    train = formats.libsvm(paths[0], features)
    return [train] + [formats.libsvm(path, train.input.shape[1], train.values) for path in paths[1:]]


def _records(name: str, train: formats.Records, test: formats.Records | None = None) -> Dataset:
    """A dataset of records, a part of them held out where there is no test set."""
    names = tuple(value if isinstance(value, str) else f"{value:g}" for value in train.values)
    examples = _examples(train)
    if test is not None:
        return Dataset(name, examples, _examples(test), len(names), class_names=names)
    held_out = hold_out(f"data: the held-out fraction of {name}", train.label, HELD_OUT, seed=0)
    first, second = ({key: array[where] for key, array in examples.items()} for where in (~held_out, held_out))
    return Dataset(name, first, second, len(names), class_names=names)


def _examples(part: formats.Images | formats.Records) -> dict[str, np.ndarray]:
    return {"input": part.input, "label": part.label}


def _check_counts(name: str, paths: Sequence[Path], parts: Sequence[Any], features: int, classes: int) -> None:
    """Refuses files that do not have as many examples, features and classes as the dataset has."""
    for what, part, rows in zip(("training", "test"), parts, ROWS[name]):
        found = (len(part.label), part.input.shape[1], int(part.label.max(initial=-1)) + 1)
        if found != (rows, features, classes):
            raise InputError(
                f"data: {name!r} in {paths[0].parent} has {found[0]} {what} examples of {found[1]} features and "
                f"{found[2]} classes; {rows} of {features} and {classes} are needed"
            )


def _read_idx(name: str, scale: Scale, class_names: tuple[str, ...], *paths: Path) -> Dataset:
    arrays = [formats.idx(path) for path in paths]
    parts = []
    for images, labels in (arrays[:2], arrays[2:]):
        if images.shape[1:] != scale.shape[:2] or labels.shape != images.shape[:1]:
            raise InputError(
                f"data: {name!r} in {paths[0].parent} has images of shape {images.shape} and labels of shape "
                f"{labels.shape}; {scale.shape[0]} x {scale.shape[1]} pixels and a label for every image are needed"
            )
        parts.append(formats.Images(images.reshape(len(images), -1), labels.astype(np.int32)))
    _check_counts(name, paths, parts, features=scale.shape[0] * scale.shape[1], classes=10)
    return Dataset(name, _examples(parts[0]), _examples(parts[1]), 10, scale, class_names)


def _read_cifar10(*paths: Path) -> Dataset:
    train, test = formats.cifar10(paths)
    _check_counts("cifar10", paths, (train, test), features=32 * 32 * 3, classes=10)
    mean, std = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    return Dataset("cifar10", _examples(train), _examples(test), 10, Scale((32, 32, 3), 255.0, mean, std), names)


def _read_libsvm(name: str, features: int, *paths: Path) -> Dataset:
    parts = _libsvm_parts(paths, features)
    _check_counts(name, paths, parts, features, classes=2)
    return _records(name, *parts)


def _read_magic(path: Path) -> Dataset:
    records = formats.labelled_csv(path)
    _check_counts("magic", (path,), (records,), features=10, classes=2)
    dataset = _records("magic", records)
    return replace(
        dataset, scale=standardising(dataset.train["input"]), class_names=("gamma", "hadron"), scaling="pooled"
    )


_FASHION_PIXELS = (0.2860, 0.3530)  # mean and deviation of its training pixels, as published
_IDX = tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _idx(
    name: str,
    mean: float,
    std: float,
    class_names: tuple[str, ...],
    namesake: str,
    recognise: Callable[[Dataset, Path], Dataset] | None = None,
) -> _Stored:
    read = partial(_read_idx, name, Scale((28, 28, 1), 255.0, mean, std), class_names)
    download = tuple(f"{file}.gz" for file in _IDX)
    return _Stored(name, name, read, download, (_IDX,), namesake=namesake, recognise=recognise)


def _recognise_fashion(dataset: Dataset, path: Path) -> Dataset:
    """Fashion-MNIST by its content: as many of every class, and the published mean and deviation of its pixels."""
    counts = [np.bincount(part["label"], minlength=10) for part in (dataset.train, dataset.test)]
    pixels = dataset.train["input"] / np.float32(255)
    found = (round(float(pixels.mean(dtype=np.float64)), 4), round(float(pixels.std(dtype=np.float64)), 4))
    tested = dataset.test["input"] / np.float32(255)
    near = abs(float(tested.mean()) - found[0]) < 0.01 and abs(float(tested.std()) - found[1]) < 0.01
    if found != _FASHION_PIXELS or not near or [set(each.tolist()) for each in counts] != [{6_000}, {1_000}]:
        raise ChecksumError(
            f"{path}: it is not packed as Fashion-MNIST was published, and its content, of mean {found[0]} and "
            f"deviation {found[1]}, is not that of Fashion-MNIST, {_FASHION_PIXELS[0]} and {_FASHION_PIXELS[1]}; "
            "remove or replace the file"
        )
    return dataset


def _libsvm(name: str, features: int, *files: str) -> _Stored:
    read, train, *test = partial(_read_libsvm, name, features), *files
    return _Stored(name, "libsvm", read, files, (files,), lesser=((train,),) if test else ())


_CIFAR10 = _Stored(
    "cifar10",
    "cifar10",
    _read_cifar10,
    ("cifar-10-python.tar.gz",),
    (
        (*(f"cifar10_train_{i}_d2.npz" for i in range(1, 6)), "cifar10_test_d2.npz"),
        tuple(f"cifar-10-batches-py/{batch}" for batch in formats.CIFAR10_BATCHES),
        tuple(f"cifar-10-batches-bin/{batch}.bin" for batch in formats.CIFAR10_BATCHES),
        formats.CIFAR10_BATCHES,
        tuple(f"{batch}.bin" for batch in formats.CIFAR10_BATCHES),
        ("cifar-10-python.tar.gz",),
        ("cifar-10-binary.tar.gz",),
    ),
)

# Name -> (one line about it, what loads it).
DATASETS: Mapping[str, tuple[str, Callable[[], Dataset]]] = {
    "digits": ("1,797 handwritten digits of 8 x 8 pixels, ten classes; built in", partial(_load, digits)),
    "breast_cancer": ("569 tumours, 30 measurements, two classes; built in", partial(_load, breast_cancer)),
    "heart": ("740 patients of four hospitals, 15 features, ill or not; built in", _HeartReader()),
    "wine": ("178 wines, 13 measurements, three classes; built in", partial(_load, wine)),
    "mnist": (
        "70,000 handwritten digits of 28 x 28 pixels, ten classes",
        _idx("mnist", 33.3184 / 255, 78.5675 / 255, (), namesake="fashion_mnist"),
    ),
    "fashion_mnist": (
        "70,000 articles of clothing of 28 x 28 pixels, ten classes",
        _idx("fashion_mnist", *_FASHION_PIXELS, _FASHION, namesake="mnist", recognise=_recognise_fashion),
    ),
    "cifar10": ("60,000 photographs of 32 x 32 pixels in colour, ten classes", _CIFAR10),
    "a9a": ("48,842 adults of a census, 123 binary features, two classes", _libsvm("a9a", 123, "a9a", "a9a.t")),
    "w8a": ("64,700 web pages, 300 binary features, two classes", _libsvm("w8a", 300, "w8a", "w8a.t")),
    "german": ("1,000 loans, 24 features, two classes", _libsvm("german", 24, "german.numer_scale")),
    "magic": (
        "19,020 showers seen by a telescope, 10 measurements, two classes",
        _Stored("magic", "libsvm", _read_magic, ("magic04.data",), (("magic04.data",),)),
    ),
}
