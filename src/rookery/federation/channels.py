"""Channels: what is done to messages on their way, once, for every method on every engine. Imports stages, feedback and
vectors.

A channel sends every array of a message through stages, by the sequence that it is of, with a feedback around them or
none; what it packs, and what travels as it is, is said with the stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey

from rookery.errors import InputError, unknown
from rookery.federation.feedback import FEEDBACKS, Feedback
from rookery.federation.stages import (
    CountSketch,
    LowRank,
    Quantise,
    RandK,
    Sign,
    Stage,
    TopK,
    check_stages,
    is_packed,
    pack_through,
    packable,
    unpack_through,
)
from rookery.vectors import Vector


@dataclasses.dataclass(frozen=True, init=False)
class Per:
    """A channel for each sequence, by its name; what is of none of them goes through `default`.

    Args:
      default: of the others, and of replies that are no named sequences; (): they travel as they are.
      channels: by sequence, as `up` and `down` take them.
    """

    default: tuple[Any, ...]
    channels: tuple[tuple[str, tuple[Any, ...]], ...]

    def __init__(self, default: Any = (), /, **channels: Any):
        if "default" in channels:
            if default:
                raise InputError(f"Per: default is given twice, as {default!s} and as {channels['default']!s}")
            default = channels.pop("default")
        object.__setattr__(self, "default", _chain("Per", default))
        made = tuple((name, _chain(f"Per: {name}", given)) for name, given in sorted(channels.items()))
        object.__setattr__(self, "channels", made)

    def __str__(self) -> str:
        named = [f"{name}={'+'.join(map(str, chain)) or 'none'}" for name, chain in self.channels]
        return ";".join([*named, *(["+".join(map(str, self.default))] if self.default else [])])


class Channel(NamedTuple):
    """A channel made ready: for every sequence, a feedback or None, and stages."""

    default: _Line
    named: tuple[tuple[str, _Line], ...] = ()

    def line(self, path: tuple) -> _Line:
        """What an array goes through, by its place in a message: the innermost sequence that has a channel."""
        lines = dict(self.named)
        found = [name for name in _names(path) if name in lines]
        return lines[found[-1]] if found else self.default

    @property
    def lines(self) -> list[_Line]:
        return [self.default, *(line for _, line in self.named)]

    @property
    def keeps(self) -> bool:
        """Whether anything is kept between messages."""
        return any(line.feedback is not None for line in self.lines)

    @property
    def feedback(self) -> str:
        """What is kept between messages, in words: of another feedback it means something else."""
        lines = [("default", self.default), *self.named]
        return ", ".join(f"{type(line.feedback).__name__} of {name}" for name, line in lines if line.feedback)

    @property
    def shifts(self) -> bool:
        """Whether the receiver needs what is kept, too."""
        return any(line.feedback is not None and line.feedback.shifts for line in self.lines)


def _names(path: tuple) -> list[str]:
    """The names on the way to an array, up to its vector: the keys inside of that are its user's."""
    around = takewhile(lambda key: key != GetAttrKey("tree"), path)
    return [key.key for key in around if isinstance(key, DictKey)]


def named_in(replies: Mapping[str, Any]) -> set[str]:
    """The sequences that some replies, by phase, have by their names."""
    paths = [path for reply in replies.values() for path, _ in jax.tree_util.tree_flatten_with_path(reply)[0]]
    return {name for path in paths for name in _names(path)}


class _Line(NamedTuple):
    feedback: Feedback | None
    stages: tuple[Stage, ...]

    def takes(self, leaf: Any) -> bool:
        """Whether an array goes through it."""
        return bool(self.stages) and packable(leaf)


