"""A grid of step sizes, seeds and other numbers as one program: runs side by side under vmap."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from rookery.data.federated import Clients
from rookery.engines import find_engine
from rookery.engines.base import Carry, Inputs, PreparedRun, non_finite
from rookery.engines.hosts import agreed
from rookery.engines.lanes import Place, Spread
from rookery.engines.local import Local, Program
from rookery.engines.mesh import Mesh
from rookery.errors import InputError, unknown
from rookery.federation.evaluation import ClientMetrics
from rookery.federation.ledger import Ledger
from rookery.federation.method import has_start, observed, observes
from rookery.federation.rates import Rates
from rookery.federation.sampling import All, Sampling
from rookery.federation.server import PerSequence, ServerOptimiser
from rookery.metric import Metrics, split, together
from rookery.problems.base import Problem
from rookery.problems.penalty import check_penalty
from rookery.runs.divergence import concluded, sizes
from rookery.runs.interrupts import answered, heed, listening, wait_for_turn
from rookery.runs.measured import awaited_rates, measured_run
from rookery.runs.own_metrics import OwnMetrics
from rookery.runs.prepare import precision_context, prepare
from rookery.runs.result import Divergence, Result
from rookery.runs.retracing import code_of, current_code
from rookery.runs.run import (
    Interrupted,
    Pace,
    check_arguments,
    check_metrics,
    heed_together,
    make_result,
    observed_names,
    reached,
)
from rookery.runs.table import Table
from rookery.vectors import Values, row

MEMORY = 2**30  # bytes that the states of runs side by side may take on a device

RUN_OPTIONS = ("seed", "batch_size", "sampling", "up", "down")


class Sweep(Table):
    """One row per grid point: its settings, its status, its last history row; `results` holds the whole results."""

    results: list[Result]


def sweep(
    problem: Problem,
    method: Any,
    clients: Clients | Callable[[int], Clients],
    *,
    over: Mapping[str, Any],
    x: Any = None,
    y: Any = None,
    start: Mapping[str, Any] | None = None,
    rounds: int,
    sampling: Sampling | None = None,
    batch_size: Any = None,
    seed: int = 0,
    metrics: Metrics | None = None,
    every: int | None = None,
    stop: Mapping[str, Any] | None = None,
    engine: Any = None,
    precision: str = "float32",
    memory: int = MEMORY,
    own_metrics: Callable[[int], Metrics] | None = None,
    client_metrics: ClientMetrics | None = None,
    up: Any = (),
    down: Any = (),
) -> Sweep:
    """Runs every point of a grid; runs of one structure go side by side in one compiled program.

    Args:
      clients: who holds the data; or a function of the seed that gives them, for runs that each draw a partition.
      over: what varies: a mapping from a name to its values. Names are fields of the method ("lr.x", "local_steps"),
        "method" itself, or "seed", "batch_size", "sampling", "up", "down". All combinations are run, the last name
        fastest. Options that change the program (batch sizes, a field that is structure) split it into several.
      engine: "local" or an `rk.Local(...)`; "mesh" or an `rk.Mesh(...)`: runs are spread over its devices, each of
        them whole on one device; None: "local".
      memory: bytes that the states of runs side by side may take on a device, of which a call holds two at a time; a
        larger grid is run in parts.
      own_metrics: in the place of `metrics`, a function of the seed that gives them, alike but for their arrays.
      client_metrics: as `rk.run` takes them; the history has their summary, and there is no table of clients.

    The other arguments are those of `rk.run`, and each row is what `rk.run` gives for it. A run that diverges is a
    row with status "diverged". Ctrl-C or SIGTERM raises `rk.Interrupted`, whose `result` is the table of the runs that
    have ended and of those under way, with status "interrupted"; runs that have not begun are missing in it.

    Returns:
      A table with one row per grid point; its `results` are the whole results in the same order.
    """
    metrics, stop, every = check_arguments(rounds, metrics, stop, every)
    if not isinstance(over, Mapping) or not over:
        raise InputError(f'over: {over!r} was given; a mapping such as {{"lr.x": [0.1, 0.2]}} is needed')
    compiled, place = _find_place(engine)
    names = list(over)
    points = [dict(zip(names, values)) for values in itertools.product(*(_values(n, over[n]) for n in names))]
    several = [point.get("method", method) for point in points]
    code = code_of(problem, method, clients, sampling, metrics, client_metrics, up, down, x, y, start)
    with precision_context(precision), listening(), current_code(*code, own_metrics, several, points):
        base = {
            "sampling": All() if sampling is None else sampling,
            "batch_size": batch_size,
            "seed": seed,
            "up": up,
            "down": down,
        }
        prepared, ledgers = [], []
        federations: dict[int, Clients] = {}
        for point in points:
            options = base | {name: value for name, value in point.items() if name in RUN_OPTIONS}
            varied = method
            for name, value in point.items():
                if name == "method":
                    varied = value
                elif name not in RUN_OPTIONS:
                    varied = set_field(varied, name.removeprefix("method."), value)
            own = clients
            if not isinstance(own, Clients) and callable(own):
                if options["seed"] not in federations:
                    federations[options["seed"]] = own(options["seed"])
                own = federations[options["seed"]]
            if own.streamed:
                raise InputError("clients: their examples are not in memory, which a sweep needs; use rk.run")
            awaited, varied = awaited_rates(varied, problem)
            own.check_here()
            ready = prepare(problem, varied, own, x=x, y=y, start=start, precision=precision, **options)
            ready, ledger = measured_run(ready, awaited, compiled, Ledger(), None) if awaited else (ready, Ledger())
            prepared.append(ready)
            ledgers.append(ledger)
            options["sampling"].check_rounds(0, rounds, prepared[-1].config.population)
        check_penalty(problem, 0, rounds)
        seeds = [int(point.get("seed", seed)) for point in points]
        measured = {each: own_metrics(each) if own_metrics else metrics for each in dict.fromkeys(seeds)}
        if client_metrics is not None:
            owned, dtype = {}, prepared[0].config.dtype
            for each in measured:
                who = clients if isinstance(clients, Clients) else federations[each]
                carry = prepared[seeds.index(each)].carry
                owned[each] = OwnMetrics(client_metrics, who, carry, problem.local, dtype)
            largest = max(own.largest for own in owned.values())  # lanes share a program
            measured = {each: together(measured[each], own.metric(dtype, largest)) for each, own in owned.items()}
            if isinstance(clients, Clients) and own_metrics is None:  # one for all, so that lanes share its arrays
                measured = dict.fromkeys(measured, measured[seeds[0]])
        check_metrics(measured[seeds[0]], stop, prepared[0].carry, observed_names(prepared[0]))
        results: list[Result | None] = [None] * len(points)
        for group in _groups(prepared, memory, place.devices):
            each = [measured[seeds[i]] for i in group]
            program = compiled.program(prepared[group[0]])
            begun = [ledgers[i] for i in group]
            lanes = _Lanes(program, place, [prepared[i] for i in group], begun, each, stop)
            try:
                found = lanes.run(rounds, every)
            except KeyboardInterrupt:
                answered()
                results = _with(results, group, lanes.interrupted(rounds))
                done = [i for i, result in enumerate(results) if result is not None]
                if not done:
                    raise
                raise Interrupted(_table([points[i] for i in done], [results[i] for i in done])) from None
            results = _with(results, group, found)
    return _table(points, results)


def _with(results: list[Result | None], group: list[int], found: list[Result]) -> list[Result | None]:
    """Results with those of a group in their places, as a new list."""
    own = dict(zip(group, found))
    return [own.get(i, result) for i, result in enumerate(results)]


def _find_place(engine: Any) -> tuple[Local, Place]:
    """What compiles the program of a lane, and where lanes are."""
    found = Local() if engine is None else find_engine(engine)
    if isinstance(found, Mesh):
        return Local(found.at_once), Spread(found.device_mesh())
    if isinstance(found, Local):
        return found, Place()
    raise InputError(
        f'engine: {engine!r} was given; a sweep is one compiled program: "local", "mesh", rk.Local(...) or rk.Mesh(...)'
    )


def _values(name: str, values: Any) -> list[Any]:
    values = list(values) if np.iterable(values) and not isinstance(values, str) else [values]
    if not values:
        raise InputError(f"over: {name!r} has no values; at least one is needed")
    return values


def _table(points: list[dict[str, Any]], results: Any) -> Sweep:
    table = Sweep()
    for point, result in zip(points, results):
        shown = {name: value if np.isscalar(value) else str(value) for name, value in point.items()}
        table.append(shown | {"status": result.status} | result.history.rows[-1])
    table.results = results
    return table


def set_field(target: Any, path: str, value: Any) -> Any:
    """A copy of a method with one field replaced, by its dotted name ("lr.x")."""
    head, _, rest = path.partition(".")
    if isinstance(target, (Rates, ServerOptimiser)):
        return target.replace(**{path: value})
    if isinstance(target, PerSequence) and head in target.optimisers:
        return PerSequence(target.optimisers | {head: set_field(target.optimisers[head], rest, value)})
    names = [field.name for field in dataclasses.fields(target)] if hasattr(target, "__dataclass_fields__") else []
    if head not in names:
        raise unknown("over", path, [*names, *RUN_OPTIONS])
    if rest:
        inner = getattr(target, head)
        if inner is None:
            raise InputError(f"over: {path!r} was given, and {head} is None in this method; set {head} first")
        value = set_field(inner, rest, value)
    return dataclasses.replace(target, **{head: value})


def _groups(prepared: list[PreparedRun], memory: int, devices: int) -> list[list[int]]:
    """The grid points that can share a program, in parts that fit the memory of so many devices."""
    kinds: dict[Any, list[int]] = {}
    for i, each in enumerate(prepared):
        varying = (each.inputs._replace(key=()), each.carry)
        shapes = tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(varying))
        kinds.setdefault((each.config, jax.tree.structure(varying), shapes), []).append(i)
    parts = []
    for members in kinds.values():
        own = (prepared[members[0]].carry, prepared[members[0]].inputs.levels if _differ(prepared) else ())
        size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(own))
        lanes = devices * max(1, memory // max(1, size))
        parts += [members[i : i + lanes] for i in range(0, len(members), lanes)]
    return parts


def _differ(prepared: list[PreparedRun]) -> bool:
    """Whether runs have data of their own."""
    leaves = [jax.tree.leaves((each.inputs.levels, each.inputs.weights)) for each in prepared]
    return any(a is not b and not np.array_equal(a, b) for other in leaves[1:] for a, b in zip(leaves[0], other))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(program: Program, place: Place, own_data: bool, inputs: Inputs, carry: Any, rounds: Any) -> tuple:
    return place.over(program.advance, (_axes(own_data), 0, 0))(inputs, carry, rounds)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(program: Program, place: Place, own_data: bool, inputs: Inputs, carry: Any) -> tuple:
    """Do what the methods of lanes do before their first rounds."""
    return place.over(program.start, (_axes(own_data), 0))(inputs, carry)


def _axes(own_data: bool) -> Inputs:
    """Return the axes of lanes in the inputs; data that all lanes share has none."""
    data = 0 if own_data else None
    return Inputs(method=0, sampling=0, levels=data, weights=data, key=0)  # type: ignore[arg-type]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _measure(
    function: Callable[..., Mapping[str, Any]], place: Place, own: bool, values: Values, arrays: dict[str, Any]
) -> dict[str, Any]:
    """The metrics of lanes, each with arrays of its own or all with the same."""
    each = lambda values, arrays: dict(function(values, **arrays))
    return place.over(each, (0, 0 if own else None))(values, arrays)


@partial(jax.jit, static_argnums=0)
def _observe(place: Place, method: Any, carry: Any) -> dict[str, Any]:
    """What the methods of lanes say of their runs."""
    return place.over(lambda method, carry: observed(method, carry.state, carry.records.state), (0, 0))(method, carry)


class _Lanes:
    """Runs of one structure, side by side. A lane that has diverged or reached its target rests."""

    def __init__(
        self,
        program: Program,
        place: Place,
        prepared: list[PreparedRun],
        ledgers: list[Ledger],
        metrics: list[Metrics],
        stop: Mapping[str, Any],
    ):
        self.program = program
        self.place = place
        self.prepared = prepared
        self.stop = stop
        if place.several:
            wait_for_turn()
        stack = place.stacked
        self.own_data = _differ(prepared)
        alike = lambda *trees: stack(*trees) if self.own_data else place.shared(trees[0])
        self.inputs = Inputs(
            method=stack(*(s.inputs.method for s in prepared)),
            sampling=stack(*(s.inputs.sampling for s in prepared)),
            levels=alike(*(s.inputs.levels for s in prepared)),
            weights=alike(*(s.inputs.weights for s in prepared)),
            key=stack(*(s.inputs.key for s in prepared)),
        )
        self.own_metrics = any(each is not metrics[0] for each in metrics)
        self.function, arrays = split(metrics[0])
        self.arrays = stack(*(split(each)[1] for each in metrics)) if self.own_metrics else place.shared(arrays)
        self.initial = [sizes(s.carry.values()) for s in prepared]
        self.carry = stack(*(s.carry for s in prepared))
        self.ledgers = ledgers
        self.histories = [Table() for _ in prepared]
        self.status = ["done"] * len(prepared)
        self.divergence: list[Divergence | None] = [None] * len(prepared)
        self.rounds = np.zeros(len(prepared), np.int32)
        self.seconds = self.compile_seconds = 0.0
        self.pace = Pace()

    def run(self, rounds: int, every: int) -> list[Result]:
        begun = time.perf_counter()
        if has_start(self.inputs.method):
            self.start()
        self.advance(0)
        self.compile_seconds, self.seconds = time.perf_counter() - begun, 0.0
        self.record(rounds)
        for done in range(0, rounds, every):
            self.advance_in_parts(min(every, rounds - done))
            self.record(rounds)
        return self.results()

    def interrupted(self, rounds: int) -> list[Result]:
        """The results so far, each with a row for where it stands; none before the first round."""
        if not self.rounds.any():
            return []
        self.record(rounds)
        self.status = [
            "interrupted" if status == "done" and done < rounds else status
            for status, done in zip(self.status, self.rounds)
        ]
        return self.results()

    def results(self) -> list[Result]:
        """What every lane has come to."""
        carries = (self.place.lane(self.carry, i) for i in range(len(self.prepared)))
        return [
            concluded(
                make_result(each, carry, ledger, history, self.seconds, status, divergence, self.compile_seconds), size
            )
            for each, size, carry, ledger, history, status, divergence in zip(
                self.prepared, self.initial, carries, self.ledgers, self.histories, self.status, self.divergence
            )
        ]

    def advance_in_parts(self, rounds: int) -> None:
        """Some rounds, in calls short enough to be interrupted."""
        while rounds > 0:
            ask, before = min(rounds, self.pace.rounds), self.seconds
            ask = agreed(ask) if self.place.several else ask
            self.advance(ask)
            (heed_together if self.place.several else heed)()
            rounds -= ask
            self.pace.took(ask, self.seconds - before)

    def start(self) -> None:
        """Do what the methods do before their first rounds, and count it."""
        self.carry, found = _start(self.program, self.place, self.own_data, self.inputs, self.carry)
        cost = self.place.read(found)
        for i, ledger in enumerate(self.ledgers):
            ledger.add(row(cost, i))

    @property
    def awake(self) -> np.ndarray:
        return np.asarray([status == "done" for status in self.status])

    def advance(self, rounds: int) -> None:
        begun = time.perf_counter()
        before, asked = self.carry, np.where(self.awake, rounds, 0)
        carry, cost, done, finite = self.call(before, asked)
        if not finite.all():  # go again to the last good round of those lanes, as a single run does
            for i in np.flatnonzero(~finite):
                broken = non_finite(jax.device_get(self.place.lane(carry, int(i)))) or ("state",)
                self.status[i] = "diverged"
                self.divergence[i] = Divergence(int(self.rounds[i] + done[i]), broken)
            done = done - ~finite
            carry, cost, _, _ = self.call(before, done)
        ledgers = [ledger.copy() for ledger in self.ledgers]
        for i, ledger in enumerate(ledgers):
            ledger.add(row(cost, i))
        seconds = self.seconds + time.perf_counter() - begun
        # All at once: an interrupt may come between two assignments.
        vars(self).update(carry=carry, rounds=self.rounds + done, ledgers=ledgers, seconds=seconds)

    def call(self, carry: Any, rounds: np.ndarray) -> tuple:
        """Some rounds of every lane: all carries, and of each lane what it cost, its rounds, whether it is finite."""
        count = len(rounds)
        asked = np.zeros(-(-count // self.place.devices) * self.place.devices, np.int32)  # lanes for nothing rest
        asked[:count] = rounds
        carry, *found = _advance(self.program, self.place, self.own_data, self.inputs, carry, asked)
        cost, done, finite = self.place.read(found)
        return carry, cost, done[:count], finite[:count]

    def record(self, rounds: int) -> None:
        values = Carry.values(self.carry)
        measured = self.place.read(_measure(self.function, self.place, self.own_metrics, values, self.arrays))
        if observes(self.inputs.method):
            measured |= self.place.read(_observe(self.place, self.inputs.method, self.carry))
        for i, history in enumerate(self.histories):
            if history.rows and history["round"][-1] == self.rounds[i]:
                continue  # a lane at rest
            values = {name: float(column[i]) for name, column in measured.items()}
            row = {"round": int(self.rounds[i]), **self.ledgers[i].row(), "seconds": self.seconds}
            history.append(row | values)
            if self.rounds[i] < rounds and reached(self.stop, values):  # also where it diverged after that
                self.status[i], self.divergence[i] = "stopped", None
