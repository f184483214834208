"""Running one problem with one method: chunks of compiled rounds, evaluations between them."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Clients
from rookery.engines import find_engine
from rookery.engines.base import Carry, Engine, PreparedRun, Session
from rookery.engines.hosts import agreed, together
from rookery.engines.messaging import ClientsFailed
from rookery.errors import DivergenceWarning, InputError, StorageError, failing
from rookery.federation.evaluation import ClientMetrics
from rookery.federation.ledger import Ledger
from rookery.federation.method import has_start, observed, observes
from rookery.federation.sampling import All, Sampling
from rookery.federation.steps import check_count
from rookery.metric import Metrics, measure, split
from rookery.problems.base import Problem
from rookery.problems.penalty import check_penalty
from rookery.runs.checkpoint import Checkpoints, Saver, open_checkpoints, read_plan
from rookery.runs.divergence import concluded, sizes
from rookery.runs.fingerprint import fingerprint
from rookery.runs.forked import refuse_forked
from rookery.runs.interrupts import answered, heed, listening, pending, wait_for_turn
from rookery.runs.measured import awaited_rates, measured_run
from rookery.runs.own_metrics import OwnMetrics
from rookery.runs.prepare import precision_context, prepare
from rookery.runs.program_text import program_text
from rookery.runs.result import Divergence, Result, RunState, per_client
from rookery.runs.retracing import CODE, FIRST, code_of, compared, current_code, verify
from rookery.runs.table import COST, Table
from rookery.vectors import Values

EVALUATIONS = 50  # about this many rows of history, when `every` is not given
PATIENCE = 1.0  # seconds that a call into the program should take at most, so that an interrupt is heard


class Pace:
    """How many rounds a call into the program has: more, as long as it takes much less than PATIENCE."""

    def __init__(self) -> None:
        self.rounds = 1

    def took(self, rounds: int, seconds: float) -> None:
        """Notes how long a call of some rounds took."""
        if seconds < PATIENCE / 2 and rounds == self.rounds:
            self.rounds *= 2
        elif seconds > PATIENCE:
            self.rounds = max(1, self.rounds // 2)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM in the middle of a run, or of a sweep; `result` holds what was done: a `Result`, or a sweep's
    table."""

    def __init__(self, result: Any):
        where = f"round {result.state.round}" if isinstance(result, Result) else f"{len(result.rows)} runs of a sweep"
        super().__init__(f"interrupted after {where}")
        self.result = result


