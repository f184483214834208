"""Mutants of a source file, made on its syntax tree, and their loading. Imports nothing of rookery.

A mutant is the file with one thing wrong: a sign, a factor or a term that is missing, an old point for a new one, a
wrong weight, a projection left out, a number off by one, a stale sample. What a method checks of its arguments is left
alone: functions named check*, wrap_* and __post_init__, annotations, docstrings and other strings.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

# Names that hold points or directions: one may stand for another without a type error.
POINTS = ("z", "z_i", "new", "old", "m", "q", "d", "h", "local", "entered")
POINTS += ("x", "x_i", "y", "y_i", "p", "m_i", "own", "previous")
# Of these no one stands for one of the others: the dimensions differ, and it would not run.
UNLIKE = ({"x", "x_i"}, {"y", "y_i", "p", "q"})
# Objects with points in their attributes.
HOLDERS = ("state", "before", "kept")
# Names that hold samples.
SAMPLES = ("sample", "b", "s", "xi", "fresh")
# Results of local work that have the same shape.
RESULTS = {"moved": "q", "q": "moved"}
# What a mean may be taken for, and what a weight.
AGGREGATES = ("mean", "sum", "average")
ATTRIBUTES = {("cohort", "weight"): "size", ("client", "probability"): "weight"}
# Calls that are taken away: the argument or the object that takes their place.
PASS_ARGUMENT = ("project", "project_local", "ball", "abs", "cbrt", "shared", "enter", "steps")
PASS_OBJECT = ("only", "merged", "replace")


@dataclass(frozen=True)
class Mutant:
    """A wrong copy of a file. `key` names it whatever line it stands on; `line` is where it is now."""

    key: str
    line: int
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.key}"


def mutants(source: str) -> list[Mutant]:
    """All mutants of a source, in the order of the text; each is a different program."""
    tree = ast.parse(source)
    seen, found, keys = {ast.unparse(tree)}, [], {}
    for site in _sites(tree):
        for what, put in _changes(site):
            changed = _changed(tree, site, put)
            text = ast.unparse(changed)
            if text in seen:
                continue
            seen.add(text)
            key = f"{site.function} | {site.statement} | {what}"
            keys[key] = keys.get(key, 0) + 1
            number = f" [{keys[key]}]" if keys[key] > 1 else ""
            found.append(Mutant(key + number, site.node.lineno, text))  # type: ignore[attr-defined]
    return found


# Where: every node that may change, with what is around it.


@dataclass(frozen=True)
class _Site:
    node: ast.AST
    parents: tuple[ast.AST, ...]  # outermost first
    path: tuple[tuple[str, int | None], ...]  # fields and places that lead to the node

    @property
    def functions(self) -> list[ast.FunctionDef]:
        return [node for node in self.parents if isinstance(node, ast.FunctionDef)]

    @property
    def function(self) -> str:
        owners = [node.name for node in self.parents if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        return ".".join(owners)

    @property
    def statement(self) -> str:
        """The text of the statement that it is in; of one with a body, its first line."""
        *_, statement = (node for node in (*self.parents, self.node) if isinstance(node, ast.stmt))
        return _text(_with(statement, body=[], orelse=[]) if hasattr(statement, "body") else statement)

    @property
    def parent(self) -> ast.AST:
        return self.parents[-1]


def _sites(tree: ast.AST) -> list[_Site]:
    def walk(node: ast.AST, parents: tuple, path: tuple) -> Iterator[_Site]:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(("check", "wrap_", "__post_init__")):
            return
        yield _Site(node, parents, path)
        for name, value in ast.iter_fields(node):
            # The defaults of a class's fields are mutated, those of a function's arguments are not.
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST) and not _is_text(child):
                    yield from walk(child, (*parents, node), (*path, (name, place)))

    # Imports and module-level statements are no part of a method.
    return [
        site for site in walk(tree, (), ()) if any(isinstance(p, (ast.FunctionDef, ast.ClassDef)) for p in site.parents)
    ]


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, (ast.JoinedStr,)) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _changed(tree: ast.AST, site: _Site, put: ast.AST) -> ast.AST:
    """A copy of the tree with a node put in the place of the site's."""
    result = copy.deepcopy(tree)
    owner = result
    for name, place in site.path[:-1]:
        owner = getattr(owner, name) if place is None else getattr(owner, name)[place]
    name, place = site.path[-1]
    if place is None:
        setattr(owner, name, put)
    else:
        getattr(owner, name)[place] = put
    return ast.fix_missing_locations(result)


