"""What a client can compute from its examples: minibatches, and a problem's derivatives on them, each counted.

Imports problems, data and contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery.data.batches import Batch, Part, Shard
from rookery.data.federated import TRAINING, Augment
from rookery.errors import InputError
from rookery.federation import counts
from rookery.federation.channels import Channel
from rookery.federation.epochs import Minibatches, Passes, Place
from rookery.federation.keys import augment_key
from rookery.federation.marks import Draw, Mark, Traced, marked
from rookery.federation.meter import Meter
from rookery.memory import check_fits
from rookery.problems.base import Problem
from rookery.vectors import Sequences, Vector

Index = jax.Array | Part | None  # positions among the client's own examples; None: all of them


@dataclass(frozen=True)
class ProgramConfig:
    """What is fixed about a run for all its clients: static, hashable, part of the compiled program."""

    problem: Problem
    population: int
    batch: tuple[tuple[str, int | None], ...]  # level -> minibatch size, None: all examples
    capacity: tuple[tuple[str, int], ...]  # level -> the largest client's number of examples
    precision: str
    augment: Augment | None = None  # of the training examples in a minibatch
    up: Channel | None = None  # what is done to replies
    down: Channel | None = None  # what is done to vectors that the server sends

    @property
    def dtype(self) -> Any:
        return held_in(self.precision)


def held_in(precision: str) -> Any:
    """The type that a run's numbers are held in; `tf32` and `bfloat16` are of products alone."""
    return np.dtype("float64" if precision == "float64" else "float32")


class Stretch(NamedTuple):
    """A part of a phase with a meter: the whole phase, a step of a loop, or a branch; and its place in an epoch, with
    the key of the epoch's step."""

    meter: Meter
    inside: str = ""  # "loop" or "choose"
    branch: Meter | None = None  # of the innermost branch around
    place: Place | None = None
    step_key: jax.Array | None = None


class Sample:
    """One draw of minibatches: "the same sample" is the same object.

    `index` holds positions among the client's own examples, `keys` what augmentations are drawn from, where there are
    any. A minibatch is counted if an oracle uses it, where the sample was made: a sample made before a loop counts
    once, whatever the loop does with it. One that a branch uses first counts in that branch.
    """

    def __init__(
        self,
        index: Mapping[str, Index],
        keys: Mapping[str, jax.Array] | None = None,
        draws: Mapping[str, Draw] | None = None,
        maker: Oracles | None = None,
    ):
        self.index = dict(index)
        self.keys = dict(keys or {})
        self.draws = dict(draws or {})  # those that are counted
        self.maker = maker
        self.branch = None if maker is None else maker._stretch.branch

    def use(self, name: str, branch: Meter | None) -> Index:
        """A draw's positions, for an oracle in a branch."""
        if name in self.draws and branch in (None, self.branch):
            self.draws[name].at_home = True
        return self.index[name]


def _flat(sample: Sample) -> tuple[tuple, None]:
    """Its arrays. They may be used anywhere, so all of them count as drawn."""
    for draw in sample.draws.values():
        assert sample.maker is not None
        sample.maker._use_at_home(draw)
    return (sample.index, sample.keys), None


jax.tree_util.register_pytree_node(Sample, _flat, lambda _, children: Sample(*children))


_HEARERS: list[Callable[[Oracles, jax.Array], None]] = []


@contextmanager
def hearing_draws(hear: Callable[[Oracles, jax.Array], None]) -> Iterator[None]:
    """Inside the block, call `hear(client, key)` for every fresh sample that a phase draws with a concrete key."""
    _HEARERS.append(hear)
    try:
        yield
    finally:
        _HEARERS.remove(hear)


