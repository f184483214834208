"""From what a user gives to a run made ready: every check, on the host, before anything is compiled."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey

from rookery.data.batches import FULL_BATCH_CHUNK
from rookery.data.federated import BOTH, Clients, Split, cast, example_shape
from rookery.data.levels import row_of
from rookery.engines.base import Carry, Inputs, PreparedRun, initial_carry
from rookery.engines.local import Program
from rookery.errors import AdviceWarning, InputError, failing, unknown
from rookery.federation.channels import Channel, initial_kept, make_channel, named_in
from rookery.federation.client import ProgramConfig
from rookery.federation.fields import RatesField, meanings
from rookery.federation.keys import run_key, start_key
from rookery.federation.method import Plan, bind, has_start
from rookery.federation.oracles import held_in
from rookery.federation.rates import Rates
from rookery.federation.sampling import All, Sampling
from rookery.federation.stages import PACKED
from rookery.federation.steps import LARGEST, Epochs, is_count, is_whole
from rookery.memory import check_fits
from rookery.problems.base import OfBatch, Problem
from rookery.vectors import Sequences, Tree, Values

# By name, how products of matrices are made. All but the last hold numbers in 32 bits.
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16", "float64": "float32"}


@contextlib.contextmanager
def precision_context(precision: str) -> Iterator[None]:
    """Everything of a run happens inside: 64-bit mode and products as asked, which JAX would make in less than 32 bits
    on some accelerators."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    with jax.enable_x64(precision == "float64"), jax.default_matmul_precision(PRECISIONS[precision]):
        yield


def prepare(
    problem: Problem,
    method: Any,
    clients: Clients,
    *,
    x: Any = None,
    y: Any = None,
    start: Mapping[str, Any] | None = None,
    sampling: Any,
    batch_size: Any,
    seed: int,
    precision: str,
    up: Any = (),
    down: Any = (),
) -> PreparedRun:
    """Checks everything a user gave and makes a run ready; call it inside `precision_context`."""
    _check_kinds(problem, method, clients, sampling, seed)
    dtype = held_in(precision)
    levels = _levels(problem, clients)
    method = bind(method, problem, clients.population)
    sampling.check(clients.population)
    if (method.participation == "all" or method.neighbours) and not isinstance(sampling, All):
        raise InputError(
            f"sampling: {sampling} was given; {type(method).__name__} needs all clients in every round: rk.All()"
        )
    config = ProgramConfig(
        problem=problem,
        population=clients.population,
        batch=_batch_sizes(batch_size, levels),
        capacity=tuple((level, int(np.max(clients.level(level).size))) for level in levels),
        precision=precision,
        augment=clients.augment,
        up=make_channel("up", up, problem.shared),
        down=make_channel("down", down, problem.shared),
    )
    if method.neighbours and config.down is not None:
        raise InputError(
            f"down: {down!s} was given, and with {type(method).__name__} no server sends anything; give up"
        )
    method_numbers = numbers("method", method, dtype)
    plan = _plan(clients, sampling, problem, config)
    _check_epochs(method, plan)
    for sentence in (*method.advise(plan), *_advise_rates(method), *_advise_channel(method, config.up)):
        warnings.warn(f"{type(method).__name__}: {sentence}", AdviceWarning, stacklevel=3)
    _advise_batch(config, clients)
    _check_examples(problem, clients, config)
    key = run_key(seed)
    example = lambda level: example_shape(clients, level, dtype)
    z, local = _initial(problem, clients, {"x": x, "y": y}, dict(start or {}), key, dtype, example)
    inputs = Inputs(
        method=method_numbers,
        sampling=numbers("sampling", sampling, dtype),
        levels=cast(clients.levels, dtype),
        weights=clients.weights.astype(dtype),
        key=key,
    )
    carry = _with_channels(config, inputs, jax.device_get(initial_carry(config, inputs.method, z, local)))
    return PreparedRun(config, inputs, carry, source=clients.source, data=clients.stated())


