"""Imports point one way, and the core needs no command line."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rookery"

# Which parts each part may import; a module of the package root is a part of its own.
# fmt: off
ALLOWED = {
    "errors": set(),
    "version": set(),
    "accelerators": set(),
    "structs": set(),
    "identity": set(),
    "vectors": {"errors"},
    "metric": {"vectors"},
    "direction": {"errors"},
    "own_code": {"errors"},
    "memory": {"errors"},
    "files": {"errors"},
    "data": {"files", "errors", "vectors"},
    "problems": {"errors", "vectors", "data"},
    "federation": {"errors", "memory", "structs", "vectors", "data", "problems"},
    "algorithms": {"errors", "own_code", "structs", "vectors", "problems", "federation"},
    "engines": {"errors", "files", "vectors", "data", "problems", "federation"},
    "tasks": {"errors", "memory", "vectors", "metric", "direction", "own_code", "data", "problems"},
    "runs": {
        "errors", "files", "identity", "own_code", "memory", "vectors", "metric", "direction", "data", "problems",
        "federation", "engines", "version",
    },
    "experiments": {
        "errors", "files", "own_code", "memory", "metric", "direction", "vectors", "version", "data", "problems",
        "federation", "algorithms", "engines", "runs", "tasks",
    },
    "reproduce": {
        "errors", "files", "vectors", "metric", "data", "problems", "federation", "algorithms", "runs", "tasks", "experiments",
        "version",
    },
    "cli": {
        "errors", "files", "own_code", "data", "problems", "federation", "algorithms", "engines", "runs", "tasks",
        "experiments", "reproduce", "version",
    },
}
# fmt: on


def imports_of(path: Path) -> set[str]:
    """The parts of rookery that a module imports, anywhere in it."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rookery":
            parts.update(node.module.split(".")[1:2] or [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            parts.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rookery."))
    return parts


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert imports_of(path) <= ALLOWED[part] | {part}


def test_the_core_imports_without_the_command_line():
    code = (
        "import sys\n"
        "for name in ('tyro', 'rich', 'matplotlib', 'sklearn', 'torch', 'flwr', 'nvflare'): sys.modules[name] = None\n"
        "import rookery as rk\n"
        "assert 'rookery.cli' not in sys.modules and rk.SimFBO\n"
        "loaded = {name.split('.')[1] for name in sys.modules if name.startswith('rookery.')}\n"
        "assert not loaded & {'tasks', 'reproduce', 'experiments'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
