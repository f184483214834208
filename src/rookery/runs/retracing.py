"""Whether JAX may use what it traced before: only while the code that it traced, and all that this read, is the same.

JAX keeps traced and compiled programs by the function objects they came from: the functions of this package, and those
that a user gives to `jax.jit`, `jax.lax.scan` or `jax.checkpoint`. It does not see that a global, a helper or an array
has changed since. A run therefore describes its functions (`rookery.identity`) before it starts. If any object differs
from its description at the time when JAX first met it, the run gets its own JAX context, in which everything is traced
again. The context is named by the description. If the code returns to an earlier state, its programs are found again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from rookery.data.federated import Clients
from rookery.identity import Description, living
from rookery.metric import split

CODE = ("problem", "method", "clients", "sampling", "metrics", "client_metrics", "up", "down", "x", "y", "start")
VERIFY = "ROOKERY_VERIFY_PROGRAMS"

MANY = 10_000  # objects, after which those that are gone are forgotten

FIRST = "as first met"  # the context of functions that have not changed; a user's own calls of JAX are outside of it

_context = jax.make_user_context(default_value=None)
_met: dict[int, str] = {}  # what JAX has met in the context FIRST: serial number of an object -> digest of its content
_met_equal: dict[Any, str] = {}  # the same of objects that it knows by their equality; it holds them, too
_numbers = itertools.count()
_by_program: dict[str, str] = {}  # a digest of a traced program -> the context in which it is compiled


def code_of(
    problem: Any = None,
    method: Any = None,
    clients: Any = None,
    sampling: Any = None,
    metrics: Any = None,
    client_metrics: Any = None,
    up: Any = (),
    down: Any = (),
    x: Any = None,
    y: Any = None,
    start: Any = None,
) -> tuple[Any, ...]:
    """The arguments of a run that hold functions, without numbers that a compiled program takes as its inputs."""
    values = (x, y, *(start.values() if isinstance(start, Mapping) else ()))
    return (
        *(_without_numbers(part) for part in (problem, method, sampling, up, down)),
        split(metrics)[0],
        client_metrics,
        clients.augment if isinstance(clients, Clients) else clients,
        *(value for value in values if callable(value)),
    )


def _without_numbers(part: Any) -> Any:
    """A method or a scheme without its traced numbers, which need no other program."""
    try:
        leaves, structure = jax.tree.flatten(part)
    except (TypeError, ValueError):  # keys that cannot be sorted: a later check refuses them
        return part
    numbers = (bool, int, float, np.ndarray, np.generic, jax.Array)
    return jax.tree.unflatten(structure, [None if isinstance(leaf, numbers) else leaf for leaf in leaves])


@contextmanager
def current_code(*values: Any) -> Iterator[str]:
    """Let JAX reuse programs inside only if these functions, and everything that they read, have not changed.

    Yields the name of the context; `FIRST` if nothing differs from what JAX has met in an earlier run.
    """
    context = _context_of(Description(values))
    with _context(context):
        yield context


def _context_of(description: Description) -> str:
    if not description.complete:
        return f"undescribed {next(_numbers)}"
    keys = {number: _digest(text) for number, text in description.keys().items()}
    equals = _described(description.equals())
    if any(_met.get(number, text) != text for number, text in keys.items()) or any(
        _met_equal.get(value, text) != text for value, text in equals
    ):
        return _digest(description.text())
    if len(_met) > MANY:
        for number in _met.keys() - living():
            del _met[number]
    _met.update(keys)
    _met_equal.update(equals)
    return FIRST


def _described(values: list[Any]) -> list[tuple[Any, str]]:
    """Pair hashable objects with their whole description: equal objects may differ in fields that are not compared."""
    found = []
    for value in values:
        try:
            hash(value)
        except Exception:  # JAX cannot know it either
            continue
        found.append((value, Description(value).text()))
    return found


@contextmanager
def compared(context: str, program: Callable[[], str]) -> Iterator[None]:
    """Let a run in a context of its own reuse a compiled program if the traced programs are the same: its functions may
    have changed in a way that does not matter, or may not be describable.

    Args:
      context: Name of the context, as `current_code` yields it.
      program: Function that traces the program and returns its text.
    """
    with _context(_by_program.setdefault(_digest(program()), context)):
        yield


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def verifies() -> bool:
    """Whether every run traces its program again, to compare it with the one that JAX has."""
    return os.environ.get(VERIFY) == "1"


def verify(program: Callable[[], str]) -> None:
    """Trace a program again and compare it with the one that JAX has. For tests; set ROOKERY_VERIFY_PROGRAMS to 1."""
    if not verifies():
        return
    used = program()
    with _context(f"verified {next(_numbers)}"):
        anew = program()
    assert used == anew, "a compiled program that is out of date was about to be used"
