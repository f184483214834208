"""Tuning step sizes on validation data, at the horizon of the comparison, with the same budget for every method."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rookery.direction import known_direction
from rookery.engines.mesh import Mesh
from rookery.errors import AdviceWarning, InputError
from rookery.experiments.codec import decode, encode
from rookery.experiments.subject import Subject
from rookery.federation.codec import is_part
from rookery.federation.fields import NumberField, RatesField, meanings
from rookery.federation.rates import Rates
from rookery.federation.server import EachSequence, PerSequence, PlainServer
from rookery.federation.server_optimiser import ServerOptimiser
from rookery.federation.steps import is_count
from rookery.runs.divergence import exploded_metric
from rookery.runs.result import Result
from rookery.runs.run import run
from rookery.runs.sweep import set_field, sweep
from rookery.runs.table import Table
from rookery.tasks.base import Assembly

# A budget is enough for so many candidates of the most expensive method: half of them are the grid to begin with, the
# rest is for widening, that is for going on where the best is on the edge of what was tried.
CANDIDATES = 24
FACTOR = 3.0  # between neighbours on a grid
LEADING, FOLLOWING = (-2, -1, 0, 1), (-1, 0, 1)  # powers of it, for the first and the second dimension
ALONE = tuple(np.linspace(-5, 4, 12) * math.log(2) / math.log(FACTOR))  # of one dimension alone: 2^-5 to 2^4
ROUNDINGS = 100  # values within so many roundings of the first value count as equal

WORK = ("local_steps", "lower_steps", "upper_steps")  # fields of methods that say how long a round takes


@dataclass(frozen=True)
class Cost:
    """What one round of an experiment costs."""

    exchanges: float
    gradients: float
    megabytes: float = math.nan


def probe(experiment: Subject, tuning: bool = False) -> Cost:
    """The cost of a round, measured: three are run, since the first may be special, with rates that move nothing."""
    arguments: dict[str, Any] = experiment.arguments(experiment.assemble(tuning)) | {"stop": None, "metrics": None}
    arguments |= {"client_metrics": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)  # given when the run itself begins
        history = run(method=_still(experiment.method), rounds=3, every=1, **arguments).history
    exchanges, gradients, up, down = (
        float(history[name][-1] - history[name][1]) / 2 for name in ("exchanges", "gradients", "bytes_up", "bytes_down")
    )
    return Cost(exchanges, gradients, (up + down) / 1e6)


def _still(method: Any) -> Any:
    """A method with rates so small that it cannot diverge, where they are numbers or to be measured."""
    given = getattr(method, "lr", None)
    lr = given if isinstance(given, Rates) else Rates(given)
    small = lr.map(lambda rate: 1e-6 if isinstance(rate, str) else rate)
    if given is None or not _are_numbers(small):
        return method
    return dataclasses.replace(method, lr=small.map(lambda rate: min(float(rate), 1e-6)))


def _are_numbers(lr: Rates) -> bool:
    return all(np.isscalar(rate) and not isinstance(rate, str) for rate in lr.entries().values())


@dataclass(frozen=True)
class Tuning:
    """What tuning found.

    Args:
      method: The method with its best step sizes.
      table: One row per candidate: its numbers, its rounds and its metric.
      gradients: Gradient evaluations that were spent.
      edges: Dimensions in which the best candidate was at the edge of what was tried when the budget ended.
      grid: The values that were tried, by the dotted name of each number that was tuned.
      chosen: The value that was chosen of each.
      rounds: Rounds that every candidate was run for.
      budget: Gradient evaluations that were allowed.
    """

    method: Any
    table: Table
    gradients: int
    edges: tuple[str, ...] = ()
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    chosen: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    budget: float = math.nan

    def described(self) -> dict[str, Any]:
        """Describe the search for json: what was tuned, from which grid, at which horizon, with which budget."""
        grid = {name: list(values) for name, values in self.grid.items()}
        found = {"grid": grid, "chosen": dict(self.chosen), "rounds": self.rounds, "gradients": self.gradients}
        budget = None if math.isnan(self.budget) else self.budget
        return found | {"budget": budget, "candidates": len(self.table.rows), "edges": list(self.edges)}

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return {"method": encode(self.method), "table": self.table.rows, **self.described()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], classes: Mapping[str, type[Any]] | None = None) -> Tuning:
        """Rebuild a tuning from `to_json`."""
        method, budget = decode(kept["method"], classes), kept.get("budget")
        return cls(
            method,
            Table(kept["table"]),
            kept["gradients"],
            tuple(kept.get("edges", ())),
            kept.get("grid", {}),
            kept.get("chosen", {}),
            kept.get("rounds", 0),
            math.nan if budget is None else budget,
        )


def tune(
    experiment: Subject, budget: float, rounds: int | None = None, say: Callable[[str], Any] = lambda text: None
) -> Tuning:
    """Search the step sizes of an experiment's method: those of the clients, those of the server, and other scales.

    The dimensions of the search are factors (`Grid`): one for the step size of x, one for those of all other sequences,
    one for each server step size, one for every number that the method marks as a scale. Twelve candidates run side by
    side in one program. Then the grid is **widened**: while the best candidate is the largest or the smallest tried in
    some dimension, the next one is tried there, three times as large or small. The search ends when the best is inside
    in every dimension, or with the budget; then `edges` names the dimensions.

    Every candidate is run for the same rounds, those at which methods are compared. Candidates whose metrics differ by
    rounding are ranked by the loss, where the task has one, and then by their distance from divergence (`select`).

    Args:
      budget: Gradient evaluations to spend at most, over all clients and candidates.
      rounds: Rounds to run every candidate for; None: as many as the budget allows CANDIDATES candidates.
      say: Function that is called with a sentence about every step.

    The metrics are those of the assembly for tuning: validation examples, which are part of no client's data, and
    never the test set. A candidate that diverges is the worst.
    """
    if not 0 < budget < math.inf:
        raise InputError(f"tune_budget must be a positive number of gradient evaluations; got {budget}.")
    if rounds is not None and not is_count(rounds):
        raise InputError(f"rounds must be a positive int or None; got {rounds!r}.")
    search = _Search(experiment, Grid.of(experiment.method))
    name, cost, places = experiment.method_name, search.cost, search.grid.places()
    horizon = int(budget / (CANDIDATES * cost)) if rounds is None else int(rounds)
    least = len(places) * max(horizon, 1) * cost if rounds is not None else CANDIDATES * cost
    if horizon < 1 or budget < least:
        raise InputError(
            f"tune_budget must be at least {least:.10g} gradient evaluations for {name}: {len(places)} candidates of "
            f"{max(horizon, 1)} rounds, each of {cost:.4g}; got {budget:.10g}."
        )
    say(f"{name}: {len(places)} candidates for {horizon} rounds")
    search.run(places, horizon, "grid")
    if not any(math.isfinite(score.value) for score in search.scores.values()):
        raise InputError(f"tune: every candidate of {name} diverged; give smaller rates to begin with")
    edges = search.widen(horizon, budget, say)
    best = search.best()
    if edges:
        say(
            f"{name}: the budget ended with the best at the edge of what was tried in {', '.join(edges)}; a larger "
            "tune budget searches further there"
        )
    grid, method = search.grid, search.grid.method(best)
    return Tuning(method, search.table, search.spent, edges, search.values(), grid.numbers(best), horizon, budget)


Place = tuple[float, ...]  # of a candidate on the grid: a power of FACTOR for each dimension


class Score(NamedTuple):
    """What a candidate reached; lower is better in both, and a candidate that diverged has an infinite value."""

    value: float
    loss: float


def select(scores: Mapping[Place, Score], tolerance: float, loss_tolerance: float = 0.0) -> Place:
    """Return the best candidate; among equals the one that is farthest from divergence.

    Values within `tolerance` of the best count as equal, since they differ by rounding, and then losses within
    `loss_tolerance` of the lowest. Among the candidates that remain, the one with the largest margin is taken: the
    distance, in powers of the factor, to the nearest candidate with larger step sizes that was worse or diverged. Then
    the one nearest to the method's own step sizes is taken, and then the one with the smallest step sizes.
    """
    equal = best_places(scores, tolerance, loss_tolerance)

    def margin(place: Place) -> float:
        beyond = (other for other in scores if other not in equal and all(a >= b for a, b in zip(other, place)))
        return min((round(sum(other) - sum(place), 6) for other in beyond), default=math.inf)

    return min(equal, key=lambda place: (-margin(place), *_by_distance(place)))


def best_places(scores: Mapping[Place, Score], tolerance: float, loss_tolerance: float) -> set[Place]:
    """Return the candidates that are the best up to rounding, first by the metric and then by the loss."""
    value = min(score.value for score in scores.values())
    equal = {place for place, score in scores.items() if score.value <= value + tolerance}
    loss = min(scores[place].loss for place in equal)
    return {place for place in equal if scores[place].loss <= loss + loss_tolerance}


def _by_distance(place: Place) -> tuple:
    """An order of candidates: the nearest to the method's own step sizes first, then the smallest step sizes."""
    return round(sum(map(abs, place)), 6), round(sum(place), 6), place


