"""The client as a phase sees it: its oracles, its loop, what it keeps. Imports problems, data and contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import TRAINING, Augment, Batch, Part, Shard
from rookery.errors import InputError
from rookery.federation import counts
from rookery.federation.keys import augment_key, client_key, loop_key, order_key, steps_key
from rookery.federation.ledger import ORACLES
from rookery.federation.method import find_phase
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs, Steps, draw_steps
from rookery.memory import check_fits
from rookery.problems.base import Problem
from rookery.vectors import Sequences, Vector


@dataclass(frozen=True)
class Setting:
    """What is fixed about a run for all its clients: static, hashable, part of the compiled program."""

    problem: Problem
    population: int
    batch: tuple[tuple[str, int | None], ...]  # level -> minibatch size, None: all examples
    capacity: tuple[tuple[str, int], ...]  # level -> the largest client's number of examples
    precision: str
    augment: Augment | None = None  # of the training examples in a minibatch

    @property
    def dtype(self) -> Any:
        return np.dtype(self.precision)


class Call(NamedTuple):
    """The facts of one exchange that reach one client beside the message."""

    index: Any
    weight: Any  # p_i
    probability: Any  # pi_i, the expected number of times it is drawn in a round
    times: Any  # how often it was drawn for this cohort
    round: Any
    first: Any  # whether nobody was part of any round before this one
    round_key: Any
    exchange_key: Any


class Record(NamedTuple):
    """What a client keeps between exchanges: its local sequences, and its state of the method."""

    local: Sequences
    state: Any


class Answer(NamedTuple):
    """What comes of a phase: the reply, the client's new record, and how often it called each of ORACLES."""

    reply: Any
    record: Record
    oracles: jax.Array


class Sample:
    """One draw of minibatches: "the same sample" is the same object.

    `index` holds positions among the client's own examples, `keys` what augmentations are drawn from, where there are
    any.
    """

    def __init__(self, index: Mapping[str, jax.Array | Part | None], keys: Mapping[str, jax.Array] | None = None):
        self.index = dict(index)
        self.keys = dict(keys or {})


jax.tree_util.register_pytree_node(
    Sample,
    lambda sample: ((sample.index, sample.keys), None),
    lambda _, children: Sample(*children),
)