def _chain(argument: str, given: Any) -> tuple[Any, ...]:
    """What a user gave for one message: stages, or one feedback."""
    if given is None:
        return ()
    if isinstance(given, str):
        return _chain(argument, parse_channel(argument, given))
    parts = tuple(given) if isinstance(given, list | tuple) else (given,)
    feedback = [part for part in parts if isinstance(part, Feedback)]
    if feedback and len(parts) > 1:
        raise InputError(
            f"{argument}: {feedback[0]} was given beside other parts; a feedback holds all stages of a channel, as in "
            f"rk.{type(feedback[0]).__name__}(rk.TopK(0.01), rk.Quantise(8))"
        )
    return parts if feedback else check_stages(argument, parts)


def make_channel(argument: str, given: Any, names: tuple[str, ...]) -> Channel | None:
    """A channel made ready for a problem with these sequences, from what a user gave; None: nothing is done."""
    if isinstance(given, str):
        given = parse_channel(argument, given)
    if isinstance(given, list | tuple) and len(given) == 1 and isinstance(given[0], Per):
        given = given[0]
    per = given if isinstance(given, Per) else Per(_chain(argument, given))
    for name, _ in per.channels:
        if name not in names:
            raise unknown(argument, name, names)
    channel = Channel(_line(per.default), tuple((name, _line(chain)) for name, chain in per.channels))
    if not any(line.stages for line in channel.lines):
        return None
    if argument == "down":
        if channel.named:
            raise InputError("down: rk.Per was given; a vector may be sent under several names, so all go one way")
        for line in channel.lines:
            if line.feedback is not None or any(stage.random for stage in line.stages):
                raise InputError(
                    "down: a feedback or a random stage was given; a vector goes to a client once a round and is named "
                    "after that, so what is done to it must be a function of it alone: rk.Quantise(8), rk.TopK, rk.Sign"
                )
    return channel


def _line(chain: tuple[Any, ...]) -> _Line:
    if chain and isinstance(chain[0], Feedback):
        return _Line(chain[0], chain[0].stages)
    return _Line(None, chain)


# Messages.


def initial_kept(channel: Channel, template: Any) -> dict[str, Any]:
    """What is kept of a message before the first: zeros for every array that goes through a feedback, by number."""
    kept = {}
    for number, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(template)[0]):
        line = channel.line(path)
        if line.feedback is not None and line.takes(leaf):
            kept[str(number)] = np.zeros(leaf.shape, leaf.dtype)
    return kept


