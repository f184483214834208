"""Check a method under other settings than its defaults: several local steps, schedules, other values of its fields.

Each check takes a method and an exact problem, and fails by AssertionError. Imports runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.engines.eager import Eager
from rookery.engines.local import Local, advance, copied
from rookery.errors import InputError
from rookery.federation.fields import AmountField, NumberField, RatesField, StepsField, WholeField, meanings
from rookery.federation.method import keeps_state
from rookery.federation.oracles import hearing_draws
from rookery.federation.rates import PerClient, Rates
from rookery.federation.sampling import All, Uniform
from rookery.federation.steps import FixedSteps
from rookery.problems.exact import JointConsensus, QuadraticConsensus
from rookery.problems.sets import Box
from rookery.runs.analysis import FixedPoint, fixed_point, flat_floats, round_map
from rookery.runs.check_runs import RATE, SMALL, changed, checked_run, distance, flat, with_lr
from rookery.runs.prepare import precision_context, prepare
from rookery.runs.retracing import code_of, current_code

UNEQUAL = (1, 2, 4)  # local steps of the clients
# By the value of `local_bias`: the fixed point with several local steps, which may be unequal.
BIASES = {
    "none": "it solves the problem exactly",
    "vanishing": "it solves the problem up to an error of the order of the step size",
    "reweighted": "it solves the problem weighted by the numbers of local steps",
    "equal": "it solves the problem up to an error of the order of the step size, if the numbers are equal",
}
COARSE, FINE = 2**-5, 2**-6  # factors of the step sizes
WIDTH, DECAY = 0.02, 0.3  # of a box that binds, and of weight decay
SWITCH = 3  # the round from which a schedule gives another step size


def several_steps(method: Any, exact: Any) -> str:
    """With several local steps the fixed point is as far from the solution as `local_bias` says."""
    declared = method.local_bias
    if declared not in (None, *BIASES):
        raise InputError(f"local_bias must be one of {', '.join(BIASES)} or None; got {declared!r}.")
    steps = _with_steps(method, exact)
    if steps is None:
        return "not checked: it has no number of local steps"
    several, numbers = steps
    if method.biased:
        return "not checked: it declares a bias"
    if method.stable is not None and exact.problem.kind not in method.stable:
        return f"not checked: it does not declare stability on {exact.problem.kind} problems"
    seen = _bias_of(several, exact, numbers)
    if seen is None:
        return "not checked: a round of it is no affine map"
    equal = len(set(numbers)) == 1
    said = f"with {_shown(numbers)} local steps {BIASES[seen]}"
    if equal and declared in ("reweighted", "equal"):  # equal steps cannot show it
        declared = "vanishing"
    assert declared in (None, seen), f"{said}, and it declares local_bias = {method.local_bias!r}"
    return said if declared else f"{said}; declare local_bias = {seen!r} to have this checked"


def _bias_of(several: Any, exact: Any, numbers: tuple[int, ...], named: str = "") -> str | None:
    """The bias of a method with some numbers of local steps, one of `BIASES`; None if a round is no affine map.

    Fails if the fixed point does not tend to one of the answers, or if it is unstable.
    """
    steps = f"with {_shown(numbers)} local steps" + (f" and {named}" if named else "")
    try:
        points = [_fixed_point(several, exact, scale) for scale in (COARSE, FINE)]
    except InputError as refused:
        assert "affine" in str(refused), str(refused)
        return None
    assert points[1].radius < 1, f"it is unstable {steps}"
    error = 0.0
    for name, answer in {"vanishing": exact.solution(), "reweighted": _reweighted(exact, numbers)}.items():
        coarse, fine = (float(np.abs(point.flat("x") - answer).max()) for point in points)
        if fine < 1e-8 or abs(coarse / fine / 2 - 1) < 0.1:
            return "none" if name == "vanishing" and fine < 1e-8 else name
        error = error or fine
    raise AssertionError(
        f"{steps} it rests off the solution by {error:.2g}, at step sizes of {RATE * FINE:.2g}; small steps have to "
        "remove this error"
    )


def _with_steps(method: Any, exact: Any) -> tuple[Any, tuple[int, ...]] | None:
    """The method with several local steps, and their numbers; None if it has no field for them."""
    population = exact.clients.population
    names = [
        name
        for name, meaning in meanings(type(method)).items()
        if isinstance(meaning, StepsField) or (isinstance(meaning, WholeField) and name.endswith("_steps"))
    ]
    unequal = FixedSteps(np.resize(UNEQUAL, population))
    for steps in () if not names else (3,) if method.local_bias == "equal" else (unequal, 3):
        several = dataclasses.replace(method, **dict.fromkeys(names, steps))
        try:
            checked_run(with_lr(several, Rates(SMALL)), exact, rounds=1)
        except InputError:
            continue
        numbers = tuple(int(n) for n in steps.steps) if isinstance(steps, FixedSteps) else (3,)
        return several, numbers
    return None


def _several(method: Any, exact: Any) -> Any:
    steps = _with_steps(method, exact)
    return method if steps is None else steps[0]


def _shown(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _fixed_point(method: Any, exact: Any, scale: float) -> FixedPoint:
    return fixed_point(exact.problem, with_lr(method, Rates(RATE * scale)), exact.clients, **exact.start(leaves=2))


def _reweighted(exact: Any, numbers: tuple[int, ...]) -> np.ndarray:
    """The solution with client weights in proportion to p_i tau_i."""
    if isinstance(exact, JointConsensus):
        return _reweighted(exact.consensus, numbers)
    weights = exact.weights * np.asarray(numbers)
    return dataclasses.replace(exact, weights=weights / weights.sum()).solution()


def fresh_draws(method: Any, exact: Any) -> str:
    """Each further local step draws its own minibatch."""
    steps = _with_steps(method, exact)
    if steps is None:
        return "not checked: it has no number of local steps"
    several, numbers = steps

    def drawn(one: Any) -> tuple[int, int]:
        keys: set[bytes] = set()
        hear = lambda client, key: keys.add(np.asarray(jax.random.key_data(key)).tobytes())
        with hearing_draws(hear):
            ledger = checked_run(with_lr(one, Rates(SMALL)), exact, rounds=2, engine=Eager(jit=False)).ledger
        return len(keys), ledger.gradients

    (few, few_calls), (many, many_calls) = drawn(method), drawn(several)
    if many_calls == few_calls:
        return "not checked: more local steps call no more oracles"
    assert many > few, (
        f"two rounds of one local step draw {few} minibatches, and two of {_shown(numbers)} draw {many}; draw each "
        "step's sample with the key that client.loop gives"
    )
    return f"{few} minibatches in two rounds of one local step, {many} with {_shown(numbers)}"


def step_sizes_scale(method: Any, exact: Any) -> str:
    """A run with tiny step sizes hardly moves."""
    if "lr" not in meanings(type(method)):
        return "it has no lr"
    several, options = _several(method, exact), {"sampling": All(), "batch_size": None, "rounds": 2}
    given = {
        name: getattr(method, name)
        for name, meaning in meanings(type(method)).items()
        if name != "lr" and isinstance(meaning, RatesField) and meaning.positive
    }
    given = {name: value for name, value in given.items() if isinstance(value, Rates)}
    begun = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))

    def moved(scale: float) -> dict[str, float]:
        # Step sizes of the server, where they are given, shrink along with the clients'.
        scaled = {name: scale / SMALL * value for name, value in given.items()}
        result = checked_run(dataclasses.replace(several, lr=Rates(scale), **scaled), exact, **options)
        return {
            name: float(np.abs(flat(result.sequences[name]) - flat(begun[name])).max())
            for name in exact.problem.shared
            if name in begun
        }

    large, small = moved(SMALL), moved(SMALL * 1e-4)
    for name, far in large.items():
        assert small[name] <= 0.01 * far + 1e-12, (
            f"{name} moves by {small[name]:.2g} in two rounds at step sizes of {SMALL * 1e-4:.2g}, and by {far:.2g} at "
            f"{SMALL}; scale its steps by lr"
        )
    return "step sizes 10,000 times as small move it at most a hundredth as far"


def fields_matter(method: Any, exact: Any) -> str:
    """Each numeric field changes what the method computes, and leaves it as exact as it declares."""
    steps = _with_steps(method, exact)
    several, numbers = (method, (1,)) if steps is None else steps
    judged = not method.biased and (method.stable is None or exact.problem.kind in method.stable)
    usual = {"rounds": 8, "sampling": All() if method.participation == "all" else Uniform(2)}
    base, seen = checked_run(with_lr(several, Rates(SMALL)), exact, **usual), []
    for name, other in _others(with_lr(several, Rates(SMALL))):
        try:
            after = checked_run(other, exact, **usual)
        except InputError:
            continue  # the method refuses this value
        seen.append(name)
        fixed = next(f for f in dataclasses.fields(method) if f.name == name).metadata.get("static")  # may be of a form
        assert fixed or distance(base, after) > 0, (
            f"{name} changes nothing in eight rounds; use it, or remove the field"
        )
        if judged and name not in ("lr", "weight_decay"):
            bias = _bias_of(other, exact, numbers, f"{name} = {getattr(other, name)}")
            assert bias in (None, "none") or method.local_bias != "none", (
                f"with {name} = {getattr(other, name)} it is not exact, and it declares local_bias = 'none'"
            )
    return f"{', '.join(seen)} change what it computes" if seen else "it has no numeric field"


def _others(method: Any) -> Iterator[tuple[str, Any]]:
    """The method with one of its numeric fields changed, for each of them that has a value."""
    for name, meaning in meanings(type(method)).items():
        value = getattr(method, name)
        if value is None or isinstance(value, str):
            continue
        if isinstance(meaning, RatesField) and isinstance(value, Rates):
            yield name, dataclasses.replace(method, **{name: 0.75 * value})
        elif isinstance(meaning, (NumberField, AmountField)) and isinstance(value, (int, float)):
            yield name, dataclasses.replace(method, **{name: 0.75 * value if value else 0.5})
        elif isinstance(meaning, (WholeField, StepsField)) and isinstance(value, (int, np.integer)):
            yield name, dataclasses.replace(method, **{name: int(value) + 1})
        elif isinstance(meaning, StepsField):
            yield name, dataclasses.replace(method, **{name: 2})


def same_runs_as(like: Any) -> Callable[[Any, Any], str]:
    """The check that a method gives the runs of another one, also at other values of the fields that both have."""

    def same(method: Any, exact: Any) -> str:
        one, other = (with_lr(each, Rates(SMALL)) for each in (method, like))
        pairs = {"defaults": (one, other)}
        steps = [_with_steps(each, exact) for each in (one, other)]
        if steps[0] is not None and steps[1] is not None and steps[0][1] == steps[1][1]:
            one, other = pairs["local steps"] = steps[0][0], steps[1][0]
        shared = {name for name in meanings(type(method)) if name in meanings(type(like))}
        for name, varied in _others(one):
            if name in shared:
                pairs[name] = (varied, dataclasses.replace(other, **{name: getattr(varied, name)}))
        worst, compared = 0.0, []
        for what, each in pairs.items():
            runs, refusals = [], []
            for program in each:
                try:
                    runs.append(checked_run(program, exact))
                except InputError as refused:
                    refusals.append(str(refused))
            assert len(runs) != 1, f"{what}: one of the two refuses it ({refusals[0]})"
            if runs:
                apart = distance(*runs)
                assert apart <= 1e-11, f"{what}: runs are {apart:.2g} apart"
                worst = max(worst, apart)
                compared.append(what)
        assert compared, f"both refuse it ({refusals[0]})"
        return f"the same runs, to {worst:.1g}: {', '.join(compared)}"

    return same


def follows_schedules(method: Any, exact: Any) -> str:
    """A schedule gives each round its own step size: not the next round's, and not always the first one's."""
    if "lr" not in meanings(type(method)):
        return "it has no lr"
    options = {"sampling": All(), "batch_size": None}
    method = _several(method, exact)  # a step size may matter with several local steps alone
    switched = with_lr(method, Rates(lambda t: jnp.where(t < SWITCH, SMALL, SMALL / 2)))
    constant = with_lr(method, Rates(SMALL))
    try:
        ends = [checked_run(one, exact, rounds=SWITCH, **options) for one in (constant, switched)]
    except InputError as refused:
        return f"not checked: it refuses a schedule ({refused})"
    apart = distance(*ends)
    assert apart <= 1e-12, (
        f"a schedule that changes in round {SWITCH} changes earlier rounds by {apart:.2g}; read it at client.round"
    )
    later = [checked_run(one, exact, rounds=SWITCH + 1, **options) for one in (constant, switched)]
    assert distance(*later) > 0, f"a schedule that changes in round {SWITCH} has no effect in that round"
    return f"a change in round {SWITCH} has its effect in that round"


def clients_keep_their_rates(method: Any, exact: Any) -> str:
    """With one step size per client, clients in another order give the same run."""
    if method.neighbours or "lr" not in meanings(type(method)):
        return "not checked"
    order = [2, 0, 1]
    own, options = np.array([SMALL, SMALL / 2, SMALL / 4]), {"sampling": All(), "batch_size": None, "rounds": 4}
    try:
        first = checked_run(with_lr(method, Rates(PerClient(own))), exact, **options)
    except InputError:
        return "not checked: it needs one step size for all clients"
    asked, answered = first.ledger.exchanges_of, first.ledger.replies_of
    if any(answered[phase] < exact.clients.population * asked[phase] for phase in asked):
        return "not checked: it selects clients itself"
    other = checked_run(
        with_lr(method, Rates(PerClient(own[order]))), changed(exact, clients=exact.clients.subset(order)), **options
    )
    apart = max(float(np.abs(flat(first.sequences[n]) - flat(other.sequences[n])).max()) for n in exact.problem.shared)
    assert apart <= 1e-11, f"with step sizes per client, another order of clients gives another run: {apart:.2g} apart"
    return f"order of clients does not matter, to {apart:.1g}"


def conserves(method: Any, exact: Any) -> str:
    """Sampled rounds conserve what rounds of all clients conserve, such as c = sum p_i c_i of control variates."""
    if method.participation == "all" or not keeps_state(method):
        return "not checked: no state of clients under sampling"
    several = with_lr(_several(method, exact), Rates(SMALL))
    start = exact.start(leaves=2)
    try:
        full = round_map(exact.problem, several, exact.clients, **start)
    except InputError as refused:
        assert "affine" in str(refused), str(refused)
        return "not checked: a round of it is no affine map"
    rows = full.conserved()
    if not len(rows):
        return "a round of all clients conserves nothing"
    options = {"sampling": Uniform(2), "batch_size": None, "seed": 3, "precision": "float64"} | start
    code = [code_of(exact.problem, several, exact.clients, **start)]
    with precision_context("float64"), current_code(code):
        prepared = prepare(exact.problem, several, exact.clients, **options)
        begun = flat_floats(prepared.carry)
        after = flat_floats(
            advance(Local().program(prepared), prepared.inputs, copied(prepared.carry), jnp.int32(5))[0]
        )
    off = float(np.abs(rows @ (after - begun)).max())
    assert off <= 1e-10, (
        f"a round of all clients conserves {len(rows)} numbers of the state, and sampled rounds change them by "
        f"{off:.2g}; a sum over clients that is kept needs client.once_factor"
    )
    return f"{len(rows)} conserved numbers, under sampling too"


def stays_in_sets(method: Any, exact: Any) -> str:
    """Where the problem has constraint sets, the sequences stay in them."""
    names = [f.name for f in dataclasses.fields(exact.problem) if f.name in ("x_set", "y_set")]
    if not names:
        return "not checked: no problem of this kind has sets"
    problem = dataclasses.replace(exact.problem, **dict.fromkeys(names, Box(-WIDTH, WIDTH)))
    start = jax.tree.map(lambda leaf: 0 * leaf + WIDTH / 2, exact.start(leaves=2))
    several, stays = with_lr(_several(method, exact), Rates(RATE)), []
    free, bound = (checked_run(several, each, rounds=4, **start) for each in (exact, changed(exact, problem=problem)))
    for name in problem.sets:
        out = float(np.abs(flat(bound.sequences[name])).max()) - WIDTH
        assert out <= 1e-12, f"{name} leaves its set by {out:.2g}; return cohort.project(z) from the round"
        if np.abs(flat(free.sequences[name])).max() > WIDTH:
            stays.append(name)
    return f"{', '.join(stays)} stay in a box" if stays else "not checked: nothing reaches the boundary of the box"


def decays_weights(method: Any, exact: Any) -> str:
    """A field `weight_decay` is a ridge in the loss: the same run, to rounding."""
    if "weight_decay" not in meanings(type(method)) or not isinstance(exact, QuadraticConsensus):
        return "not checked: no field weight_decay, or no problem with one level"
    several = with_lr(_several(method, exact), Rates(SMALL))
    loss = exact.problem.loss
    ridge = lambda x, e: loss(x, e) + 0.5 * DECAY * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))
    decayed = checked_run(dataclasses.replace(several, weight_decay=DECAY), exact)
    with_ridge = changed(exact, problem=dataclasses.replace(exact.problem, loss=ridge))
    apart = distance(decayed, checked_run(several, with_ridge))
    assert apart <= 1e-11, f"weight_decay is not a ridge of that weight in the loss: runs are {apart:.2g} apart"
    return f"as a ridge in the loss, to {apart:.1g}"


def converges(method: Any, exact: Any) -> str:
    """From its own start, with all clients and examples, a run comes to the fixed point."""
    several = with_lr(_several(method, exact), Rates(RATE / 2))
    try:
        point = fixed_point(exact.problem, several, exact.clients, **exact.start(leaves=2))
    except InputError as refused:
        assert "affine" in str(refused), str(refused)
        return "not checked: a round of it is no affine map"
    if point.radius > 0.9995:
        return f"not checked: it takes too long at spectral radius {point.radius:.6f}"
    rounds = int(np.log(1e-7) / np.log(max(point.radius, 0.5))) + 10
    options = {"sampling": All(), "batch_size": None, "rounds": rounds} | exact.start(leaves=2)
    result = checked_run(several, exact, **options)
    off = float(np.abs(flat(result.sequences["x"]) - point.flat("x")).max())
    # Step sizes that fall with the rounds make later rounds slower than the one that was looked at.
    near = max(1e-4, 0.05 * float(np.abs(flat(exact.start(leaves=2)["x"]) - point.flat("x")).max()))
    assert off <= near, f"after {rounds} rounds x is {off:.2g} from the fixed point of its own round"
    return f"to {off:.1g} in {rounds} rounds"