@dataclass(frozen=True)
class Grid:
    """The numbers of a method that are tuned.

    Args:
      base: The method; at place 0 all its numbers are its own.
      dimensions: The numbers that each dimension scales, by their dotted names.
      follows: Whether the server steps with `lr`, since its own step size was left out (`server_lr=None`).
    """

    base: Any
    dimensions: Mapping[str, tuple[str, ...]]
    follows: bool = False

    @classmethod
    def of(cls, method: Any) -> Grid:
        """Find the dimensions of a method.

        They are: the step size of x; the step sizes of all other sequences together; the step size of the server's
        optimiser (if it has one per sequence, that of x and those of the others); `server_lr`, as a factor of `lr`;
        and every number that a field marks as a scale, or that is called a step size (`..._lr`). With an optimiser on
        the server, its step size takes the second place, which is part of the grid to begin with.
        """
        if not hasattr(method, "lr"):
            raise InputError(f"tune: {type(method).__name__} has no lr to be tuned; compare it without --tune")
        lr = method.lr if isinstance(method.lr, Rates) else Rates(method.lr)
        if not _are_numbers(lr):
            raise InputError(f"tune: {type(method).__name__} has rates that are no numbers; give numbers to be tuned")
        fields = meanings(type(method))
        base, follows, own = _with_server_lr(dataclasses.replace(method, lr=lr), fields)
        lead, others = _lead_and_others(list(lr.entries()))
        marked = scales(method)
        led = [name for name in own if name == lead or (name == "x" and name not in others)]
        rest = tuple(f"lr.{name}" for name in others) + tuple(f"server_lr.{name}" for name in own if name not in led)
        rest += tuple(name for name, rate_of in marked.items() if rate_of is not None)
        dimensions: dict[str, tuple[str, ...]] = {f"lr.{lead}": (f"lr.{lead}", *(f"server_lr.{name}" for name in led))}
        dimensions |= _optimisers(method.server) if "server" in fields else {}
        dimensions |= _together("the other step sizes", rest)
        if own:
            dimensions["server_lr"] = tuple(f"server_lr.{name}" for name in own)
        dimensions |= {name: (name,) for name, rate_of in marked.items() if rate_of is None}
        return cls(base, dimensions, follows)

    def places(self) -> list[Place]:
        """Return the candidates to begin with: a grid of the first two dimensions."""
        if len(self.dimensions) == 1:
            return [(float(alone),) for alone in ALONE]
        rest = (0.0,) * (len(self.dimensions) - 2)
        return [(float(first), float(second), *rest) for first in LEADING for second in FOLLOWING]

    def numbers(self, place: Place) -> dict[str, float]:
        """Return the numbers of a candidate, by their dotted names; a number may be part of two dimensions."""
        powers: dict[str, float] = {}
        for names, power in zip(self.dimensions.values(), place):
            for name in names:
                powers[name] = powers.get(name, 0.0) + power
        return {name: _number(self.base, name) * FACTOR**power for name, power in powers.items()}

    def method(self, place: Place) -> Any:
        """Return the method of a candidate."""
        made = self.base
        for name, value in self.numbers(place).items():
            made = set_field(made, name, value)
        if self.follows and place[list(self.dimensions).index("server_lr")] == 0:
            made = dataclasses.replace(made, server_lr=None)
        return made