def _with_channels(config: ProgramConfig, inputs: Inputs, carry: Carry) -> Carry:
    """The carry with what clients' channels keep, by phase: what phases reply is known from tracing a round. Refuses a
    channel for a sequence that no reply has by its name."""
    _check_keys(config, carry)
    if config.up is None or not (config.up.keeps or config.up.named):
        return carry
    program = Program(replace(config, up=None, down=None), 1)
    replies: dict[str, list[Any]] = {}
    if has_start(inputs.method):
        jax.eval_shape(lambda inputs, carry: program.start(inputs, carry, replies), inputs, carry)
    jax.eval_shape(lambda inputs, carry: program.round(inputs, carry, replies), inputs, carry)
    named = named_in(replies)
    for name, _ in config.up.named:
        if name not in named:
            there = f"it has {', '.join(sorted(named))} by name" if named else "it has none by name"
            raise InputError(
                f"up: a channel for {name} was given, and no reply of {type(inputs.method).__name__} has it; {there}, "
                "and others go through the default"
            )
    if not config.up.keeps:
        return carry
    for phase, shapes in replies.items():
        if len(shapes) > 1:
            raise InputError(
                f"up: phase {phase!r} replies in several shapes, and a feedback is kept for one; give stages"
            )
    one = {phase: initial_kept(config.up, reply) for phase, (reply,) in replies.items()}
    # A view of one, as other parts of records are where they begin alike.
    all = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (config.population, *leaf.shape)), one)
    return carry._replace(records=carry.records._replace(channels=all))


def _check_keys(config: ProgramConfig, carry: Carry) -> None:
    """Refuses a key of the user's own that a packed array could be taken for."""
    if config.up is None and config.down is None:
        return
    for path, _ in jax.tree_util.tree_flatten_with_path(carry.values())[0]:
        for key in path:
            if isinstance(key, DictKey) and str(key.key).startswith(PACKED):
                name = "up" if config.up is not None else "down"
                raise InputError(f"{name}: a sequence has the key {key.key!r}; one that begins otherwise is needed")


def _advise_channel(method: Any, up: Channel | None) -> list[str]:
    """What a user should know of packed differences that a server adds up."""
    if up is None or not method.adds_up or not up.shifts:
        return []
    return [
        "its server adds up what clients send, and up sends packed differences, whose sum is off for good, so that it "
        "rests off the solution; rk.ErrorFeedback sends everything in the end"
    ]


ABSURD = 1e6  # no step size that is known to work is larger


def _advise_rates(method: Any) -> list[str]:
    """What a user should know of step sizes that are odd, and may be meant."""
    said = []
    for name, meaning in meanings(type(method)).items():
        value = getattr(method, name)
        if not (isinstance(meaning, RatesField) and meaning.positive and isinstance(value, Rates)):
            continue
        for sequence, rate in value.entries().items():
            if callable(rate):
                continue
            number = np.asarray(getattr(rate, "table", rate))
            called = f"{name}.{sequence}".removesuffix(".default")
            if not number.any():
                said.append(f"{called} is 0; {'nothing moves' if called == name else f'{sequence} stays where it is'}")
            elif number.max() > ABSURD:
                said.append(f"{called} is {number.max():.3g}, beyond any step size that is known to work")
    return said


def _advise_batch(config: ProgramConfig, clients: Clients) -> None:
    """Says that every client has fewer examples than a minibatch."""
    for level, size in config.batch:
        largest = int(np.max(clients.level(level).size))
        if size is not None and size > largest:
            of_level = "" if level == BOTH else f" of the {level} level"
            warnings.warn(
                f"batch_size: {size} was given, and no client has more than {largest} examples{of_level}; they are "
                "drawn with replacement, and all of them at once (None) cost less",
                AdviceWarning,
                stacklevel=4,
            )


def _check_examples(problem: Problem, clients: Clients, config: ProgramConfig) -> None:
    """Lets losses that can, refuse examples: one with a method `fault(rows)` gives a row and a sentence."""
    for name, loss in problem.losses.items():
        level, batch = clients.level(name), dict(config.batch)
        largest = int(np.max(level.size))
        if isinstance(loss, OfBatch) and batch.get(name, batch.get(BOTH)) is None and largest > FULL_BATCH_CHUNK:
            raise InputError(
                f"batch_size: None was given, a client has {largest} examples, and {name} is a loss of a whole "
                f"minibatch; one of at most {FULL_BATCH_CHUNK} is needed"
            )
        fault = getattr(loss, "fault", None)
        found = None if fault is None or clients.source is not None else fault(level.rows)
        if found is not None:
            row, sentence = found
            client, number = row_of(level, row)
            raise InputError(f"data: client {clients.names[client]!r}, row {number}: {sentence}")


