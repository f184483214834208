"""Datasets by name: where they are looked for, what is checked, and what is said when they cannot be had.

Files are tiny and made here; those tests that need the real ones are skipped unless ROOKERY_DATA has them.
"""

import gzip
import hashlib
import os
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from data.test_download import serving
from data.test_formats import FORMS, PACK, cifar10_files, idx_bytes, images, write
from rookery.data import DATASETS, LongTail, catalogue, class_counts, download, load
from rookery.data.partitions import ClassHeterogeneity
from rookery.errors import InputError

REAL = os.environ.get("ROOKERY_DATA")

EMBEDDED = {"digits": (1438, 359, 64), "breast_cancer": (456, 113, 30), "heart": (591, 149, 15), "wine": (142, 36, 13)}

IDX = catalogue._IDX


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder for ROOKERY_DATA and one for the cache, both empty, and no network."""
    for name, folder in (("ROOKERY_DATA", "data"), ("ROOKERY_CACHE", "cache")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in catalogue.MIRRORS:
        monkeypatch.setitem(catalogue.MIRRORS, name, ("http://127.0.0.1:1/",))
    monkeypatch.setattr(download, "BACKOFF", 0.0)
    return tmp_path


def idx_files(seed):
    """Twenty training and ten test images in the four files of MNIST, name -> content."""
    rng, files = np.random.default_rng(seed), {}
    for part, number in (("train", 20), ("t10k", 10)):
        pixels = rng.integers(0, 256, (number, 28, 28), np.uint8)
        files[f"{part}-images-idx3-ubyte"] = idx_bytes(pixels)
        files[f"{part}-labels-idx1-ubyte"] = idx_bytes((np.arange(number) % 10).astype(np.uint8))
    return files


def packed_files(seed):
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in idx_files(seed).items()}


def damaged(which):
    """A packed file whose content differs in its last byte."""
    content = idx_files(1)[which.removesuffix(".gz")]
    return gzip.compress(content[:-1] + bytes([content[-1] ^ 1]), mtime=0)


SEEDS = {"mnist": 1, "fashion_mnist": 2}


@pytest.fixture
def tiny_images(home, monkeypatch):
    """MNIST and Fashion-MNIST of thirty images, with the checksums of their files."""
    for name, seed in SEEDS.items():
        monkeypatch.setitem(catalogue.ROWS, name, (20, 10))
        files = packed_files(seed) if name == "fashion_mnist" else {**packed_files(seed), **idx_files(seed)}
        sums = {file: f"md5:{hashlib.md5(content).hexdigest()}" for file, content in files.items()}
        monkeypatch.setitem(catalogue.CHECKSUMS, name, sums)
    return home


def put(folder, files):
    for name, content in files.items():
        write(folder, name, content)


def sentence(name):
    """What is said when a dataset is refused."""
    with pytest.raises(InputError) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(dataset, kind):
    """What every dataset promises."""
    for part in (dataset.train, dataset.test):
        assert set(part) == {"input", "label"}
        assert part["input"].dtype == kind and part["label"].dtype == np.int32
        assert part["input"].shape == (len(part["label"]), np.prod(dataset.shape))
        assert set(part["label"].tolist()) == set(range(dataset.classes))
        assert not part["input"].flags.writeable and not part["label"].flags.writeable
    assert len(dataset.class_names) == dataset.classes
    values = np.asarray(dataset.scale(dataset.train["input"][:10]))
    assert np.isfinite(values).all() and values.shape == dataset.train["input"][:10].shape
    assert hash(dataset.scale) == hash(dataset.scale)  # a static argument


def test_fashion_mnist_that_was_packed_anew_is_told_by_its_content(tiny_images, monkeypatch):
    """As Debian's package has it: another gzip of the same bytes."""
    files = {f"{name}.gz": gzip.compress(content, 1, mtime=9) for name, content in idx_files(2).items()}
    put(tiny_images / "data" / "fashion_mnist", files)
    said = sentence("fashion_mnist")
    assert "is not packed as Fashion-MNIST was published, and its content, of mean" in said
    monkeypatch.setattr(np, "bincount", lambda labels, minlength: np.full(10, 6000 if len(labels) == 20 else 1000))
    monkeypatch.setattr(catalogue, "_FASHION_PIXELS", tuple(pixels_of(idx_files(2))))
    assert load("fashion_mnist").name == "fashion_mnist"


