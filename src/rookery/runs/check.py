"""What every method must hold, as a public harness: `rk.check(method)` and `rookery check FILE.py:Class`.

The library's own methods are held to it by the tests, as scikit-learn's estimators are by `check_estimator`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from rookery.engines.local import Local
from rookery.errors import AdviceWarning, DivergenceWarning, InputError
from rookery.federation.method import is_method
from rookery.federation.rates import Decay, Rates
from rookery.federation.sampling import Bernoulli, Sampling, Weighted, WithReplacement
from rookery.federation.stages import Stage
from rookery.memory import free_compiled_programs
from rookery.problems.base import Problem
from rookery.problems.exact import (
    JointConsensus,
    LinearComposition,
    QuadraticBilevel,
    QuadraticConsensus,
    QuadraticMinimax,
)
from rookery.runs.analysis import fixed_point
from rookery.runs.check_declared import cohorts_agree, draws_and_counts, is_stable
from rookery.runs.check_runs import RATE, SMALL, checked_run, distance, field_names, flat, with_lr
from rookery.runs.check_settings import (
    clients_keep_their_rates,
    conserves,
    converges,
    decays_weights,
    fields_matter,
    follows_schedules,
    fresh_draws,
    same_runs_as,
    several_steps,
    stays_in_sets,
    step_sizes_scale,
)
from rookery.runs.check_stage import check_stage
from rookery.runs.findings import Finding, Findings, examined
from rookery.runs.result import Result
from rookery.runs.retracing import verifies
from rookery.runs.run import run

CLIENTS, ON_A_GRAPH = 3, 4  # a ring of three is a complete graph

# Problems with known answers, weighted and ragged, x and y of different sizes.
PROBLEMS: dict[str, Callable[[int], Any]] = {
    "single": lambda clients: QuadraticConsensus.random(clients=clients, dims=3, weights="random", seed=4),
    "bilevel": lambda clients: QuadraticBilevel.random(clients=clients, dims=(2, 3), weights="random", seed=1),
    "bilevel, own lower level": lambda clients: QuadraticBilevel.random(
        clients=clients, dims=(2, 3), weights="random", seed=1, local=True
    ),
    "compositional": lambda clients: LinearComposition.random(
        clients=clients, dims=(2, 3, 2), weights="random", seed=2
    ),
    "joint": lambda clients: JointConsensus.random(clients=clients, dims=3, weights="random", seed=4),
    "minimax": lambda clients: QuadraticMinimax.random(clients=clients, dims=(2, 3), weights="random", seed=3),
}

SCHEMES: dict[str, Sampling] = {  # besides the uniform one, which the other checks have
    "with replacement": WithReplacement(2),
    "Bernoulli": Bernoulli(0.6),
    "weighted": Weighted([0.5, 0.7, 0.8]),
}


def check(method: Any, like: Any = None) -> Findings:
    """Check that a method does what every method promises, or a stage of a channel what every stage promises.

    A method is run on the problems with known answers that it solves. The rows of the table are described on the page
    "Write your own method". A stage packs and unpacks arrays of several shapes; its declarations (random, unbiased,
    contracting) are verified, and it runs on all engines.

    Args:
      method: Method, such as `Mine(lr=rk.Rates(0.1))`, or its class, which is then made with `lr=rk.Rates(0.1)`; or a
        stage, such as `rk.TopK(0.1)`, or its class.
      like: Method, or its class, that must give the same runs, such as the library's version of a method that you wrote
        yourself; None: there is none.

    Returns:
      `Findings`: true if everything holds; printed as a table.
    """
    cls = method if isinstance(method, type) else type(method)
    if issubclass(cls, Stage):
        if like is not None:
            raise InputError("like must be None for a stage; only methods are compared.")
        return check_stage(method() if isinstance(method, type) else method)
    if not is_method(cls):
        raise InputError(f"method: {cls.__name__} was given, which is no method; make it one with @rk.method")
    other = like if like is None or isinstance(like, type) else type(like)
    if other is not None and not is_method(other):
        raise InputError(f"like must be a method or None; got {other.__name__}.")
    method, like = (_made(each) for each in (method, like))
    return Findings(cls.__name__, list(findings_of(method, like)))


def _made(method: Any) -> Any:
    """A method from its class, with a step size; an instance as it is."""
    if not isinstance(method, type):
        return method
    return method(**({"lr": Rates(RATE)} if "lr" in field_names(method) else {}))


def findings_of(method: Any, like: Any = None) -> Iterator[Finding]:
    """The findings about a method one by one, as each check ends."""
    clients = ON_A_GRAPH if method.neighbours else CLIENTS
    fitting = {name: make(clients) for name, make in PROBLEMS.items() if fits(method, name)}
    if not fitting:
        raise InputError(
            f"method: {type(method).__name__} solves {method.kinds}; no problem with a known answer is of that kind."
        )
    if like is not None and not any(fits(like, name) for name in fitting):
        raise InputError(f"like must solve a problem that {type(method).__name__} solves; got {type(like).__name__}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        warnings.simplefilter("ignore", DivergenceWarning)
        for number, (name, exact) in enumerate(fitting.items()):
            for what, examine in CHECKS.items():
                if number == 0 or what in EVERYWHERE:
                    finding = examined(what, examine, name, method, exact)
                    yield finding
                    free_compiled_programs()
                    if what == "runs" and not finding.holds:
                        return
            if like is not None and fits(like, name):
                yield examined(f"like {type(like).__name__}", same_runs_as(like), name, method, exact)


def fits(method: Any, name: str) -> bool:
    """Whether a method solves one of `PROBLEMS`."""
    problem: Problem = PROBLEMS[name](CLIENTS).problem
    scopes = "local" in method.scopes if problem.local else "shared" in method.scopes
    return scopes and (method.kinds is None or problem.kind in method.kinds)


def runs(method: Any, exact: Any) -> str:
    """It does some rounds, moves, and stays finite."""
    result = checked_run(with_lr(method, Rates(SMALL)), exact)
    assert result.status == "done", f"it diverges at step sizes of {SMALL}: {result.divergence}"
    begun = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    moved = max(
        float(np.abs(flat(result.sequences[n]) - flat(begun[n])).max()) for n in exact.problem.shared if n in begun
    )
    assert moved > 0, "nothing has moved after six rounds"
    return f"moved by {moved:.2g} in six rounds"


def rests_at_the_solution(method: Any, exact: Any) -> str:
    """Its fixed point is the solution, or comes to it as the steps shrink, unless the method says it is biased."""
    errors = []
    for scale in (1.0, 2**-5, 2**-6):
        try:
            point = fixed_point(
                exact.problem, with_lr(method, Rates(RATE * scale)), exact.clients, **exact.start(leaves=2)
            )
        except InputError as refused:
            assert "affine" in str(refused), str(refused)
            return "not checked: a round of it is no affine map"
        errors.append(float(np.abs(point.flat("x") - exact.solution()).max()))
    full, coarse, fine = errors
    if full < 1e-8:
        return f"exact, to {full:.1g}"
    if abs(coarse / fine / 2 - 1) < 0.1:
        return f"of the order of the step size: off by {full:.2g} at {RATE}"
    assert method.biased, f"it rests off the solution by {full:.2g}, and by {fine:.2g} at steps 64 times as small"
    return f"biased, as it says: off by {full:.2g}"


def engines_agree(method: Any, exact: Any) -> str:
    """Compiled, client by client and side by side: the same numbers and the same costs."""
    method = with_lr(method, Rates(SMALL))
    compiled, worst = checked_run(method, exact), 0.0
    for engine in ("eager", Local(at_once=2)):
        where = "client by client" if engine == "eager" else "with clients side by side"
        worst = max(worst, _same_run(compiled, checked_run(method, exact, engine=engine), where))
    return f"compiled, client by client and side by side, to {worst:.1g}"


def _same_run(one: Result, other: Result, where: str) -> float:
    apart = distance(one, other)
    assert apart <= 1e-11, f"it is another run {where}: apart by {apart:.2g}"
    assert one.ledger == other.ledger, f"it costs something else {where}"
    return apart


def samples_clients(method: Any, exact: Any) -> str:
    """Under every sampling scheme it runs, and is the same compiled and client by client."""
    if method.participation == "all":
        return "not checked: it needs all clients"
    method, worst = with_lr(method, Rates(SMALL)), 0.0
    for name, scheme in SCHEMES.items():
        compiled, eager = (checked_run(method, exact, sampling=scheme, engine=engine) for engine in ("local", "eager"))
        worst = max(worst, _same_run(compiled, eager, f"client by client, under {name} sampling"))
    return f"{', '.join(SCHEMES)}, to {worst:.1g}"


def takes_schedules(method: Any, exact: Any) -> str:
    """A schedule that is constant is that constant."""
    if "lr" not in field_names(type(method)):
        return "it has no lr"
    apart = distance(
        checked_run(with_lr(method, Rates(SMALL)), exact),
        checked_run(with_lr(method, Rates(Decay(SMALL, power=0.0))), exact),
    )
    assert apart <= 1e-12, f"a constant schedule is not that constant: apart by {apart:.2g}"
    return "rk.Decay as a number"


def order_of_clients(method: Any, exact: Any) -> str:
    """With full batches, clients in another order give the same trajectory."""
    if method.neighbours:
        return "may matter: neighbours are by their place"
    method, order = with_lr(method, Rates(SMALL)), [2, 0, 1]
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    options = {"rounds": 6, "precision": "float64", **start}
    first = run(exact.problem, method, exact.clients, **options)
    asked, answered = first.ledger.exchanges_of, first.ledger.replies_of
    if any(answered[phase] < exact.clients.population * asked[phase] for phase in asked):
        return "may matter: it picks clients by itself, by their place in the cohort"
    other = run(exact.problem, method, exact.clients.subset(order), **options)
    shared = exact.problem.shared
    apart = max(float(np.abs(flat(first.sequences[n]) - flat(other.sequences[n])).max()) for n in shared)
    assert apart <= 1e-11, f"clients in another order give another run: apart by {apart:.2g}"
    return f"does not matter, to {apart:.1g}"


def keeps_precision(method: Any, exact: Any) -> str:
    """Everything stays in the run's floating-point type."""
    for precision in ("float32", "float64"):
        result = checked_run(with_lr(method, Rates(SMALL)), exact, precision=precision, rounds=2)
        kinds = {str(leaf.dtype) for leaf in result.state.leaves if leaf.dtype.kind == "f"}
        assert kinds == {precision}, f"a {precision} run holds {', '.join(sorted(kinds))}"
    return "float32 and float64"