def _plan(clients: Clients, sampling: Sampling, problem: Problem, config: ProgramConfig) -> Plan:
    batch = dict(config.batch)
    lengths = [
        np.ones(clients.population) if batch[level] is None else np.ceil(clients.level(level).size / batch[level])
        for level in problem.draws.values()
    ]
    expected = np.asarray(sampling.at(0).expected(clients.population))
    return Plan(clients.population, expected, np.max(lengths, axis=0))


def _check_epochs(method: Any, plan: Plan) -> None:
    """Refuses epochs that are more steps than a program counts."""
    largest = int(np.argmax(plan.epoch))
    for work in jax.tree.leaves(method, is_leaf=lambda part: isinstance(part, Epochs)):
        if isinstance(work, Epochs) and (steps := plan.largest_steps(work, largest)) > LARGEST:
            raise InputError(f"method: {work} was given, which is {steps} steps of client {largest}; at most {LARGEST}")


def numbers(argument: str, tree: Any, dtype: Any) -> Any:
    """A method's or a scheme's numbers as arrays of fixed types, so that changing one never recompiles; refuses those
    that these types do not hold."""
    least, most = np.finfo(dtype).tiny, np.finfo(dtype).max

    def leaf(path: Any, value: Any) -> np.ndarray:
        array = np.asarray(value)
        if array.dtype.kind in "iu":
            good, held = (array >= -LARGEST) & (array <= LARGEST), f"whole numbers up to {LARGEST}"
        elif array.dtype.kind == "f":
            size = np.abs(array)
            good, held = (
                (size <= most) & ((size >= least) | (size == 0)) | ~np.isfinite(array),
                (f"numbers from {least:.3g} to {most:.3g} and 0 are held in {np.dtype(dtype)}"),
            )
        elif array.dtype.kind == "b":
            return array
        else:
            good, held = np.zeros(array.shape, bool), "a number is needed"
        if not good.all():
            name = f"{argument}.{jax.tree_util.keystr(path, simple=True, separator='.')}".removesuffix(".default")
            raise InputError(f"{name}: {array[~good].flat[0]!s} was given; {held}")
        return array.astype(np.int32 if array.dtype.kind in "iu" else dtype)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _check_kinds(problem: Any, method: Any, clients: Any, sampling: Any, seed: Any) -> None:
    if not isinstance(problem, Problem):
        raise InputError(f"problem: {type(problem).__name__} was given; a problem such as rk.Bilevel(...) is needed")
    if isinstance(method, type) or not callable(getattr(method, "round", None)):
        given = f"the class {method.__name__}" if isinstance(method, type) else type(method).__name__
        raise InputError(f"method: {given} was given; a method such as rk.SimFBO(lr=rk.Rates(0.1)) is needed")
    if not isinstance(clients, Clients):
        raise InputError(f"clients: {type(clients).__name__} was given; make them with rk.federate(...)")
    if not isinstance(sampling, Sampling):
        raise InputError(f"sampling: {sampling!r} was given; a scheme such as rk.All() or rk.Uniform(10) is needed")
    if not is_whole(seed) or not 0 <= int(seed) < 2**32:
        raise InputError(f"seed: {seed!r} was given; a whole number from 0 to 2**32 - 1 is needed")


def _levels(problem: Problem, clients: Clients) -> tuple[str, ...]:
    levels = tuple(dict.fromkeys(problem.draws.values()))
    if clients.split and BOTH in levels:
        raise InputError(f"clients: they are a Split, and a {problem.kind} problem has one level; federate plain trees")
    return levels


def _batch_sizes(batch_size: Any, levels: tuple[str, ...]) -> tuple[tuple[str, int | None], ...]:
    if isinstance(batch_size, Split):
        if BOTH in levels:
            raise InputError("batch_size: a Split was given, and this problem has one level; give one number")
        sizes = {"lower": batch_size.lower, "upper": batch_size.upper}
    else:
        sizes = dict.fromkeys(levels, batch_size)
    for size in sizes.values():
        if size is not None and not is_count(size):
            raise InputError(
                f"batch_size: {size!r} was given; None (all examples) or a whole number from 1 to {LARGEST} is needed"
            )
    return tuple((level, None if size is None else int(size)) for level, size in sizes.items())


