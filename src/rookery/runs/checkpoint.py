"""Checkpoints: where a run stands, on disk, so that it goes on bit for bit after anything that stops it.

A folder of checkpoints holds run.json (what was asked for) and `round-000000120/` with state.safetensors (the server's
state, every client's record, the key) and checkpoint.json (the history, the ledger, and checksums of both files). Where
records are in a file of their own, `records/` has what changed of them (`segments.py`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from rookery.engines.messaging import ignore
from rookery.errors import AdviceWarning, InputError, StorageError
from rookery.federation.steps import check_count, is_count
from rookery.files import (
    check_path,
    checksum,
    hold,
    read_json,
    refuse_used,
    remove_folder,
    remove_leftovers,
    undamaged,
    write_folder,
    write_text,
    writing,
)
from rookery.runs.fingerprint import difference, uncompared
from rookery.runs.result import RunState
from rookery.runs.segments import FOLDER as RECORDS
from rookery.runs.segments import Segment, damage, remove_unused, write_changed
from rookery.runs.table import Table
from rookery.version import __version__

FORMAT = 2
PLAN, STATE, DESCRIPTION = "run.json", "state.safetensors", "checkpoint.json"
SLACK = 2**20  # bytes that must be free beyond the checkpoints themselves


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run writes where it stands.

    Args:
      folder: where to; a new or empty folder. No two runs write the same.
      every: rounds between two checkpoints (10), or seconds, as text ("30s").
      keep: how many of the newest are kept.
    """

    folder: str | Path
    every: int | str = "30s"
    keep: int = 2

    def __post_init__(self):
        read_interval(self.every)
        check_count("keep", self.keep)


@dataclass(frozen=True)
class Recorded(Checkpoints):
    """Checkpoints of a run with a folder; `note` is called with the kind and the facts of each as an event."""

    note: Callable[..., Any] = ignore


@dataclass(frozen=True)
class Continued(Recorded):
    """The checkpoints of a run that resumes from the newest of them; `begin` is called with its history."""

    begin: Callable[[Table], Any] = lambda history: None


def read_plan(path: str | Path) -> tuple[Continued, dict[str, int]]:
    """What a run with checkpoints in a folder was asked to do: its plan, and its `rounds` and `every`."""
    folder = Path(path)
    check_path(folder, "path")
    if not (folder / PLAN).is_file():
        lost = f"has checkpoints, and its {PLAN} is missing" if _found(folder) else "holds no checkpoints"
        raise InputError(f"path: {str(path)!r} {lost}; the folder of a run that wrote some is needed")
    plan = read_json(folder / PLAN, "path", "; begin the run again in a new folder")
    with undamaged(folder / PLAN, "path"):
        _check_version(folder, plan)
        asked = {name: plan[name] for name in ("rounds", "every")}
        for name, number in asked.items():
            check_count(name, number)
        return Continued(folder, plan["checkpoint_every"], plan["keep"]), asked


@contextlib.contextmanager
def open_checkpoints(
    plan: Checkpoints, fingerprint: Mapping[str, str], asked: Mapping[str, int]
) -> Iterator[tuple[Saver, Checkpoint | None]]:
    """Holds a folder of checkpoints for one run: what writes them, and the one to go on from."""
    folder = Path(plan.folder)
    argument = "path" if isinstance(plan, Continued) else "checkpoints"
    check_path(folder, argument)
    fresh = not folder.exists()
    with writing(argument, folder):
        folder.mkdir(parents=True, exist_ok=True)
    described = {
        "format": FORMAT,
        "version": __version__,
        "checkpoint_every": plan.every,
        "keep": plan.keep,
        **asked,
    }
    with hold(folder, argument):
        saver = Saver(plan, fingerprint)
        if isinstance(plan, Continued):
            previous = newest(folder, fingerprint)
            plan.begin(Table() if previous is None else previous.history)
            if not (folder / PLAN).is_file():
                write_text(folder / PLAN, json.dumps(described, indent=1))
            if previous is not None:
                saver.last = previous.state.round
                saver.segments = None if previous.state.segments is None else list(previous.state.segments[1])
            yield saver, previous
            return
        refuse_used(folder, argument)
        try:
            write_text(folder / PLAN, json.dumps(described, indent=1))
            yield saver, None
        except BaseException:
            if saver.last is None:  # nothing to go on from
                shutil.rmtree(folder if fresh else folder / PLAN, ignore_errors=True)
            raise