# What: each operator gives the nodes that may be put there; the two texts name the change.

Change = tuple[str, ast.AST]


def _says_what_is_allowed(site: _Site) -> bool:
    """Whether it is what a field or a class says of itself, but for defaults: no run shows it, tests of fields do."""
    inside = [node for node in (*site.parents, site.node) if isinstance(node, (ast.Assign, ast.AnnAssign))]
    if not inside or site.functions:
        return False
    if isinstance(inside[0], ast.Assign):  # biased, kinds, ...
        return True
    keywords = [node for node in site.parents if isinstance(node, ast.keyword)]
    specifier = isinstance(site.node, ast.Call) and isinstance(site.parent, ast.AnnAssign)
    return specifier or any(keyword.arg != "default" for keyword in keywords)


def _changes(site: _Site) -> Iterator[Change]:
    if _says_what_is_allowed(site):
        return
    for operator in _OPERATORS:
        for put in operator(site):
            before = "it" if isinstance(site.node, ast.stmt) else _text(site.node)
            after = (
                "left out"
                if isinstance(put, ast.Pass)
                else _text(_with(put, body=[], orelse=[]) if isinstance(put, ast.stmt) else put)
            )
            yield f"{before} -> {after}", put


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split()) or "nothing"


def _with(node: ast.AST, **changes: object) -> ast.AST:
    result = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def _arithmetic(site: _Site) -> Iterator[ast.AST]:
    """Signs, and terms and factors that are missing."""
    node = site.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    if not isinstance(node, ast.BinOp):
        return
    if isinstance(node.op, (ast.Add, ast.Sub)):
        yield _with(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
        yield from (node.left, node.right)
    elif isinstance(node.op, ast.Mult):
        yield from (node.left, node.right)
    elif isinstance(node.op, ast.Div):
        yield node.left
        yield _with(node, op=ast.Mult())
    elif isinstance(node.op, ast.Pow):
        yield node.left


def _numbers(site: _Site) -> Iterator[ast.AST]:
    """Numbers off by one, and truths turned around."""
    node = site.node
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, (int, float)):
        yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))


def _choices(site: _Site) -> Iterator[ast.AST]:
    """Conditions turned around, branches exchanged or never taken, statements left out."""
    node = site.node
    turned = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in turned:
        yield _with(node, ops=[turned[type(node.ops[0])]()])
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.If):
        if not isinstance(node.test, ast.Compare):  # which is turned around itself
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        if not isinstance(node.body[-1], ast.Return):
            yield ast.Pass()
    elif isinstance(node, ast.Expr):
        yield ast.Pass()


def _calls(site: _Site) -> Iterator[ast.AST]:
    """Projections and other wrappings left out, options forgotten, functions exchanged."""
    node = site.node
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in PASS_ARGUMENT and node.args:
        yield node.args[0]
    if name in PASS_OBJECT and isinstance(node.func, ast.Attribute):
        yield node.func.value
    if name == "at":  # a schedule that is read a round too late, or never moves on
        yield _with(node, args=[ast.BinOp(node.args[0], ast.Add(), ast.Constant(1))])
        yield _with(node, args=[ast.Constant(0)])
    if len(node.args) > 1 and _of_self(node.args[-1]):
        yield _with(node, args=node.args[:-1])
    if len(node.keywords) > 1:
        for place in range(len(node.keywords)):
            yield _with(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])
    for one, two in itertools.combinations(range(len(node.args)), 2):
        if _kind(node.args[one]) == _kind(node.args[two]) != "":
            yield _with(node, args=_exchanged(node.args, one, two))


def _tuples(site: _Site) -> Iterator[ast.AST]:
    """The places of a subscript exchanged."""
    node = site.node
    if isinstance(node, ast.Tuple) and isinstance(site.parent, ast.Subscript) and len(node.elts) == 2:
        yield _with(node, elts=_exchanged(node.elts, 0, 1))


def _weights(site: _Site) -> Iterator[ast.AST]:
    """One mean for another, one weight for another."""
    node = site.node
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return
    prefix = "update_" if node.attr.startswith("update_") else ""
    aggregate = node.attr.removeprefix(prefix)
    if node.value.id == "cohort" and aggregate in AGGREGATES:
        yield from (_with(node, attr=prefix + other) for other in AGGREGATES if other != aggregate)
    if (node.value.id, node.attr) in ATTRIBUTES:
        yield _with(node, attr=ATTRIBUTES[node.value.id, node.attr])


