"""Counted calls in a traced program: each leaves a mark, which is read and removed before the program is compiled.

A phase may use JAX's own transformations. Python runs the body of a `jax.lax.scan` once, so calls cannot be counted
while Python runs. They are counted in the traced program instead: a mark is an equation that hands its operands on,
and a loop of known length multiplies the marks inside it. Run operation by operation (`jax.disable_jit`), a mark counts
each time that it is executed. Imports counts and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, Var
from jax.interpreters import ad, batching, mlir

from rookery.errors import InputError
from rookery.federation import counts

# Primitives that run the program inside them once.
ONCE = {"jit", "pjit", "call", "core_call", "closed_call", "checkpoint", "remat", "remat2"}
ONCE |= {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}

UNKNOWN_LENGTH = "jax.lax.while_loop or a jax.lax.fori_loop of unknown length"
UNKNOWN_BRANCH = "jax.lax.cond or jax.lax.switch"


@dataclass(eq=False)
class Draw:
    """One minibatch of a sample: the counter of a meter that it adds to, and how much. `at_home`: whether it is used
    where the sample was made, and not first in a branch."""

    counter: str  # "calls", "full" or "passes"
    name: str
    amount: int
    at_home: bool = False


@dataclass(frozen=True, eq=False)
class Mark:
    """One counted call: its name, its cost by oracle, the draws that it uses, or the draw that it makes."""

    call: str
    executed: Callable[[Mark, Any], None] = field(repr=False)  # what a call costs that is run, and not traced
    cost: tuple[tuple[str, int], ...] = ()
    uses: tuple[Draw, ...] = ()
    draw: Draw | None = None


def marked(tree: Any, mark: Mark) -> Any:
    """The tree, with a mark in the program that makes it."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, _call.bind(*leaves, mark=mark, times=1))


def mark_total(total: jax.Array, mark: Mark) -> None:
    """Marks a call whose cost is known when the program runs: `total` counts each of ORACLES."""
    _total.bind(total, mark=mark)


_call = Primitive("counted_call")  # hands its operands on; `times`: how often vmap runs it
_total = Primitive("counted_total")  # takes a count, has no result
_call.multiple_results = _total.multiple_results = True
_call.def_abstract_eval(lambda *avals, mark, times: list(avals))
_total.def_abstract_eval(lambda total, mark: [])


@_call.def_impl
def _executed_call(*values: Any, mark: Mark, times: int) -> list[Any]:
    mark.executed(mark, times)
    return list(values)


@_total.def_impl
def _executed_total(total: Any, mark: Mark) -> list[Any]:
    mark.executed(mark, total)
    return []


def _batched_call(axis: Any, values: Any, dims: Any, *, mark: Mark, times: int) -> tuple:
    return _call.bind(*values, mark=mark, times=times * axis.size), dims


def _batched_total(axis: Any, values: Any, dims: Any, *, mark: Mark) -> tuple:
    (total,), (dim,) = values, dims
    total = counts.times(total, axis.size) if dim is None else counts.total(jnp.moveaxis(total, dim, 1))
    return _total.bind(total, mark=mark), []


batching.fancy_primitive_batchers[_call] = _batched_call
batching.fancy_primitive_batchers[_total] = _batched_total


def _refuse_derivative(primals: Any, tangents: Any, *, mark: Mark, **_: Any) -> NoReturn:
    raise InputError(
        f"{mark.call} was differentiated in a phase, where the cost of its derivative is unknown; use client.hvp, "
        "client.cross or client.direction_along, or take the derivative inside the problem."
    )


def _refuse_lowering(context: Any, *operands: Any, mark: Mark, **_: Any) -> NoReturn:
    raise _refused(mark, "a JAX transformation that hides it")


ad.primitive_jvps[_call] = _refuse_derivative
ad.primitive_transposes[_call] = lambda *args, mark, **_: _refuse_derivative(args, args, mark=mark)
mlir.register_lowering(_call, _refuse_lowering)
mlir.register_lowering(_total, _refuse_lowering)


def _refused(mark: Mark, where: str) -> InputError:
    """The error of a call in a place where the number of calls is unknown."""
    if where == UNKNOWN_BRANCH:
        return InputError(f"{mark.call} was called inside {where}, where it may not run; use client.choose instead.")
    remedy = "use client.loop instead" if where == UNKNOWN_LENGTH else "use client.loop or client.choose around it"
    return InputError(f"{mark.call} was called inside {where}, where the number of its calls is unknown; {remedy}.")