def read_interval(every: Any) -> tuple[int | None, float]:
    """An interval as rounds (None: any number) and seconds: 10, "10" or "30s"."""
    if is_count(every):
        return int(every), 0.0
    if isinstance(every, str):
        if re.fullmatch(r"[1-9]\d{,8}", every):
            return int(every), 0.0
        if (match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", every)) and float(match[1]) > 0:
            return None, float(match[1])
    raise InputError(f"checkpoint every: {every!r} was given; rounds (10) or seconds (30s) are needed")


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: its state, its history and, when it has ended, how."""

    state: RunState
    history: Table
    status: str | None = None
    made_with: str = ""


def made_with() -> str:
    """Name what the bits of a run depend on besides its own numbers."""
    return f"jax {jax.__version__} on {jax.devices()[0].device_kind}"


class Saver:
    """Writes the checkpoints of one run."""

    def __init__(self, plan: Checkpoints, fingerprint: Mapping[str, str]):
        self.folder = Path(plan.folder)
        self.keep = plan.keep
        self.rounds, self.seconds = read_interval(plan.every)
        self.fingerprint = dict(fingerprint)
        self.note = plan.note if isinstance(plan, Recorded) else ignore
        self.saved = time.monotonic()
        self.last: int | None = None  # the round of the newest one that is whole
        # What it has of records that are in a file; None: it is of a run that had them in memory.
        self.segments: list[Segment] | None = []

    def next(self, round: int) -> float:
        """The next round at which one is due whatever the time."""
        return round + self.rounds - round % self.rounds if self.rounds else float("inf")

    def due(self, round: int) -> bool:
        """Whether to write one now."""
        if self.last == round:
            return False
        return round % self.rounds == 0 if self.rounds else time.monotonic() - self.saved >= self.seconds

    def oldest(self) -> int:
        """The round of the oldest one that is kept."""
        return min(int(path.name.split("-")[1]) for path in _found(self.folder))

    def check_space(self, state: RunState) -> None:
        """Refuses a disk on which what is kept will not fit, before any time is spent."""
        needed = (self.keep + 2) * sum(leaf.nbytes for leaf in state.in_memory) + SLACK
        if state.store is not None and self.segments is None:
            needed += state.store.population * state.store.row_bytes
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise StorageError(
                f"checkpoints: {self.keep + 1} of them and the result take {needed / 2**20:.1f} MiB, and "
                f"{free / 2**20:.1f} MiB are free under {str(self.folder)!r}; free some space or keep fewer"
            )

    def save(self, state: RunState, history: Table, status: str | None = None) -> None:
        """Writes a checkpoint and removes the oldest; a disk that refuses raises one sentence."""
        # One that says how the run ended does not take the place of one that does not: both have their own name.
        target = self.folder / f"round-{state.round:09d}{'' if status is None else f'-{status}'}"
        segments: list[Segment] = []
        description = {
            "format": FORMAT,
            "version": __version__,
            "status": status,
            "fingerprint": self.fingerprint,
            "made_with": made_with(),
            **state.describe(),
            "history": {"columns": history.columns, "rows": history.rows},
        }

        def write(folder: Path) -> None:
            safetensors.save_file(state.arrays(records=False), folder / STATE)
            kept = {} if state.store is None else {"records": segments}
            text = json.dumps(description | kept | {STATE: checksum((folder / STATE).read_bytes())})
            (folder / DESCRIPTION).write_text(json.dumps({"checksum": checksum(text.encode()), "content": text}))

        try:
            if target.exists():  # of an earlier life of this run, and damaged
                remove_folder(target)
            if state.store is not None:
                if self.segments is None:  # what goes on from it knows of no records but those in segments
                    state.store.changed[:] = True
                segments += write_changed(self.folder, state.round, state.store, self.segments or [])
            write_folder(target, write)
        except (OSError, SafetensorError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            whole = "there is none before it" if self.last is None else f"that of round {self.last} is whole"
            raise StorageError(
                f"checkpoints: that of round {state.round} cannot be written: {reason}; {whole}"
            ) from error
        # Before anything is removed: an interrupt then finds that this round has been written.
        self.saved, self.last, self.segments = time.monotonic(), state.round, segments
        if state.store is not None:
            state.store.changed[:] = False
        self._remove_older()
        self.note("checkpoint", round=state.round, status=status)

    def _remove_older(self) -> None:
        """Removes what nobody needs any more; what cannot be removed now, the next one removes."""
        with contextlib.suppress(OSError):
            for old in _found(self.folder)[self.keep :]:
                remove_folder(old)
            remove_unused(self.folder, lambda: {name for path in _found(self.folder) for name in _segments_of(path)})


def newest(folder: Path, fingerprint: Mapping[str, str]) -> Checkpoint | None:
    """The newest checkpoint in a folder that is whole; None: there is none yet.

    A damaged one is named in a warning, and the one before it is taken. One of another run is refused.
    """
    remove_leftovers(folder)
    remove_leftovers(folder / RECORDS)
    found, damaged = _found(folder), []
    for path in found:
        try:
            checkpoint, stored = _read(path)
        except _Damaged as damage:
            warnings.warn(f"the checkpoint {path.name} is damaged: {damage}; the one before is used", AdviceWarning, 2)
            damaged.append(path)
            continue
        if checkpoint.made_with != made_with():
            warnings.warn(
                f"the checkpoint {path.name} was made with {checkpoint.made_with} and goes on with {made_with()}, so "
                "not bit for bit",
                AdviceWarning,
                2,
            )
        if (part := difference(stored, fingerprint)) is not None:
            raise InputError(
                f"path: the checkpoint {path.name} in {str(folder)!r} is of a run with another {part}; give what that "
                "run was given"
            )
        if parts := uncompared(stored, fingerprint):
            warnings.warn(
                f"the {', '.join(parts)} of the checkpoint {path.name} cannot be compared with what is given now; they "
                "must be the same, or the run goes on as another",
                AdviceWarning,
                2,
            )
        for path in damaged:  # so that it does not count as one of those that are kept
            remove_folder(path)
        return checkpoint
    if found:
        raise InputError(f"path: all checkpoints in {str(folder)!r} are damaged; begin the run again in a new folder")
    return None


def latest_round(folder: Path) -> int:
    """The round of the newest checkpoint in a folder, by its name; 0: there is none, or none of a round."""
    return max((int(path.name.split("-")[1]) for path in _found(folder)), default=0)


class _Damaged(Exception):
    """What is wrong with a checkpoint."""


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted((path for path in folder.glob("round-*") if path.is_dir()), reverse=True)


def _segments_of(path: Path) -> list[str]:
    """The segments of records that a checkpoint names; none, where it cannot be read."""
    try:
        content = json.loads(json.loads((path / DESCRIPTION).read_text())["content"])
        return [segment["name"] for segment in content.get("records", [])]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read(path: Path) -> tuple[Checkpoint, dict[str, str]]:
    try:
        outer = json.loads((path / DESCRIPTION).read_text())
        text, expected, state = outer["content"], outer["checksum"], (path / STATE).read_bytes()
        if expected != checksum(text.encode()):
            raise _Damaged(f"{DESCRIPTION} does not match its checksum")
        content = json.loads(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"{DESCRIPTION} or {STATE} cannot be read: {type(error).__name__}") from None
    _check_version(path, content)
    if content[STATE] != checksum(state):
        raise _Damaged(f"{STATE} does not match its checksum")
    history = Table(content["history"]["rows"])
    history.columns = list(content["history"]["columns"])
    run = RunState.rebuild(safetensors.load(state), content)
    if "records" in content:
        if (found := damage(path.parent, content["records"])) is not None:
            raise _Damaged(found)
        run = replace(run, segments=(path.parent, content["records"]))
    return Checkpoint(run, history, content["status"], content["made_with"]), content["fingerprint"]


def _check_version(path: Path, content: Mapping[str, Any]) -> None:
    if content["format"] != FORMAT or content["version"] != __version__:
        raise InputError(
            f"path: {str(path)!r} was written by rookery {content['version']} (format {content['format']}); this is "
            f"{__version__} (format {FORMAT}), which may not go on bit for bit; resume it with that version"
        )