def _initial(
    problem: Problem,
    clients: Clients,
    named: dict[str, Any],
    others: dict[str, Any],
    key: jax.Array,
    dtype: Any,
    example: Callable[[str], Tree],
) -> tuple[Sequences, Sequences]:
    """Initial shared sequences, and local ones stacked over clients."""
    for name, value in others.items():
        if name not in problem.names:
            raise unknown("start", name, problem.names)
        if named.get(name) is not None:
            raise InputError(f"start: {name} is given twice, here and as {name}=")
        named[name] = value
    given = {name: value for name, value in named.items() if value is not None}
    for name in given:
        if name not in problem.names:
            raise InputError(
                f"{name}: a value was given, and this problem has no {name}; it has {', '.join(problem.names)}"
            )
    missing = [name for name in problem.given if name not in given]
    if missing:
        raise InputError(f"{missing[0]}: no initial value was given; this {problem.kind} problem needs one")

    def values(client: int) -> Values:
        trees = {}
        for name, value in given.items():
            if callable(value):
                own = (
                    (start_key(key, client + 1), clients.client(client))
                    if name in problem.local
                    else (start_key(key, 0),)
                )
                with failing(f"{name}: the function of {'a key and data' if len(own) > 1 else 'a key'}"):
                    _check_size(name, value, own)
                    value = value(*own)
            trees[name] = _floats(name, value, dtype)
        complete = problem.complete(Values({n: trees[n] for n in trees if n in problem.given}), example)
        for name, tree in trees.items():
            _same_shapes(name, tree, complete[name])
        return Values({name: trees.get(name, complete[name]) for name in problem.names})

    first = values(0)
    problem.check(first, example)
    z = problem.project(Sequences.of(first), problem.names)
    differ = any(callable(value) for name, value in given.items() if name in problem.local)
    rows = [z.only(problem.local)]
    if not differ:
        alike = lambda leaf: np.broadcast_to(leaf, (clients.population, *np.shape(leaf)))
        return z.only(problem.shared), jax.tree.map(alike, jax.device_get(rows[0]))
    for client in range(1, clients.population):
        others_z = values(client)
        for name in problem.local:
            _same_shapes(name, others_z[name], first[name], f" at client {client}")
        rows.append(problem.project(Sequences.of(others_z).only(problem.local), problem.local))
    return z.only(problem.shared), jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def _floats(name: str, tree: Tree, dtype: Any) -> Tree:
    """An initial value as arrays of the run's type."""

    def leaf(value: Any) -> np.ndarray:
        try:
            array = np.asarray(value)
            numeric = array.dtype.kind in "fiub"
        except (TypeError, ValueError):
            numeric = False
        if not numeric:
            raise InputError(
                f"{name}: a leaf of type {type(value).__name__} was given; initial values are pytrees of numbers"
            )
        array = array.astype(dtype)
        if not np.isfinite(array).all():
            raise InputError(f"{name}: a value that is NaN or infinite was given; initial values must be finite")
        return array

    if not jax.tree.leaves(tree):
        raise InputError(f"{name}: an empty value was given; a pytree of numbers is needed")
    return jax.tree.map(leaf, tree)


def _check_size(name: str, function: Callable[..., Tree], arguments: tuple) -> None:
    """Refuses values that the machine cannot hold before they are made, where JAX can say how large they are."""
    try:
        made = jax.tree.leaves(jax.eval_shape(lambda: function(*arguments)))
    except Exception:  # a function that cannot be traced: it is called as it is
        return
    size = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in made)
    check_fits(name, "a function of a key", "what it makes", size)


def _same_shapes(name: str, given: Tree, needed: Tree, where: str = "") -> None:
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (given, needed)]
    if jax.tree.structure(given) != jax.tree.structure(needed) or shapes[0] != shapes[1]:
        raise InputError(f"{name}: shapes {shapes[0]} were given{where}; {shapes[1]} are needed, in the same structure")
