"""The wheel has all that the package needs: installed elsewhere, it runs a task."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (made,) = folder.glob("rookery-*.whl")
    return made


def run_from(binaries: Path, wheel: Path, folder: Path) -> None:
    """Installs the wheel and runs a task with it, in a folder of its own."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean |= {"ROOKERY_CACHE": str(folder / "cache")}

    def call(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(str(binaries / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    where = call(str(binaries / "python"), "-c", "import rookery; print(rookery.__file__)")
    assert Path(where.strip()).is_relative_to(binaries.parent)
    sizes = ("--clients", "3", "--cohort", "2", "--rounds", "2")
    call(str(binaries / "rookery"), "run", "classify", "fedavg", *sizes, "--out", "mine")
    assert (folder / "mine" / "result.json").is_file()


def test_it_says_that_it_is_typed(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= names
    assert "rookery/py.typed" in names


def test_it_runs_a_task_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    run_from(tmp_path / "venv" / "bin", wheel, tmp_path)
