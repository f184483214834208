"""Readers: tiny files of every kind read back exactly, and damaged ones refused in one sentence with their name."""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zlib
from typing import Any, ClassVar

import numpy as np
import pytest

from rookery.data import formats
from rookery.data.formats import CIFAR10_BATCHES, cifar10, contents, idx, labelled_csv, libsvm
from rookery.errors import InputError

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}

all_packings = pytest.mark.parametrize("packing", PACK)


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def refused(read, path, match):
    with pytest.raises(InputError, match=match) as caught:
        read(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ") and "\n" not in sentence


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


# CIFAR-10, in all of its forms


def images(number, seed=0):
    """(number, 3, 32, 32) pixels and labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (number, 3, 32, 32), np.uint8), (np.arange(number) % 10).astype(np.uint8)


BATCHES = [images(2 + i, seed=i) for i in range(6)]


def binary_bytes(pixels, labels):
    return np.column_stack([labels, pixels.reshape(len(pixels), -1)]).tobytes()


def python_bytes(pixels, labels):
    """A batch as Python 3 writes it for Python 2."""
    batch = {b"data": pixels.reshape(len(pixels), -1), b"labels": labels.tolist(), b"batch_label": b"a batch"}
    return pickle.dumps(batch, protocol=2)


class Python2Pickler(pickle._Pickler):
    """Writes bytes as the strings of Python 2, which is what the original archive has."""

    def save_string(self: Any, text):
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch: ClassVar = {**pickle._Pickler.dispatch, bytes: save_string}


def original_bytes(pixels, labels):
    """A batch as the original archive has it: strings of Python 2, and numpy's old names."""
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump({b"labels": labels.tolist(), b"data": pixels.reshape(len(pixels), -1)})
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def packed_bytes(pixels, labels):
    """The residual of a batch: channels less the second one, then differences along rows and columns, modulo 256."""
    channels = pixels.copy()
    channels[:, 0] -= pixels[:, 1]
    channels[:, 2] -= pixels[:, 1]
    for axis in (3, 2):
        channels = np.diff(channels, axis=axis, prepend=np.uint8(0))
    file = io.BytesIO()
    np.savez_compressed(file, y=labels, x_d2=channels)
    return file.getvalue()


def archive_bytes(folder, files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in {"readme.html": b"about", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def cifar10_files(folder, form, batches=BATCHES):
    """Writes the batches in a form, and says which paths to read."""
    if form == "packed":
        names = [f"cifar10_train_{i}_d2.npz" for i in range(1, 6)] + ["cifar10_test_d2.npz"]
        return [write(folder, name, packed_bytes(*batch)) for name, batch in zip(names, batches)]
    encode, ending, inner, archive = {
        "python": (python_bytes, "", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        "original": (original_bytes, "", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        "binary": (binary_bytes, ".bin", "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    }[form.removesuffix(" archive")]
    files = {f"{name}{ending}": encode(*batch) for name, batch in zip(CIFAR10_BATCHES, batches)}
    if form.endswith("archive"):
        return [write(folder, archive, archive_bytes(inner, files))]
    return [write(folder, f"{inner}/{name}", content) for name, content in files.items()]


FORMS = ["packed", "python", "original", "binary", "python archive", "original archive", "binary archive"]


@pytest.mark.parametrize("form", FORMS)
def test_cifar10_is_the_same_in_all_forms(tmp_path, form):
    train, test = cifar10(cifar10_files(tmp_path, form))
    pixels, labels = (np.concatenate(part) for part in zip(*BATCHES[:5]))
    assert train.input.dtype == np.uint8 and train.label.dtype == np.int32
    assert train.input.shape == (20, 3072) and test.input.shape == (7, 3072)
    assert np.array_equal(train.input.reshape(-1, 32, 32, 3), pixels.transpose(0, 2, 3, 1))
    assert np.array_equal(train.label, labels) and np.array_equal(test.label, BATCHES[5][1])
    assert np.array_equal(test.input.reshape(-1, 32, 32, 3), BATCHES[5][0].transpose(0, 2, 3, 1))


def test_an_array_stored_by_columns(tmp_path):
    pixels, labels = images(4)
    batch = {b"data": np.asfortranarray(pixels.reshape(4, -1)), b"labels": labels.tolist()}
    path = write(tmp_path, "data_batch_1", pickle.dumps(batch, protocol=2))
    assert np.array_equal(formats._batch(path).input.reshape(4, 32, 32, 3), pixels.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("missing", [0, 5])
def test_an_archive_without_a_batch(tmp_path, missing):
    files = {f"{name}.bin": binary_bytes(*BATCHES[0]) for i, name in enumerate(CIFAR10_BATCHES) if i != missing}
    path = write(tmp_path, "cifar-10-binary.tar.gz", archive_bytes("cifar-10-batches-bin", files))
    refused(lambda p: cifar10([p]), path, f"it has no {CIFAR10_BATCHES[missing]}; all six batches of CIFAR-10")


@pytest.mark.parametrize(
    "name, content, match",
    [
        ("data_batch_1.bin", b"", "data_batch_1.bin has 0 bytes; a multiple of 3073 is needed"),
        ("data_batch_1.bin", binary_bytes(*images(2))[:-1], "has 6145 bytes; a multiple of 3073"),
        ("data_batch_1.bin", b"\x0a" + bytes(3072), "data_batch_1.bin has a label 10; at most 9 is allowed"),
        ("data_batch_1", b"", "it does not read as the batch data_batch_1 of CIFAR-10"),
        ("data_batch_1", python_bytes(*images(2))[:-40], "it does not read as the batch data_batch_1"),
        ("data_batch_1", pickle.dumps({b"labels": [1]}, 2), "does not read as the batch"),
        ("data_batch_1", pickle.dumps([1, 2], 2), "does not read as the batch"),
        ("data_batch_1", pickle.dumps({b"data": [1], b"labels": [1]}, 2), "does not read as the batch"),
        (
            "data_batch_1",
            pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}, 2),
            "its array is of type 'f8', not of unsigned bytes",
        ),
        (
            "data_batch_1",
            pickle.dumps({b"data": np.zeros((1, 10), np.uint8), b"labels": [1]}, 2),
            r"images of shape \(1, 10\) and labels of shape \(1,\); 3072 bytes and one label for every image",
        ),
        (
            "data_batch_1",
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}, 2),
            r"labels of shape \(2,\)",
        ),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [11]}, 2), "a label 11"),
        (
            "data_batch_1",
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, 2),
            "no list of whole numbers from 0 to 255",
        ),
        ("a.npz", b"", "it does not read as a packed batch of CIFAR-10 .it is no npz archive"),
        ("a.npz", packed_bytes(*images(2))[:-60], "it does not read as a packed batch"),
    ],
)
def test_batches_that_are_refused(tmp_path, name, content, match):
    refused(formats._batch, write(tmp_path, name, content), match)


