"""What carries messages between the server and its clients: the contract of every transport. Imports nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable


class Request(NamedTuple):
    """A message to one client, by its place among all."""

    client: int
    body: bytes


@dataclass(frozen=True)
class Outcome:
    """What came of some requests: the bytes of those who answered, and of the others why not, in a sentence."""

    replies: Mapping[int, bytes] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)


@runtime_checkable
class Transport(Protocol):
    """Brings each request to its client and back what it answers. Order does not matter: the server sorts."""

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        """Asks some clients, each once; those who have not answered after `deadline` seconds have failed. Every
        request is in the outcome, as a reply or as a failure; nothing is raised for a client's fault."""
        ...

    def close(self) -> None:
        """Ends what the transport holds; clients keep what is theirs."""
        ...
