"""What the header of a reply may say: each field is checked before it is used. Imports contracts.

A reply comes from another party. Its refusal, its counts and its names are bounded here, so that a client with forged
replies can exclude itself and nobody else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from typing import Any

from rookery.engines.worker import AGAIN, JOIN, NEED, NEWER, REFUSED, WHOLE, Refused
from rookery.errors import MessageError, cleaned
from rookery.federation.ledger import ORACLES

DIGITS = 20  # of the time in the name of a server process
AHEAD = 10 * 365 * 86_400 * 10**9  # nanoseconds that the clock of an earlier server process may have run ahead
MOST_CALLS = 2**40  # of an oracle in one exchange


def refusal_of(header: Mapping[str, Any]) -> Refused:
    """The refusal that a header holds, its text cleaned; what it needs must be something that a server can give."""
    sentence, need = cleaned(header[REFUSED]), header.get(NEED)
    if need is None or (isinstance(need, str) and (need in (WHOLE, JOIN, AGAIN) or _is_name(need))):
        return Refused(sentence, need)
    raise MessageError(f"message: it refuses ({sentence}), and needs what no server can give")


def _is_name(need: str) -> bool:
    """Whether it names a server process that there can have been; a name far in the future leaves no later one."""
    return re.fullmatch(NEWER, need) is not None and int(need[:DIGITS]) <= time.time_ns() + AHEAD


def check_said(header: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuses a reply that does not say how often each oracle was called, and what is not finite in a client's state.

    Args:
      known: Names of what a client's state can hold.
    """
    given, broken = header.get("oracles"), header.get("broken")
    if not isinstance(given, dict) or not all(
        type(given.get(name)) is int and 0 <= given[name] <= MOST_CALLS for name in ORACLES
    ):
        raise MessageError("message: it does not say what the answer cost")
    if not (
        isinstance(broken, list)
        and len(broken) <= len(known)
        and all(isinstance(name, str) and name in known for name in broken)
    ):
        raise MessageError("message: it does not say what is not finite")