@pytest.mark.parametrize(
    "arrays, match",
    [
        ({"y": np.zeros(2, np.uint8)}, "x_d2"),
        ({"y": np.zeros(2, np.uint8), "x_d2": np.zeros((2, 3072), np.uint8)}, r"x_d2 is of shape \(2, 3072\)"),
        ({"y": np.zeros(2, np.uint8), "x_d2": np.zeros((2, 3, 32, 32))}, "type float64"),
        ({"y": np.zeros(2), "x_d2": np.zeros((2, 3, 32, 32), np.uint8)}, "y of type float64"),
        ({"y": np.zeros(3, np.uint8), "x_d2": np.zeros((2, 3, 32, 32), np.uint8)}, r"labels of shape \(3,\)"),
        ({"y": np.array([{}, {}]), "x_d2": np.zeros((2, 3, 32, 32), np.uint8)}, "[Oo]bject arrays"),
    ],
)
def test_packed_batches_that_are_refused(tmp_path, arrays, match):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    refused(formats._batch, path, match)


# The unpickler


class Attack:
    """A pickle of it calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def attacks(marker):
    import os
    import subprocess

    code = f"open({str(marker)!r}, 'w').close()"
    return {
        "system": Attack(os.system, f"touch {marker}"),
        "exec": Attack(exec, code),
        "eval": Attack(eval, code),
        "open": Attack(open, str(marker), "w"),
        "getattr": Attack(getattr, "", "join"),
        "subprocess": Attack(subprocess.Popen, ["touch", str(marker)]),
        "numpy": Attack(np.save, str(marker), 1),
        "class": Attack(type, "Name", (), {}),
    }


@pytest.mark.parametrize("name", attacks(""))
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_runs_nothing(tmp_path, name, protocol):
    marker = tmp_path / "marker"
    attack = attacks(marker)[name]
    for number, content in enumerate([attack, {b"data": attack, b"labels": [1]}]):
        path = write(tmp_path, f"data_batch_{number}", pickle.dumps(content, protocol))
        refused(formats._batch, path, "it asks for .*, which no batch needs")
    archive = {name: pickle.dumps(attack, protocol) for name in CIFAR10_BATCHES}
    path = write(tmp_path, "cifar-10-python.tar.gz", archive_bytes("cifar-10-batches-py", archive))
    refused(lambda p: cifar10([p]), path, "it asks for .*, which no batch needs")
    assert not marker.exists()


def test_what_is_admitted_stands_for_the_real_thing_and_is_not_it():
    for (module, name), admitted in formats._PlainUnpickler.ADMITTED.items():
        assert admitted.__module__ == "rookery.data.formats", (module, name)


def test_only_one_encoding_is_admitted(tmp_path):
    import _codecs

    attack = Attack(_codecs.encode, "text", "rot13")
    path = write(tmp_path, "data_batch_1", pickle.dumps({b"data": attack, b"labels": [1]}, 2))
    refused(formats._batch, path, "it holds text encoded by 'rot13'")


def test_a_pickle_cannot_ask_for_all_of_the_memory(tmp_path):
    # The place 2^31 - 1 of the memo, in a list 16 GiB long.
    path = write(tmp_path, "data_batch_1", b"\x80\x02}r\xff\xff\xff\x7f.")
    refused(formats._batch, path, "does not read as the batch")


def test_arrays_of_objects_are_not_built(tmp_path):
    batch = {b"data": np.array([[1, "a"]], object), b"labels": [1]}
    refused(formats._batch, write(tmp_path, "data_batch_1", pickle.dumps(batch, 2)), "of type 'O8'")


# Any damage


def small_files(folder):
    """A file of every kind, and what reads it."""
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    batches = [images(1, seed=i) for i in range(6)]
    text = b"1 1:0.5 3:2\n-1 2:1\n"
    return {
        "idx": (idx, write(folder, "a-idx3-ubyte", idx_bytes(array))),
        "idx.gz": (idx, write(folder, "b-idx3-ubyte.gz", gzip.compress(idx_bytes(array)))),
        "libsvm": (libsvm, write(folder, "a", text)),
        "libsvm.xz": (libsvm, write(folder, "a.xz", lzma.compress(text))),
        "libsvm.bz2": (libsvm, write(folder, "a.bz2", bz2.compress(text))),
        "csv": (labelled_csv, write(folder, "a.csv", b"1,2,g\n3,4,h\n")),
        "packed": (formats._batch, write(folder, "a.npz", packed_bytes(*batches[0]))),
        "python": (formats._batch, write(folder, "data_batch_1", python_bytes(*batches[0]))),
        "original": (formats._batch, write(folder, "data_batch_2", original_bytes(*batches[0]))),
        "archive": (lambda path: cifar10([path]), cifar10_files(folder, "original archive", batches)[0]),
    }


@pytest.mark.parametrize(
    "kind", ["idx", "idx.gz", "libsvm", "libsvm.xz", "libsvm.bz2", "csv", "packed", "python", "original", "archive"]
)
def test_damage_is_refused_in_one_sentence_or_does_not_matter(tmp_path, kind):
    read, path = small_files(tmp_path)[kind]
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    read(path)
    damaged = [whole[:end] for end in np.linspace(0, len(whole) - 1, 30).astype(int)]
    for _ in range(60):
        flipped = bytearray(whole)
        # The ends are where headers are; most of the middle is pixels, which say nothing of their rightness.
        place = rng.integers(0, len(whole)) if rng.random() < 0.3 else rng.integers(0, min(len(whole), 200))
        flipped[place] ^= 1 << rng.integers(0, 8)
        damaged.append(bytes(flipped))
    count = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            read(path)
        except InputError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            count += 1
    assert count >= 15


# Packed files


@all_packings
def test_contents_are_unpacked_whatever_the_name(tmp_path, packing):
    path = write(tmp_path, "name", PACK[packing](b"some content"))
    assert contents(path) == b"some content"


def test_files_that_cannot_be_read(tmp_path):
    refused(contents, tmp_path / "none", "it cannot be read .No such file or directory.; a file is needed")
    refused(contents, tmp_path, "it cannot be read .Is a directory.; a file is needed")


@pytest.mark.parametrize("packing", [".gz", ".xz", ".bz2"])
def test_packed_files_that_end_early(tmp_path, packing):
    refused(contents, write(tmp_path, "name", PACK[packing](b"some content")[:-3]), "it does not read as a packed file")


# idx


@all_packings
@pytest.mark.parametrize("shape", [(7,), (5, 4, 3), (0, 28, 28)])
def test_idx(tmp_path, packing, shape):
    array = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
    read = idx(write(tmp_path, f"a-idx-ubyte{packing}", PACK[packing](idx_bytes(array))))
    assert read.dtype == np.uint8 and np.array_equal(read, array)


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", "it does not begin as idx files of unsigned bytes do"),
        (b"<html>not found</html>", "it does not begin as idx files of unsigned bytes do"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "it does not begin as idx files of unsigned bytes do"),
        (b"\0\0\x08\x03\0\0\0\x01", "it ends after 8 bytes; an idx file of 16 or more is needed"),
        (idx_bytes(np.arange(6, dtype=np.uint8))[:-1], "it holds 5 numbers where its header says 6; a whole idx file"),
        (idx_bytes(np.arange(6, dtype=np.uint8)) + b"\0", "it holds 7 numbers where its header says 6"),
    ],
)
def test_idx_refuses(tmp_path, content, match):
    refused(idx, write(tmp_path, "a-idx3-ubyte", content), match)


# LIBSVM


@all_packings
def test_libsvm(tmp_path, packing):
    text = b"+1 1:0.5 3:-2e-1 \n-1 2:1\r\n\n3\n  -1\t1:7 2:8 3:9"
    records = libsvm(write(tmp_path, f"a{packing}", PACK[packing](text)))
    expected = np.array([[0.5, 0, -0.2], [0, 1, 0], [0, 0, 0], [7, 8, 9]], np.float32)
    assert records.input.dtype == np.float32 and np.array_equal(records.input, expected)
    assert records.label.dtype == np.int32 and records.label.tolist() == [1, 0, 2, 0]
    assert records.values == (-1.0, 1.0, 3.0)


def test_libsvm_agrees_with_scikit_learn(tmp_path):
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    rng = np.random.default_rng(0)
    dense = rng.normal(size=(200, 17)) * (rng.random((200, 17)) < 0.3)
    dense[:, 16] = 1
    path = tmp_path / "a"
    dump_svmlight_file(dense, rng.integers(0, 4, 200), str(path), zero_based=False)
    theirs, label = load_svmlight_file(str(path), zero_based=False)
    records = libsvm(path)
    assert np.array_equal(records.input, theirs.toarray().astype(np.float32))
    assert np.array_equal(records.label, label)


def test_libsvm_with_the_features_and_labels_of_another_file(tmp_path):
    path = write(tmp_path, "a.t", b"1 2:5\n")
    records = libsvm(path, features=4, values=(-1.0, 1.0))
    assert records.input.tolist() == [[0, 5, 0, 0]] and records.label.tolist() == [1] and records.values == (-1.0, 1.0)
    refused(lambda p: libsvm(p, features=1), path, "it has a feature number 2; at most 1 are allowed")
    refused(lambda p: libsvm(p, values=(0.0, 2.0)), path, r"it has a label 1\.0; allowed are 0\.0, 2\.0")


@pytest.mark.parametrize(
    "text, match",
    [
        (b"", "it does not read as lines of a label and pairs index:value; a LIBSVM file is needed"),
        (b" \n\n", "does not read as lines of a label"),
        (b"1:2 3:4\n", "does not read as lines of a label"),
        (b"1 2:3 4\n", "does not read as lines of a label"),
        (b"1 2:3:4\n", "does not read as lines of a label"),
        (b"1 2 :3\n", "does not read as lines of a label"),
        (b"1 2: :3\n", "it has a pair index:value with an empty side"),
        (b"1 2:\n", "it has a pair index:value with an empty side"),
        (b"1 :3\n", "it has a pair index:value with an empty side"),
        (b"<!DOCTYPE html>\n", "does not read as lines of a label"),
        (b"one 1:2\n", "it has a word where a number is needed"),
        (b"1 qid:2 3:4\n", "it has a word where a number is needed"),
        (b"1 1:2-3\n", "it has a word where a number is needed"),
        (b"1 1:\xff\n", "it has a word where a number is needed"),
        (b"1 1:2\0\n", "where a number is needed"),
        (b"1 1:" + b"2" * 70 + b"\n", "it has b'22222222222222222222'... where a number is needed"),
        (b"1 1:nan\n", "it has numbers that are not finite in single precision"),
        (b"1 1:1e39\n", "it has numbers that are not finite in single precision"),
        (b"inf 1:1\n", "it has numbers that are not finite in single precision"),
        (b"1 0:1\n", "its indices are not whole numbers that ascend from 1 on in every line"),
        (b"1 -1:1\n", "its indices are not whole numbers that ascend from 1 on in every line"),
        (b"1 1.5:1\n", "its indices are not whole numbers that ascend from 1 on in every line"),
        (b"1 2:1 1:1\n", "its indices are not whole numbers that ascend from 1 on in every line"),
        (b"1 2:1 2:1\n", "its indices are not whole numbers that ascend from 1 on in every line"),
        (
            b"1 1:1\n-1 600000000:1\n",
            r"its 2 records of 600000000 features would take 4\.5 GiB; at most 2 GiB are allowed",
        ),
        (b"1 1e30:1\n", "at most 2 GiB are allowed"),
    ],
)
def test_libsvm_refuses(tmp_path, text, match):
    refused(libsvm, write(tmp_path, "a", text), match)


# Comma-separated values


@all_packings
def test_labelled_csv(tmp_path, packing):
    records = labelled_csv(write(tmp_path, f"a.data{packing}", PACK[packing](b"1.5,-2,h\r\n3, 4e1,g\n\n5,6,h")))
    assert records.input.dtype == np.float32 and records.input.tolist() == [[1.5, -2], [3, 40], [5, 6]]
    assert records.label.dtype == np.int32 and records.label.tolist() == [1, 0, 1]
    assert records.values == ("g", "h")


@pytest.mark.parametrize(
    "text, match",
    [
        (b"", "its lines are not of one length; lines of numbers and a class are needed"),
        (b"1,2,g\n1,g\n", "its lines are not of one length"),
        (b"g\nh\n", "its lines are not of one length"),
        (b"1,x,g\n", "it has a word where a number is needed"),
        (b"1,,g\n", "it has a word where a number is needed"),
        (b"1,inf,g\n", "it has numbers that are not finite"),
        (b"1,2,\xff\n", "it does not read as a file of numbers and classes"),
    ],
)
def test_labelled_csv_refuses(tmp_path, text, match):
    refused(labelled_csv, write(tmp_path, "a.data", text), match)


# Files that are small and unpack to much


def bomb(packing, size):
    """Zeros without end, packed: a thousandth of their size and less."""
    packer = {
        ".gz": lambda: zlib.compressobj(9, zlib.DEFLATED, 31),
        ".xz": lzma.LZMACompressor,
        ".bz2": bz2.BZ2Compressor,
    }[packing]()
    block = bytes(1 << 20)
    return b"".join([packer.compress(block) for _ in range(size >> 20)]) + packer.flush()


@pytest.mark.parametrize("packing", [".gz", ".xz", ".bz2"])
def test_a_file_unpacks_to_so_much_and_no_more(tmp_path, packing):
    path = write(tmp_path, f"zeros{packing}", bomb(packing, 80 << 20))
    assert path.stat().st_size < 100_000
    refused(contents, path, r"it unpacks to more than 64 MiB, from \d+ bytes; that is no data")


def test_packed_files_in_several_pieces_are_read_whole(tmp_path):
    for packing in (".gz", ".xz", ".bz2"):
        path = write(tmp_path, f"pieces{packing}", PACK[packing](b"one ") + PACK[packing](b"two"))
        assert contents(path) == b"one two"


def test_an_archive_unpacks_to_so_much_and_no_more(tmp_path):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = 80 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    path = write(tmp_path, "cifar-10-python.tar.gz", file.getvalue())
    refused(lambda path: cifar10([path]), path, "it unpacks to more than 64 MiB")


def test_an_npz_unpacks_to_so_much_and_no_more(tmp_path):
    file = io.BytesIO()
    np.savez_compressed(file, y=np.zeros(9, np.uint8), x_d2=np.zeros((30_000, 3, 32, 32), np.uint8))
    paths = cifar10_files(tmp_path, "packed")
    paths[0].write_bytes(file.getvalue())
    refused(lambda path: cifar10(paths), paths[0], "it unpacks to more than 64 MiB")


def test_a_text_of_numbers_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "TEXT_LIMIT", 1 << 20)
    for read in (libsvm, labelled_csv):
        refused(
            read, write(tmp_path, "long", b"1 1:1\n" * 200_000), "it has 1.1 MiB of text; at most 1 MiB are allowed"
        )


def nested(levels, item=b"K\x01"):
    """A list in which each of ten entries is the same list, so many levels down: 10^levels numbers in a few bytes."""
    made = b"](" + item * 10 + b"e"
    for level in range(1, levels):
        slot = bytes([level])
        made += b"q" + slot + b"0](" + (b"h" + slot) * 10 + b"e"
    return made


def pickled_batch(labels):
    pixels = np.zeros((10, 3072), np.uint8)
    data = pickle.dumps(pixels, protocol=2)[2:-1]
    return b"\x80\x02}(U\x04data" + data + b"U\x06labels" + labels + b"u."


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (nested(9), "its labels are no list of whole numbers"),
        (nested(60), "its labels are no list of whole numbers"),
        (b"](" + b"K\x01" * 9 + b"e", "one label for every image"),
        (b"](" + b"G?\xf0\0\0\0\0\0\0" * 10 + b"e", "its labels are no list of whole numbers"),
    ],
)
def test_a_small_pickle_gives_no_large_labels(tmp_path, labels, match):
    paths = cifar10_files(tmp_path, "python")
    paths[0].write_bytes(pickled_batch(labels))
    refused(lambda path: cifar10(paths), paths[0], match)


def test_a_pickle_changes_nothing_of_the_library(tmp_path):
    """BUILD sets attributes of what is on the stack, and what stands for a function is the library's own."""
    admitted = b"c_codecs\nencode\n"
    attack = b"\x80\x02" + admitted + b"}(U\x08__name__U\x04ruinU\x05extraK\x01ub."
    paths = cifar10_files(tmp_path, "python")
    paths[0].write_bytes(attack)
    refused(lambda path: cifar10(paths), paths[0], "it sets the attributes of something that has none")
    assert formats._encode.__name__ == "_encode" and not hasattr(formats._encode, "extra")


