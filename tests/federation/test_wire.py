"""Messages under attack: whatever bytes come, the reader gives what was sent, or one kind of error, and stays small."""

from __future__ import annotations

import json
import tracemalloc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InputError, MessageError
from rookery.federation.scaled import Scaled
from rookery.federation.wire import _START, MAGIC, VERSION, Wire, seal
from rookery.vectors import Sequences, Vector


class Own(NamedTuple):
    a: np.ndarray
    b: np.ndarray


TREE = {
    "z": Sequences({"x": Vector({"w": np.arange(6.0).reshape(2, 3)}), "y": Vector(np.ones(2, np.float32))}),
    "own": Own(np.zeros(3, np.int32), np.array([True, False])),
    "by": Scaled(Vector(np.ones(4)), np.array(2.0)),
    "list": [np.array(3), None, (np.zeros((0, 2)),)],
    "short": [np.asarray(jnp.asarray([[1.5, -2.0]], kind)) for kind in (jnp.bfloat16, jnp.float8_e5m2)],
}
WIRE = Wire({"inside": TREE["own"]})
MESSAGE = WIRE.encode(TREE, {"phase": "steps", "round": [1, 2]})


def same(tree):
    assert jax.tree.structure(tree) == jax.tree.structure(TREE)
    jax.tree.map(np.testing.assert_array_equal, tree, TREE)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut, put in, moved or doubled."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(out))) if out else 0
        match rng.integers(0, 6):
            case 0 if out:
                out[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del out[at:]
            case 2:
                out[at:at] = rng.bytes(int(rng.integers(1, 40)))
            case 3:
                out[at : at + 8] = (2 ** int(rng.integers(0, 64)) - 1).to_bytes(8, "little")
            case 4:
                out += out[at : at + 64]
            case _:
                del out[at : at + int(rng.integers(1, 20))]
    return bytes(out)


def test_what_was_sent_comes_back():
    tree, header = WIRE.decode(MESSAGE, like=TREE)
    same(tree)
    assert header == {"phase": "steps", "round": [1, 2]} == WIRE.header(MESSAGE)


def test_numbers_of_half_a_byte_cannot_travel():
    with pytest.raises(InputError, match="an array of int4 cannot travel"):
        WIRE.encode({"a": np.asarray(jnp.ones(2, jnp.int4))})


def test_ten_thousand_damaged_messages_are_one_kind_of_error():
    rng, taken = np.random.default_rng(0), 0
    tracemalloc.start()
    for _ in range(10_000):
        data = mutated(MESSAGE, rng)
        try:
            WIRE.decode(data)
            taken += data != MESSAGE
        except MessageError as error:
            assert "\n" not in str(error)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken == 0, "a damaged message was taken for a whole one"
    assert peak < 2**24


def test_messages_that_were_forged_have_the_shape_that_was_asked_for():
    """The same with the seal renewed, as somebody who means it would: what is taken is like what was asked for."""
    rng, size = np.random.default_rng(1), int.from_bytes(MESSAGE[_START - 4 : _START], "little")
    described, arrays = MESSAGE[_START : _START + size], MESSAGE[_START + size :]
    taken = 0
    for number in range(10_000):
        inside = mutated(described, rng) if number % 2 else described
        data = seal(inside, mutated(arrays, rng) if number % 3 else arrays)
        kept: dict = {}
        try:
            tree, _ = WIRE.decode(data, kept, like=TREE)
        except MessageError:
            assert not kept
            continue
        taken += 1
        shapes = lambda tree: [(np.shape(leaf), leaf.dtype) for leaf in jax.tree.leaves(tree)]
        assert jax.tree.structure(tree) == jax.tree.structure(TREE) and shapes(tree) == shapes(TREE)
    assert taken > 0  # a number inside of an array can be another, and that is all


def described(tree, header=None):
    return seal(json.dumps({"header": {} if header is None else header, "tree": tree}).encode(), WIRE_ARRAYS)


WIRE_ARRAYS = MESSAGE[_START + int.from_bytes(MESSAGE[_START - 4 : _START], "little") :]
DEEP: object = None
for _ in range(150):
    DEEP = {"list": [DEEP]}

WRONG = {
    "nothing": (b"", "does not begin as one of Rookery's"),
    "another program's": (b"GET / HTTP/1.1\r\n" + b"x" * 100, "does not begin as one"),
    "another version": (
        MAGIC + bytes([VERSION + 1]) + MESSAGE[len(MAGIC) + 1 :],
        "it is of version 2; this one speaks 1",
    ),
    "cut": (MESSAGE[:-1], "it was cut or changed on its way"),
    "a header without end": (seal(b"", b"")[: _START - 4] + b"", "does not begin|cut or changed"),
    "no json": (seal(b"{", WIRE_ARRAYS), "its header cannot be read"),
    "a list": (seal(b"[]", WIRE_ARRAYS), "its header is none"),
    "a header that is a list": (described(None, [1]), "its header is none"),
    "deep json": (seal(b"[" * 100_000, WIRE_ARRAYS), "its header is more than 400 levels deep"),
    "a deep tree": (described(DEEP), "more than 100 levels deep"),
    "an array that is not there": (described("77"), "it cannot be read .KeyError"),
    "a vector that nobody has": (described({"kept": 5}), "it cannot be read .KeyError"),
    "a vector without a number": (described({"keep": ["a", "0"]}), "a vector in it has no number"),
    "an unknown kind": (described({"kind": [7, []]}), "of a kind that this run does not know"),
    "a negative kind": (described({"kind": [-1, []]}), "of a kind that this run does not know"),
    "a thing": (described({"os.system": "ls"}), "it has a 'os.system', which is nothing that is sent"),
    "two things": (described({"list": [], "dict": {}}), "it cannot be read"),
    "no arrays": (seal(json.dumps({"header": {}, "tree": None}).encode(), b""), "it cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_message_is_refused(name):
    data, sentence = WRONG[name]
    with pytest.raises(MessageError, match=f"message: .*({sentence})"):
        WIRE.decode(data)


def test_a_message_is_not_longer_than_it_may_be():
    with pytest.raises(MessageError, match=rf"it is {len(MESSAGE)} bytes long; at most 100 are taken"):
        Wire(largest=100).decode(MESSAGE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tree: {**tree, "more": np.zeros(1)}, "not built as what was asked for"),
        (lambda tree: {**tree, "list": [np.array(3.0), None, (np.zeros((0, 2)),)]}, "of shape .* and type float64"),
        (lambda tree: {**tree, "list": [np.array([3]), None, (np.zeros((0, 2)),)]}, r"shape \(1,\) and type int64"),
    ],
)
def test_another_shape_than_was_asked_for_is_refused(change, sentence):
    with pytest.raises(MessageError, match=sentence):
        WIRE.decode(WIRE.encode(change(TREE)), like=TREE)


def of_header(text: bytes) -> bytes:
    return seal(text, WIRE_ARRAYS)


@pytest.mark.parametrize(
    "text",
    [
        b'{"header": {"a": [' + b"{}," * 4_000_000 + b'{}]}, "tree": null}',
        b'{"header": {"a": [' + b"1," * 8_000_000 + b'1]}, "tree": null}',
        b'{"header": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b'}, "tree": null}',
        b'{"header": {"a": ' + b'{"b":' * 100_000 + b"1" + b"}" * 100_000 + b'}, "tree": null}',
        b'{"header": {"a": ' + b'"[\\"",[' * 60_000 + b"]" * 60_000 + b'}, "tree": null}',
    ],
    ids=["objects", "numbers", "lists in lists", "objects in objects", "strings between"],
)
def test_a_header_that_would_take_much_memory_is_refused_before_it_is_parsed(text, monkeypatch):
    """15 MB of `{}` took 380 MB."""
    monkeypatch.setattr("rookery.federation.wire.json.loads", lambda *given: pytest.fail("it was parsed"))
    with pytest.raises(MessageError, match=r"message: its header has more than|levels deep"):
        Wire().open(of_header(text))


def test_brackets_in_the_texts_of_a_header_are_no_levels():
    said = {"text": "[{" * 10_000, "escaped": '\\"[[' * 1000}
    assert Wire().header(Wire().encode((), said)) == said


def test_a_tree_of_many_levels_travels():
    tree = np.zeros(2)
    for level in range(95):
        tree = {"a": tree} if level % 2 else (tree, None)
    found, _ = Wire().decode(Wire().encode(tree))
    assert jax.tree.structure(found) == jax.tree.structure(tree)