class Client:
    """One client in one exchange. Phases use it and nothing else to reach data and state."""

    def __init__(self, setting: Setting, shard: Shard, call: Call, record: Record):
        self._setting = setting
        self._problem: Any = setting.problem
        self._shard = shard
        self._call = call
        self._local = record.local
        self._calls = _Calls()
        self._order: _Order | None = None  # inside an epoch
        self._inside = ""  # the loop or choice that is being traced
        self.moved_local = False  # whether `leave` has been called on a problem with local sequences
        self.state = record.state
        self.key = client_key(call.exchange_key, call.index)

    # Who it is.

    @property
    def index(self) -> Any:
        """i, its place among all clients."""
        return self._call.index

    @property
    def weight(self) -> Any:
        """p_i."""
        return self._call.weight

    @property
    def probability(self) -> Any:
        """pi_i, its inclusion probability (drawn with replacement: its expected number of draws)."""
        return self._call.probability

    @property
    def once(self) -> Any:
        """What makes `cohort.mean` count it once with weight p_i: pi_i over the times it was drawn."""
        return self._call.probability / self._call.times

    @property
    def size(self) -> jax.Array:
        """Its number of examples."""
        return self._shard.size

    @property
    def round(self) -> Any:
        """The number of the round, from 0."""
        return self._call.round

    @property
    def first(self) -> Any:
        """Whether this is where the run begins: nobody was part of any round before this one."""
        return self._call.first

    @property
    def dtype(self) -> Any:
        """The run's floating-point type."""
        return self._setting.dtype

    def at(self, rates: Rates) -> Rates:
        """Step sizes or other numbers as they are for this client in this round."""
        return rates.at(self._call.round, self._call.index)

    # Sequences.

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the sequences that stay on this client."""
        return self._problem.local

    def enter(self, z: Sequences) -> Sequences:
        """The shared sequences together with this client's own."""
        together = z.merged(self._local)
        return Sequences({name: together[name] for name in self._problem.names if name in together})

    def leave(self, z: Sequences) -> Sequences:
        """Keeps the local sequences of z on this client and gives back the shared ones."""
        if self._local.names:
            if self._inside:
                raise InputError(
                    f"client.leave: it was called inside client.{self._inside}, which has no end yet; carry the point "
                    "out of it, and leave there"
                )
            self._local = z.only(self._local.names)
            self.moved_local = True
        return self.shared(z)

    def shared(self, z: Sequences) -> Sequences:
        """The shared sequences of z."""
        return z.only(self._problem.shared)

    def project_local(self, z: Sequences) -> Sequences:
        """z with its local sequences projected onto their sets; the server projects the shared ones."""
        return self._problem.project(z, self._problem.local)

    # Oracles: each counts itself.

    def sample(self, key: jax.Array, size: int | None = None, only: str | None = None) -> Sample:
        """A fresh draw of the minibatches that a direction needs, uniform with replacement; all examples of the
        client where the run has no batch size. `size` overrides the run's; `only` draws for one level alone.
        In a loop over epochs it is the step's own minibatch, whatever the key."""
        index: dict[str, jax.Array | Part | None] = {}
        keys: dict[str, jax.Array] = {}
        batch = dict(self._setting.batch)
        for number, (name, level) in enumerate(self._problem.draws.items()):
            if only not in (None, level):
                continue
            own = self._shard.level(level).size
            count = batch[level] if size is None else size
            if count is None:
                self._calls.count(f"all {level}", 1)
                index[name] = None
            elif self._order is not None and size is None:
                self._calls.count(f"epoch {name}", 1)
                index[name] = self._order.part(name)
            else:
                self._check_fits(count, level)
                self._calls.count("samples", count)
                fresh = jax.random.fold_in(key, number)
                index[name] = jax.random.randint(fresh, (count,), 0, own, dtype=jnp.int32)
            if index[name] is not None and self._augment(level):
                keys[name] = augment_key(key, number)
        return Sample(index, keys)

    def _check_fits(self, count: int, level: str) -> None:
        """Refuses a minibatch that the machine cannot hold, while it is traced."""
        rows = jax.tree.leaves(self._shard.level(level).rows)
        example = sum(int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize for leaf in rows)
        check_fits("batch_size", count, "a minibatch of it", count * (example + 4))

    def _augment(self, level: str) -> Augment | None:
        return self._setting.augment if level in TRAINING else None

    def direction(self, z: Sequences, sample: Sample) -> Sequences:
        """D_i(z; sample)."""
        for name, calls in self._problem.oracles.items():
            self._calls.count(name, calls)
        return Sequences.of(self._problem.direction(z.trees(), self._batches(sample)))

    def part(self, name: str, z: Sequences, sample: Sample) -> Vector:
        """D_i(z; sample) of one sequence, for methods that move one at a time: counted as one gradient."""
        self._calls.count("gradients", 1)
        return Vector(self._problem.direction(z.trees(), self._batches(sample))[name])

    def lower_grad(self, x: Vector, y: Vector, sample: Sample) -> Vector:
        """grad_y g_i(x, y)."""
        self._calls.count("gradients", 1)
        return Vector(self._problem.lower_grad(x.tree, y.tree, self._batch("lower", sample)))

    def hvp(self, x: Vector, y: Vector, v: Vector, sample: Sample) -> Vector:
        """(d2 g_i/dy2)(x, y) v."""
        self._calls.count("hvps", 1)
        return Vector(self._problem.hvp(x.tree, y.tree, v.tree, self._batch("lower", sample)))

    def cross(self, x: Vector, y: Vector, v: Vector, sample: Sample) -> Vector:
        """(d2 g_i/dx dy)(x, y) v, shaped like x."""
        self._calls.count("crosses", 1)
        return Vector(self._problem.cross(x.tree, y.tree, v.tree, self._batch("lower", sample)))

    def upper_grad_x(self, x: Vector, y: Vector, sample: Sample) -> Vector:
        """grad_x f_i(x, y)."""
        self._calls.count("gradients", 1)
        return Vector(self._problem.upper_grad_x(x.tree, y.tree, self._batch("upper", sample)))

    def upper_grad_y(self, x: Vector, y: Vector, sample: Sample) -> Vector:
        """grad_y f_i(x, y)."""
        self._calls.count("gradients", 1)
        return Vector(self._problem.upper_grad_y(x.tree, y.tree, self._batch("upper", sample)))

    # Work.

    def steps(self, work: Steps) -> jax.Array:
        """tau_i, this client's number of local steps in this round."""
        drawn = draw_steps(work, self.index, steps_key(self._call.round_key, self.index))
        return drawn * self._epoch_length() if isinstance(work, Epochs) else drawn

    def loop(
        self, work: Any, step: Callable[[Any, Any, jax.Array], Any], carry: Any, key: jax.Array | None = None
    ) -> Any:
        """`carry = step(carry, k, key)` for k = 0 .. steps - 1, with a fresh key in each. `work` is a number of steps,
        a schedule of them, or epochs. A phase with more than one loop gives the others a `key` of their own."""
        key = self.key if key is None else key
        fresh, steps = loop_key(key), self.steps(work)
        outside, self._calls = self._calls, _Calls()

        def body(k: Any, carry: Any) -> Any:
            self._calls = _Calls()
            return step(carry, k, jax.random.fold_in(fresh, k))

        through = partial(self._through_epochs, key) if isinstance(work, Epochs) else jax.lax.fori_loop
        around, self._inside = self._inside, "loop"
        after = through(0, steps, body, carry)
        if self._calls.traced is None:  # every step costs the same, and nothing need be carried to know it
            total = counts.times(self._total(), jnp.maximum(jnp.asarray(steps, jnp.int32), 0))
        else:  # a loop inside the loop: its cost is carried along

            def counting(k: Any, inner: tuple) -> tuple:
                return body(k, inner[0]), counts.plus(inner[1], self._total())

            after, total = through(0, steps, counting, (carry, counts.zeros(len(ORACLES))))
        if isinstance(work, Epochs):
            samples = counts.times(self._epoch_samples(), steps // self._epoch_length())
            total = total.at[:, 0].set(counts.plus(total[:, 0], samples))
        self._calls, self._inside = outside, around
        self._calls.add(total)
        return after

    def _epoch_length(self) -> jax.Array:
        """The number of minibatches of an epoch: of the set of examples that has the most."""
        return jnp.max(jnp.stack([number for _, _, number in self._minibatches().values()]))

    def _minibatches(self) -> dict[str, tuple[jax.Array, int | None, jax.Array]]:
        """Of every draw: this client's examples, the size of a minibatch, and how many there are."""
        batch, found = dict(self._setting.batch), {}
        for name, level in self._problem.draws.items():
            own, size = jnp.asarray(self._shard.level(level).size, jnp.int32), batch[level]
            found[name] = (own, size, jnp.ones((), jnp.int32) if size is None else (own + size - 1) // size)
        return found

    def _through_epochs(
        self, key: jax.Array, _: int, steps: jax.Array, body: Callable[[Any, Any], Any], carry: Any
    ) -> Any:
        """Runs a loop's body epoch by epoch, each in its own order."""
        length, minibatches = self._epoch_length(), self._minibatches()
        fresh, capacity = order_key(key), dict(self._setting.capacity)

        def epoch(e: Any, carry: Any) -> Any:
            own_key, orders = jax.random.fold_in(fresh, e), {}
            for number, (name, (own, size, count)) in enumerate(minibatches.items()):
                if size is not None:
                    largest = capacity[self._problem.draws[name]]
                    orders[name] = (_shuffled(jax.random.fold_in(own_key, number), own, largest), own, size, count)

            def step(j: Any, carry: Any) -> Any:
                self._order = _Order(orders, j)
                return body(e * length + j, carry)

            return jax.lax.fori_loop(0, length, step, carry)

        after = jax.lax.fori_loop(0, steps // length, epoch, carry)
        self._order = None
        return after

    def _epoch_samples(self) -> jax.Array:
        """The examples that an epoch's steps draw, shorter sets as often as they are gone through."""
        length, total = self._epoch_length(), counts.zeros()
        for name, (own, size, count) in self._minibatches().items():
            if size is not None:
                whole, rest = length // count, length % count
                once = counts.plus(counts.times(counts.count(own), whole), counts.times(counts.count(size), rest))
                total = counts.plus(total, counts.times(once, self._calls.static.get(f"epoch {name}", 0)))
        return total

    def choose(self, flag: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """`then()` or `otherwise()`, whichever the traced flag says: only that one is run and counted."""
        outside, around, self._inside = self._calls, self._inside, "choose"

        def counted(branch: Callable[[], Any]) -> Callable[[], tuple]:
            def run() -> tuple:
                self._calls = _Calls()
                return branch(), self._total()

            return run

        result, total = jax.lax.cond(flag, counted(then), counted(otherwise))
        self._calls, self._inside = outside, around
        self._calls.add(total)
        return result

    def _batch(self, name: str, sample: Sample) -> Batch:
        level = self._problem.draws[name]
        capacity = dict(self._setting.capacity)[level]
        batch = self._shard.batch(level, sample.index[name], capacity, self._setting.dtype)
        return batch._replace(augment=self._augment(level), key=sample.keys.get(name))

    def _batches(self, sample: Sample) -> dict[str, Batch]:
        return {name: self._batch(name, sample) for name in self._problem.draws}

    def _total(self) -> jax.Array:
        """What has been counted, in the order of ORACLES; full batches at the size of this client."""
        static = self._calls.static
        total = jnp.stack([counts.count(static.get(name, 0)) for name in ORACLES], axis=1)
        for name, n in static.items():
            if name.startswith("all "):
                full = counts.times(counts.count(self._shard.level(name[4:]).size), n)
                total = total.at[:, 0].set(counts.plus(total[:, 0], full))
        return total if self._calls.traced is None else counts.plus(total, self._calls.traced)

    def _answer(self, reply: Any) -> Answer:
        return Answer(reply, Record(self._local, self.state), self._total())


class _Calls:
    """Oracle calls of a stretch of a phase: those known while it is traced, and those of loops and branches in it."""

    def __init__(self) -> None:
        self.static: dict[str, int] = {}
        self.traced: jax.Array | None = None

    def count(self, name: str, calls: int) -> None:
        self.static[name] = self.static.get(name, 0) + calls

    def add(self, total: jax.Array) -> None:
        self.traced = total if self.traced is None else counts.plus(self.traced, total)


class _Order(NamedTuple):
    """Where a client is in an epoch: the order of each draw's examples with their number and minibatches, and j."""

    orders: dict[str, tuple[jax.Array, jax.Array, int, jax.Array]]
    step: Any

    def part(self, name: str) -> Part:
        """The minibatch of this step."""
        order, own, size, count = self.orders[name]
        first = (self.step % count) * size
        place = jnp.minimum(first + jnp.arange(size, dtype=jnp.int32), own - 1)
        return Part(order[place], jnp.minimum(own - first, size))


def _shuffled(key: jax.Array, own: jax.Array, capacity: int) -> jax.Array:
    """The positions 0 .. own - 1 in a random order, then the others."""
    bits = jax.random.bits(key, (capacity,), jnp.uint32)
    last = jnp.uint32(2**32 - 1)
    return jnp.argsort(jnp.where(jnp.arange(capacity) < own, bits, last), stable=True).astype(jnp.int32)


def answer(
    setting: Setting,
    program: Any,
    phase: str,
    update: bool,
    shard: Shard,
    call: Call,
    record: Record,
    message: tuple,
) -> tuple[Answer, bool]:
    """Runs a phase at a client; every engine goes through here. Also says whether the client's record may change."""
    client = Client(setting, shard, call, record)
    reply = find_phase(program, phase)(client, *message)
    if update:
        if not (isinstance(reply, tuple) and len(reply) == 2):
            raise InputError(
                f"phase {phase!r}: an update form needs (reply, new client state), not {type(reply).__name__}"
            )
        reply, client.state = reply
    else:
        _refuse_state(phase, reply, record.state)
    _refuse_local(setting.problem, phase, reply)
    return client._answer(reply), update or client.moved_local


def _refuse_state(phase: str, reply: Any, state: Any) -> None:
    """A pair of a reply and the client's state, where no state is kept, is a slip."""
    pair = isinstance(reply, tuple) and len(reply) == 2 and jax.tree.leaves(state)
    if pair and type(reply[1]) is type(state) and jax.tree.structure(reply[1]) == jax.tree.structure(state):
        raise InputError(
            f"phase {phase!r}: it gives (reply, client state), and this exchange keeps no state; ask for it with "
            "update_sum, update_mean or update_average"
        )


def _refuse_local(problem: Problem, phase: str, reply: Any) -> None:
    """A local sequence never leaves its client."""
    for part in jax.tree.leaves(reply, is_leaf=lambda node: isinstance(node, Sequences)):
        if isinstance(part, Sequences):
            leaked = [name for name in part.names if name in problem.local]
            if leaked:
                raise InputError(
                    f"phase {phase!r}: its reply holds {', '.join(leaked)}, which stay on their clients; "
                    "reply with client.leave(z) or client.shared(z)"
                )