class Traced:
    """A function, traced once: its marks with the number of times that each is run, and a program without marks.

    Calling it gives the function's result and the totals that were marked.
    """

    def __init__(self, function: Callable[..., Any], *args: Any):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        stripped = _strip(closed.jaxpr)
        self.marks = stripped.marks
        self.totals = len(stripped.totals)
        self._structure = jax.tree.structure(shapes)
        self._jaxpr = _with_outputs(stripped.jaxpr, stripped.totals)
        self._constants = closed.consts

    def __call__(self, *args: Any) -> tuple[Any, list[jax.Array]]:
        results = eval_jaxpr(self._jaxpr, self._constants, *jax.tree.leaves(args))
        own = len(results) - self.totals
        return jax.tree.unflatten(self._structure, results[:own]), list(results[own:])


class _Stripped(NamedTuple):
    """A program without marks, the marks that were in it, and the totals that were marked at its top level."""

    jaxpr: Jaxpr
    marks: list[tuple[Mark, int]]
    totals: list[Any]


def _strip(jaxpr: Jaxpr) -> _Stripped:
    """Takes the marks out of a program and of the programs inside it."""
    equations: list[JaxprEqn] = []
    marks: list[tuple[Mark, int]] = []
    totals: list[Any] = []
    same: dict[Var, Any] = {}  # the result of a mark -> its operand
    for equation in jaxpr.eqns:
        operands = [same.get(each, each) if isinstance(each, Var) else each for each in equation.invars]
        if equation.primitive is _call:
            marks.append((equation.params["mark"], equation.params["times"]))
            same.update(zip(equation.outvars, operands))
        elif equation.primitive is _total:
            marks.append((equation.params["mark"], 1))
            totals += operands
        else:
            params, inside = _strip_inside(equation)
            marks += inside
            changed = inside or any(a is not b for a, b in zip(operands, equation.invars))
            equations.append(equation.replace(invars=operands, params=params) if changed else equation)
    if not marks:
        return _Stripped(jaxpr, [], [])
    results = [same.get(each, each) if isinstance(each, Var) else each for each in jaxpr.outvars]
    return _Stripped(jaxpr.replace(eqns=equations, outvars=results), marks, totals)


def _strip_inside(equation: JaxprEqn) -> tuple[dict[str, Any], list[tuple[Mark, int]]]:
    """The parameters of an equation with its programs stripped, and their marks, as often as they are run."""
    params: dict[str, Any] = dict(equation.params)
    marks: list[tuple[Mark, int]] = []
    for name, programs in _programs(equation.params):
        stripped = [_strip(each.jaxpr if isinstance(each, ClosedJaxpr) else each) for each in programs]
        found = [mark for each in stripped for mark in each.marks]
        if not found:
            continue
        where = equation.primitive.name
        if any(each.totals for each in stripped):
            (mark, _) = next((mark, times) for mark, times in found if mark.call in ("client.loop", "client.choose"))
            raise _refused(mark, f"jax's {where}")
        marks += [(mark, times * _times(equation, mark)) for mark, times in found]
        after = [
            each.replace(jaxpr=new.jaxpr) if isinstance(each, ClosedJaxpr) else new.jaxpr
            for each, new in zip(programs, stripped)
        ]
        params[name] = tuple(after) if isinstance(equation.params[name], (tuple, list)) else after[0]
    return params, marks


def _programs(params: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The parameters that are programs, or several of them."""
    for name, value in params.items():
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        if values and all(isinstance(each, (Jaxpr, ClosedJaxpr)) for each in values):
            yield name, values


def _times(equation: JaxprEqn, mark: Mark) -> int:
    """How often an equation runs the programs inside it."""
    name = equation.primitive.name
    if name in ONCE:
        return 1
    if name == "scan":
        return int(equation.params["length"])
    known = {"while": UNKNOWN_LENGTH, "cond": UNKNOWN_BRANCH}
    raise _refused(mark, known.get(name, f"jax's {name}"))


def _with_outputs(jaxpr: Jaxpr, more: list[Any]) -> Jaxpr:
    """A program with more outputs."""
    return jaxpr.replace(outvars=[*jaxpr.outvars, *more]) if more else jaxpr
