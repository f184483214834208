"""Writing to disk so that it is there whole or not at all, and by one process at a time. Imports only errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from rookery.errors import InputError, StorageError

LOCK = ".lock"
ASIDE = ".rookery-aside-"  # how everything that is being written begins


def write_folder(path: str | Path, write: Callable[[Path], Any]) -> Path:
    """Makes a new folder, whole or not at all: `write(folder)` fills one beside it, which is synced and renamed."""
    target = Path(path)
    refuse_used(target, "path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=target.parent))
    except OSError as error:
        raise InputError(f"path: {str(path)!r} cannot be written: {error.strerror}") from error
    try:
        write(aside)
        aside.chmod(0o755)
        _sync_all(aside)
        if target.exists():
            target.rmdir()
        os.replace(aside, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


@contextlib.contextmanager
def writing(argument: str, path: str | Path) -> Iterator[None]:
    """Says in a sentence that the disk will not take what is written to a path."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{argument}: {str(path)!r} cannot be written: {error.strerror or error}") from error


def fill_folder(folder: Path, write: Callable[[Path], Any], last: str) -> None:
    """Puts files into a folder that is there: written aside and synced, then moved in one by one, `last` at the end."""
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=folder))
    try:
        write(aside)
        _sync_all(aside)
        for path in sorted(aside.iterdir(), key=lambda path: path.name == last):
            os.replace(path, folder / path.name)
        _sync(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all, and the folder it is in where that is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fill_folder(path.parent, lambda aside: (aside / path.name).write_text(text), last=path.name)


def read_json(path: Path, argument: str, what: str = "") -> dict[str, Any]:
    """What a file of ours says, a json object; one that cannot be read is refused. `what` says what to do then."""
    check_path(path, argument)
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{argument}: {str(path)!r} cannot be read: {error.strerror}{what}") from None
    except (ValueError, RecursionError) as error:
        content, reason = None, str(error).split("\n")[0] if isinstance(error, ValueError) else "too deep"
    else:
        reason = f"it holds a {type(content).__name__} and no object"
    if not isinstance(content, dict):
        raise InputError(f"{argument}: {path.name} in {str(path.parent)!r} is damaged: {reason}{what}")
    return content


@contextlib.contextmanager
def undamaged(path: Path, argument: str, what: str = "") -> Iterator[None]:
    """Around what reads the content of a file of ours: that something in it is not as we write it is one sentence."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).split("\n")[0]
        raise InputError(f"{argument}: {path.name} in {str(path.parent)!r} is damaged: {reason}{what}") from None


def checksum(content: bytes) -> str:
    """What tells a file from a damaged one."""
    return hashlib.sha256(content).hexdigest()


LONGEST = 100  # characters of a name as a file has it


def slug(name: str) -> str:
    """A name as a file can have it: one component of a path, neither empty nor `.` nor `..`, and not too long."""
    made = re.sub(r"[^\w.=-]+", "_", name).strip("_")
    if len(made.encode()) > LONGEST:
        made = f"{made.encode()[: LONGEST - 13].decode(errors='ignore')}-{checksum(made.encode())[:12]}"
    return made if made.strip(".") else f"_{made.replace('.', '_')}"


def check_path(path: str | Path, argument: str) -> None:
    """Refuses a path that no system takes: with a null character, or with a name in it that is too long."""
    if "\0" in str(path):
        raise InputError(f"{argument}: {str(path)!r} has a null character in it; give another path")
    try:
        Path(path).exists()
    except OSError as error:
        raise InputError(f"{argument}: {str(path)[:LONGEST]!r}... cannot be used: {error.strerror}") from None


def remove_folder(folder: Path) -> None:
    """Removes a folder so that no half of it is ever seen under its name."""
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=folder.parent))
    with contextlib.suppress(OSError):
        os.replace(folder, aside / folder.name)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that were killed have left aside."""
    for path in folder.glob(f"{ASIDE}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def refuse_used(folder: Path, argument: str) -> None:
    """Refuses a folder that holds something."""
    check_path(folder, argument)
    if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
        raise InputError(f"{argument}: {str(folder)!r} is there already; give a new or empty folder")


@contextlib.contextmanager
def hold(folder: Path, argument: str) -> Iterator[None]:
    """Holds a folder for this process; another that wants it is refused. A process that is killed lets go."""
    file = _open_lock(folder, argument)
    with file:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(folder / LOCK)


def _open_lock(folder: Path, argument: str) -> IO[str]:
    while True:
        try:
            file = open(folder / LOCK, "w")  # noqa: SIM115, held by the caller
        except OSError as error:
            raise InputError(f"{argument}: {str(folder)!r} cannot be written: {error.strerror}") from error
        try:
            _lock(file)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
                return file
        except (BlockingIOError, PermissionError):
            file.close()
            raise InputError(f"{argument}: {str(folder)!r} is being written by another run; wait for it") from None
        except FileNotFoundError:
            pass
        file.close()  # the one who held it has just removed it: it is no lock any more


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """Asks the disk to have it."""
    if os.name == "nt" and path.is_dir():  # a folder cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
