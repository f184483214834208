"""Code of the user's own, named on the command line as FILE.py:Class. Imports only errors."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
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
    """What the file of a class of the user's own holds, as a digest; None: the name is no such class's."""
    own = file_and_class(name)
    return None if own is None else hashlib.sha256(_read(own[0], argument)).hexdigest()


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
    known = f"{_MODULE}{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module  # dataclasses and type hints look a class's module up by its name
    try:
        with failing(f"{argument}: {path.name}, when it is read,"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[known]
        raise
    return module
