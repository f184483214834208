"""Which code a cell is made by: a digest of every module that it uses, of what it does and not how it reads."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import rookery

PACKAGE = "rookery"
ROOTS = ("rookery.runs.run", "rookery.runs.sweep")
ALONE = ("rookery.experiments.experiment", "rookery.experiments.tune")  # whose imports are all methods there are
# What asks for cells, and engines that run none: a change there changes no number. What is given is always looked at.
APART = ("rookery.cli", "rookery.reproduce", "rookery.experiments")
ENGINES, USED = "rookery.engines.", ("rookery.engines.base", "rookery.engines.local")
PYTHON = "python"  # of what made the digests: another reads code otherwise


def digests(*objects: Any, root: Path | None = None) -> dict[str, str]:
    """A digest for every module of the package that these objects' classes, or a run, import, one by the other; and the
    version of Python that made them."""
    folder = Path(rookery.__file__).parent if root is None else root
    given = [*ROOTS, *ALONE, *(type(each).__module__ for each in objects)]
    found: dict[str, str] = {}
    waiting = list(given)
    while waiting:
        name = waiting.pop()
        apart = name.startswith(APART) or (name.startswith(ENGINES) and name not in USED)
        if name in found or not name.startswith(f"{PACKAGE}.") or (apart and name not in given):
            continue
        digest, imported = _looked_at(folder, name)
        if digest:
            found[name] = digest
            waiting += () if name in ALONE else imported
    return {PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}", **dict(sorted(found.items()))}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The modules that do something else now, or were not there; none where another Python made the digests."""
    if before.get(PYTHON) != now.get(PYTHON):
        return []
    return [name for name in now if before.get(name) != now[name]]


@cache
def _looked_at(folder: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """A module's digest, without its comments and docstrings, and what it imports; none where it is no module."""
    place = folder.joinpath(*name.split(".")[1:])
    path = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
    if not path.is_file():
        return "", ()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = tuple(_imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12], imported


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, of a module, a class, a function or a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)  # where these are modules
