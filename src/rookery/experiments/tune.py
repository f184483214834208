"""Tuning step sizes by successive halving, on validation data, with a budget that is the same for every method."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.engines.mesh import Mesh
from rookery.errors import AdviceWarning, InputError
from rookery.experiments.codec import decode, encode
from rookery.experiments.subject import Subject
from rookery.federation.codec import is_part
from rookery.federation.fields import NumberField, meanings
from rookery.federation.rates import Rates
from rookery.runs.result import Result
from rookery.runs.run import run
from rookery.runs.sweep import set_field, sweep
from rookery.runs.table import Table
from rookery.tasks.base import Assembly

# Twelve candidates, the best four of them again for longer, the best two of those: each time a ninth of the budget. The
# rest is for widening, twelve steps of it: going on where the best is on the edge of what was tried.
HALVING = (12, 4, 2)
PARTS = 9  # of the budget, one for each stage of halving
FACTOR = 3.0  # between neighbours on a grid
LEADING, FOLLOWING = (-2, -1, 0, 1), (-1, 0, 1)  # powers of it: of the rate of x, and of those of all others
ALONE = tuple(np.linspace(-5, 4, 12) * math.log(2) / math.log(FACTOR))  # where there is one rate: 2^-5 to 2^4

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
        warnings.simplefilter("ignore", AdviceWarning)  # told when the run itself begins
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
    """What tuning found: the method with its best rates, every candidate in a table, and what it cost."""

    method: Any
    table: Table
    gradients: int
    edges: tuple[str, ...] = ()  # what was still best at an edge of what was tried when the budget was spent

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        kept = {"table": self.table.rows, "gradients": self.gradients, "edges": list(self.edges)}
        return {"method": encode(self.method), **kept}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], classes: Mapping[str, type[Any]] | None = None) -> Tuning:
        """What `to_json` gave."""
        method = decode(kept["method"], classes)
        return cls(method, Table(kept["table"]), kept["gradients"], tuple(kept.get("edges", ())))


def tune(experiment: Subject, budget: float, say: Callable[[str], Any] = lambda text: None) -> Tuning:
    """Searches the step sizes of an experiment's method, and the other numbers that it marks as scales.

    Candidates scale the method's own rates: that of x by 1/9, 1/3, 1, 3 and those of all other sequences together by
    1/3, 1, 3; a method with one rate has twelve factors from 1/32 to 16. All run side by side in one program; the best
    four run again, from the start, for three times as many rounds, and the best two of those for twice as many again.
    With the other two thirds of the budget the grid is **widened**: where the best is the largest or the smallest of
    what was tried, in a rate or in a number that a field marks as a scale (a Neumann step), the next one is tried,
    three times as large or small, until it is not the best any more. Where the budget ends before, `edges` says so.
    Ties are broken by the loss, where the task has one, and then in favour of the method's own rates.

    Args:
      budget: gradient evaluations to spend at most, over all clients and candidates.
      say: called with a sentence about every stage.

    The metrics are those of the assembly for tuning: validation examples, which are part of no client's data, and
    never the test set. A candidate that diverges is the worst.
    """
    if not 0 < budget < math.inf:
        raise InputError(f"tune budget: {budget} was given; a positive number of gradient evaluations is needed")
    search = _Search(experiment, Grid.of(experiment.method))
    name, cost = experiment.method_name, search.cost
    alive, rounds = search.grid.places(), 0
    for stage, kept in enumerate(HALVING):
        rounds = int(budget / PARTS / (kept * cost))
        if rounds < 1:
            raise InputError(
                f"tune budget: {budget:.4g} gradient evaluations were given for {name}, whose round takes {cost:.4g}; "
                f"at least {math.ceil(PARTS * HALVING[0] * cost)} are needed"
            )
        say(f"{name}: {len(alive)} candidates for {rounds} rounds")
        scores = search.score(alive, rounds, str(stage + 1))
        following = HALVING[stage + 1] if stage + 1 < len(HALVING) else 1
        alive = sorted(alive, key=lambda place: scores[place])[:following]
    best = alive[0]
    if math.isinf(scores[best][0]):
        raise InputError(f"tune: every candidate of {name} diverged; give smaller rates to begin with")
    best, edges = search.widen(best, scores[best], rounds, budget, say)
    if edges:
        say(
            f"{name}: the budget ended with the best at the edge of what was tried in {', '.join(edges)}; a larger "
            "tune budget goes on from there"
        )
    return Tuning(search.grid.method(best), search.table, search.spent, edges)


Place = tuple[float, ...]  # of a candidate on the grid: a power of FACTOR for each dimension


@dataclass(frozen=True)
class Grid:
    """What of a method is tuned: dimensions, each a factor of some of its numbers; at 0 all are the method's own."""

    base: Any
    dimensions: Mapping[str, tuple[str, ...]]  # name -> the numbers that it scales, by their dotted names
    paired: bool  # whether the second is that of the other rates

    @classmethod
    def of(cls, method: Any) -> Grid:
        """That of a method: its rate of x, its other rates, and every field that is a scale."""
        if not hasattr(method, "lr"):
            raise InputError(f"tune: {type(method).__name__} has no lr to be tuned; compare it without --tune")
        lr = method.lr if isinstance(method.lr, Rates) else Rates(method.lr)
        if not _are_numbers(lr):
            raise InputError(f"tune: {type(method).__name__} has rates that are no numbers; give numbers to be tuned")
        rates = list(lr.entries())
        lead = "x" if "x" in rates else rates[0]
        others = [f"lr.{name}" for name in rates if name != lead]
        marked = scales(method)
        others += [name for name, rate_of in marked.items() if rate_of is not None]
        dimensions: dict[str, tuple[str, ...]] = {f"lr.{lead}": (f"lr.{lead}",)}
        if others:
            dimensions["the other rates" if len(others) > 1 else others[0]] = tuple(others)
        dimensions |= {name: (name,) for name, rate_of in marked.items() if rate_of is None}
        return cls(dataclasses.replace(method, lr=lr), dimensions, bool(others))

    def places(self) -> list[Place]:
        """The candidates to begin with."""
        rest = (0.0,) * (len(self.dimensions) - (2 if self.paired else 1))
        if not self.paired:
            return [(float(alone), *rest) for alone in ALONE]
        return [(float(leading), float(other), *rest) for leading in LEADING for other in FOLLOWING]

    def numbers(self, place: Place) -> dict[str, float]:
        """The numbers of a candidate, by their dotted names."""
        return {
            name: _number(self.base, name) * FACTOR**power
            for names, power in zip(self.dimensions.values(), place)
            for name in names
        }

    def method(self, place: Place) -> Any:
        """The method of a candidate."""
        made = self.base
        for name, value in self.numbers(place).items():
            made = set_field(made, name, value)
        return made