def _points(site: _Site) -> Iterator[ast.AST]:
    """An old point for a new one: any point that is at hand for another."""
    node = site.node
    if not _is_point(node) or not isinstance(node.ctx, ast.Load) or not site.functions:  # type: ignore[attr-defined]
        return
    if isinstance(site.parent, ast.Attribute) and site.parent.attr in ("zeros", "at"):
        return  # only its shape counts
    ones, others = UNLIKE
    for other in _points_at_hand(site):
        pair = {_text(node), _text(other)}
        if len(pair) == 2 and not (pair & ones and pair & others):
            yield copy.deepcopy(other)


def _results(site: _Site) -> Iterator[ast.AST]:
    """One result of the local steps for another."""
    node = site.node
    if isinstance(node, ast.Attribute) and node.attr in RESULTS and not _is_point(node):
        yield _with(node, attr=RESULTS[node.attr])


def _points_at_hand(site: _Site) -> list[ast.AST]:
    """The points that are bound where the site stands, in order of their first appearance."""
    found: dict[str, ast.AST] = {}

    def look(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child not in site.parents:
                continue
            if isinstance(child, ast.arg) and child.arg in POINTS:
                found.setdefault(child.arg, ast.Name(child.arg, ast.Load()))
            if _is_point(child):
                stored = isinstance(child.ctx, ast.Store) and child.lineno < site.node.lineno  # type: ignore[attr-defined]
                if stored or isinstance(child, ast.Attribute):
                    found.setdefault(_text(child), _with(child, ctx=ast.Load()))
            look(child)

    look(site.functions[0])
    return list(found.values())


def _is_point(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in HOLDERS and node.attr in POINTS
    return isinstance(node, ast.Name) and node.id in POINTS


def _fields(site: _Site) -> Iterator[ast.AST]:
    """One hyper-parameter for another of its kind: eta for gamma, delta for u."""
    node = site.node
    if not _of_self(node) or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
        return
    owner = next(parent for parent in site.parents if isinstance(parent, ast.ClassDef))
    kinds = {
        part.target.id: ast.unparse(part.annotation).split(" |")[0].replace("Optional", "")
        for part in owner.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for name, kind in kinds.items():
        if name != node.attr and kind in ("Rates", "GivenRates", "float") and kind == kinds.get(node.attr):  # type: ignore[attr-defined]
            yield _with(node, attr=name)


def _samples(site: _Site) -> Iterator[ast.AST]:
    """A sample that is not fresh, and another sample than the one at hand."""
    node = site.node
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    arguments = {argument.arg for function in site.functions for argument in function.args.args}
    if "client" not in arguments:
        return
    stale = ast.Attribute(ast.Name("client", ast.Load()), "key", ast.Load())
    if node.id == "key":
        yield stale
    if node.id in SAMPLES:
        yield ast.Call(ast.Attribute(ast.Name("client", ast.Load()), "sample", ast.Load()), [stale], [])


_OPERATORS: tuple[Callable[[_Site], Iterator[ast.AST]], ...] = (
    _arithmetic,
    _numbers,
    _choices,
    _calls,
    _tuples,
    _weights,
    _points,
    _results,
    _fields,
    _samples,
)


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _kind(node: ast.AST) -> str:
    """What two arguments of a call must have in common to be exchanged."""
    if _is_point(node):
        return "point"
    if isinstance(node, ast.Lambda):
        return "function"
    whole = _text(node)
    return "number" if whole in ("k", "client.index", "client.round") else ""


def _exchanged(parts: list, one: int, two: int) -> list:
    parts = list(parts)
    parts[one], parts[two] = parts[two], parts[one]
    return parts


# Loading.


@contextlib.contextmanager
def loaded(sources: Mapping[str, str]) -> Iterator[dict[str, types.ModuleType]]:
    """Fresh modules from sources by their full names, in this order, standing for the real ones inside the block.

    So a module that imports an earlier one of them gets the fresh one; others have the real ones already.
    """
    before = {name: sys.modules.get(name) for name in sources}
    modules = {}
    try:
        for name, source in sources.items():
            module = types.ModuleType(name)
            module.__package__ = name.rpartition(".")[0]
            sys.modules[name] = modules[name] = module
            exec(compile(source, f"<mutant of {name}>", "exec"), module.__dict__)
        yield modules
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
