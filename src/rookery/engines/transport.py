"""What carries messages between the server and its clients: the contract of every transport. Imports nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

LATE = "it did not answer in time"  # why a client has failed that was asked and had not answered by the deadline
PATIENCE = 600.0  # seconds that an exchange may take on a framework where nothing is said


class Seat(NamedTuple):
    """Where a client is: the number of its site among those of the transport, and its own among all clients; -1 is the
    site itself, before it is known who is there."""

    site: int
    client: int


class Request(NamedTuple):
    """A message to one client."""

    seat: Seat
    body: bytes


@dataclass(frozen=True)
class Outcome:
    """The outcome of some requests, by their places.

    Args:
      replies: Bytes of the replies.
      failures: For each request without a reply, the reason in a sentence.
      seconds: Time from sending the requests to each reply or failure; empty where the transport does not measure it.
    """

    replies: Mapping[int, bytes] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)


@runtime_checkable
class Transport(Protocol):
    """Brings each request to its client and back what it answers. Order does not matter: the server sorts.

    `sites` are the names of those it can reach. On one that is `slow`, an exchange takes seconds, and a client's
    process ends after it: nothing is left out of a message since it was sent before, and what can travel together does.
    """

    @property
    def sites(self) -> Sequence[str]: ...

    @property
    def slow(self) -> bool: ...

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        """Asks some clients; those who have not answered after `deadline` seconds have failed. Several requests to one
        client are answered in their order. Every request is in the outcome, as a reply or as a failure; nothing is
        raised for a client's fault."""
        ...

    def close(self) -> None:
        """Ends what the transport holds; clients keep what is theirs."""
        ...
