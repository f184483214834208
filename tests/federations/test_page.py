"""The commands on the page "From a laptop to a federation", as a person types them, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from federations.test_frameworks import gone
from rookery.experiments.machines import environment, free_ports
from rookery.experiments.nvflare import end_all

PAGE = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FIRST = next(text for language, text in BLOCKS if language == "python")
NVFLARE = [text for language, text in BLOCKS if language == "bash" and "flower" not in text]
FLOWER = [text for language, text in BLOCKS if language == "bash" and "flower" in text]


def typed(text: str, folder: Path) -> str:
    """What a block of commands says; the first that fails ends it."""
    around = environment(HOME=str(folder / "home"), JAX_PLATFORMS="cpu")
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=around, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(FIRST, "federation.md", "exec"), {})
    yield tmp_path
    end_all(tmp_path)
    assert gone(f"{tmp_path}/")


def test_four_hospitals_with_their_own_files_on_nvflare(folder):
    """The project's port is one that is free here; all else is as it is printed."""
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    alone, export, poc = NVFLARE
    assert "results in" in typed(alone, folder)
    typed(export, folder)
    project = folder / "federation" / "project.yml"
    project.write_text(project.read_text().replace("8002", str(free_ports(1)[0])))
    try:
        said = typed(poc, folder)
    finally:
        subprocess.run(["pkill", "-9", "-f", f"{folder}/poc/"], check=False)
    table = said[said.index("client,examples,weight") :].splitlines()
    assert [row.split(",")[0] for row in table[1:5]] == ["cleveland", "hungarian", "switzerland", "va"]
    assert not list((folder / "poc/rookery/prod_00/localhost").rglob("*.record")), "records stay with their sites"
    assert list((folder / "poc/rookery/prod_00/va").rglob("joined.json"))
    assert not list((folder / "poc").rglob("own-*.safetensors")), "trust in a site is shared: no site has its own"
    assert os.path.exists(folder / "federation" / "README.md")


@pytest.mark.full
@pytest.mark.parametrize("command", [line for text in FLOWER for line in text.splitlines()])
def test_commands_on_flower(command, folder):
    pytest.importorskip("flwr", reason="flwr is not installed")
    assert typed(command, folder)
