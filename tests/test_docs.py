"""Everything printed in README and docs is run: Python blocks as they stand, commands as a user types them."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import os
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from benchmarks import drift, gallery

from rookery.algorithms.registry import METHODS
from rookery.cli import main
from rookery.reproduce.registry import STUDIES
from rookery.tasks.base import OnData
from rookery.tasks.registry import TASKS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec", dont_inherit=True), names)


def commands(block: str) -> list[str]:
    return [command for line in block.splitlines() if (command := line.split("#")[0].strip())]


SHELL = [(page, commands(block)) for page in PAGES for block in blocks(page, "sh")]


def write_files(page: Path, folder: Path) -> None:
    """The Python blocks that begin with the name of a file, `# my_task.py`, as that file."""
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            (folder / name[1]).write_text(block)


@pytest.mark.parametrize(
    ("page", "lines"), SHELL, ids=[f"{page.stem}-{number}" for number, (page, _) in enumerate(SHELL)]
)
def test_commands_run(page, lines, tmp_path, monkeypatch, capfd):
    """The commands of one block, in their order and in one folder: later ones may go on from earlier ones."""
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    if page.name in ("federation.md", "schemas.md"):  # its first block writes the files that the commands read
        exec(compile(blocks(page, "python")[0], str(page), "exec"), {})
    for command in lines:
        if command.startswith("rookery "):
            assert main(shlex.split(command)[1:]) == 0, command
            assert capfd.readouterr().out, command


@pytest.mark.parametrize("command", [line for _, lines in SHELL for line in lines if not line.startswith("rookery ")])
def test_make_commands_exist(command):
    target = re.fullmatch(r"make ([\w-]+)", command)
    assert target, f"{command!r} is printed and no test runs it"
    subprocess.run(["make", "--dry-run", target[1]], cwd=ROOT, check=True, capture_output=True)


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_what_users_have(example):
    """Everything that an example uses of the library is in `rk.`"""
    imported = re.findall(r"^\s*(?:from|import) (rookery\S*)", example.read_text(), re.MULTILINE)
    assert imported == ["rookery"], imported


def test_the_demo_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    pictures = demo["main"](exchanges=10, seeds=1, out=tmp_path / "demo")
    said = capsys.readouterr().out
    assert all(picture.is_file() and str(picture) in said for picture in pictures)
    folder = tmp_path / "demo" / "digits"
    assert (folder / "simfbo-seed0" / "history.csv").is_file() and (folder / "fedbioacc-seed0" / "plot.png").is_file()
    assert "cleveland" in said and "trusted" in said and "the held-out checked records chose" in said
    for column in ("FedAvg, all records", "checked records alone", "trust is learnt", "oracle"):
        assert said.count(column) >= 2, "a column is missing in one of both parts"


SMALL = {
    "personalised": {"exchanges": 3, "clients": 20},
    "penalties": {"rounds": 5},
    "own_method": {"exchanges": 4},
    "pytorch": {"rounds": 1},
}


@pytest.mark.parametrize("name", SMALL)
def test_examples_run(name, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    if name == "pytorch":
        pytest.importorskip("torchax", reason="torchax is not installed")
    assert importlib.import_module(name).main(**SMALL[name]) is not None
    assert capsys.readouterr().out


def test_every_example_is_run():
    assert {example.stem for example in EXAMPLES} == {"demo", "hospitals", *SMALL}, "the demo runs hospitals"


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)


def methods_table() -> str:
    """The table of methods, from the registry."""
    head = (
        "method", "problems", "exchanges", "floats up", "exactness", "client state", "participation", "unequal steps",
    )  # fmt: skip
    rows = [
        (
            f"`{row.method.__name__}`",
            row.problems,
            row.exchanges,
            row.floats_up,
            row.exactness,
            row.client_state,
            row.participation,
            row.unequal_steps,
        )
        for row in METHODS.values()
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_the_table_of_methods_is_the_registrys():
    page = ROOT / "docs" / "choose-a-method.md"
    before, table, after = re.split(r"<!-- (?:end )?methods -->", page.read_text())
    expected = f"\n{methods_table()}\n"
    if table != expected and os.environ.get("ROOKERY_WRITE_DOCS"):
        page.write_text(f"{before}<!-- methods -->{expected}<!-- end methods -->{after}")
    assert table == expected or os.environ.get("ROOKERY_WRITE_DOCS"), "run this test with ROOKERY_WRITE_DOCS=1"


@pytest.mark.full
def test_the_table_of_exchanges_is_what_the_benchmark_measures():
    rows = [" | ".join(row) for row in drift.measure()]
    text = (ROOT / "docs" / "drift-control.md").read_text()
    assert all(f"| {row} |" in text for row in rows), rows


def test_the_readme_names_every_method():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{row.method.__name__}`" in text for row in METHODS.values())


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_its_page(name):
    """With its options and their defaults, a command, and a small picture of what it reaches. The options of all tasks
    on data are on the page about data."""
    text = (ROOT / "docs" / "tasks" / f"{name}.md").read_text()
    of_tables = {field.name for field in dataclasses.fields(OnData)} - {*TASKS[name].__annotations__}
    for field in dataclasses.fields(TASKS[name]):
        shown = " ".join(map(str, field.default)) or "none" if isinstance(field.default, tuple) else field.default
        page = (ROOT / "docs" / "data.md").read_text() if field.name in of_tables else text
        assert f"| `--task.{field.name}` | {shown} |" in page
    assert f"rookery run {name} " in text and f"({name}.png)" in text
    assert (ROOT / "docs" / "tasks" / f"{name}.png").stat().st_size < 60_000
    assert f"(tasks/{name}.md)" in (ROOT / "docs" / "tasks.md").read_text()


def test_every_task_has_its_picture():
    assert set(gallery.PICTURES) == set(TASKS)


@pytest.mark.full
def test_a_picture_is_drawn(tmp_path, capsys):
    assert gallery.draw("regularisation", tmp_path).stat().st_size < 60_000
    assert "regularisation: SimFBO: 200 exchanges" in capsys.readouterr().out


def test_the_page_of_reproductions_names_every_study():
    text = (ROOT / "docs" / "reproduce.md").read_text()
    assert all(f"`{name}`" in text for name in STUDIES)


MODULES = [
    "rookery.algorithms.simfbo",
    "rookery.data.catalogue",
    "rookery.data.datasets",
    "rookery.data.federated",
    "rookery.data.partitions",
    "rookery.data.sources",
    "rookery.direction",
    "rookery.federation.rates",
    "rookery.federation.server_optimiser",
    "rookery.problems.exact.bilevel",
    "rookery.problems.penalty",
    "rookery.tasks.trust",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed


def test_every_docstring_example_is_listed():
    found = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src").rglob("*.py")
        if ">>> " in path.read_text()
    }
    assert found == set(MODULES)
