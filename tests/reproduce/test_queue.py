"""The queue of cells: what it runs in its time, that it resumes, and that another machine's cells are merged."""

from __future__ import annotations

import json

import pytest

import rookery as rk
from rookery.reproduce import queue
from rookery.reproduce.execute import run_cell
from rookery.reproduce.queue import check, is_done, listed, main, merge, run_queue
from rookery.reproduce.registry import reproduce

ENTRIES = ("fedmsa-mco:FedMSA*@1", "fedmsa-mco@1")


class Clock:
    """A clock that only the runs of cells move."""

    def __init__(self, monkeypatch, seconds, fails=()):
        self.now, self.ran = 0.0, []

        def slow(cell, seeds):
            self.now += seconds
            self.ran.append(cell.name)
            if cell.name in fails:
                raise RuntimeError("out of memory")
            return run_cell(cell, seeds)

        monkeypatch.setattr(queue, "run_cell", slow)

    def __call__(self):
        return self.now


def run(out, minutes=9.0, entries=ENTRIES, **options):
    said = []
    left = run_queue(entries, minutes, out, said.append, quick=True, **options)
    return [one.cell.name for one in left], said


def test_the_queue_runs_in_order_until_its_time_is_over_and_resumes(tmp_path, monkeypatch):
    names = [one.cell.name for one in listed(ENTRIES, tmp_path, quick=True)]
    assert len(names) == 4 and all(name.startswith("FedMSA") for name in names[:2])
    clock = Clock(monkeypatch, seconds=50)
    left, said = run(tmp_path, minutes=2, clock=clock)
    assert clock.ran == names[:2] and left == names[2:]  # after two of 50 s, 20 of the 120 are left
    assert any("left, since about 60 s" in text for text in said) and "2 cells are left, about 2 m" in said[-1]
    left, said = run(tmp_path, minutes=60, clock=clock)
    assert clock.ran == names and left == [] and said[-1] == "nothing is left"
    run(tmp_path, minutes=60, clock=clock)
    assert clock.ran == names  # none is run twice
    _, done = reproduce("fedmsa-mco", seeds=1, quick=True, out=tmp_path, run=False)
    assert set(done) == set(names)


def test_a_cell_that_fails_leaves_the_others(tmp_path, monkeypatch):
    names = [one.cell.name for one in listed(ENTRIES, tmp_path, quick=True)]
    clock = Clock(monkeypatch, seconds=1, fails=names[:1])
    left, said = run(tmp_path, clock=clock)
    assert left == names[:1] and "  failed: RuntimeError: out of memory" in said


def test_a_cell_asked_for_with_other_seeds_is_run_again(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, seconds=1)
    run(tmp_path, entries=("fedmsa-mco:centralised*@1",), clock=clock)
    before = len(clock.ran)
    run(tmp_path, entries=("fedmsa-mco:centralised*@2",), clock=clock)
    assert len(clock.ran) == 2 * before > 0


def test_cells_of_another_machine_are_merged(tmp_path, monkeypatch):
    clock, journal = Clock(monkeypatch, seconds=1), tmp_path / "journal.gz"
    run(tmp_path / "there", clock=clock, journal=journal)
    written = merge(journal, tmp_path / "here", say=lambda text: None)
    assert len(written) == 4
    assert all(is_done(one) for one in listed(ENTRIES, tmp_path / "here", quick=True))
    for path in written:
        assert path.read_text() == (tmp_path / "there" / path.relative_to(tmp_path / "here")).read_text()
    assert main(["--merge", str(journal), "--out", str(tmp_path / "there")]) == 0


def test_a_check_tells_cells_that_the_code_no_longer_gives(tmp_path, monkeypatch):
    """New code with the same numbers leaves a cell current; other numbers make it wait again."""
    entries = ("fedmsa-mco:FedMSA*@1",)
    run(tmp_path, entries=entries)
    first, second = listed(entries, tmp_path, quick=True)
    say = lambda text: None
    assert set(check(entries, tmp_path, say, quick=True).values()) == {"stamped"}
    assert set(check(entries, tmp_path, say, quick=True).values()) == {"current"}

    def rewrite(one, norm):
        kept = json.loads(one.path.read_text())
        kept["norms"]["x"][1] *= norm
        one.path.write_text(json.dumps(kept | {"code": kept["code"] | {"rookery.algorithms.fedmsa": "of old"}}))

    rewrite(first, 1 + 1e-6)
    rewrite(second, 1.001)
    found = check(entries, tmp_path, say, quick=True)
    assert found == {first.name: "current", second.name: "stale"}
    assert is_done(first) and not is_done(second)
    assert "of old" not in first.path.read_text() and "of old" in second.path.read_text()
    left, _ = run(tmp_path, entries=entries, minutes=0)
    assert left == [second.cell.name]
    kept = json.loads(second.path.read_text())
    del kept["norms"]
    second.path.write_text(json.dumps(kept | {"commit": "before"}))
    assert check(entries, tmp_path, say, quick=True)[second.name] == "unknown"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"no journal", "is no journal of a queue"), ({"path": "../../x", "cell": "{}"}, "outside of the cells' folder")],
)
def test_a_journal_that_is_none_is_refused(tmp_path, content, sentence):
    journal = tmp_path / "journal.gz"
    journal.write_bytes(
        content if isinstance(content, bytes) else queue.gzip.compress(json.dumps(content).encode() + b"\n")
    )
    with pytest.raises(rk.InputError, match=sentence):
        merge(journal, tmp_path / "out")


@pytest.mark.parametrize("entry", ["fedmsa-mco@none", "fedmsa-mco@0", "fedmsa-mko"])
def test_entries_that_are_none_get_a_sentence(entry, capsys, tmp_path):
    assert main([entry, "--list", "--out", str(tmp_path)]) == 2
    assert "entry must be STUDY" in capsys.readouterr().out or "mko" in entry


def test_the_priority_list_names_cells(tmp_path):
    for entry in queue.PRIORITY:
        assert list(listed((entry,), tmp_path)), entry
