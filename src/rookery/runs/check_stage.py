"""What every stage of a channel must hold: the part of `rk.check` for stages. Imports runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import AdviceWarning, DivergenceWarning
from rookery.federation.channels import Channel, make_channel, receive, send
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.feedback import EF21, Diana
from rookery.federation.fields import rates
from rookery.federation.method import State, method
from rookery.federation.rates import GivenRates, Rates
from rookery.federation.stages import Stage
from rookery.problems.exact import QuadraticBilevel
from rookery.runs.findings import Findings, examined
from rookery.runs.run import run
from rookery.vectors import Sequences

SHAPES = {"a matrix of 6 x 9": (6, 9), "40 numbers": (40,), "three axes": (4, 3, 5)}
DRAWS = 2000  # of a stage that draws, for its mean
EXACT, ROUNDS, RATE = 1e-6, 4000, 0.05
SLACK = 1.1  # what a mean over so many draws may be off


def check_stage(stage: Stage) -> Findings:
    """Holds a stage to what channels promise of it, on arrays of several shapes and in runs."""
    found = Findings(str(stage))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        warnings.simplefilter("ignore", DivergenceWarning)
        for number, (name, shape) in enumerate(SHAPES.items()):
            array = jax.random.normal(jax.random.key(number), shape, jnp.float32)
            for what, examine in ON_ARRAYS.items():
                found.rows.append(examined(what, examine, name, stage, array))
        for what, examine in IN_RUNS.items():
            found.rows.append(examined(what, examine, "bilevel", stage, None))
    return found


def _line(stage: Stage) -> Channel:
    channel = make_channel("up", stage, ())
    assert channel is not None
    return channel


def _through(stage: Stage, array: jax.Array, key: jax.Array) -> jax.Array:
    channel = _line(stage)
    return receive(channel, send(channel, array, {}, key)[0], {})[0]


_compiled = jax.jit(_through, static_argnums=0)
_drawn = jax.jit(jax.vmap(_through, in_axes=(None, None, 0)), static_argnums=0)


def unpacks(stage: Stage, array: jax.Array) -> str:
    """What is unpacked has the array's shape, type and, of zeros, zeros; compiled or not."""
    with jax.enable_x64(True):
        wide = _through(stage, array.astype(jnp.float64), jax.random.key(1))
        assert wide.dtype == jnp.float64, f"an array of float64 comes back as {wide.dtype}"
    for given in (array, jnp.zeros_like(array)):
        again, compiled = (through(stage, given, jax.random.key(1)) for through in (_through, _compiled))
        assert again.shape == given.shape, f"an array of shape {given.shape} comes back with {again.shape}"
        assert again.dtype == given.dtype, f"an array of {given.dtype} comes back as {again.dtype}"
        assert jnp.all(jnp.isfinite(again)), "finite numbers come back as others"
        assert jnp.allclose(again, compiled, rtol=1e-5, atol=1e-5), "compiled it is another"
    assert not jnp.any(again), "zeros come back as something else"
    return "shape, type and zeros come back"


def hides_nothing(stage: Stage, array: jax.Array) -> str:
    """An array that is not finite anywhere does not come back finite."""
    for value in (jnp.nan, jnp.inf):
        again = _compiled(stage, jnp.full_like(array, value), jax.random.key(1))
        assert not jnp.all(jnp.isfinite(again)), f"an array of {value} comes back finite"
    return "NaN and infinity can be seen"


def travels(stage: Stage, array: jax.Array) -> str:
    """How many bytes go in the place of the array's."""
    packed, _ = send(_line(stage), array, {}, jax.random.key(1))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(packed))
    return f"{size} bytes for {array.nbytes}"


def draws(stage: Stage, array: jax.Array) -> str:
    """It draws if it says so, and not if it does not."""
    found = _drawn(stage, array, jax.random.split(jax.random.key(2), 8))
    same = bool(jnp.all(found == found[:1]))
    assert stage.random or same, "it draws, and `random` is False"
    return "draws" if not same else "draws nothing"


