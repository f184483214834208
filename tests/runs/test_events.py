"""events.jsonl: what a run records as it happens, and what is left of it after a kill in the middle of a line."""

from __future__ import annotations

import pytest

import rookery as rk
from rookery.cli import main
from rookery.runs.events import EVENTS, EventFile, following, printing, sentence

SMALL = ["hyperrep", "simfbo", "--rounds", "4", "--clients", "4", "--task.hidden", "4", "--task.examples", "100"]
SMALL += ["--every", "2"]


def kinds(folder):
    return [(event["event"], event.get("round")) for event in rk.read_events(folder)]


def test_events_are_read_in_order(tmp_path):
    seen = []
    record = EventFile(tmp_path / EVENTS, seen.append)
    record("round", round=1, seconds=0.5)
    record("checkpoint", round=1, status=None)
    assert kinds(tmp_path) == [("round", 1), ("checkpoint", 1)] and seen == rk.read_events(tmp_path / EVENTS)


def test_a_line_cut_anywhere_is_skipped_and_the_next_event_starts_on_a_new_line(tmp_path):
    path = tmp_path / EVENTS
    for number in (1, 2):
        EventFile(path)("round", round=number, client="Zürich\nva")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        complete = [1, 2] if cut == len(whole) - 1 else [1]
        assert [event["round"] for event in rk.read_events(path)] == complete
        EventFile(path)("round", round=3)
        assert [event["round"] for event in rk.read_events(path)] == [*complete, 3]


def test_other_lines_are_skipped(tmp_path):
    (tmp_path / EVENTS).write_bytes(b'\n[1]\n{"round": 1}\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"event": "round"}\n')
    assert rk.read_events(tmp_path) == [{"event": "round"}]
    with pytest.raises(rk.InputError, match=r"holds no readable events.jsonl"):
        rk.read_events(tmp_path / "nowhere")


def test_a_full_disk_is_one_sentence(tmp_path):
    with pytest.raises(rk.StorageError, match="cannot be written"):
        EventFile(tmp_path / "not there" / EVENTS)("round")


def test_events_of_another_process_are_followed(tmp_path):
    path, seen = tmp_path / EVENTS, []
    EventFile(path)("round", round=1)  # of an earlier process
    with following(path, seen.append, poll=0.01):
        EventFile(path)("round", round=2)
        with open(path, "ab") as file:
            file.write(b'{"event": "rou')
    assert [event["round"] for event in seen] == [2]


def test_a_run_records_its_start_its_checkpoints_and_its_end(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--checkpoint-every", "2", "--out", str(out)]) == 0
    expected = [
        ("started", 0),
        ("checkpoint", 0),
        ("checkpoint", 2),
        ("checkpoint", 4),
        ("checkpoint", 4),
        ("ended", 4),
    ]
    assert kinds(out) == expected
    assert rk.read_events(out)[-1]["status"] == "done"
    assert "round 2: checkpoint written" in capsys.readouterr().out


def test_what_cannot_be_printed_is_not():
    said = []
    printing(said.append)({"event": "failed", "round": 1, "client": "va", "site": "va", "failure": "\x1b[2J\ud800\nok"})
    assert said == ["round 1: no reply from client va: ?[2J??ok"]


def test_every_kind_that_is_printed_has_its_line():
    facts = {"round": 3, "client": "va", "site": "va", "failure": "no", "phase": "p", "norm": 2e6, "median": 1.0}
    for kind in ("resumed", "checkpoint", "failed", "returned", "undone", "not finite", "large reply"):
        assert "round 3" in str(sentence({"event": kind, **facts}))
    assert sentence({"event": "failed", **facts, "site": "site-2"}) == "round 3: no reply from client va at site-2: no"
    assert sentence({"event": "exchange"}) is None