class Oracles:
    """The examples and the derivatives of one client."""

    def __init__(self, config: ProgramConfig, shard: Shard, problem: Problem):
        self._config = config
        self._problem: Any = problem  # as it is in this round
        self._shard = shard
        self._stretch = Stretch(Meter())
        self._in_phase = False  # counted calls are marked inside a phase alone
        self._plain = bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]  # run operation by operation
        self._drawn: dict[Draw, int] = {}  # then: the draws that no oracle has used so far, and how often each was made

    @property
    def dtype(self) -> Any:
        """The run's floating-point type."""
        return self._config.dtype

    @property
    def size(self) -> jax.Array:
        """Its number of examples."""
        return self._shard.size

    def sample(self, key: jax.Array, size: int | None = None, only: str | None = None, again: bool = False) -> Sample:
        """A fresh draw of the minibatches that a direction needs, uniform with replacement; all examples of the
        client where the run has no batch size. `size` overrides the run's; `only` draws for one level alone.
        In a loop over epochs the key of the step stands for the step's own minibatch; there another key needs a
        `size`. `again`: it was drawn in another exchange of the round (by `round_key`), and is not counted anew."""
        index: dict[str, Index] = {}
        keys: dict[str, jax.Array] = {}
        draws: dict[str, Draw] = {}
        for hear in () if again or isinstance(key, Tracer) else _HEARERS:
            hear(self, key)
        for number, (name, level) in enumerate(self._problem.draws.items()):
            if only not in (None, level):
                continue
            positions = self._draw(name, key, number, size)
            if self._in_phase and not again:
                draws[name] = self._cost_of(name, positions)
                positions = marked(positions, Mark("client.sample", self._executed, draw=draws[name]))
            index[name] = positions
            if positions is not None and self._augment(level):
                keys[name] = augment_key(key, number)
        return Sample(index, keys, draws, self)

    def _cost_of(self, name: str, positions: Index) -> Draw:
        """What a draw adds to a meter, if it is used."""
        if positions is None:
            return Draw("full", self._problem.draws[name], 1)
        if isinstance(positions, Part):
            return Draw("calls", "samples", int(positions.count)) if self._plain else Draw("passes", name, 1)
        return Draw("calls", "samples", positions.shape[0])

    def everything(self, only: str | None = None) -> Sample:
        """Return all of the client's examples as a sample, whatever the run's batch size; `only`: of one level."""
        names = [name for name, level in self._problem.draws.items() if only in (None, level)]
        if not self._in_phase:
            return Sample(dict.fromkeys(names), None, None, self)
        draws = {name: self._cost_of(name, None) for name in names}
        index = {name: marked(None, Mark("client.everything", self._executed, draw=draws[name])) for name in names}
        return Sample(index, None, draws, self)

    def _draw(self, name: str, key: jax.Array, number: int, size: int | None) -> Index:
        level, place = self._problem.draws[name], self._stretch.place
        own = self._shard.level(level).size
        count = dict(self._config.batch)[level] if size is None else size
        if count is None:
            return None
        if place is not None and size is None:
            if key is not self._stretch.step_key:
                raise InputError(
                    "client.sample: a key that is not the step's was given in a loop over epochs, where minibatches "
                    "are those of the epoch; give the step's key, or a size for a draw of its own"
                )
            return self._passes().part(name, place)
        self._check_fits(count, level)
        return jax.random.randint(jax.random.fold_in(key, number), (count,), 0, own, dtype=jnp.int32)

    def direction(self, z: Sequences, sample: Sample) -> Sequences:
        """D_i(z; sample)."""
        direction = Sequences.of(self._problem.direction(z.trees(), self._batches(sample)))
        return self._counted(direction, "direction", self._problem.oracles, self._problem.draws, sample)

    def part(self, name: str, z: Sequences, sample: Sample) -> Vector:
        """D_i(z; sample) of one sequence, for methods that move one at a time: counted as one gradient."""
        direction = Vector(self._problem.direction(z.trees(), self._batches(sample))[name])
        return self._counted(direction, "part", {"gradients": 1}, self._problem.draws, sample)

    def direction_along(self, z: Sequences, along: Sequences, sample: Sample) -> Sequences:
        """The derivative of D_i(z; sample) along a vector, by forward differentiation. It counts as one direction."""
        field = lambda z: Sequences.of(self._problem.direction(z.trees(), self._batches(sample)))
        derivative = jax.jvp(field, (z,), (along,))[1]
        return self._counted(derivative, "direction_along", self._problem.oracles, self._problem.draws, sample)

    def part_along(self, name: str, z: Sequences, along: Vector, sample: Sample) -> Vector:
        """The derivative of `part` in its own sequence along a vector. It counts as one gradient."""
        field = lambda part: Vector(
            self._problem.direction(z.replace(**{name: part}).trees(), self._batches(sample))[name]
        )
        derivative = jax.jvp(field, (z[name],), (along,))[1]
        return self._counted(derivative, "part_along", {"gradients": 1}, self._problem.draws, sample)

    def lower_grad(self, x: Vector, y: Vector, sample: Sample) -> Vector:
        """grad_y g_i(x, y)."""
        return self._evaluate("lower_grad", "gradients", (x, y), sample)

    def hvp(self, x: Vector, y: Vector, v: Vector, sample: Sample) -> Vector:
        """(d2 g_i/dy2)(x, y) v."""
        return self._evaluate("hvp", "hvps", (x, y, v), sample)

    def cross(self, x: Vector, y: Vector, v: Vector, sample: Sample) -> Vector:
        """(d2 g_i/dx dy)(x, y) v, shaped like x."""
        return self._evaluate("cross", "crosses", (x, y, v), sample)

    def upper_grad_x(self, x: Vector, y: Vector, sample: Sample) -> Vector:
        """grad_x f_i(x, y)."""
        return self._evaluate("upper_grad_x", "gradients", (x, y), sample)

    def upper_grad_y(self, x: Vector, y: Vector, sample: Sample) -> Vector:
        """grad_y f_i(x, y)."""
        return self._evaluate("upper_grad_y", "gradients", (x, y), sample)

    def _evaluate(self, oracle: str, cost: str, at: tuple[Vector, ...], sample: Sample) -> Vector:
        """A derivative of a bilevel problem, on the draw that the problem keeps for it."""
        if oracle not in self._problem.draw_of:
            raise InputError(
                f"client.{oracle}: it was asked for on a {self._problem.kind} problem, and bilevel ones have it; a "
                'method that needs it says kinds = ("bilevel",)'
            )
        draw = self._problem.draw_of[oracle]
        derivative = getattr(self._problem, oracle)(*(vector.tree for vector in at), self._batch(draw, sample))
        return self._counted(Vector(derivative), oracle, {cost: 1}, [draw], sample)

    def _counted(self, result: Any, oracle: str, cost: Mapping[str, int], draws: Iterable[str], sample: Sample) -> Any:
        """The result of an oracle, with a mark of its cost."""
        if not self._in_phase:
            return result
        uses = tuple(sample.draws[name] for name in draws if name in sample.draws)
        return marked(result, Mark(f"client.{oracle}", self._executed, tuple(cost.items()), uses))

    def _executed(self, mark: Mark, times: Any) -> None:
        """Counts a call that is run operation by operation."""
        if not self._plain:
            raise InputError(f"{mark.call} was called while the compiled program runs; call it in the phase itself.")
        meter = self._stretch.meter
        meter.add(mark.cost, times)
        for draw in mark.uses:
            meter.take(draw, self._drawn.pop(draw, 0))
        if mark.draw is not None:
            self._drawn[mark.draw] = times
            if mark.draw.at_home:
                meter.take(mark.draw, self._drawn.pop(mark.draw))

    def _use_at_home(self, draw: Draw) -> None:
        """Counts a draw where its sample was made."""
        draw.at_home = True
        self._stretch.meter.take(draw, self._drawn.pop(draw, 0))

    def _measured(self, phase: Callable[[], Any]) -> tuple[Any, jax.Array]:
        """Run a phase. Returns its result, and its cost in the order of ORACLES."""
        self._in_phase = True
        try:
            if self._plain:
                result = phase()
                return result, self._cost(self._stretch.meter)
            result, totals = self._traced(phase, self._stretch)()
            return result, reduce(counts.plus, totals, self._cost(self._stretch.meter))
        finally:
            self._in_phase = False

    def _run(self, stretch: Stretch, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a function as a stretch of the phase."""
        around, self._stretch = self._stretch, stretch
        try:
            return function(*args)
        finally:
            self._stretch = around

    def _traced(self, function: Callable[..., Any], stretch: Stretch, *args: Any) -> Traced:
        """Traces a stretch of the phase, and reads its marks into its meter."""

        traced, meter = Traced(partial(self._run, stretch, function), *args), stretch.meter
        made = {mark.draw for mark, _ in traced.marks if mark.draw is not None}
        used = {draw: None for mark, _ in traced.marks for draw in mark.uses} | meter.outside
        for mark, times in traced.marks:
            meter.add(mark.cost, times)
            if mark.draw is not None and (mark.draw.at_home or mark.draw in used):
                meter.take(mark.draw, times)
        for draw in used:
            if draw in made:
                continue
            if stretch.inside == "loop":
                self._stretch.meter.outside[draw] = None
            elif not draw.at_home:
                meter.take(draw)
        return traced

    def _batch(self, name: str, sample: Sample) -> Batch:
        level = self._problem.draws[name]
        capacity = dict(self._config.capacity)[level]
        batch = self._shard.batch(level, sample.use(name, self._stretch.branch), capacity, self._config.dtype)
        return batch._replace(augment=self._augment(level), key=sample.keys.get(name))

    def _batches(self, sample: Sample) -> dict[str, Batch]:
        return {name: self._batch(name, sample) for name in self._problem.draws}

    def _augment(self, level: str) -> Augment | None:
        return self._config.augment if level in TRAINING else None

    def _check_fits(self, count: int, level: str) -> None:
        """Refuses a minibatch that the machine cannot hold, while it is traced."""
        rows = jax.tree.leaves(self._shard.level(level).rows)
        example = sum(int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize for leaf in rows)
        check_fits("batch_size", count, "a minibatch of it", count * (example + 4))

    def _passes(self) -> Passes:
        """This client's passes through its examples."""
        batch, capacity, draws = dict(self._config.batch), dict(self._config.capacity), {}
        for name, level in self._problem.draws.items():
            own, size = jnp.asarray(self._shard.level(level).size, jnp.int32), batch[level]
            number = jnp.ones((), jnp.int32) if size is None else (own + size - 1) // size
            draws[name] = Minibatches(own, size, number)
        return Passes(draws, {name: capacity[level] for name, level in self._problem.draws.items()})

    def _cost(self, meter: Meter, place: Place | None = None) -> jax.Array:
        """What a meter has counted, in the order of ORACLES, at the size of this client."""
        minibatch = None if place is None else lambda name: self._passes().part(name, place).count
        return meter.total(lambda level: self._shard.level(level).size, minibatch)
