"""Which code a cell is made by: a digest of every module that it uses, of what it does and not how it reads."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import rookery

PACKAGE = "rookery"
ROOTS = ("rookery.runs.run", "rookery.runs.sweep")  # what runs any cell
# What asks for cells, and engines that run none: a change there changes no number.
APART = ("rookery.cli", "rookery.reproduce", "rookery.experiments")
ENGINES, USED = "rookery.engines.", ("rookery.engines.base", "rookery.engines.local")


def digests(*objects: Any, root: Path | None = None) -> dict[str, str]:
    """A digest for every module of the package that these objects' classes, or a run, import, one by the other."""
    folder = Path(rookery.__file__).parent if root is None else root
    found: dict[str, str] = {}
    waiting = [*ROOTS, *(type(each).__module__ for each in objects)]
    while waiting:
        name = waiting.pop()
        if name in found or not name.startswith(f"{PACKAGE}.") or name.startswith(APART):
            continue
        if name.startswith(ENGINES) and name not in USED:
            continue
        digest, imported = _looked_at(folder, name)
        if digest:
            found[name] = digest
            waiting += imported
    return dict(sorted(found.items()))


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The modules that do something else now, or were not there."""
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
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12], imported


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)  # where these are modules