def pixels_of(files):
    """Mean and deviation of the training pixels."""
    pixels = np.frombuffer(files["train-images-idx3-ubyte"][16:], np.uint8) / 255
    return round(float(pixels.mean()), 4), round(float(pixels.std()), 4)


# Names


def test_every_name_has_one_line_about_it():
    assert list(DATASETS) == [*EMBEDDED, "mnist", "fashion_mnist", "cifar10", "a9a", "w8a", "german", "magic"]
    for description, loader in DATASETS.values():
        assert description and "\n" not in description and callable(loader)


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_datasets_need_no_files(home, name):
    dataset = load(name)
    check(dataset, np.float32)
    assert dataset.name == name
    assert (*map(len, (dataset.train["label"], dataset.test["label"])), dataset.train["input"].shape[1]) == EMBEDDED[
        name
    ]
    assert load(name) is dataset


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_records_are_standardised_by_their_training_part(home, name):
    dataset = load(name)
    train = np.asarray(dataset.scale(dataset.train["input"]), np.float64)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(train.std(axis=0), 1, rtol=1e-4)
    mean, std = dataset.scale.mean, dataset.scale.std
    assert isinstance(mean, tuple) and isinstance(std, tuple)
    assert all(type(number) is float for number in (*mean, *std))
    counts = [np.bincount(part["label"]) for part in (dataset.train, dataset.test)]
    assert np.abs(counts[1] - 0.2 * sum(counts)).max() <= 0.5


def test_names_that_are_not_known():
    assert sentence("mnst").startswith("data: 'mnst' is not known (did you mean 'mnist'?); allowed are digits, ")
    assert sentence("banana").endswith("magic, libsvm:PATH, csv:PATH")
    assert sentence(3) == "data: 3 was given; the name of a dataset is needed, such as 'mnist'"


