"""What a public check found, as a table. Imports errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rookery.errors import InputError


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: what, on which problem or array, whether it holds, and what was seen."""

    what: str
    problem: str
    holds: bool
    seen: str


@dataclass
class Findings:
    """What `check` found; true when everything holds."""

    method: str
    rows: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[Finding]:
        return [row for row in self.rows if not row.holds]

    def __bool__(self) -> bool:
        return not self.failed

    def __str__(self) -> str:
        width = max((len(row.what) for row in self.rows), default=0)
        place = max((len(row.problem) for row in self.rows), default=0)
        lines = [
            f"{'ok  ' if row.holds else 'FAIL'}  {row.what:{width}}  {row.problem:{place}}  {row.seen}".rstrip()
            for row in self.rows
        ]
        said = "everything holds" if self else f"{len(self.failed)} of {len(self.rows)} do not hold"
        return "\n".join([f"{self.method}: {said}", *lines])


def examined(what: str, examine: Callable[[Any, Any], str], name: str, subject: Any, given: Any) -> Finding:
    """What an examination of a subject on something finds; whatever it raises says that it does not hold."""
    try:
        return Finding(what, name, True, examine(subject, given))
    except AssertionError as failure:
        return Finding(what, name, False, str(failure))
    except InputError as refused:
        return Finding(what, name, False, str(refused))
    except Exception as error:  # whatever a user's code raises
        first = str(error).strip().split("\n")[0]
        return Finding(what, name, False, f"it fails, with {type(error).__name__}: {first}")
