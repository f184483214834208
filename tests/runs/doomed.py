"""A command that is to be killed: `python doomed.py MOMENT WORDS...` runs `rookery WORDS...` and dies at MOMENT.

MOMENT is `CALL:N`, the N-th call of that function of `os` or `shutil`, or `row:N`, in the middle of the N-th line of
history.csv; `count` runs it to its end and prints how often each is called.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys

from rookery.cli import main
from rookery.runs.table import Table

CALLS = {"replace": os, "fsync": os, "unlink": os, "rmdir": os, "mkdir": os, "rmtree": shutil}
made = dict.fromkeys([*CALLS, "row"], 0)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def watch(name, at):
    real = getattr(CALLS[name], name)

    def call(*arguments, **named):
        made[name] += 1
        if made[name] == at:
            die()
        return real(*arguments, **named)

    setattr(CALLS[name], name, call)


def watch_rows(at):
    real = Table.write_into

    def write(self, file, header=True):
        made["row"] += 1
        if made["row"] == at:
            text = ",".join(str(value) for value in self.rows[0].values())
            file.write(text[: len(text) // 2])
            file.flush()
            die()
        real(self, file, header)

    Table.write_into = write


if __name__ == "__main__":
    moment, *words = sys.argv[1:]
    name, _, number = moment.partition(":")
    for each in CALLS:
        watch(each, int(number) if each == name else -1)
    watch_rows(int(number) if name == "row" else -1)
    status = main(words)
    if moment == "count":
        print(json.dumps(made))
    sys.exit(status)
