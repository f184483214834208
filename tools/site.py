"""The site of `make docs`: the README as its first page, the pages, the results, and a reference of everything in `rk.`

A mkdocs hook (see mkdocs.yml). A public name without a docstring stops the build, as a broken link does.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}

# Page -> its title, and the packages whose names it has.
REFERENCE = {
    "methods": ("Methods", ("rookery.algorithms",)),
    "problems": ("Problems and sets", ("rookery.problems",)),
    "data": ("Clients and data", ("rookery.data",)),
    "running": (
        "Running",
        ("rookery.runs", "rookery.experiments", "rookery.engines", "rookery.errors", "rookery.metric"),
    ),
    "tasks": ("Tasks", ("rookery.tasks",)),
    "contracts": ("Writing methods", ("rookery.federation", "rookery.vectors", "rookery.structs")),
}
MODULES = {
    "data": ("rookery.data",),
    "problems": ("rookery.problems.exact",),
    "tasks": ("rookery.tasks", "rookery.tasks.adapters"),
}  # with names of their own


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, source in BESIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "results").iterdir()):
        if path.is_file():
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    for name, content in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are on the site, where docs/ is the root and results/ is in it."""
    uri = page.file.src_uri
    if uri in BESIDE:
        here = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        return re.sub(r"\]\((CONTRIBUTING|CHANGELOG)\.md", lambda link: f"]({here[link[1] + '.md']}", markdown)
    if uri.startswith("results/"):
        return markdown.replace("](../docs/", "](../")
    return re.sub(r"\]\((\.\./)(?=(\.\./)*results/)", "](", markdown)


def reference() -> dict[str, str]:
    """The pages of the reference, by name."""
    rookery = importlib.import_module("rookery")
    left = {name: getattr(rookery, name) for name in rookery.__all__ if name != "__version__"}
    pages = {}
    for page, (title, packages) in REFERENCE.items():
        own = {name: value for name, value in left.items() if _home(value).startswith(packages)}
        left = {name: value for name, value in left.items() if name not in own}
        names = [f"rookery.{name}" for name, value in own.items() if not inspect.ismodule(value)]
        for source in MODULES.get(page, ()):
            module = importlib.import_module(source)
            others = [name for name in module.__all__ if not name.isupper() and name not in rookery.__all__]
            own |= {f"{page}.{name}": getattr(module, name) for name in others}
            names += [f"{module.__name__}.{name}" for name in others]
        _refuse_undocumented(own)
        pages[page] = f"# {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"
    if left:
        raise PluginError(f"reference: {', '.join(left)} of rk. are on no page; give them one in tools/site.py")
    return pages


def _home(value: object) -> str:
    """The module that something is written in."""
    if isinstance(value, types.UnionType):  # `rk.Steps`, the only alias
        return "rookery.federation"
    return value.__name__ if inspect.ismodule(value) else value.__module__


def _refuse_undocumented(names: dict[str, object]) -> None:
    bare = [name for name, value in names.items() if not inspect.getdoc(value)]
    if bare:
        raise PluginError(f"reference: {', '.join(bare)} have no docstring; every public name needs one")
