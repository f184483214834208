"""Code of the user's own, named on the command line as FILE.py:Class. Imports only errors."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

from rookery.errors import InputError, failing, nearest

_MODULE = "rookery_own_"  # how the modules of such files are called


def file_and_class(name: str) -> tuple[Path, str] | None:
    """The file and the class that a name like `path/to/file.py:Class` means; None: it is no such name."""
    path, colon, cls = name.rpartition(":")
    return (Path(path), cls) if colon and path.endswith(".py") else None


def full_name(name: str) -> str:
    """A name; of a class in a file with the whole path, so that it is found from everywhere."""
    own = file_and_class(name)
    return name if own is None else f"{own[0].resolve()}:{own[1]}"


def own_name(cls: type[Any]) -> str | None:
    """The name `path/to/file.py:Class` of a class that was loaded so; None: it was not."""
    if not cls.__module__.startswith(_MODULE):
        return None
    return f"{sys.modules[cls.__module__].__file__}:{cls.__qualname__}"


def short_name(name: str) -> str:
    """A name as people read it: of a class in a file, the class."""
    own = file_and_class(name)
    return name if own is None else own[1]


def source_hash(name: str, argument: str) -> str | None:
    """A digest of the file of a class of the user's own, and of the files beside it that it imports; None: the name is
    not of such a class."""
    own = file_and_class(name)
    if own is None:
        return None
    digest = _digest(own[0], argument)
    others = {place: _digest(path, argument) for place, path in neighbours(own[0]).items()}
    return hashlib.sha256(json.dumps([digest, others], sort_keys=True).encode()).hexdigest() if others else digest


def neighbours(path: Path) -> dict[str, Path]:
    """Finds the files beside a file that it imports, also through one another, without running any.

    Installed modules are not looked for beside the file: they come first, as at the end of `sys.path`.

    Returns:
      Files by their places relative to the folder, such as "helper.py" or "package/part.py".
    """
    folder, found, left = path.resolve().parent, {}, [path.resolve()]
    while left:
        for name in _imported(left.pop()):
            module, package = folder / f"{name}.py", folder / name
            files = [*sorted(package.rglob("*.py"))] if (package / "__init__.py").is_file() else []
            files += [module] if module.is_file() and not files else []
            if not files or _installed(name):
                continue
            new = {file.relative_to(folder).as_posix(): file for file in files if file != path.resolve()}
            left += [file for place, file in new.items() if place not in found]
            found |= new
    return dict(sorted(found.items()))


def _imported(path: Path, late: bool = False) -> set[str]:
    """The first parts of the names of all modules that a file imports; with `late` of those that it imports inside of
    functions. None where it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return set()
    if late:
        nodes = [inner for node in nodes if isinstance(node, _FUNCTIONS) for inner in ast.walk(node)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level and node.module]
    return {name.split(".")[0] for name in names}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _installed(name: str) -> bool:
    """Whether a module is of Python itself or of an installed package."""
    if name in sys.stdlib_module_names:
        return True
    places = [sysconfig.get_path(part) for part in ("purelib", "platlib")]
    return any((Path(place) / name).is_dir() or (Path(place) / f"{name}.py").is_file() for place in places)


# Of the files beside those that were loaded: by module, digests of those that Python has now; modules that are imported
# inside of functions; and the folders, which come last in `sys.path`.
_LOADED: dict[str, str] = {}
_LATE: set[str] = set()
_FOLDERS: list[str] = []


def _make_importable(path: Path, argument: str) -> dict[str, str]:
    """Lets a file import the files beside it, as they are now; gives the digests of these by module.

    Python keeps one module of a name. Modules of other files, or of files that have changed, are forgotten and loaded
    again; who imported them at the top keeps them. An import inside of a function would find the new ones: refused.
    """
    found = neighbours(path)
    wanted = {_module_name(place): _digest(file, argument) for place, file in found.items()}
    late = {name for file in (path, *found.values()) for name in _imported(file, late=True)}
    _LATE.update(name for name in late if name in {module.split(".")[0] for module in wanted})
    for name, digest in wanted.items():
        if _LOADED.get(name, digest) != digest and name.split(".")[0] in _LATE:
            raise InputError(
                f"{argument}: {path.name} imports {name!r}, and another version of it is loaded; start Python again, "
                f"or import {name.split('.')[0]!r} at the top of files, and not inside of functions"
            )
    if any(_LOADED.get(name) != digest for name, digest in wanted.items()):
        for name in {*_LOADED, *wanted}:
            sys.modules.pop(name, None)
        _LOADED.clear()
    _LOADED.update(wanted)
    if found:
        folder = str(path.parent)
        sys.path[:] = [place for place in sys.path if place not in _FOLDERS]
        _FOLDERS[:] = [folder, *(place for place in _FOLDERS if place != folder)]
        sys.path += [place for place in _FOLDERS if place not in sys.path]
    importlib.invalidate_caches()
    return wanted


def _module_name(place: str) -> str:
    """The name under which Python imports a file at a place such as "package/part.py"."""
    return place.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _digest(path: Path, argument: str) -> str:
    return hashlib.sha256(_read(path, argument)).hexdigest()


def _check_imported(path: Path, wanted: dict[str, str], argument: str) -> None:
    """Refuses a file that imported other files than those beside it, such as some of the working folder."""
    for name, digest in wanted.items():
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and _digest(Path(file), argument) != digest:
            raise InputError(
                f"{argument}: {path.name} imports {name!r}, and Python finds {file!r} instead of the file beside it; "
                "rename one of them"
            )


def load_class(name: str, argument: str) -> type[Any]:
    """The class that a name like `path/to/file.py:Class` means; the file is run, once as long as it is the same."""
    own = file_and_class(name)
    assert own is not None
    path, cls = own
    module = _load_file(path, argument)
    found = vars(module).get(cls)
    if not isinstance(found, type):
        classes = [other for other, value in vars(module).items() if isinstance(value, type)]
        near = nearest(cls, classes)
        raise InputError(f"{argument}: {path.name} has no class {cls!r}{near}; give one as FILE.py:CLASS")
    return found


def _read(path: Path, argument: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{argument}: {str(path)!r} was given; there is no such file") from None
    except OSError as error:
        raise InputError(f"{argument}: {str(path)!r} cannot be read: {error.strerror}") from None


def _load_file(path: Path, argument: str) -> Any:
    """A Python file as a module; the same file is the same module, so that its classes stay the same."""
    content, path = _read(path, argument), path.resolve()
    others = b"".join(_read(file, argument) for file in neighbours(path).values())
    known = f"{_MODULE}{hashlib.sha256(str(path).encode() + content + others).hexdigest()[:16]}"
    if known in sys.modules:
        return sys.modules[known]
    wanted = _make_importable(path, argument)
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module  # dataclasses and type hints look a class's module up by its name
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # bytecode of a file changed within a second is old
    try:
        with failing(f"{argument}: {path.name}, when it is read,"):
            spec.loader.exec_module(module)
            _check_imported(path, wanted, argument)
    except BaseException:
        del sys.modules[known]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module
