"""Downloads from a server on this machine that cuts connections, ignores ranges, sends wrong bytes or is down."""

import hashlib
import io
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from rookery.data import download
from rookery.data.download import ChecksumError, DownloadError, checksum_of, fetch
from rookery.errors import InputError

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
OTHER = b"<html>log in first</html>"


class Server(ThreadingHTTPServer):
    """A server of files whose faults can be set.

    Args:
      files: path -> content.
      cuts: for the next requests, after how many bytes the connection is cut; None: never.
      statuses: for the next requests, the status to answer with and nothing else; None: as usual.
      ranges: whether a Range is obeyed.
      lengths: whether the length is told.
      pause: seconds to wait in the middle of a file.
    """

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.statuses = dict(files), [], []
        self.ranges, self.lengths, self.pause = True, True, 0.0
        self.seen = []  # (path, Range) of all requests

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request, client_address):
        """A client that hangs up is no news."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format, *args):
        """Nothing on the error stream."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.seen.append((self.path, asked))
        status = server.statuses.pop(0) if server.statuses else None
        content = server.files.get(self.path)
        if status is not None or content is None:
            return self.send_error(status or 404)
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if begin and begin >= len(content):
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if server.lengths:
            self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        body = content[begin:][:cut]
        self.wfile.write(body[: len(body) // 2])
        time.sleep(server.pause)
        self.wfile.write(body[len(body) // 2 :])


@contextmanager
def serving(files):
    server = Server(files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server():
    with serving({"/file": CONTENT, "/wrong": OTHER}) as server:
        yield server


@pytest.fixture
def nobody():
    """An address where nobody listens."""
    with serving({}) as server:
        url = server.url("/file")
    return url


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "BACKOFF", 0.0)
    monkeypatch.setattr(download, "TIMEOUT", 5.0)


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# What goes well


@pytest.mark.parametrize("checksum", [MD5, SHA256, None])
def test_a_file_arrives_whole_and_nothing_else(server, tmp_path, checksum):
    target = tmp_path / "new" / "folder" / "file"
    assert fetch(server.url("/file"), target, checksum) == target
    assert target.read_bytes() == CONTENT and names(tmp_path) == ["file"]
    assert server.seen == [("/file", None)]


def test_a_file_that_is_there_is_not_downloaded(server, tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"mine")
    (tmp_path / "file.part").write_bytes(b"of no use")
    fetch(server.url("/file"), str(target), MD5)
    assert target.read_bytes() == b"mine" and server.seen == [] and names(tmp_path) == ["file"]


def test_an_empty_file(server, tmp_path):
    server.files["/empty"] = b""
    fetch(server.url("/empty"), tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b"" and names(tmp_path) == ["empty"]


def test_a_server_that_tells_no_length(server, tmp_path):
    server.lengths = False
    assert fetch(server.url("/file"), tmp_path / "file", MD5).read_bytes() == CONTENT


def test_checksums_of_files(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert checksum_of(path, "md5") == checksum_of(str(path), "md5") == MD5 and checksum_of(path, "sha256") == SHA256


# Partial files


def test_a_partial_file_is_continued(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    fetch(server.url("/file"), tmp_path / "file", MD5)
    assert server.seen == [("/file", "bytes=1000-")]
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_a_partial_file_starts_afresh_where_the_server_ignores_the_range(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    fetch(server.url("/file"), tmp_path / "file", MD5)
    assert server.seen == [("/file", "bytes=1000-")]
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "part, requests",
    [
        (OTHER, [f"bytes={len(OTHER)}-", None]),  # its beginning is another
        (CONTENT + b"more", [f"bytes={len(CONTENT) + 4}-", None]),  # it is longer than the file
        (OTHER + CONTENT[len(OTHER) :], [f"bytes={len(CONTENT)}-", None]),  # as long, and not the same
        (CONTENT, []),  # it is whole: only its name was missing
        (b"", [None]),
    ],
)
def test_a_wrong_partial_file_is_thrown_away(server, tmp_path, part, requests):
    (tmp_path / "file.part").write_bytes(part)
    fetch(server.url("/file"), tmp_path / "file", MD5)
    assert [asked for _, asked in server.seen] == requests
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_without_a_checksum_nothing_is_continued(server, tmp_path):
    (tmp_path / "file.part").write_bytes(OTHER)
    server.cuts = [1000]
    fetch(server.url("/file"), tmp_path / "file")
    assert server.seen == [("/file", None)] * 2
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


# Connections that break


def test_a_cut_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.cuts = [100_000, 50_000]
    fetch(server.url("/file"), tmp_path / "file", MD5)
    assert [asked for _, asked in server.seen] == [None, "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_what_has_arrived_is_left_for_the_next_time(server, tmp_path):
    server.cuts = [1000] * download.ROUNDS
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:\d+: the connection was lost after 3000 of 300000 bytes"):
        fetch(server.url("/file"), tmp_path / "file", MD5)
    assert names(tmp_path) == ["file.part"] and (tmp_path / "file.part").read_bytes() == CONTENT[:3000]
    fetch(server.url("/file"), tmp_path / "file", MD5)
    assert server.seen[-1] == ("/file", "bytes=3000-")
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_what_cannot_be_continued_is_not_left(server, tmp_path):
    server.cuts = [1000] * download.ROUNDS
    with pytest.raises(DownloadError, match="the connection was lost after 1000 of 300000 bytes"):
        fetch(server.url("/file"), tmp_path / "file")
    assert names(tmp_path) == []


def test_an_interrupted_download_can_be_continued(server, tmp_path, monkeypatch):
    def interrupt(part, checksum):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "_is_right", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(server.url("/file"), tmp_path / "file", MD5)
    assert names(tmp_path) == ["file.part"]
    fetch(server.url("/file"), tmp_path / "file", MD5)
    assert len(server.seen) == 1 and names(tmp_path) == ["file"]


def test_a_server_that_says_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    monkeypatch.setattr(download, "ROUNDS", 1)
    server.pause = 0.3
    with pytest.raises(DownloadError, match="timed out"):
        fetch(server.url("/file"), tmp_path / "file", MD5)


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_busy_server_is_asked_again(server, tmp_path, status):
    server.statuses = [status, status]
    assert fetch(server.url("/file"), tmp_path / "file", MD5).read_bytes() == CONTENT
    assert len(server.seen) == 3


def test_rests_grow(server, tmp_path, monkeypatch):
    rests = []
    monkeypatch.setattr(download, "BACKOFF", 1.0)
    monkeypatch.setattr(download.time, "sleep", rests.append)
    server.statuses = [503] * download.ROUNDS
    with pytest.raises(DownloadError, match="HTTP 503"):
        fetch(server.url("/file"), tmp_path / "file")
    assert rests == [1.0, 2.0]


def test_no_server(nobody, tmp_path):
    with pytest.raises(DownloadError, match=r"^127\.0\.0\.1:\d+: Connection refused$"):
        fetch(nobody, tmp_path / "file", MD5)
    assert names(tmp_path) == []


# Mirrors


def test_a_mirror_stands_in(server, nobody, tmp_path):
    urls = [nobody, server.url("/none"), server.url("/wrong"), server.url("/file")]
    assert fetch(urls, tmp_path / "file", MD5).read_bytes() == CONTENT
    assert [path for path, _ in server.seen] == ["/none", "/wrong", "/file"] and names(tmp_path) == ["file"]


def test_a_mirror_goes_on_where_another_broke(server, tmp_path):
    with serving({"/file": CONTENT}) as other:
        server.cuts = [1000]
        fetch([server.url("/file"), other.url("/file")], tmp_path / "file", MD5)
        assert other.seen == [("/file", "bytes=1000-")]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_mirror_without_the_file_is_asked_once_and_every_failure_is_named(server, nobody, tmp_path):
    with pytest.raises(DownloadError) as caught:
        fetch([server.url("/none"), nobody], tmp_path / "file", MD5)
    assert len(server.seen) == 1
    assert "HTTP 404 Not Found, " in str(caught.value) and str(caught.value).endswith(": Connection refused")


# Wrong files


def test_a_wrong_checksum_is_told_and_the_file_removed(server, tmp_path):
    with pytest.raises(ChecksumError) as caught:
        fetch(server.url("/wrong"), tmp_path / "file", MD5)
    found = hashlib.md5(OTHER).hexdigest()
    sentence = f"{server.url('/wrong')}: {MD5} is expected and md5:{found} was found; the download was removed"
    assert str(caught.value) == sentence and isinstance(caught.value, InputError)
    assert len(server.seen) == 1 and names(tmp_path) == []


@pytest.mark.parametrize("checksum", ["", "md5:", "md5:12", MD5.upper(), SHA256.replace("sha256", "md5"), "crc:12"])
def test_checksums_are_checked(tmp_path, checksum):
    with pytest.raises(InputError, match=r"checksum: .* was given; allowed are md5: and sha256:"):
        fetch("http://127.0.0.1/file", tmp_path / "file", checksum)


def test_no_address(tmp_path):
    with pytest.raises(InputError, match=r"urls: \[\] was given; at least one address is needed"):
        fetch([], tmp_path / "file")


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"taken/file cannot be written: (File exists|Not a directory)"):
        fetch(server.url("/file"), tmp_path / "taken" / "file")


def test_a_full_disk_is_not_blamed_on_the_server(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    with pytest.raises(DownloadError, match="file cannot be written: No space left on device"):
        fetch(server.url("/file"), tmp_path / "file", MD5)
    assert names(tmp_path) == ["file.part"]


def test_a_system_without_locks(server, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(DownloadError, match="this system has no file locks"):
        fetch(server.url("/file"), tmp_path / "file")


# Several at once


@pytest.mark.parametrize("checksum", [MD5, None])
def test_many_at_once_download_it_once(server, tmp_path, checksum):
    server.pause = 0.05
    errors = []

    def work():
        try:
            assert fetch(server.url("/file"), tmp_path / "file", checksum).read_bytes() == CONTENT
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(server.seen) == 1 and names(tmp_path) == ["file"]


def test_when_the_first_fails_the_next_goes_on(server, tmp_path, monkeypatch):
    # The first is cut off in its only round while the second waits for the lock.
    monkeypatch.setattr(download, "ROUNDS", 1)
    server.pause, server.cuts = 0.1, [1000]
    outcomes = []

    def work():
        try:
            outcomes.append(fetch(server.url("/file"), tmp_path / "file", MD5).read_bytes() == CONTENT)
        except DownloadError:
            outcomes.append("failed")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["True", "failed"]
    assert [asked for _, asked in server.seen] == [None, "bytes=1000-"] and names(tmp_path) == ["file"]


def test_a_killed_process_lets_go_and_leaves_what_it_had(server, tmp_path):
    target, server.pause = tmp_path / "file", 30.0
    code = f"from rookery.data.download import fetch; fetch({server.url('/file')!r}, {str(target)!r}, {MD5!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    part = tmp_path / "file.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    arrived, server.pause = part.stat().st_size, 0.0
    fetch(server.url("/file"), target, MD5)
    assert server.seen == [("/file", None), ("/file", f"bytes={arrived}-")]
    assert target.read_bytes() == CONTENT and names(tmp_path) == ["file"]


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("progress, terminal, installed", [(1, 1, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)])
def test_progress_where_it_can_be_seen(server, tmp_path, monkeypatch, progress, terminal, installed):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    if not installed:
        monkeypatch.setitem(sys.modules, "rich", None)
    fetch(server.url("/file"), tmp_path / "file", MD5, progress=bool(progress))
    assert ("file" in stream.getvalue()) == bool(progress and terminal and installed)
    assert (tmp_path / "file").read_bytes() == CONTENT
