"""A site's process that tests share: it becomes the site that its folder names, and fails as its folder says.

    python pool_site.py FOLDER

FOLDER/current holds the folder of a site; FOLDER/fault.json says what happens, at which of the messages to a client from
there on, and is removed when it happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from rookery.engines import versions
from rookery.engines.processes import FRAME, Frame, read_frame, write_frame
from rookery.engines.worker import Worker
from rookery.experiments.site import SITE, Site, _replies
from rookery.federation.wire import Wire
from rookery.files import read_json


class Pool:
    def __init__(self, folder: Path):
        self.folder = folder
        self.current = ""
        self.site: Site | None = None
        self.before = b""

    def fault(self, body: bytes) -> str:
        """What happens at this message."""
        path = self.folder / "fault.json"
        if not path.is_file() or Wire().header(body).get("asked") != "phase":
            return ""
        fault = json.loads(path.read_text())
        if fault["at"]:
            path.write_text(json.dumps(fault | {"at": fault["at"] - 1}))
            return ""
        path.unlink()
        return fault["kind"]

    def receive(self, body: bytes) -> list[bytes]:
        current = (self.folder / "current").read_text()
        if current != self.current:
            told = read_json(Path(current) / SITE, "site")
            self.current, self.site = (
                current,
                Site(Path(told["configuration"]), Path(current), told["name"], told["data"]),
            )
        assert self.site is not None
        fault = self.fault(body)
        if fault.startswith("die"):
            if "after" in fault:
                self.site.receive(body)
            if "lose" in fault:
                shutil.rmtree(Path(current) / "records")
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(600)
        if fault == "raise":
            with patched(Worker, "_run", _raising):
                return [self.site.receive(body)]
        if fault == "disk full":
            with patched(versions, "fill_folder", _full):
                return [self.site.receive(body)]
        reply = self.site.receive(body)
        before, self.before = self.before, reply
        return [reply, reply] if fault == "twice" else [before] if fault == "stale" else [self.changed(reply, fault)]

    def changed(self, reply: bytes, fault: str) -> bytes:
        if fault in ("", "huge"):
            return reply
        if fault == "truncated":
            return reply[: len(reply) // 2]
        assert self.site is not None
        wire = self.site._wire
        tree, header = wire.decode(reply)
        import jax

        match fault:
            case "shape":
                tree = jax.tree.map(lambda leaf: np.zeros((3, 3, 3), leaf.dtype), tree)
            case "dtype":
                tree = jax.tree.map(lambda leaf: leaf.astype(np.float16), tree)
            case "structure":
                tree = [tree]
            case "nan":
                tree = jax.tree.map(lambda leaf: leaf * np.nan, tree)
            case "large":
                tree = jax.tree.map(lambda leaf: leaf * 1e6, tree)
            case "name":
                header["client"] += 1
        return wire.encode(tree, header)


@contextlib.contextmanager
def patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _raising(*given):
    raise ValueError("the patient of row 3 has 4711")


def _full(*given, **more):
    raise OSError(28, "No space left on device")


if __name__ == "__main__":
    pool = Pool(Path(sys.argv[1]))
    with _replies() as replies:
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            huge = (pool.folder / "fault.json").is_file() and "huge" in (pool.folder / "fault.json").read_text()
            for reply in pool.receive(frame.body):
                if huge and not (pool.folder / "fault.json").is_file():
                    replies.write(FRAME.pack(frame.number, 2**50))
                    replies.flush()
                write_frame(replies, Frame(frame.number, reply))