def run(
    problem: Problem,
    method: Any,
    clients: Clients,
    *,
    x: Any = None,
    y: Any = None,
    start: Mapping[str, Any] | None = None,
    rounds: int,
    sampling: Sampling | None = None,
    batch_size: Any = None,
    seed: int = 0,
    metrics: Metrics | None = None,
    client_metrics: ClientMetrics | None = None,
    every: int | None = None,
    stop: Mapping[str, Any] | None = None,
    engine: Any = "local",
    precision: str = "float32",
    up: Any = (),
    down: Any = (),
    callbacks: Iterable[Callable[[int, dict], Any]] = (),
    state: RunState | None = None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Solves a problem with a method over clients.

    Args:
      problem: what is solved, such as `rk.Bilevel(upper=..., lower=...)`.
      method: how, such as `rk.SimFBO(lr=rk.Rates(0.1))`; with `lr="auto"` step sizes are measured in an exchange before
        the first round.
      clients: who holds the data, from `rk.federate` or a dataset's `partition`.
      x, y: initial values, any pytrees of numbers, or functions of a key; for local sequences functions of
        (key, client's data).
      start: initial values of further sequences by name; those not given start at zero.
      rounds: how many rounds to do; with `state`, how many more.
      sampling: who takes part in a round: `rk.All()` (default), `rk.Uniform(m)`, `rk.WithReplacement(m)`,
        `rk.Bernoulli(p)` or `rk.Weighted(probabilities)`.
      batch_size: None, all of a client's examples in every step; an int, that many of them, uniform with replacement;
        `rk.Split(lower=, upper=)` sets the levels apart.
      seed: of everything random in the run.
      metrics: a function of the sequences (`z.x`; local ones with a leading axis of clients) to a dict of scalars;
        compiled, not counted in the ledger, evaluated between rounds.
      client_metrics: a function of the sequences and one example to a dict of numbers, whose means over each client's
        own test examples (`rk.federate(..., test=0.2)`) are measured where these are. The history has the mean over
        clients, that by their weights and the worst (the smallest; the largest, where the name has "loss" or "error" in
        it), and the result's `clients` a row per client.
      every: rounds between two evaluations; None: so that there are about 50.
      stop: ends the run early: a metric's name and the value it must reach (at least), or a function of its value
        that says True.
      engine: "local" (compiled), "mesh" (many devices), "streamed" (only the cohorts' data and records on the device;
        clients beyond memory go there by themselves), "eager" (client by client, the reference), or an engine such as
        `rk.Local(at_once=8)`.
      precision: "float32" or "float64"; or, on accelerators that have them, float32 numbers whose matrix products are
        made with the faster "tf32" or "bfloat16".
      up: what is done to every reply at its client, such as `[rk.TopK(0.01), rk.Quantise(8)]`,
        `rk.EF21(rk.TopK(0.01))`, a text (`"ef21:topk:0.01"`), or `rk.Per(x=..., y=...)` by sequence. The history
        counts what travels then.
      down: what is done to every vector that the server sends: stages that draw nothing, such as `rk.Quantise(8)`.
      callbacks: called with (round, history row) after every evaluation; one that has a method `compiling` is told
        when everything was checked and the program is compiled.
      state: a result's `state`, to continue from.
      checkpoints: `rk.Checkpoints(folder, every="30s")`: writes where the run stands, so that `rk.resume` can go on
        after anything that stops it.

    Returns:
      A `Result`. A run that meets a non-finite state stops there, warns, and keeps the last good state. A run that
      explodes and stays finite does all its rounds, and its result warns and has the status "diverged" as well.
    """
    refuse_forked()
    metrics, stop, every = check_arguments(rounds, metrics, stop, every)
    callbacks = check_callbacks(callbacks)
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        raise InputError(f'checkpoints: {checkpoints!r} was given; rk.Checkpoints("folder", every=10) is needed')
    code = code_of(problem, method, clients, sampling, metrics, client_metrics, up, down, x, y, start)
    with precision_context(precision), listening(), current_code(*code) as context, contextlib.ExitStack() as stack:
        awaited, method = awaited_rates(method, problem)
        whole = prepare(
            problem,
            method,
            clients,
            x=x,
            y=y,
            start=start,
            sampling=All() if sampling is None else sampling,
            batch_size=batch_size,
            seed=seed,
            precision=precision,
            up=up,
            down=down,
        )
        engine = _engine_for(engine, clients)
        _check_neighbours(engine, method)
        initial = sizes(whole.carry.values())
        here = whole.without_records() if getattr(engine, "elsewhere", False) else whole
        prepared, ledger, seconds = _resume(here, state)
        own = None
        if client_metrics is not None:
            own = OwnMetrics(client_metrics, clients, whole.carry, problem.local, whole.config.dtype)
        seen = observed_names(whole)
        names = check_metrics(metrics, stop, prepared.carry, (*seen, *(() if own is None else own.columns)))
        first = int(prepared.carry.state.round)
        prepared.inputs.sampling.check_rounds(first, rounds, prepared.config.population)
        check_penalty(problem, first, rounds)
        has_all = prepared.source is None and prepared.record is None  # examples in memory and no remote clients
        saver, previous = None, None
        if checkpoints is not None:
            asked = {"rounds": rounds, "every": every}
            text = partial(program_text, prepared, no_metrics, None) if has_all else None
            told = fingerprint(prepared, names, text)
            if awaited:
                told["set of measured rates"] = ", ".join(awaited)
            saver, previous = stack.enter_context(open_checkpoints(checkpoints, told, asked))
        if previous is not None:
            prepared, ledger, seconds = _resume(prepared, previous.state, getattr(engine, "folder", None))
        if awaited:
            before = state if previous is None else previous.state
            prepared, ledger = measured_run(prepared, awaited, engine, ledger, before)
        program = partial(program_text, prepared, metrics, own)
        if has_all:
            verify(program)
        if has_all and context != FIRST:
            stack.enter_context(compared(context, program))
        session = engine.open(prepared, ledger)
        if together():
            wait_for_turn()
        loop = _Loop(prepared, session, metrics, own, stop, callbacks, seconds, first, saver, initial)
        if previous is not None:
            loop.history = previous.history
        elif state is None and has_start(method):
            session.start()
        return loop.run(rounds, every, None if previous is None else previous.status)


def _engine_for(engine: Any, clients: Clients) -> Engine:
    """The engine that was asked for; clients whose examples are beyond memory need one that streams them."""
    found = find_engine("streamed" if clients.streamed and engine == "local" else engine)
    if not getattr(found, "elsewhere", False):
        clients.check_here()
    if clients.streamed and not getattr(found, "streams", False):
        raise InputError(
            f"engine: {engine!r} was given, and the clients' examples are not in memory; rk.Streamed(...) is needed"
        )
    return found


def _check_neighbours(engine: Engine, method: Any) -> None:
    """Refuses clients who talk to one another where they are elsewhere, and know the server alone."""
    if method.neighbours and getattr(engine, "elsewhere", False):
        raise InputError(
            f"method: {type(method).__name__} lets clients talk to their neighbours, and here each of them talks to "
            'the server alone; engine="local", "mesh", "streamed" or "eager" can run it'
        )


def observed_names(prepared: PreparedRun) -> tuple[str, ...]:
    """The columns that a method adds to the history."""
    method, carry = prepared.inputs.method, prepared.carry
    return tuple(jax.eval_shape(observed, method, carry.state, carry.records.state)) if observes(method) else ()


def continue_run(
    path: str | Path, problem: Problem, method: Any, clients: Clients, *, rounds: int | None = None, **options: Any
) -> Result:
    """Goes on with a run that wrote checkpoints; the public form is `rk.resume`.

    Args:
      path: the folder of its checkpoints.
      rounds: how many rounds to do in all; None: as many as the run was asked for.
      options: the other arguments of `run`, but for `every` and `checkpoints`, which are known.
    """
    plan, asked = read_plan(path)
    rounds = asked["rounds"] if rounds is None else rounds
    return run(problem, method, clients, rounds=rounds, every=asked["every"], checkpoints=plan, **options)


class _Loop:
    """The rounds of one run."""

    def __init__(
        self,
        prepared: PreparedRun,
        session: Session,
        metrics: Metrics,
        own: OwnMetrics | None,
        stop: Mapping,
        callbacks: tuple,
        seconds: float,
        first: int,
        saver: Saver | None,
        initial: Mapping[str, float],
    ):
        self.prepared = prepared
        self.initial = initial
        self.session = session
        function, arrays = split(metrics)
        self.metric = (function, jax.device_put(arrays))
        self.own = own
        self.of_clients: Table | None = None
        self.stop = stop
        self.callbacks = callbacks
        self.seconds = seconds
        self.compile_seconds = 0.0
        self.history = Table()
        self.first = first  # the round it began with, before it was ever stopped
        self.round = self.end = int(prepared.carry.state.round)  # where it stands, and where it is to end
        self.saver = saver
        self.pace = Pace()

    def run(self, rounds: int, every: int, ended: str | None = None) -> Result:
        """Goes on to a number of rounds in all; `ended` is how it has ended already, if it has."""
        self.end = end = self.first + rounds
        if ended is not None and (self.round >= end or ended == "stopped"):
            return concluded(self.result(ended, None), self.initial)
        status, divergence = "done", None
        try:
            if agreed(self.saver is not None):
                state = self.state()
                if self.saver is not None:
                    self.saver.check_space(state)
                    self.tell_back()
            for callback in self.callbacks:
                if hasattr(callback, "compiling"):
                    callback.compiling()
            begun = time.perf_counter()
            self.session.advance(0)  # compiles, so that the seconds of the history are those of rounds
            self.compile_seconds = time.perf_counter() - begun
            heed_together()
            there = self.take_up(every, end)
            self.save()
            while self.round < end and not there and divergence is None:
                evaluation = min(self.round + every - (self.round - self.first) % every, end)
                pause = evaluation if self.saver is None else int(min(evaluation, self.saver.next(self.round)))
                divergence = self.advance(agreed(min(pause - self.round, self.pace.rounds)))
                if self.round == evaluation or (divergence is not None and self.history["round"][-1] != self.round):
                    there = self.record()
                if divergence is None and agreed(self.saver is not None and self.saver.due(self.round)):
                    self.save()
            if there:  # the last good state has met a target, wherever a chunk of rounds ended
                divergence = None
            if divergence is not None:
                status = "diverged"
                warnings.warn(f"the run diverged: {divergence}", DivergenceWarning, stacklevel=4)
            else:
                status = "stopped" if there and self.round < end else "done"
                self.save(status)
        except KeyboardInterrupt:
            answered()
            self.round = int(self.standing().state.round)  # a call that was interrupted may have done some
            self.save()
            raise Interrupted(self.interrupted()) from None
        except InputError as error:
            if not together():  # the others do not know of it
                with contextlib.suppress(Exception):  # the disk may not take clients' records, nor metrics be measured
                    self.round = int(self.standing().state.round)
                    if not isinstance(error, StorageError) and self.round > self.first:
                        self.save()
                    error.result = self.result("interrupted", None)
                    error.result = self.interrupted()
            raise
        except ClientsFailed as error:  # the round was undone: what was done before it is kept
            self.save()
            session: Any = self.session
            error.missing = session.versions["missing"]
            raise
        found = concluded(self.result(status, divergence), self.initial)
        if found.status != status:
            warnings.warn(f"the run diverged: {found.divergence}", DivergenceWarning, stacklevel=4)
        return found

    def advance(self, rounds: int) -> Divergence | None:
        """Some rounds in one call, short enough to be interrupted."""
        begun = time.perf_counter()
        done = self.session.advance(rounds)
        took = time.perf_counter() - begun
        self.seconds += took
        self.round += done.rounds
        heed_together()
        self.pace.took(rounds, took)
        return Divergence(self.round + 1, done.broken, clients=done.clients) if done.broken else None

    def take_up(self, every: int, end: int) -> bool:
        """Where a run begins or goes on: evaluates where that is due and not done; says whether a target is there."""
        last = self.history.rows[-1] if self.history.rows else None
        due = (self.round - self.first) % every == 0 or self.round == end
        if last is None or (due and last["round"] != self.round):
            return self.record()
        return last["round"] == self.round and reached(self.stop, last)

    def interrupted(self) -> Result:
        """What was done so far, with a row for where it stands; the checkpoint does not have that row."""
        if self.history.rows and self.history.rows[-1]["round"] != self.round:
            row = {"round": self.round, **self.session.ledger.row(), "seconds": self.seconds}
            self.history = Table([*self.history.rows, row | self.measured()])
        return self.result("interrupted", None)

    def standing(self) -> Carry:
        """Where the run stands; without the records that are in a file, which stay there."""
        session: Any = self.session
        return session.in_memory if hasattr(session, "in_memory") else session.carry

    def state(self) -> RunState:
        carry = jax.device_get(self.standing())
        return RunState.of(carry, self.prepared, self.session.ledger, self.seconds, self.session)

    def save(self, status: str | None = None) -> None:
        """Writes a checkpoint, where the run writes any and has not done so in this round."""
        if agreed(self.saver is not None and (status is not None or self.saver.last != self.round)):
            state = self.state()  # to which every process gives its part
            if self.saver is not None:
                self.saver.save(state, self.history, status)
                self.tell_back()

    def tell_back(self) -> None:
        """Tells a session with clients elsewhere how far back it may have to go: they keep their records so long."""
        session: Any = self.session
        if hasattr(session, "back") and self.saver is not None and self.saver.last is not None:
            session.back = self.saver.oldest()

    def record(self) -> bool:
        """Evaluates, adds a row to the history, and says whether a target is reached."""
        row = {"round": self.round, **self.session.ledger.row(), "seconds": self.seconds}
        measured = self.measured()
        self.history.append(row | measured)
        for callback in self.callbacks:
            callback(self.round, dict(self.history.rows[-1]))
        return reached(self.stop, measured)

    def measured(self) -> dict[str, float]:
        """The metrics where the run stands; those of clients are kept as a table."""
        values = getattr(self.session, "values", None)  # where that is less than the whole carry
        found = evaluate(self.metric, self.session.carry.values() if values is None else values)
        if observes(method := self.prepared.inputs.method):
            carry = self.session.carry
            seen = jax.device_get(observed(method, carry.state, carry.records.state))
            found |= {name: float(value) for name, value in seen.items()}
        if self.own is None:
            return found
        if hasattr(self.session, "goes_on"):
            session: Any = self.session
            session.goes_on = self.round < self.end
        each = self.own.measure(self.session)
        self.of_clients = self.own.table(each)
        return found | self.own.summary(each)

    def result(self, status: str, divergence: Divergence | None) -> Result:
        if self.own is not None and self.of_clients is None:  # a run that had ended before it went on
            self.measured()
        return make_result(
            self.prepared, self.session.carry, self.session.ledger, self.history, self.seconds, status, divergence,
            self.compile_seconds, self.of_clients, self.session,
        )  # fmt: skip


def make_result(
    prepared: PreparedRun,
    carry: Carry,
    ledger: Ledger,
    history: Table,
    seconds: float,
    status: str,
    divergence: Divergence | None,
    compile_seconds: float,
    clients: Table | None = None,
    session: Any = None,
) -> Result:
    """A result from where a run stands; everything leaves the device."""
    carry = jax.device_get(carry)
    problem = prepared.config.problem
    values = carry.values()
    here = [name for name in problem.names if name in values]  # local ones of clients elsewhere are not
    sequences = Values({name: jax.tree.map(np.asarray, values[name]) for name in here})
    return Result(
        sequences=sequences,
        local=per_client(sequences, [name for name in problem.local if name in here], prepared.config.population),
        history=history,
        ledger=ledger,
        state=RunState.of(carry, prepared, ledger, seconds, session),
        status=status,
        divergence=divergence,
        compile_seconds=compile_seconds,
        clients=clients,
        data=dict(prepared.data),
    )


def heed_together() -> None:
    """Raises a Ctrl-C that was swallowed or, where there are several processes, one that the first of them has had."""
    if agreed(together() and pending()):
        answered()
        raise KeyboardInterrupt
    if not together():
        heed()


def evaluate(metric: tuple[Any, Any], values: Values) -> dict[str, float]:
    """The metrics of all sequences as plain numbers."""
    function, arrays = metric
    return {name: float(value) for name, value in jax.device_get(measure(function, values, arrays)).items()}


def reached(stop: Mapping[str, Any], measured: Mapping[str, float]) -> bool:
    """Whether any target is reached."""
    return any(
        bool(target(measured[name])) if callable(target) else measured[name] >= target for name, target in stop.items()
    )


def no_metrics(z: Values) -> dict[str, Any]:
    """The metrics of a run that has none."""
    return {}


def check_arguments(
    rounds: Any, metrics: Metrics | None, stop: Any, every: Any
) -> tuple[Metrics, Mapping[str, Any], int]:
    """Checks, and fills in, what a run and a sweep have in common."""
    check_count("rounds", rounds)
    if every is not None:
        check_count("every", every)
    if metrics is not None and not callable(metrics):
        raise InputError(f"metrics: {type(metrics).__name__} was given; a function of the sequences is needed")
    if stop is not None and not isinstance(stop, Mapping):
        raise InputError(f'stop: {stop!r} was given; a mapping such as {{"accuracy": 0.9}} is needed')
    return (no_metrics if metrics is None else metrics), stop or {}, every or max(1, int(rounds) // EVALUATIONS)


def check_callbacks(callbacks: Any) -> tuple[Callable[[int, dict], Any], ...]:
    """Refuses callbacks that cannot be called."""
    given = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in given:
        if not callable(callback):
            raise InputError(
                f"callbacks: {callback!r} was given; functions of the round and a row of the history are needed"
            )
    if not isinstance(callbacks, Iterable):
        raise InputError(f"callbacks: {callbacks!r} was given; a list of functions is needed: callbacks=[...]")
    return given


def check_metrics(metrics: Metrics, stop: Mapping[str, Any], carry: Carry, others: tuple[str, ...] = ()) -> list[str]:
    """Refuses metrics that are no scalars, and targets that are no metrics; gives the metrics' names."""
    given: Any = None

    def measured(values: Values) -> list[Any]:
        nonlocal given
        given = metrics(values)
        known = isinstance(given, Mapping) and all(hasattr(v, "shape") or np.isscalar(v) for v in given.values())
        return [v for v in given.values() if not isinstance(v, str | bytes)] if known else []

    with failing("metrics: the function of the initial values"):
        shapes = jax.eval_shape(measured, carry.values())
    if not isinstance(given, Mapping):
        raise InputError(
            f"metrics: the function gives {type(given).__name__}; a mapping from names to scalars is needed"
        )
    for name, value in given.items():
        if not isinstance(name, str):
            raise InputError(f"metrics: the name {name!r} was given; names are texts")
        if name in COST:
            raise InputError(
                f"metrics: the name {name!r} was given, which every history has a column of; choose another"
            )
        if isinstance(value, str | bytes) or not (hasattr(value, "shape") or np.isscalar(value)):
            raise InputError(f"metrics: {name!r} is {value!r}; every metric must be a scalar")
    for name, shape in zip(given, shapes):
        if shape.shape != ():
            raise InputError(f"metrics: {name!r} has shape {shape.shape}; every metric must be a scalar")
        if jnp.issubdtype(shape.dtype, jnp.complexfloating):
            raise InputError(
                f"metrics: {name!r} is a complex number; every metric must be real: give its size or a part"
            )
    for name, target in stop.items():
        if name not in (*given, *others):
            raise InputError(f"stop: there is no metric {name!r}; there are {', '.join([*given, *others]) or 'none'}")
        if not callable(target) and (isinstance(target, bool) or not isinstance(target, Real)):
            raise InputError(f"stop: {target!r} was given for {name!r}; a number or a function is needed")
    if twice := [name for name in given if name in others]:
        raise InputError(f"metrics: {twice[0]!r} is what client_metrics give as well, or the method; choose another")
    return [*given, *others]


def metric_names(method: Any, arguments: Mapping[str, Any], metrics: Metrics) -> list[str]:
    """The names of what is measured in a run with these arguments, before it begins."""
    precision = arguments.get("precision", "float32")
    others = {name: value for name, value in arguments.items() if name not in ("engine", "precision", "client_metrics")}
    defaults = {"sampling": All(), "batch_size": None, "seed": 0, "x": None, "y": None, "start": None}
    code = code_of(method=method, metrics=metrics, **{name: arguments.get(name) for name in CODE if name in arguments})
    with precision_context(precision), current_code(*code):
        prepared = prepare(method=method, precision=precision, **(defaults | others))
        columns: list[str] = []
        if (function := arguments.get("client_metrics")) is not None:
            problem, dtype = arguments["problem"], prepared.config.dtype
            columns = OwnMetrics(function, arguments["clients"], prepared.carry, problem.local, dtype).columns
        return check_metrics(metrics, {}, prepared.carry, (*observed_names(prepared), *columns))


def _resume(prepared: PreparedRun, state: RunState | None, folder: Any = None) -> tuple[PreparedRun, Ledger, float]:
    """A run that goes on from a state; records that are in a file are put into one in `folder`."""
    if state is None:
        return prepared, Ledger(), 0.0
    if not isinstance(state, RunState):
        raise InputError(f"state: {type(state).__name__} was given; a result's state is needed")
    here = "" if prepared.config.up is None else prepared.config.up.feedback
    if state.feedback != here:
        kept = [each or "nothing" for each in (state.feedback, here)]
        raise InputError(f"state: its clients' channels keep {kept[0]}, and those of this run (up) keep {kept[1]}")
    inputs = prepared.inputs._replace(key=jax.random.wrap_key_data(jnp.asarray(state.key)))
    resumed = replace(prepared, inputs=inputs, carry=state.carry(prepared.carry, folder), versions=state.versions)
    return resumed, state.ledger.copy(), state.seconds
