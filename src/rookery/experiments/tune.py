"""Tuning step sizes by successive halving, on validation data, with a budget that is the same for every method."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.errors import AdviceWarning, InputError
from rookery.experiments.codec import decode, encode
from rookery.experiments.experiment import Experiment
from rookery.federation.rates import Rates
from rookery.runs.result import Result
from rookery.runs.run import run
from rookery.runs.sweep import sweep
from rookery.runs.table import Table
from rookery.tasks.base import Assembly

# Twelve candidates, the best four of them again for longer, the best two of those: each time a third of the budget.
HALVING = (12, 4, 2)
LEADING, FOLLOWING = (1 / 9, 1 / 3, 1.0, 3.0), (1 / 3, 1.0, 3.0)  # times the rate of x, and those of all others
ALONE = tuple(2.0 ** np.linspace(-5, 4, 12))  # where there is one rate

WORK = ("local_steps", "lower_steps", "upper_steps")  # fields of methods that say how long a round takes


@dataclass(frozen=True)
class Cost:
    """What one round of an experiment costs."""

    exchanges: float
    gradients: float


def probe(experiment: Experiment, tuning: bool = False) -> Cost:
    """The cost of a round, measured: three are run, since the first may be special, with rates that move nothing."""
    arguments: dict[str, Any] = experiment.arguments(experiment.assemble(tuning)) | {"stop": None, "metrics": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)  # told when the run itself begins
        history = run(method=_still(experiment.method), rounds=3, every=1, **arguments).history
    return Cost(*((history[name][-1] - history[name][1]) / 2 for name in ("exchanges", "gradients")))


def _still(method: Any) -> Any:
    """A method with rates so small that it cannot diverge, where they are numbers."""
    given = getattr(method, "lr", None)
    lr = given if isinstance(given, Rates) else Rates(given)
    if given is None or not _are_numbers(lr):
        return method
    return dataclasses.replace(method, lr=lr.map(lambda rate: min(float(rate), 1e-6)))


def _are_numbers(lr: Rates) -> bool:
    return all(np.isscalar(rate) and not callable(rate) for rate in lr.entries().values())


@dataclass(frozen=True)
class Tuning:
    """What tuning found: the method with its best rates, every candidate in a table, and what it cost."""

    method: Any
    table: Table
    gradients: int

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {"method": encode(self.method), "table": self.table.rows, "gradients": self.gradients}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], classes: Mapping[str, type[Any]] | None = None) -> Tuning:
        """What `to_json` gave."""
        return cls(decode(kept["method"], classes), Table(kept["table"]), kept["gradients"])


def tune(experiment: Experiment, budget: float, say: Callable[[str], Any] = lambda text: None) -> Tuning:
    """Searches the step sizes of an experiment's method.

    Candidates scale the method's own rates: that of x by 1/9, 1/3, 1, 3 and those of all other sequences together by
    1/3, 1, 3; a method with one rate has twelve factors from 1/32 to 16. All run side by side in one program; the best
    four run again, from the start, for three times as many rounds, and the best two of those for twice as many again.
    Ties are broken by the loss, where the task has one, and then in favour of the method's own rates.

    Args:
      budget: gradient evaluations to spend at most, over all clients and candidates.
      say: called with a sentence about every stage.

    The metrics are those of the assembly for tuning: validation examples, which are part of no client's data, and
    never the test set. A candidate that diverges is the worst.
    """
    if not 0 < budget < math.inf:
        raise InputError(f"tune budget: {budget} was given; a positive number of gradient evaluations is needed")
    assembly = experiment.assemble(tuning=True)
    cost = probe(experiment, tuning=True).gradients
    methods, shown, far = candidates(experiment.method)
    table, spent, alive = Table(), 0, list(range(len(methods)))
    for stage, kept in enumerate(HALVING):
        rounds = int(budget / len(HALVING) / (kept * cost))
        if rounds < 1:
            raise InputError(
                f"tune budget: {budget:.4g} gradient evaluations were given for {experiment.method_name}, whose round "
                f"takes {cost:.4g}; at least {math.ceil(len(HALVING) * HALVING[0] * cost)} are needed"
            )
        say(f"{experiment.method_name}: {len(alive)} candidates for {rounds} rounds")
        scores = {}
        for i, result in zip(alive, _try(experiment, assembly, [methods[i] for i in alive], rounds, rounds)):
            value = float(result.history[assembly.main_metric][-1])
            score = _score(assembly, result, value)
            loss = float(result.history["loss"][-1]) if "loss" in result.history else 0.0
            scores[i] = (score, loss, far[i])
            spent += result.ledger.gradients
            row = {"method": experiment.method_name, "stage": stage + 1, "rounds": rounds, **shown[i]}
            table.append(row | {assembly.main_metric: math.nan if math.isinf(score) else value})
        following = HALVING[stage + 1] if stage + 1 < len(HALVING) else 1
        alive = sorted(alive, key=lambda i: scores[i])[:following]
    if math.isinf(scores[alive[0]][0]):
        raise InputError(
            f"tune: every candidate of {experiment.method_name} diverged; give smaller rates to begin with"
        )
    return Tuning(methods[alive[0]], table, spent)


def choose(
    experiment: Experiment, methods: Sequence[Any], exchanges: int, say: Callable[[str], Any] = lambda text: None
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


def _try(experiment: Experiment, assembly: Assembly, methods: list[Any], rounds: int, every: int) -> list[Result]:
    """The results of some settings of a method on an assembly for tuning, side by side."""
    arguments: dict[str, Any] = experiment.arguments(assembly) | {"stop": None, "engine": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        return sweep(
            method=experiment.method, over={"method": methods}, rounds=rounds, every=every, **arguments
        ).results


def candidates(method: Any) -> tuple[list[Any], list[dict[str, float]], list[float]]:
    """Twelve settings of a method's rates, the rates of each, and how far they are from the method's own."""
    if not hasattr(method, "lr"):
        raise InputError(f"tune: {type(method).__name__} has no lr to be tuned; compare it without --tune")
    lr = method.lr if isinstance(method.lr, Rates) else Rates(method.lr)
    rates = dict(lr.entries())
    if not _are_numbers(lr):
        raise InputError(f"tune: {type(method).__name__} has rates that are no numbers; give numbers to be tuned")
    own = getattr(method, "client_lr", None)  # of a sequence that stays on its client
    lead = "x" if "x" in rates else next(iter(rates))
    several = len(rates) > 1 or own is not None
    pairs = list(itertools.product(LEADING, FOLLOWING)) if several else [(factor, 1.0) for factor in ALONE]
    methods, shown = [], []
    for leading, following in pairs:
        scaled = {name: float(rate * (leading if name == lead else following)) for name, rate in rates.items()}
        changes: dict[str, Any] = {"lr": lr.replace(**scaled)}
        if own is not None:
            changes["client_lr"] = scaled["client"] = float(own * following)
        methods.append(dataclasses.replace(method, **changes))
        shown.append({f"lr.{name}": rate for name, rate in scaled.items()})
    return methods, shown, [abs(math.log(leading)) + abs(math.log(following)) for leading, following in pairs]
