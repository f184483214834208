"""The one exception for a user's mistakes, and the sentence it is made of. Imports nothing of rookery."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from typing import Any

SENTENCE = 500  # characters of another party's text that are shown at most
_FORMULA = "=+-@"  # how a cell begins that a spreadsheet would compute


class InputError(ValueError):
    """Bad input: one sentence that names the argument, what was given and what is allowed. Where a run meets it after
    its first round, as when a client's examples cannot be read, `result` holds what was done."""

    result: Any = None


class StorageError(InputError):
    """The disk would not take what a run writes."""


class MessageError(InputError):
    """Bytes that are no message of this run: cut, changed, of another version, or not of the shape they must have."""


class DivergenceWarning(UserWarning):
    """A run met a non-finite state and stopped; the result keeps the last good one."""


class AdviceWarning(UserWarning):
    """A method's numbers lie outside of what is known to converge."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """`" (did you mean 'simfbo'?)"`, or nothing when no allowed word is near."""
    matches = difflib.get_close_matches(given, list(allowed), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def unknown(argument: str, given: str, allowed: Iterable[str]) -> InputError:
    """The error for a name that is not one of the allowed ones, with the nearest suggested."""
    allowed = list(allowed)
    return InputError(f"{argument}: {given!r} is not known{nearest(given, allowed)}; allowed are {', '.join(allowed)}")


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Makes one sentence of whatever a user's function raises; `what` says which it is and what it was called with."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever it raises
        first = str(error).strip().split("\n")[0]
        raise InputError(f"{what} fails, with {type(error).__name__}: {first}") from error


def cleaned(given: object, most: int = SENTENCE) -> str:
    """Text of another party as a terminal, a file and a spreadsheet can safely show it.

    Control characters, line breaks, terminal escapes, invisible characters and lone surrogates become `?`. Text that a
    spreadsheet would take for a formula begins with an apostrophe. Of what is not a text the type is named.
    """
    if given is None:
        return "None"
    if not isinstance(given, str):
        return type(given).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in given[:most])
    return f"'{text[: most - 1]}" if text.startswith(tuple(_FORMULA)) else text
