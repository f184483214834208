"""The transport of a federation on Flower: what server and sites say to one another in its messages. Needs `flwr`.

All that one site is asked in an exchange travels in one message, since a SuperNode starts a process for each, and
polls: an exchange takes seconds, whatever is in it. Nothing that goes wrong at a site travels but that it did: Flower
would send the text of an exception. Imports contracts only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from rookery.engines.transport import LATE, PATIENCE, Outcome, Request

KIND = "query.rookery"  # the type of our messages
BODIES, SAID = "bodies", "said"
FAILED = 1000  # the code of our own errors; of others the reason is not shown, for it may hold a site's words
POLL = 0.1  # seconds between two looks for answers


def pack(bodies: Sequence[bytes], said: Mapping[str, Any]) -> RecordDict:
    """Messages as Flower carries them: raw bytes, in chunks, which nobody interprets."""
    arrays = {
        str(place): Array(dtype="uint8", shape=(len(body),), stype="bytes", data=body)
        for place, body in enumerate(bodies)
    }
    return RecordDict({BODIES: ArrayRecord(arrays), SAID: ConfigRecord(dict(said))})


def unpack(content: RecordDict) -> tuple[list[bytes], dict[str, Any]]:
    """What `pack` made."""
    arrays: Any = content[BODIES]
    return [arrays[str(place)].data for place in range(len(arrays))], dict(content[SAID])


def answer(message: Message, name: str, receive: Callable[[bytes], bytes]) -> Message:
    """A site's answer to a message: to each body what `receive` says, and who it is."""
    found: dict[str, Any] = {}

    def work() -> None:
        try:
            bodies, _ = unpack(message.content)
            found["replies"] = [receive(body) for body in bodies]
        except BaseException as error:
            found["failed"] = type(error).__name__

    limit = max(1.0, float(message.metadata.ttl) - 2.0)
    thread = threading.Thread(target=work, daemon=True)  # nobody else ends what hangs
    thread.start()
    thread.join(limit)
    if "replies" in found:
        return Message(pack(found["replies"], {"name": name}), reply_to=message)
    why = found.get("failed", LATE)
    return Message(Error(code=FAILED, reason=why), reply_to=message)


class Flower:
    """Sites behind SuperNodes.

    Args:
      grid: what Flower hands its ServerApp.
      nodes: the sites by name, and the number of each one's SuperNode.
      poll: seconds between two looks for answers.
    """

    slow = True

    def __init__(self, grid: Any, nodes: Mapping[str, int], poll: float = POLL):
        self._grid = grid
        self._nodes = list(nodes.values())
        self._poll = poll
        self.sites = list(nodes)

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        by_site: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            by_site.setdefault(request.seat.site, []).append(place)
        bodies = {self._nodes[site]: [requests[place].body for place in asked] for site, asked in by_site.items()}
        seconds_of: dict[int, float] = {}
        answers = exchange(self._grid, bodies, deadline or PATIENCE, self._poll, seconds_of)
        replies: dict[int, bytes] = {}
        failures: dict[int, str] = {}
        seconds: dict[int, float] = {}
        for site, asked in by_site.items():
            found = answers[self._nodes[site]]
            if isinstance(found, str) or len(found[0]) != len(asked):
                why = found if isinstance(found, str) else "it does not answer all that it was asked"
                failures |= dict.fromkeys(asked, why)
            else:
                replies |= dict(zip(asked, found[0]))
            if self._nodes[site] in seconds_of:
                seconds |= dict.fromkeys(asked, seconds_of[self._nodes[site]])
        return Outcome(replies, failures, seconds)

    def close(self) -> None:
        pass


def exchange(
    grid: Any,
    bodies: Mapping[int, Sequence[bytes]],
    deadline: float,
    poll: float = POLL,
    seconds: dict[int, float] | None = None,
) -> dict[int, tuple[list[bytes], dict[str, Any]] | str]:
    """What every node says to what it is sent, or why nothing came; `seconds` takes the time to each node's reply."""
    begun = time.monotonic()
    end = begun + deadline
    waiting: dict[str, int] = {}
    found: dict[int, tuple[list[bytes], dict[str, Any]] | str] = {}
    for node, own in bodies.items():
        message = Message(pack(own, {}), dst_node_id=node, message_type=KIND, group_id="rookery", ttl=deadline)
        (number,) = grid.push_messages([message])
        if number is None:
            found[node] = "the SuperLink does not take a message for it"
        else:
            waiting[number] = node
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                found[node] = _opened(reply)
                if seconds is not None:
                    seconds[node] = time.monotonic() - begun
        if waiting:
            time.sleep(poll)
    return found | dict.fromkeys(waiting.values(), LATE)


def _opened(reply: Message) -> tuple[list[bytes], dict[str, Any]] | str:
    if reply.has_error():
        reason = str(reply.error.reason)[:100]
        return f"it failed, with {reason}" if reply.error.code == FAILED else f"Flower's error {reply.error.code}"
    try:
        return unpack(reply.content)
    except (KeyError, TypeError, AttributeError):
        return "what it sent is no reply"