# Images


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("place", ["data/{}", "data", "cache/{}", "cache"])
@pytest.mark.parametrize("packing", PACK)
def test_idx_files_are_found_in_every_place(tiny_images, name, place, packing):
    files = idx_files(SEEDS[name])
    packed = packed_files(SEEDS[name]) if packing == ".gz" else {f: PACK[packing](c) for f, c in files.items()}
    put(
        tiny_images / place.format(name),
        packed if packing == ".gz" else {f"{f}{packing}": c for f, c in packed.items()},
    )
    dataset = load(name)
    check(dataset, np.uint8)
    assert dataset.name == name and dataset.shape == (28, 28, 1) and dataset.scale.divisor == 255
    pixels = np.frombuffer(files["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert np.array_equal(dataset.train["input"], pixels.reshape(20, 784))
    assert dataset.train["label"].tolist() == list(range(10)) * 2 and dataset.test["label"].tolist() == list(range(10))


def test_scales_of_images(tiny_images):
    for name, seed in SEEDS.items():
        put(tiny_images / "data" / name, packed_files(seed))
    assert load("mnist").scale.mean == 33.3184 / 255 and load("mnist").scale.std == 78.5675 / 255
    assert load("fashion_mnist").scale.mean == 0.2860 and load("fashion_mnist").scale.std == 0.3530
    assert load("mnist").class_names == tuple("0123456789") and load("fashion_mnist").class_names[9] == "Ankle boot"


def test_the_own_folder_comes_before_the_cache_and_then_what_was_loaded_is_kept(tiny_images):
    put(tiny_images / "cache/mnist", packed_files(1))
    from_cache = load("mnist")
    assert load("mnist") is from_cache
    put(tiny_images / "data/mnist", packed_files(1))
    from_data = load("mnist")
    assert from_data is not from_cache and load("mnist") is from_data


def test_a_file_that_was_replaced_is_read_again(tiny_images, monkeypatch):
    put(tiny_images / "data/mnist", packed_files(1))
    first = load("mnist")
    monkeypatch.setitem(catalogue.CHECKSUMS, "mnist", {})
    put(tiny_images / "data/mnist", packed_files(5))
    for name in packed_files(5):
        os.utime(tiny_images / "data/mnist" / name, (1, 1))
    assert not np.array_equal(first.train["input"], load("mnist").train["input"])


@pytest.mark.parametrize("which", packed_files(1))
def test_a_wrong_file_does_not_stay_in_the_cache(tiny_images, which):
    put(tiny_images / "cache/mnist", {**packed_files(1), which: damaged(which)})
    assert "data: 'mnist' is not in ROOKERY_DATA" in sentence("mnist")
    assert not (tiny_images / "cache/mnist" / which).exists()


def test_records_are_checked_by_what_is_inside_a_packed_file(tiny_records, monkeypatch):
    content = text(30, 24)
    right = f"sha256:{hashlib.sha256(content).hexdigest()}"
    monkeypatch.setitem(catalogue.CHECKSUMS, "german", {"german.numer_scale": right})
    put(tiny_records / "data/libsvm", {"german.numer_scale.xz": PACK[".xz"](content)})
    assert len(load("german").train["label"])
    put(tiny_records / "data/libsvm", {"german.numer_scale.xz": PACK[".xz"](content + b"\n")})
    assert f"{right} is expected and sha256:" in sentence("german")


@pytest.mark.parametrize("place", ["data/mnist", "data"])
@pytest.mark.parametrize("which", packed_files(1))
def test_a_file_with_a_wrong_checksum_is_refused_and_named(tiny_images, place, which):
    put(tiny_images / place, {**packed_files(1), which: damaged(which)})
    path, expected = tiny_images / place / which, catalogue.CHECKSUMS["mnist"][which.removesuffix(".gz")]
    found = download.checksum_of(BytesIO(gzip.decompress(damaged(which))), "md5")
    assert sentence("mnist") == f"{path}: {expected} is expected and {found} was found; remove or replace the file"


def test_mnist_that_was_packed_anew_is_taken(tiny_images):
    put(tiny_images / "data/mnist", {f"{n}.gz": gzip.compress(c, 1, mtime=5) for n, c in idx_files(1).items()})
    assert load("mnist").name == "mnist"


def test_one_datasets_files_are_not_taken_for_its_namesakes(tiny_images):
    put(tiny_images / "data", packed_files(SEEDS["mnist"]))
    assert load("mnist").name == "mnist"
    assert "data: 'fashion_mnist' is not in ROOKERY_DATA=" in sentence("fashion_mnist")
    put(tiny_images / "data", packed_files(SEEDS["fashion_mnist"]))
    assert load("fashion_mnist").name == "fashion_mnist"
    assert "data: 'mnist' is not in ROOKERY_DATA=" in sentence("mnist")


@pytest.mark.parametrize(
    "which, array, match",
    [
        ("train-labels-idx1-ubyte", np.arange(19, dtype=np.uint8) % 10, r"labels of shape \(19,\); 28 x 28 pixels"),
        ("t10k-images-idx3-ubyte", np.zeros((10, 8, 8), np.uint8), r"images of shape \(10, 8, 8\) and labels"),
        ("t10k-labels-idx1-ubyte", np.arange(10, dtype=np.uint8) % 9, "10 test examples of 784 features and 9 classes"),
        ("train-labels-idx1-ubyte", np.arange(20, dtype=np.uint8), "and 20 classes; 20 of 784 and 10 are needed"),
    ],
)
def test_images_that_do_not_fit_are_refused(tiny_images, monkeypatch, which, array, match):
    monkeypatch.setitem(catalogue.CHECKSUMS, "mnist", {})
    put(tiny_images / "data/mnist", {**idx_files(1), which: idx_bytes(array)})
    with pytest.raises(InputError, match=f"data: 'mnist' in .*data/mnist has .*{match}"):
        load("mnist")


TINY_BATCHES = [images(4, seed=i) for i in range(5)] + [images(10, seed=5)]


def relabelled():
    """Batches of four with all ten labels among the twenty training images."""
    *train, test = TINY_BATCHES
    return [(pixels, ((np.arange(4) + 4 * i) % 10).astype(np.uint8)) for i, (pixels, _) in enumerate(train)] + [test]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["data/cifar10", "data", "cache/cifar10"])
def test_cifar10_is_found_in_every_form(home, monkeypatch, form, place):
    monkeypatch.setitem(catalogue.ROWS, "cifar10", (20, 10))
    monkeypatch.setitem(catalogue.CHECKSUMS, "cifar10", {})
    cifar10_files(home / place, form, relabelled())
    dataset = load("cifar10")
    check(dataset, np.uint8)
    assert dataset.shape == (32, 32, 3) and dataset.class_names[:2] == ("airplane", "automobile")
    pixels = np.concatenate([pixels for pixels, _ in TINY_BATCHES[:5]]).transpose(0, 2, 3, 1)
    assert np.array_equal(dataset.train["input"], pixels.reshape(20, -1))
    assert dataset.train["label"].tolist() == list(range(10)) * 2


def test_the_folder_of_batches_may_be_the_folder_itself(home, monkeypatch):
    monkeypatch.setitem(catalogue.ROWS, "cifar10", (20, 10))
    folder = cifar10_files(home, "binary", relabelled())[0].parent
    monkeypatch.setenv("ROOKERY_DATA", str(folder))
    assert load("cifar10").train["input"].shape == (20, 3072)


def test_cifar10_of_another_size_and_archives_with_another_checksum_are_refused(home):
    cifar10_files(home / "data", "python archive", relabelled())
    assert "cifar-10-python.tar.gz: md5:c58f30108f718f92721af3b95e74349a is expected and md5:" in sentence("cifar10")
    cifar10_files(home / "data", "binary", relabelled())
    assert "has 20 training examples of 3072 features and 10 classes; 50000 of 3072" in sentence("cifar10")


# Records


def text(rows, features, seed=0):
    """LIBSVM text of two classes, the last feature in use."""
    rng = np.random.default_rng(seed)
    lines = (f"{'-+'[i % 2]}1 {rng.integers(1, features)}:{rng.random():.3f} {features}:1" for i in range(rows))
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture
def tiny_records(home, monkeypatch):
    for name, rows in {"a9a": (10, 6), "w8a": (20, 8), "german": (30,), "magic": (40,)}.items():
        monkeypatch.setitem(catalogue.ROWS, name, rows)
        monkeypatch.setitem(catalogue.CHECKSUMS, name, {})
    return home


@pytest.mark.parametrize("place", ["data/libsvm", "data", "cache/libsvm"])
@pytest.mark.parametrize("packing", PACK)
def test_records_with_a_test_file(tiny_records, place, packing):
    files = {f"a9a{packing}": text(10, 123), f"a9a.t{packing}": text(6, 122, seed=1)}
    put(tiny_records / place, {name: PACK[packing](content) for name, content in files.items()})
    dataset = load("a9a")
    check(dataset, np.float32)
    assert dataset.train["input"].shape == (10, 123) and dataset.test["input"].shape == (6, 123)
    assert dataset.class_names == ("-1", "1") and dataset.train["label"].tolist() == [0, 1] * 5
    assert (dataset.train["input"][:, 122] == 1).all() and (dataset.test["input"][:, 121] == 1).all()


@pytest.mark.filterwarnings("ignore:w8a. there is no test file")
def test_records_without_a_test_file_hold_out_a_fifth_of_each_class(tiny_records):
    put(tiny_records / "data/libsvm", {"w8a": text(20, 300), "german.numer_scale": text(30, 24)})
    for name, train, test in (("w8a", 16, 4), ("german", 24, 6)):
        dataset = load(name)
        check(dataset, np.float32)
        assert np.bincount(dataset.train["label"]).tolist() == [train // 2] * 2
        assert np.bincount(dataset.test["label"]).tolist() == [test // 2] * 2


def test_magic_is_standardised(tiny_records):
    rng = np.random.default_rng(0)
    lines = (",".join(f"{value:.4f}" for value in rng.normal(3, 2, 10)) + "," + "gh"[i % 2] for i in range(40))
    put(tiny_records / "data/libsvm", {"magic04.data.xz": PACK[".xz"]("\n".join(lines).encode())})
    dataset = load("magic")
    check(dataset, np.float32)
    assert dataset.class_names == ("gamma", "hadron") and len(dataset.test["label"]) == 8
    np.testing.assert_allclose(np.asarray(dataset.scale(dataset.train["input"])).std(axis=0), 1, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:a9a. there is no test file")
def test_records_of_another_number_are_refused(tiny_records):
    put(tiny_records / "data/libsvm", {"a9a": text(11, 123), "german.numer_scale": text(30, 25)})
    folder = tiny_records / "data/libsvm"
    assert sentence("a9a") == (
        f"data: 'a9a' in {folder} has 11 training examples of 123 features and 2 classes; 10 of 123 and 2 are needed"
    )
    assert sentence("german") == f"{folder / 'german.numer_scale'}: it has a feature number 25; at most 24 are allowed"


@pytest.mark.parametrize("packing", PACK)
def test_a_file_of_ones_own(home, packing):
    path = write(home, f"mine{packing}", PACK[packing](b"3 1:1\n5 2:1\n" * 10))
    dataset = load(f"libsvm:{path}")
    check(dataset, np.float32)
    assert dataset.name == "mine" and dataset.class_names == ("3", "5")
    assert len(dataset.train["label"]) == 16 and len(dataset.test["label"]) == 4
    assert load(f"libsvm:{path}") is dataset
    write(home, f"mine.t{packing}", PACK[packing](b"5 1:1\n3 1:2\n"))
    assert load(f"libsvm:{path}").test["input"].tolist() == [[1, 0], [2, 0]]


def test_a_file_of_ones_own_by_a_relative_path(home, monkeypatch):
    write(home, "mine", b"3 1:1\n5 2:1\n" * 10)
    monkeypatch.chdir(home)
    assert load("libsvm:mine").classes == 2


def test_files_of_ones_own_that_are_refused(home):
    assert sentence("libsvm:none") == "data: 'libsvm:none' was given; the path of a LIBSVM file is needed"
    assert sentence(f"libsvm:{home}").endswith("was given; the path of a LIBSVM file is needed")
    path = write(home, "few", b"1 1:1\n2 1:1\n")
    assert sentence(f"libsvm:{path}").startswith("data: the held-out fraction of few: 0.2 was given, which takes 0 of")
    write(home, "few.t", b"3 1:1\n")
    assert sentence(f"libsvm:{path}") == f"{path}.t: it has a label 3.0; allowed are 1.0, 2.0"


# Downloads


@contextmanager
def mirror(monkeypatch, name, files):
    """A server of files, the only mirror of a dataset."""
    with serving({f"/{file}": content for file, content in files.items()}) as server:
        monkeypatch.setitem(catalogue.MIRRORS, name, (server.url("/"),))
        yield server


def test_what_is_nowhere_is_downloaded_once_into_the_cache(tiny_images, monkeypatch):
    with mirror(monkeypatch, "mnist", packed_files(1)) as server:
        first = load("mnist")
        assert [path for path, _ in server.seen] == [f"/{name}.gz" for name in IDX]
    check(first, np.uint8)
    folder = tiny_images / "cache/mnist"
    assert sorted(path.name for path in folder.iterdir()) == sorted(packed_files(1))
    assert load("mnist") is first


def test_without_rookery_data(tiny_images, monkeypatch):
    monkeypatch.delenv("ROOKERY_DATA")
    assert "data: 'mnist' is not in ROOKERY_DATA (which is not set) nor in the cache folder" in sentence("mnist")
    put(tiny_images / "cache/mnist", packed_files(1))
    assert load("mnist").name == "mnist"


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in EMBEDDED])
def test_no_network_is_one_sentence_with_what_to_do(home, name):
    said, stored = sentence(name), DATASETS[name][1]
    data, cache = home / "data", home / "cache"
    assert said.startswith(f"data: {name!r} is not in ROOKERY_DATA={data} nor in the cache folder {cache}, and could")
    assert "could not be downloaded (127.0.0.1:1: Connection refused); set ROOKERY_DATA to a folder that has " in said
    assert f"has {', '.join(stored.download)}, or put what is missing into {cache / stored.folder}" in said
    assert not any(path.is_file() for path in home.rglob("*"))


def test_a_download_with_a_wrong_checksum_does_not_stay(tiny_images, monkeypatch):
    with mirror(monkeypatch, "mnist", {**packed_files(1), f"{IDX[3]}.gz": b"log in first"}):
        assert f"{IDX[3]}.gz: md5:" in sentence("mnist")
    assert sorted(path.name for path in (tiny_images / "cache/mnist").iterdir()) == sorted(
        f"{name}.gz" for name in IDX[:3]
    )


def test_a_download_without_a_checksum_that_is_wrong_does_not_stay(tiny_records, monkeypatch):
    with mirror(monkeypatch, "german", {"german.numer_scale": b"<html>log in first</html>"}) as server:
        assert "german.numer_scale: it does not read as lines of a label" in sentence("german")
        server.files["/german.numer_scale"] = text(29, 24)
        assert "29 training examples of 24 features" in sentence("german")
        assert not any(path.is_file() for path in tiny_records.rglob("*"))
        server.files["/german.numer_scale"] = text(30, 24)
        assert load("german").classes == 2


def test_a_cache_without_the_test_file_fetches_it(tiny_records, monkeypatch):
    put(tiny_records / "cache/libsvm", {"a9a": text(10, 123)})
    assert "could not be downloaded" in sentence("a9a")
    with mirror(monkeypatch, "a9a", {"a9a.t": text(6, 122)}) as server:
        assert len(load("a9a").test["label"]) == 6
        assert [path for path, _ in server.seen] == ["/a9a.t"]


# Folders


def test_rookery_data_is_a_folder(home, monkeypatch):
    monkeypatch.setenv("ROOKERY_DATA", str(home / "none"))
    assert sentence("mnist") == f"ROOKERY_DATA: {str(home / 'none')!r} was given; a folder is needed"


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ROOKERY_CACHE", "~/mine")
    assert catalogue.cache_folder() == Path("/home/me/mine")
    monkeypatch.delenv("ROOKERY_CACHE")
    assert catalogue.cache_folder() == Path("/xdg/rookery")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert catalogue.cache_folder() == Path("/home/me/.cache/rookery")


# The real ones


def needs(*names):
    """Skips a test unless ROOKERY_DATA has these files."""
    missing = [name for name in names if not (REAL and Path(REAL).expanduser().joinpath(name).is_file())]
    return pytest.mark.skipif(bool(missing), reason=f"ROOKERY_DATA has no {', '.join(missing)}")


def moments(values):
    """Mean and standard deviation of bytes, exactly."""
    counts = np.bincount(values.ravel(), minlength=256)
    mean = counts @ np.arange(256) / counts.sum()
    return mean, np.sqrt(counts @ np.arange(256) ** 2 / counts.sum() - mean**2)


needs_mnist = needs(*(f"mnist/{name}.gz" for name in IDX))


@needs_mnist
def test_real_mnist():
    dataset = load("mnist")
    check(dataset, np.uint8)
    assert dataset.train["input"].shape == (60_000, 784) and dataset.test["input"].shape == (10_000, 784)
    np.testing.assert_allclose(moments(dataset.train["input"]), (33.3184, 78.5675), atol=5e-5)
    assert dataset.train["label"][:5].tolist() == [5, 0, 4, 1, 9]


@needs_mnist
@pytest.mark.parametrize("largest", [None, 6000])
def test_real_mnist_in_a_long_tail(largest):
    labels = load("mnist").train["label"]
    parts = LongTail(0.01, then=ClassHeterogeneity(0.5), largest=largest).assign(labels, clients=100, seed=0)
    counts = class_counts(labels, parts, 10)
    assert counts.sum() == 14_817 and counts.sum(axis=0).tolist()[-1] == 60
    assert set(counts.sum(axis=1).tolist()) == {148, 149}
    # Half of a super-client's examples, at least, are of its class, as far as the class goes.
    own = counts.reshape(10, 10, 10).sum(axis=1).diagonal()
    assert (own >= np.minimum(14_817 // 20, counts.sum(axis=0))).all()


@needs("cifar10/cifar10_test_d2.npz", *(f"cifar10/cifar10_train_{i}_d2.npz" for i in range(1, 6)))
def test_real_cifar10():
    dataset = load("cifar10")
    check(dataset, np.uint8)
    assert dataset.train["input"].shape == (50_000, 3072) and dataset.test["input"].shape == (10_000, 3072)
    assert set(np.bincount(dataset.train["label"])) == {5000} and set(np.bincount(dataset.test["label"])) == {1000}
    channels = [moments(dataset.train["input"][:, c::3]) for c in range(3)]
    np.testing.assert_allclose([mean / 255 for mean, _ in channels], dataset.scale.mean, atol=1e-8)
    np.testing.assert_allclose([std / 255 for _, std in channels], dataset.scale.std, atol=1e-8)


@needs("libsvm/a9a.xz", "libsvm/a9a.t.xz")
def test_real_a9a():
    dataset = load("a9a")
    check(dataset, np.float32)
    assert dataset.train["input"].shape == (32_561, 123) and dataset.test["input"].shape == (16_281, 123)
    assert np.bincount(dataset.train["label"]).tolist() == [24_720, 7_841]
    assert np.bincount(dataset.test["label"]).tolist() == [12_435, 3_846]
    assert set(np.unique(dataset.train["input"])) == {0, 1}


@pytest.mark.filterwarnings("ignore:w8a. there is no test file")
@needs("libsvm/w8a.xz", "libsvm/german.numer_scale.xz", "libsvm/magic04.data.xz")
@pytest.mark.parametrize(
    "name, counts, features",
    [("w8a", [48_270, 1_479], 300), ("german", [700, 300], 24), ("magic", [12_332, 6_688], 10)],
)
def test_real_records(name, counts, features):
    dataset = load(name)
    check(dataset, np.float32)
    assert dataset.shape == (features,)
    train, test = (np.bincount(part["label"]) for part in (dataset.train, dataset.test))
    if test.sum() == sum(catalogue.ROWS[name][1:]):  # it has a test file
        assert train.tolist() == counts
    else:
        assert (train + test).tolist() == counts and np.abs(test - 0.2 * np.array(counts)).max() <= 0.5