class _Search:
    """The candidates that were tried, what they gave, and what that cost."""

    def __init__(self, experiment: Subject, grid: Grid):
        self.experiment, self.grid = experiment, grid
        self.assembly = experiment.assemble(tuning=True)
        self.cost = probe(experiment, tuning=True).gradients
        self.table, self.spent = Table(), 0
        self.tried: set[Place] = set()

    def score(self, places: list[Place], rounds: int, stage: str) -> dict[Place, tuple]:
        """Runs candidates side by side; what is small is good."""
        metric, scores = self.assembly.main_metric, {}
        results = _try(self.experiment, self.assembly, [self.grid.method(place) for place in places], rounds, rounds)
        for place, result in zip(places, results):
            value = float(result.history[metric][-1])
            score = _score(self.assembly, result, value)
            losses = [name for name in ("loss", "loss mean") if name in result.history]
            loss = float(result.history[losses[0]][-1]) if losses else 0.0
            scores[place] = (score, loss, sum(map(abs, place)))
            self.spent += result.ledger.gradients
            row = {"method": self.experiment.method_name, "stage": stage, "rounds": rounds, **self.grid.numbers(place)}
            self.table.append(row | {metric: math.nan if math.isinf(score) else value})
            self.tried.add(place)
        return scores

    def widen(
        self, best: Place, score: tuple, rounds: int, budget: float, say: Callable[[str], Any]
    ) -> tuple[Place, tuple[str, ...]]:
        """Goes on beyond the edges of what was tried while the best is on one: the best, and the edges left."""
        names = list(self.grid.dimensions)
        while edges := self._edges(best):
            if self.spent + rounds * self.cost > budget:
                return best, tuple(dict.fromkeys(names[dimension] for dimension, _ in edges))
            dimension, beyond = edges[0]
            say(f"{self.experiment.method_name}: the best is on the edge in {names[dimension]}, which is widened")
            found = self.score([beyond], rounds, "wider")[beyond]
            if found < score:
                best, score = beyond, found
        return best, ()

    def _edges(self, best: Place) -> list[tuple[int, Place]]:
        """Where nothing beyond the best was tried: the dimension, and the candidate that is next."""
        found = []
        for dimension, power in enumerate(best):
            for step in (1.0, -1.0):
                next_to = (*best[:dimension], power + step, *best[dimension + 1 :])
                if not any((place[dimension] - power) * step > 1e-9 for place in self.tried):
                    found.append((dimension, next_to))
        return found


def _number(owner: Any, name: str) -> float:
    """A number of a method by its dotted name."""
    for part in name.split("."):
        owner = owner.entries()[part] if isinstance(owner, Rates) else getattr(owner, part)
    return float(owner)


def scales(method: Any) -> dict[str, str | None]:
    """The numbers that a method's fields, or those of its parts, mark as scales, by their dotted names; with the
    sequence whose rate they are, if they are one."""
    found: dict[str, str | None] = {}
    for name, meaning in meanings(type(method)).items():
        value = getattr(method, name)
        if isinstance(meaning, NumberField) and (meaning.scale or meaning.rate_of) and value is not None:
            found[name] = meaning.rate_of
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
            score = _score(assembly, result, value)
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


def _score(assembly: Assembly, result: Result, value: float) -> float:
    """A value of the main metric as something to be small; infinite for a run that diverged."""
    if result.status == "diverged" or not math.isfinite(value):
        return math.inf
    return value if assembly.falling else -value


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