def send(channel: Channel, tree: Any, kept: Mapping[str, Any], key: jax.Array) -> tuple[Any, dict[str, Any]]:
    """What travels of a message, and what its sender keeps next."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    sent, after = [], dict(kept)
    for number, (path, leaf) in enumerate(leaves):
        line = channel.line(path)
        if not line.takes(leaf):
            sent.append(leaf)
            continue
        own, value = str(number), jnp.asarray(leaf)
        offered = value if line.feedback is None else line.feedback.offered(value, kept[own])
        packed = pack_through(line.stages, offered, jax.random.fold_in(key, number))
        if line.feedback is not None:
            after[own] = line.feedback.keeps(offered, unpack_through(line.stages, packed), kept[own])
        sent.append(packed)
    return jax.tree.unflatten(structure, sent), after


def receive(channel: Channel, sent: Any, kept: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The message that its receiver has, from what was kept before it, and what the receiver keeps next."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(sent, is_leaf=is_packed)
    values, after = [], dict(kept)
    for number, (path, leaf) in enumerate(leaves):
        line, own = channel.line(path), str(number)
        unpacked = unpack_through(line.stages, leaf)
        if line.feedback is None or own not in kept:
            values.append(unpacked)
            continue
        values.append(line.feedback.read(unpacked, kept[own]))
        if line.feedback.shifts:
            after[own] = line.feedback.keeps(unpacked, unpacked, kept[own])
    return jax.tree.unflatten(structure, values), after


def pack_vector(channel: Channel | None, vector: Vector) -> Vector:
    """A vector that a server sends, packed; nothing is drawn and nothing kept."""
    if channel is None:
        return vector
    line, none = channel.default, jax.random.key(0)
    pack = lambda leaf: pack_through(line.stages, jnp.asarray(leaf), none) if line.takes(leaf) else leaf
    return Vector(jax.tree.map(pack, vector.tree))


def unpack_vectors(channel: Channel | None, message: Any) -> Any:
    """What clients have of a message whose vectors are packed."""
    if channel is None:
        return message
    unpack = lambda leaf: unpack_through(channel.default.stages, leaf)
    whole = lambda vector: Vector(jax.tree.map(unpack, vector.tree, is_leaf=is_packed))
    return map_vectors(whole, message)


def map_vectors(function: Callable[[Vector], Vector], message: Any) -> Any:
    """A message with every vector sent through a function."""
    is_vector = lambda node: isinstance(node, Vector)
    return jax.tree.map(lambda node: function(node) if is_vector(node) else node, message, is_leaf=is_vector)


# As a shell gives them.

_STAGES: dict[str, Callable[..., Stage]] = {
    "topk": lambda fraction="0.01": TopK(float(fraction)),
    "randk": lambda fraction="0.01", how="scaled": RandK(float(fraction), {"scaled": True, "plain": False}[how]),
    "quantise": lambda bits="8", block=None: Quantise(int(bits), block=None if block is None else int(block)),
    "stochastic": lambda bits="8", block=None: Quantise(int(bits), True, None if block is None else int(block)),
    "sign": lambda: Sign(),
    "lowrank": lambda rank="2", passes="2": LowRank(int(rank), int(passes)),
    "sketch": lambda fraction="0.1", rows="1": CountSketch(float(fraction), int(rows)),
}
CHANNELS = (
    "topk:FRACTION, randk:FRACTION[:plain|:scaled], quantise:BITS[:BLOCK], stochastic:BITS[:BLOCK], sign, "
    "lowrank:RANK[:PASSES], sketch:FRACTION[:ROWS], one after another with +; around them error-feedback:, ef21:, "
    "diana: or diana@ALPHA:; by sequence x=...;y=..."
)


def parse_channel(argument: str, text: str) -> Any:
    """A channel from a text: `topk:0.01`, `ef21:topk:0.01+quantise:8`, `x=topk:0.1;y=sign`."""
    if not text.strip() or text.strip() == "none":
        return ()
    if "=" in text:
        named: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(";"))):
            name, equals, own = part.rpartition("=")
            name = name.strip() if equals else "default"
            if not name or name in named or not own.strip():
                name, given = name or repr(part), "twice" if name in named else "without a channel or a name"
                raise InputError(f"{argument}: {text!r} has {name} {given}; one each is needed, or none")
            named[name] = parse_channel(argument, own)
        return Per(named.pop("default", ()), **named)
    word, _, rest = text.strip().partition(":")
    word, at, alpha = word.partition("@")
    if word in FEEDBACKS and (not at or word == "diana"):
        stages = _parse_stages(argument, rest, text, "scaled" if word == "diana" else "plain")  # what each can use
        try:
            return (FEEDBACKS[word](*stages, **({"alpha": float(alpha)} if at else {})),)
        except InputError as error:
            raise InputError(f"{argument}: {error}") from None
        except ValueError:
            raise InputError(f"{argument}: {text!r} was given; allowed are {CHANNELS}") from None
    return _parse_stages(argument, text, text, "scaled")


def _parse_stages(argument: str, text: str, whole: str, drawn: str) -> tuple[Stage, ...]:
    """Stages one after another; `drawn` is what `randk` means that does not say it."""
    stages = []
    for part in text.split("+"):
        word, *given = part.strip().split(":")
        if word == "randk" and len(given) < 2:
            given = [*(given or ["0.01"]), drawn]
        if word not in _STAGES:
            raise InputError(f"{argument}: {whole!r} was given; allowed are {CHANNELS}")
        try:
            stages.append(_STAGES[word](*given))
        except InputError as error:
            raise InputError(f"{argument}: {error}") from None
        except (KeyError, ValueError, TypeError, OverflowError):
            raise InputError(f"{argument}: {part!r} was given; allowed are {CHANNELS}") from None
    return tuple(stages)
