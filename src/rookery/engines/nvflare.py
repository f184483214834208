"""The transport of a federation on NVIDIA FLARE's Collab API, which hands us its proxies. Imports contracts only.

A client's process lives as long as its job, so nothing is sent twice. Whatever a call fails with, its text may hold a
site's words: only the kind of the failure is told.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rookery.engines.transport import LATE, PATIENCE, Outcome, Request


class NVFlare:
    """Sites behind FLARE's clients.

    Args:
      proxies: of every site, by its name, what its published functions are called through.
      function: the name of the published function, of bytes to bytes.
      aborted: says that the job was ended by somebody.
    """

    slow = False

    def __init__(self, proxies: Mapping[str, Any], function: str, aborted: Callable[[], bool] = lambda: False):
        self._proxies = list(proxies.values())
        self._function = function
        self._aborted = aborted
        self.sites = list(proxies)

    def ask(self, requests: Sequence[Request], deadline: float | None) -> Outcome:
        patience, begun = deadline or PATIENCE, time.monotonic()
        end = begun + patience
        said: queue.SimpleQueue[tuple[int, Any, str]] = queue.SimpleQueue()
        by_site: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            by_site.setdefault(request.seat.site, []).append(place)

        def one(site: int, places: Sequence[int]) -> None:
            for place in places:
                try:
                    call = getattr(self._proxies[site](timeout=patience), self._function)
                    said.put((place, call(requests[place].body), ""))
                except BaseException as error:  # an exception of theirs; its text is not ours to show
                    said.put((place, None, str(getattr(error, "cause_type", None) or type(error).__name__)))

        for own in by_site.items():  # each in a thread: a group call would send all the same
            threading.Thread(target=one, args=own, daemon=True).start()
        replies: dict[int, bytes] = {}
        failures: dict[int, str] = {}
        seconds: dict[int, float] = {}
        while len(replies) + len(failures) < len(requests):
            try:
                place, reply, why = said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if self._aborted():
                raise RuntimeError("the job was aborted")
            seconds[place] = time.monotonic() - begun
            if isinstance(reply, bytes | bytearray):
                replies[place] = bytes(reply)
            else:
                failures[place] = f"its call failed, with {why}" if why else "what it sent is no reply"
        late = set(range(len(requests))) - {*replies, *failures}
        return Outcome(replies, failures | dict.fromkeys(late, LATE), seconds)

    def close(self) -> None:
        pass