def means(stage: Stage, array: jax.Array) -> str:
    """Where it says so: what it loses is less than what it is given, and nothing in the mean, within its variance."""
    found = _drawn(stage, array, jax.random.split(jax.random.key(3), DRAWS if stage.random else 1))
    size = float(jnp.sum(array**2))
    lost = float(jnp.mean(jnp.sum((found - array) ** 2, axis=tuple(range(1, found.ndim))))) / size
    said = [f"loses {lost:.2g} of the squared norm"]
    if stage.contracts:
        assert lost <= 1, f"it loses {lost:.2g} of the squared norm, and `contracts` is True"
    if stage.unbiased:
        bias = float(jnp.sum((found.mean(axis=0) - array) ** 2)) / size
        assert bias <= (4 * lost / len(found) if stage.random else 0) + 1e-9, (
            f"its mean is off by {bias:.2g} squared, and `unbiased` is True"
        )
        said.append("unbiased")
        if type(stage).variance is not Stage.variance:
            omega = stage.variance(array.shape)
            assert lost <= SLACK * omega + 1e-9, f"its variance is {lost:.2g}, and it says at most {omega:.2g}"
            said.append(f"at most {omega:.2g}")
    return ", ".join(said)


@method
class Descent:
    """z <- z - eta times the mean of the clients' directions at z: rests where that is 0, at the solution."""

    lr: GivenRates = rates()

    def round(self, state: State, cohort: Cohort) -> State:
        return state.next(z=state.z - self.lr.at(state.round) * cohort.mean("direction", state.z))

    def direction(self, client: Client, z: Sequences) -> Sequences:
        return client.shared(client.direction(client.enter(z), client.sample(client.key)))


def _solved(up: Any, **options: Any) -> Any:
    exact = QuadraticBilevel.random(clients=3, dims=(8, 12), seed=1)
    given: dict[str, Any] = {"precision": "float64", "up": up} | options
    return exact, run(exact.problem, Descent(lr=Rates(RATE)), exact.clients, **given, **exact.start())


def engines_agree(stage: Stage, _: Any) -> str:
    """Compiled and client by client: the same numbers, the same bytes."""
    one, other = (_solved(stage, rounds=4, engine=engine)[1] for engine in ("local", "eager"))
    apart = max(float(np.abs(a - b).max()) for a, b in zip(one.state.leaves, other.state.leaves) if a.dtype.kind == "f")
    assert apart <= 1e-10, f"client by client it is another run: apart by {apart:.2g}"
    assert one.ledger == other.ledger, "client by client other bytes travel"
    return f"compiled and client by client, to {apart:.1g}"


def keeps_fixed_points(stage: Stage, _: Any) -> str:
    """Packed differences vanish where replies come to rest, so that they rest at the solution."""
    if not (stage.contracts or stage.unbiased):
        return "not looked at: it is neither unbiased nor contracting"
    if not stage.contracts and type(stage).variance is Stage.variance:
        return "not looked at: it does not say its variance"
    feedback = EF21(stage) if stage.contracts else Diana(stage)
    exact, result = _solved(feedback, rounds=ROUNDS)
    error = float(np.abs(result.x - exact.solution()).max())
    assert error <= EXACT, f"in {type(feedback).__name__} it is off the solution by {error:.2g} after {ROUNDS} rounds"
    return f"in {type(feedback).__name__} exact, to {error:.1g}"


ON_ARRAYS: dict[str, Callable[[Any, Any], str]] = {
    "unpacks": unpacks,
    "hides nothing": hides_nothing,
    "travels": travels,
    "draws": draws,
    "means": means,
}
IN_RUNS: dict[str, Callable[[Any, Any], str]] = {"engines agree": engines_agree, "fixed point": keeps_fixed_points}