@pytest.mark.parametrize(
    "opcode", [b"(i_codecs\nencode\n.", b"\x8f.", b"(\x91.", b"\x82\x01.", b"Pname\n.", b"}q\0h\0K\x01s."]
)
def test_a_pickle_has_what_a_batch_needs_and_nothing_else(tmp_path, opcode):
    paths = cifar10_files(tmp_path, "python")
    paths[0].write_bytes(b"\x80\x02" + opcode)
    refused(lambda path: cifar10(paths), paths[0], "it does not read as the batch")


def test_a_key_of_a_pickle_takes_no_time_to_hash(tmp_path):
    """The hash of nested tuples that share their parts takes twice the time at every level."""
    key = b"K\x01"
    for level in range(60):
        key += b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86"
    paths = cifar10_files(tmp_path, "python")
    paths[0].write_bytes(b"\x80\x02}" + key + b"K\x01s.")
    refused(lambda path: cifar10(paths), paths[0], "it has a key that is no text")


@pytest.mark.parametrize("shape", [(1,) * 65, (1,) * 255, (0, 2**32 - 1, 2**32 - 1, 2**32 - 1)])
def test_idx_with_dimensions_that_no_array_has(tmp_path, shape):
    content = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(0 in shape or 1)
    if 0 in shape:
        content = content[:-1]
    refused(idx, write(tmp_path, "many.idx", content), "it does not read as an idx file|dimensions")