def _with_server_lr(method: Any, fields: Mapping[str, Any]) -> tuple[Any, bool, list[str]]:
    """A method with `server_lr` as numbers, whether it was left out, and its entries. Left out, it is `lr`, unless the
    server has an optimiser, which takes its place."""
    if not isinstance(fields.get("server_lr"), RatesField):
        return method, False, []
    given = method.server_lr
    if given is None:
        plain = "server" not in fields or isinstance(method.server, PlainServer)
        if not plain:
            return method, False, []
        return dataclasses.replace(method, server_lr=method.lr), True, list(method.lr.entries())
    made = given if isinstance(given, Rates) else Rates(given)
    return dataclasses.replace(method, server_lr=made), False, list(made.entries()) if _are_numbers(made) else []


def _lead_and_others(names: list[str]) -> tuple[str, list[str]]:
    lead = "x" if "x" in names else names[0]
    return lead, [name for name in names if name != lead]


def _optimisers(server: Any) -> dict[str, tuple[str, ...]]:
    """The step sizes of a server's optimisers, as dimensions: the numbers that are given as `learning_rate`."""
    has_rate = lambda one: is_number(one.options.get("learning_rate")) if isinstance(one, ServerOptimiser) else False
    if has_rate(server):
        return {"server.learning_rate": ("server.learning_rate",)}
    if isinstance(server, EachSequence) and has_rate(server.optimiser):
        return {"server.optimiser.learning_rate": ("server.optimiser.learning_rate",)}
    if not isinstance(server, PerSequence):
        return {}
    names = [name for name, optimiser in server.optimisers.items() if has_rate(optimiser)]
    if not names:
        return {}
    lead, others = _lead_and_others(names)
    found: dict[str, tuple[str, ...]] = {f"server.{lead}.learning_rate": (f"server.{lead}.learning_rate",)}
    rest = tuple(f"server.{name}.learning_rate" for name in others)
    return found | _together("the server's other step sizes", rest)


