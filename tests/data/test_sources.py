"""Examples that are not in memory: what is written comes back, and every mistake is a sentence."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.data import Loaded, Mapped, ShardFolder, federated, write_shards
from rookery.data.levels import Level

A, B = np.arange(12.0).reshape(4, 3), np.arange(4)
SPLIT = rk.Split(lower=np.zeros(4), upper=np.zeros(2))


def same(read, given):
    """The examples of clients, one after another."""
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *given)
    assert jax.tree.structure(read) == jax.tree.structure(joined)
    jax.tree.map(np.testing.assert_array_equal, read, joined)


@pytest.mark.parametrize("make", [lambda i: A + i, lambda i: {"a": A[: i + 1], "b": B[: i + 1]}])
def test_shards_give_back_what_was_written(make, tmp_path):
    folder = ShardFolder(write_shards(tmp_path / "shards", map(make, range(4)), per_shard=np.int64(3)))
    own = np.array([3, 0, 2])
    same(folder.read(own)["all"], [make(i) for i in own])


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([(A, A)], "clients: client 0 has a tuple; an array of numbers, a mapping from names to such"),
        ([(A, B)], "clients: client 0 has a tuple"),
        ([[[1, 2], [3]]], "clients: client 0 has a list"),
        ([{"a": {"b": A}}], "clients: client 0 has a dict by the name 'a'"),
        ([{0: A}], "clients: client 0 has a float64 by the name 0"),
        ([{"a": A}, {"a": A[:, :2]}], r"client 1 has examples of .*\(2,\) float64.* the first one of .*\(3,\) float64"),
        ([{"a": A}, {"a": A.astype(int)}], r"clients: client 1 has examples of .*\(3,\) int64"),
        ([{"a": A}, {"b": A}], "clients: client 1 has examples of .*'b'"),
        ([A, SPLIT], "clients: client 1 has examples of .*'lower'"),
        ([{"a": np.array(["x", "y"])}], "clients: client 0 has a <U1 by the name 'a'"),
        ([{"a": A}, {"a": A[:0]}], r"clients: client 1 has arrays of the shapes a \(0, 3\)"),
        ([{"a": A, "b": B[:2]}], r"clients: client 0 has arrays of the shapes a \(4, 3\), b \(2,\)"),
        ([{}], "clients: client 0 has arrays of the shapes nothing"),
        ([3.0], "clients: client 0 has arrays of the shapes "),
        ([], "clients: no client was given"),
        (5, "clients: a int was given; clients one after another are needed"),
        ({"A": {"a": A}}, "clients: a dict was given"),
    ],
)
def test_clients_that_cannot_be_shards(clients, said, tmp_path):
    with pytest.raises(rk.InputError, match=said):
        write_shards(tmp_path / "shards", clients)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("per_shard", [0, "a", 2.0, True])
def test_what_goes_into_a_shard_is_a_count(per_shard, tmp_path):
    with pytest.raises(rk.InputError, match=r"per_shard: .* was given; a whole number of at least 1 is needed"):
        write_shards(tmp_path / "shards", [A], per_shard=per_shard)


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards", [{"a": A, "b": B}] * 3, per_shard=2)


@pytest.mark.parametrize("name", ["all.sizes.npy", "all.0.npy"])
@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_damaged_shards_are_told_when_they_are_opened(name, how, shards):
    path = shards / "000001" / name
    if how == "gone":
        os.remove(path)
    else:
        path.write_bytes(path.read_bytes()[:-3] if how == "cut" else b"")
    with pytest.raises(rk.InputError, match=f"folder: {name} in '.*000001' cannot be read: .*; write the shards again"):
        ShardFolder(shards)


def test_a_shard_of_others_is_told(shards):
    np.save(shards / "000001" / "all.0.npy", A[:, :2])
    with pytest.raises(rk.InputError, match=r"folder: '.*000001' has examples of .*\(2,\) float64.*, the first shard"):
        ShardFolder(shards)


@pytest.mark.parametrize("name", ["all.0.npy", "all.1.npy"])
def test_a_flipped_bit_in_a_clients_examples_is_told_when_they_are_read(name, shards):
    path = shards / "000000" / name
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    source = ShardFolder(shards)
    source.read(np.array([2, 0]))  # the others' are whole
    with pytest.raises(rk.InputError, match=r"the examples of its client 1 in '.*000000' are not what was written"):
        source.read(np.array([2, 0, 1]))


@pytest.mark.parametrize("name", ["all.sizes.npy", "checksums.npy"])
def test_a_flipped_bit_in_what_a_shard_says_of_its_clients_is_told_when_it_is_opened(name, shards):
    path = shards / "000000" / name
    content = np.load(path)
    content[0] ^= 1
    np.save(path, content)
    with pytest.raises(rk.InputError, match=r"write the shards again|sizes: they sum to"):
        ShardFolder(shards)


@pytest.mark.parametrize("name", ["../shards/000001", "/tmp", "000001/../000000", "..", "", ".", 1, "000000"])
def test_a_shard_is_a_folder_of_its_own_in_the_folder(name, shards):
    index = json.loads((shards / "shards.json").read_text())
    (shards / "shards.json").write_text(json.dumps(index | {"shards": ["000000", name]}))
    with pytest.raises(
        rk.InputError, match=r"shards.json in .* is damaged: (.* is no name of a shard|a shard is in it)"
    ):
        ShardFolder(shards)
    (shards / "shards.json").write_text(json.dumps(index | {"levels": {"all": {"a": "../x", "b": "1"}}}))
    with pytest.raises(rk.InputError, match=r"is no name of a shard or of an array"):
        ShardFolder(shards)


def test_shards_of_an_earlier_version_are_read(shards):
    index = json.loads((shards / "shards.json").read_text())
    del index["checksums"]
    (shards / "shards.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(ShardFolder(shards).read(np.array([1]))["all"]["a"], A)


@pytest.mark.parametrize(
    "change", [{"shards": []}, {"shards": 5}, {"levels": {"mine": {"a": "0"}}}, {"levels": {}}, {"levels": None}]
)
def test_an_index_that_is_not_ours_is_told(change, shards):
    index = json.loads((shards / "shards.json").read_text())
    (shards / "shards.json").write_text(json.dumps(index | change))
    with pytest.raises(rk.InputError, match=r"folder: shards.json in .* is damaged"):
        ShardFolder(shards)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Mapped(np.zeros(4), [[1], [2, 1]]), "sizes: .* one whole number of at least 1 per client is needed"),
        (lambda: Mapped(np.zeros(4), [2, 2, 0]), "sizes: .* one whole number of at least 1 per client"),
        (lambda: Mapped(SPLIT, rk.Split([2, 2], [2])), "sizes: they are of 2 clients at the lower level and 1"),
        (lambda: Mapped({"a": np.array(["x", "y"])}, 1), "rows: an array of type <U1 was given; arrays of numbers"),
        (lambda: Mapped({"a": np.array([{}, {}])}, 1), "rows: an array of type object was given"),
        (lambda: Mapped([1.0, 2.0], 1), "rows: the all level needs arrays"),
        (lambda: Mapped(["ab", "cd"], 1), "rows: the all level needs arrays"),
        (lambda: Loaded(lambda i: np.array(["a"]), [1, 1]), "load: client 0 gave an array of type <U1"),
        (
            lambda: Loaded(lambda i: SPLIT, rk.Split([4, 4], [2])),
            "sizes: they are of 2 clients at the lower level and 1",
        ),
        (lambda: Loaded(lambda i: np.zeros(1), [[1], [1, 1]]), "sizes: "),
    ],
)
def test_sources_that_do_not_fit(make, said):
    with pytest.raises(rk.InputError, match=said):
        make()


ONE = jax.ShapeDtypeStruct((), np.float64)


@pytest.mark.parametrize(
    ("sizes", "example", "said"),
    [
        ({"all": [4, 0]}, {"all": ONE}, "sizes: .* one whole number of at least 1 per client"),
        ({"mine": [4, 4]}, {"mine": ONE}, "data: the source has sizes of the levels 'mine'"),
        ({"all": [4, 4]}, {"lower": ONE}, "data: the source has sizes of the levels 'all' and examples of 'lower'"),
        ({"lower": [4, 4], "upper": [4]}, {"lower": ONE, "upper": ONE}, "sizes: they are of 2 clients at the lower"),
        ({"all": [4, 4]}, {"all": 3.0}, "data: the source has an example of level 'all' with 3.0"),
        ({"all": [4, 4]}, {"all": {}}, "data: the source has an example of level 'all' with None"),
        ({"all": [4, 4]}, {"all": np.array("a")}, "data: the source has an example of level 'all' with array"),
    ],
)
def test_what_a_source_says_is_checked(sizes, example, said):
    with pytest.raises(rk.InputError, match=said):
        rk.federate(SimpleNamespace(sizes=sizes, example=example, read=print))


def test_test_examples_beyond_what_a_device_counts(monkeypatch):
    many = Level(A, np.zeros(1, np.int64), np.full(1, 2**31, np.int64))
    real = federated._flatten
    monkeypatch.setattr(federated, "_flatten", lambda data, what, names: many if what == "test" else real(data, what))
    with pytest.raises(rk.InputError, match="test: 2147483648 examples were given, beyond what a device counts"):
        rk.federate([A], test=[A])