def compiles_once(method: Any, exact: Any) -> str:
    """Other step sizes and another seed compile nothing."""
    if verifies():
        return "not checked: every run traces its program again"
    checked_run(with_lr(method, Rates(SMALL)), exact, rounds=3)
    with _compilations() as count:
        checked_run(with_lr(method, Rates(SMALL / 2)), exact, rounds=5, seed=6)
    assert count[0] == 0, f"other step sizes and another seed compile {count[0]} programs anew"
    return "other numbers compile nothing"


@contextmanager
def _compilations() -> Iterator[list[int]]:
    """How many programs are compiled meanwhile."""
    count, listening = [0], True

    def listen(event: str, duration: float, **_: Any) -> None:
        if listening and event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            count[0] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)  # type: ignore[arg-type]
    try:
        yield count
    finally:
        listening = False


def goes_on(method: Any, exact: Any) -> str:
    """Stopped and continued, it ends where it would have."""
    method = with_lr(method, Rates(SMALL))
    whole, half = checked_run(method, exact), checked_run(method, exact, rounds=3)
    rest = checked_run(method, exact, rounds=3, state=half.state)
    assert distance(whole, rest) == 0, f"stopped and continued it is another run: apart by {distance(whole, rest):.2g}"
    return "bit for bit"


def costs(method: Any, exact: Any) -> str:
    """Every round takes the same exchanges; how many, and how many numbers, is told."""
    result = checked_run(with_lr(method, Rates(SMALL)), exact, every=1)
    exchanges = np.diff(result.history["exchanges"])
    assert exchanges.min() > 0, "a round takes place without an exchange"
    cohort = result.ledger.replies / result.ledger.exchanges
    per = lambda total: f"{total / cohort / result.state.round:g}"
    return (
        f"{exchanges.mean():g} exchanges a round; {per(result.ledger.floats_up)} numbers up and "
        f"{per(result.ledger.floats_down)} down for each client"
    )


CHECKS: dict[str, Callable[[Any, Any], str]] = {
    "runs": runs,
    "fixed point": rests_at_the_solution,
    "stable": is_stable,
    "cohorts": cohorts_agree,
    "draws and counts": draws_and_counts,
    "local steps": several_steps,
    "converges": converges,
    "conserves": conserves,
    "step sizes": step_sizes_scale,
    "fields": fields_matter,
    "switched schedule": follows_schedules,
    "rates per client": clients_keep_their_rates,
    "fresh draws": fresh_draws,
    "sets": stays_in_sets,
    "weight decay": decays_weights,
    "engines agree": engines_agree,
    "sampling": samples_clients,
    "schedules": takes_schedules,
    "order of clients": order_of_clients,
    "precision": keeps_precision,
    "compiles once": compiles_once,
    "goes on": goes_on,
    "costs": costs,
}
EVERYWHERE = ("runs", "fixed point", "stable", "engines agree")  # on every problem that fits; the others on the first