def _together(name: str, numbers: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """One dimension of some numbers, under this name; a single number goes by its own name."""
    if not numbers:
        return {}
    return {numbers[0] if len(numbers) == 1 else name: numbers}


class _Search:
    """The candidates that were tried, their scores, and their cost."""

    def __init__(self, experiment: Subject, grid: Grid):
        self.experiment, self.grid = experiment, grid
        self.assembly = experiment.assemble(tuning=True)
        self.falling = known_direction(self.assembly.main_metric, self.assembly.falling)
        self.cost = probe(experiment, tuning=True).gradients
        self.table, self.spent = Table(), 0
        self.scores: dict[Place, Score] = {}
        self.tolerance = self.loss_tolerance = 0.0
        double = experiment.arguments(self.assembly).get("precision") == "float64"
        self.rounding = ROUNDINGS * float(np.finfo(np.float64 if double else np.float32).eps)

    def run(self, places: list[Place], rounds: int, stage: str) -> None:
        """Run candidates side by side, and keep their scores."""
        metric = self.assembly.main_metric
        results = _try(self.experiment, self.assembly, [self.grid.method(place) for place in places], rounds, rounds)
        for place, result in zip(places, results):
            first, value = (float(result.history[metric][at]) for at in (0, -1))
            score = _score(metric, self.falling, result, value)
            losses = [name for name in ("loss", "loss mean") if name in result.history]
            start, loss = (float(result.history[losses[0]][at]) if losses else 0.0 for at in (0, -1))
            self.scores[place] = Score(score, loss if math.isfinite(loss) else math.inf)
            self.tolerance = max(self.tolerance, self.rounding * abs(first) if math.isfinite(first) else 0.0)
            self.loss_tolerance = max(self.loss_tolerance, self.rounding * abs(start) if math.isfinite(start) else 0.0)
            self.spent += result.ledger.gradients
            row = {"method": self.experiment.method_name, "stage": stage, "rounds": rounds, **self.grid.numbers(place)}
            self.table.append(row | {metric: math.nan if math.isinf(score) else value})

    def best(self) -> Place:
        """The candidate to take."""
        return select(self.scores, self.tolerance, self.loss_tolerance)

    def nearest(self) -> Place:
        """The best candidate that is nearest to the method's own step sizes: on a plateau, no reason to go farther."""
        return min(best_places(self.scores, self.tolerance, self.loss_tolerance), key=_by_distance)

    def values(self) -> dict[str, list[float]]:
        """The values that were tried of every number, in order."""
        tried = [self.grid.numbers(place) for place in self.scores]
        distinct = {name: {float(f"{numbers[name]:.12g}") for numbers in tried} for name in tried[0]}
        return {name: sorted(values) for name, values in distinct.items()}

    def widen(self, rounds: int, budget: float, say: Callable[[str], Any]) -> tuple[str, ...]:
        """Try candidates beyond the edges while the best is on one; return the edges that are left."""
        names = list(self.grid.dimensions)
        while edges := self._edges(self.nearest()):
            if self.spent + rounds * self.cost > budget:
                return tuple(dict.fromkeys(names[dimension] for dimension, _ in edges))
            dimension, beyond = edges[0]
            say(f"{self.experiment.method_name}: the best is on the edge in {names[dimension]}, which is widened")
            self.run([beyond], rounds, "wider")
        return ()

    def _edges(self, best: Place) -> list[tuple[int, Place]]:
        """Where nothing beyond the best was tried: the dimension, and the candidate that is next."""
        found = []
        for dimension, power in enumerate(best):
            for step in (1.0, -1.0):
                next_to = (*best[:dimension], power + step, *best[dimension + 1 :])
                if not any((place[dimension] - power) * step > 1e-9 for place in self.scores):
                    found.append((dimension, next_to))
        return found


def _number(owner: Any, name: str) -> float:
    """A number of a method by its dotted name."""
    for part in name.split("."):
        if isinstance(owner, Rates):
            owner = owner.entries()[part]
        elif isinstance(owner, ServerOptimiser):
            owner = owner.options[part]
        elif isinstance(owner, PerSequence):
            owner = owner.optimisers[part]
        else:
            owner = getattr(owner, part)
    return float(owner)


def is_number(value: Any) -> bool:
    """Whether a value is one number, which a factor can scale."""
    array = np.asarray(value) if np.isscalar(value) or hasattr(value, "dtype") else np.asarray("")
    return array.ndim == 0 and array.dtype.kind in "fiu"


def scales(method: Any) -> dict[str, str | None]:
    """Find the numbers of a method and its parts that are marked as scales or called step sizes (`..._lr`), by their
    dotted names; each with the sequence whose step size it is, if it is one."""
    found: dict[str, str | None] = {}
    for name, meaning in meanings(type(method)).items():
        value = getattr(method, name)
        scaled = isinstance(meaning, NumberField) and (meaning.scale or meaning.rate_of or name.endswith("_lr"))
        if scaled and is_number(value):
            found[name] = meaning.rate_of  # type: ignore[union-attr]
        elif is_part(value) and not isinstance(value, Rates):
            found |= {f"{name}.{inner}": rate_of for inner, rate_of in scales(value).items()}
    return found


def choose(
    experiment: Subject, methods: Sequence[Any], exchanges: int, say: Callable[[str], Any] = lambda text: None
) -> Tuning:
    """Tries some settings of a method, each for the same number of exchanges, and takes the one that is best all along.

    A setting's score is the mean of the main metric over all rounds, the area under its curve: it asks for a fast
    beginning and a good end. As in `tune`, it is taken on validation examples, never on the test set, and a setting
    that diverges is the worst.

    Args:
      methods: the settings; those with equal numbers of local steps run side by side in one program.
      exchanges: how many each gets, rounded to whole rounds, one at least.
      say: called with a sentence about every group.
    """
    assembly = experiment.assemble(tuning=True)
    falling = known_direction(assembly.main_metric, assembly.falling)
    rounds = max(1, round(exchanges / probe(experiment, tuning=True).exchanges))
    groups: dict[str, list[Any]] = {}
    for method in methods:
        groups.setdefault(str([getattr(method, name, None) for name in WORK]), []).append(method)
    table, spent, scores = Table(), 0, []
    for group in groups.values():
        say(f"{experiment.method_name}: {len(group)} settings for {rounds} rounds")
        for method, result in zip(group, _try(experiment, assembly, group, rounds, 1)):
            curve = result.history[assembly.main_metric][1:]
            value = float(np.mean(curve)) if curve.size else math.nan
            score = _score(assembly.main_metric, falling, result, value)
            scores.append((score, method))
            spent += result.ledger.gradients
            shown = {"method": experiment.method_name, "setting": settings(method), "rounds": rounds}
            table.append(shown | {assembly.main_metric: math.nan if math.isinf(score) else value})
    best, method = min(scores, key=lambda pair: pair[0])
    if math.isinf(best):
        raise InputError(f"tune: every setting of {experiment.method_name} diverged; give smaller rates")
    return Tuning(method, table, spent)


def settings(method: Any) -> str:
    """The settings of a method that are not its defaults, as a line of text."""
    usual, shown = type(method)(lr=method.lr), []
    for each in dataclasses.fields(method):
        value = getattr(method, each.name)
        if isinstance(value, Rates):
            shown.append(f"{each.name} {', '.join(_rate(*entry) for entry in value.entries().items())}")
        elif encode(value) != encode(getattr(usual, each.name)):
            shown.append(f"{each.name} {value}")
    return "; ".join(shown)


def _score(metric: str, falling: bool, result: Result, value: float) -> float:
    """A value of the main metric as a number to minimise; infinite for a run that diverged."""
    if result.status == "diverged" or not math.isfinite(value) or exploded_metric(result.history, metric, falling):
        return math.inf
    return value if falling else -value


def _rate(name: str, rate: Any) -> str:
    return f"{rate if callable(rate) else format(rate, '.3g')} ({name})"


def _try(experiment: Subject, assembly: Assembly, methods: list[Any], rounds: int, every: int) -> list[Result]:
    """The results of some settings of a method on an assembly for tuning, side by side."""
    arguments: dict[str, Any] = experiment.arguments(assembly) | {"stop": None}
    engine = arguments.pop("engine", None)  # settings go over the devices of a mesh; no other engine has a say
    engine = engine if engine == "mesh" or isinstance(engine, Mesh) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        return sweep(
            method=experiment.method, over={"method": methods}, rounds=rounds, every=every, engine=engine, **arguments
        ).results
