"""Downloads: a file from one of its mirrors, whole and checked or not at all. Imports only errors.

What has arrived lies in `NAME.part` beside the file to be, under a lock, so that two processes never write to it at
once; a broken download leaves it there and the next one goes on from its end.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from io import BufferedRandom, BufferedReader, BytesIO
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rookery.errors import InputError

__all__ = ["ChecksumError", "DownloadError", "checksum_of", "fetch"]

ROUNDS = 3  # how often every mirror is tried
BACKOFF = 1.0  # seconds of rest before the second round; twice as long before each further one
TIMEOUT = 20.0  # seconds without a byte after which a connection counts as lost
CHUNK = 1 << 16  # bytes read at once


class DownloadError(InputError):
    """A file that could not be downloaded, and why."""


class ChecksumError(InputError):
    """A file that is not the one its checksum stands for."""


def fetch(urls: str | Sequence[str], target: str | Path, checksum: str | None = None, progress: bool = True) -> Path:
    """Downloads a file, unless it is there already.

    Mirrors are tried in turn, a few rounds of them. A partial file is continued where there is a checksum to judge
    the outcome by, and where the server can; else the download starts afresh. The target appears at once and whole,
    after its size and checksum were found right.

    Args:
      urls: where the file is, one address or several of the same file.
      target: where it goes; its folder is made.
      checksum: `"md5:..."` or `"sha256:..."` in hexadecimal digits, or None where none is known.
      progress: whether to show progress, where rich is installed and the error stream is a terminal.

    Returns:
      The target.

    Raises:
      ChecksumError: what arrived is not what the checksum stands for; it was removed.
      DownloadError: no mirror could be read, or the target cannot be written.
    """
    mirrors, target = [urls] if isinstance(urls, str) else list(urls), Path(target)
    if not mirrors:
        raise InputError(f"urls: {urls!r} was given; at least one address is needed")
    if checksum is not None and not re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", checksum):
        raise InputError(f"checksum: {checksum!r} was given; allowed are md5: and sha256: with hexadecimal digits")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _part(target, keep=checksum is not None) as part:
            if target.exists():
                part.truncate(0)  # an empty one is removed
            else:
                _from_mirrors(mirrors, part, target.name, checksum, progress)
                part.flush()
                os.fsync(part.fileno())
                os.replace(part.name, target)
    except OSError as error:
        raise DownloadError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def checksum_of(file: str | Path | BufferedReader | BufferedRandom | BytesIO, kind: str) -> str:
    """The checksum of a file, such as `"md5:..."` for the kind `"md5"`."""
    if isinstance(file, str | Path):
        with open(file, "rb") as opened:
            return checksum_of(opened, kind)
    file.seek(0)
    return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


@contextmanager
def _part(target: Path, keep: bool) -> Iterator[BufferedRandom]:
    """The part file of a target, held by nobody else; what is left in it afterwards is kept or removed."""
    try:
        import fcntl
    except ImportError:
        raise DownloadError("this system has no file locks, without which downloads could spoil each other") from None
    path = target.with_name(f"{target.name}.part")
    while True:
        with open(path, "a+b") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            # Whoever held it before may have renamed or removed it; then a new one is needed.
            if not _is_at(part, path):
                continue
            try:
                yield part
            finally:
                if _is_at(part, path) and not (keep and part.seek(0, os.SEEK_END)):
                    path.unlink()
            return


def _is_at(file: BufferedRandom, path: Path) -> bool:
    """Whether a path leads to this open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _from_mirrors(mirrors: list[str], part: BufferedRandom, name: str, checksum: str | None, progress: bool) -> None:
    """Fills the part file from the first mirror that has the file."""
    failures: dict[str, Exception] = {}
    for turn in range(ROUNDS):
        if turn:
            time.sleep(BACKOFF * 2 ** (turn - 1))
        for url in mirrors:
            if _is_final(failures.get(url)):
                continue
            try:
                return _from_mirror(url, part, name, checksum, progress)
            except (ChecksumError, URLError, ConnectionError, TimeoutError, HTTPException) as error:
                failures[url] = error
        if all(map(_is_final, failures.values())):
            break
    for error in failures.values():
        if isinstance(error, ChecksumError):
            raise error
    raise DownloadError(", ".join(f"{urlsplit(url).netloc}: {_reason(error)}" for url, error in failures.items()))


def _from_mirror(url: str, part: BufferedRandom, name: str, checksum: str | None, progress: bool) -> None:
    """Fills the part file from one mirror, from its end on where that can be right."""
    if checksum is None:
        part.truncate(0)
    resumed = part.seek(0, os.SEEK_END) > 0
    if resumed and _is_right(part, checksum):
        return
    try:
        _read_on(url, part, name, progress)
        if resumed and not _is_right(part, checksum):
            part.truncate(0)
            _read_on(url, part, name, progress)
    except HTTPError as error:
        if not (resumed and error.code == 416):  # the part is longer than the file
            raise
        part.truncate(0)
        _read_on(url, part, name, progress)
    if not _is_right(part, checksum):
        found = checksum_of(part, str(checksum).partition(":")[0])
        part.truncate(0)
        raise ChecksumError(f"{url}: {checksum} is expected and {found} was found; the download was removed")


def _read_on(url: str, part: BufferedRandom, name: str, progress: bool) -> None:
    """Reads what follows the end of the part file, or all where the server sends all."""
    begun = part.seek(0, os.SEEK_END)
    with _reply(url, begun) as reply:
        if begun and not (reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {begun}-")):
            part.truncate(0)
            begun = 0
        total = None if reply.length is None else begun + reply.length
        with _bar(name, begun, total, progress) as advance:
            for chunk in _chunks(reply):
                part.write(chunk)
                advance(len(chunk))
    arrived = part.seek(0, os.SEEK_END)
    if total is not None and arrived != total:
        raise ConnectionError(f"the connection was lost after {arrived} of {total} bytes")


def _reply(url: str, begun: int) -> HTTPResponse:
    """The server's answer to a request for what follows the first bytes of a file."""
    headers = {"User-Agent": "rookery", **({"Range": f"bytes={begun}-"} if begun else {})}
    try:
        return urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        raise


def _chunks(reply: HTTPResponse) -> Iterator[bytes]:
    """What the server sends, bit by bit; what goes wrong with it is an error of the connection, not of the disk."""
    try:
        while chunk := reply.read(CHUNK):
            yield chunk
    except OSError as error:
        raise ConnectionError(_reason(error)) from None


def _is_right(part: BufferedRandom, checksum: str | None) -> bool:
    """Whether the part file is what the checksum stands for; without one everything is."""
    return checksum is None or checksum_of(part, checksum.partition(":")[0]) == checksum


def _is_final(error: Exception | None) -> bool:
    """Whether a mirror that failed so will fail again: it has another file, or none."""
    if isinstance(error, HTTPError):
        return 400 <= error.code < 500 and error.code not in (408, 429)
    return isinstance(error, ChecksumError)


def _reason(error: Exception) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return " ".join(str(cause).split()) or type(cause).__name__


@contextmanager
def _bar(name: str, begun: int, total: int | None, progress: bool) -> Iterator[Callable[[int], object]]:
    """A progress bar on the error stream, or nothing; gives what moves it on by some bytes."""
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError:
        progress = False
    if not (progress and sys.stderr.isatty()):
        yield lambda _: None
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(name, total=total, completed=begun)
        yield lambda size: shown.advance(task, size)
