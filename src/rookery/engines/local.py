"""The compiled engine: whole rounds, many at a time, as one XLA program. Imports contracts only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.batches import Shard, shard
from rookery.data.federated import Level, cast
from rookery.engines.base import Advance, Carry, Inputs, PreparedRun, non_finite
from rookery.federation import counts
from rookery.federation.client import Call, ProgramConfig, Record, answer
from rookery.federation.cohort import Cohort
from rookery.federation.delivered import Audience, Delivered
from rookery.federation.evaluation import TEST, ClientMetrics, evaluate_all
from rookery.federation.keys import before_first_round_key, exchange_key, round_key, sampling_key
from rookery.federation.ledger import ORACLES, Ledger, Tally, Totals
from rookery.federation.method import next_state
from rookery.federation.sampling import Members
from rookery.federation.scaled import summands
from rookery.federation.steps import check_count
from rookery.vectors import row


@dataclass(frozen=True)
class Local:
    """Runs everything on this machine as one compiled program.

    Args:
      at_once: how many clients of a cohort are computed side by side (`vmap`); the rest follow in a loop. None: one
        by one on a CPU, which is faster there, and all at once on an accelerator.
    """

    at_once: int | None = None

    def open(self, prepared: PreparedRun, ledger: Ledger) -> LocalSession:
        return LocalSession(self.program(prepared), prepared, ledger)

    def program(self, prepared: PreparedRun) -> Program:
        """The program that runs a prepared."""
        if self.at_once is not None:
            check_count("at_once", self.at_once)
        default = 1 if jax.default_backend() == "cpu" else prepared.config.population
        return Program(prepared.config, self.at_once or default)


@dataclass(frozen=True)
class Program:
    """The static side of a compiled run: two equal programs share one compilation."""

    config: ProgramConfig
    at_once: int

    def round(self, inputs: Inputs, carry: Carry) -> tuple[Carry, Totals, jax.Array]:
        """One round as a pure function: the new carry, what it cost, and whether everything is still finite."""
        key = round_key(inputs.key, carry.state.round)
        members = self._members(inputs, key, carry.state.round)
        trace = _Trace(self, inputs, carry, key)
        cohort = CompiledCohort(trace, members, inputs.sampling.always_full)
        state = next_state(inputs.method, carry.state, cohort)
        if inputs.sampling.may_be_empty:
            happened = members.present > 0
            state = jax.tree.map(partial(jnp.where, happened), state, carry.state.skip())
        return Carry(state, trace.records), trace.tally.totals(), trace.finite & _all_finite(state)

    def start(self, inputs: Inputs, carry: Carry) -> tuple[Carry, Totals]:
        """What a method does once, before the first round."""
        key = before_first_round_key(inputs.key)
        trace = _Trace(self, inputs, carry, key)
        members = self._members(inputs, key, carry.state.round)
        state = inputs.method.start(carry.state, CompiledCohort(trace, members, inputs.sampling.always_full))
        return Carry(state, trace.records), trace.tally.totals()

    def _members(self, inputs: Inputs, key: jax.Array, round: Any) -> Members:
        return inputs.sampling.at(round).members(sampling_key(key), self.config.population, self.config.dtype)

    def advance(self, inputs: Inputs, carry: Carry, rounds: Any) -> tuple[Carry, Totals, jax.Array, jax.Array]:
        """Up to `rounds` rounds; ends early after the first one that leaves something that is not finite.

        Gives the carry, what it cost, the number of rounds run, and whether the last one was finite.
        """
        one = jax.jit(self.round)  # so that the shapes below and the loop share one trace
        _, cost, _ = jax.eval_shape(one, inputs, carry)

        def body(loop: tuple) -> tuple:
            carry, total, done, _ = loop
            carry, cost, finite = one(inputs, carry)
            return carry, total + cost, done + 1, finite

        first = (carry, _zeros(cost), jnp.zeros((), jnp.int32), jnp.ones((), bool))
        return jax.lax.while_loop(lambda loop: (loop[2] < rounds) & loop[3], body, first)


@partial(jax.jit, static_argnums=0)
def advance(program: Program, inputs: Inputs, carry: Carry, rounds: Any) -> tuple:
    """The compiled form of `Program.advance`, cached over runs."""
    return program.advance(inputs, carry, rounds)


@partial(jax.jit, static_argnums=0)
def start(program: Program, inputs: Inputs, carry: Carry) -> tuple:
    """The compiled form of `Program.start`."""
    return program.start(inputs, carry)


class LocalSession:
    """A run in progress: its carry stays on the device between calls."""

    def __init__(self, program: Program, prepared: PreparedRun, ledger: Ledger):
        self.program = program
        self.inputs: Inputs = jax.device_put(prepared.inputs)
        self.carry: Carry = jax.device_put(prepared.carry)
        self.ledger = ledger
        self._test: Shard | None = None  # the clients' test examples, when they are first asked for

    def start(self) -> None:
        self.carry, cost = start(self.program, self.inputs, self.carry)
        self.ledger.add(cost)

    def advance(self, rounds: int) -> Advance:
        before = self.carry
        carry, cost, done, finite = advance(self.program, self.inputs, before, jnp.int32(rounds))
        if bool(finite):
            self._keep(carry, cost)
            return Advance(int(done))
        # The rounds are a function of the carry, so the last good one is found by running up to it again: that costs
        # time in a diverging run alone, and no run need copy the clients' states.
        good = int(done) - 1
        kept, cost, _, _ = advance(self.program, self.inputs, before, jnp.int32(good))
        self._keep(kept, cost)
        return Advance(good, non_finite(carry))

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        if self._test is None:  # on the device once, not at every evaluation
            self._test = jax.device_put(Shard(cast({TEST: test}, self.program.config.dtype)))
        config, largest = self.program.config, int(np.max(test.size))
        found = evaluate_all(config, function, largest, self._test, self.carry.state.z, self.carry.records)
        return {name: np.asarray(values) for name, values in found.items()}

    def _keep(self, carry: Carry, cost: Totals) -> None:
        """The new carry and what it cost, both or neither: an interrupt may come at any moment."""
        ledger = self.ledger.copy()
        ledger.add(cost)
        self.carry, self.ledger = carry, ledger


class _Trace:
    """What one round builds up while its program is traced."""

    def __init__(self, program: Program, inputs: Inputs, carry: Carry, key: jax.Array):
        self.program = program
        self.inputs = inputs
        self.round = carry.state.round
        self.first = carry.state.round == carry.state.empty
        self.key = key
        self.records = carry.records
        self.exchanges: Any = jnp.zeros((), jnp.int32)
        self.tally = Tally()
        self.delivered = Delivered()
        self.finite: Any = jnp.ones((), bool)


class CompiledCohort(Cohort):
    """A cohort whose exchanges become loops or batched computations inside the program that is being traced."""

    def __init__(self, trace: _Trace, members: Members, full: bool, within: Audience = ()):
        self._trace = trace
        self._audience = trace.delivered.audience(within)
        self._full = full  # whether every slot is known to be filled: then nothing need be masked
        self.problem = trace.program.config.problem
        self.members = members
        self.all_weights = trace.inputs.weights
        self.weights = trace.inputs.weights[members.index]
        self.round_key = trace.key

    @property
    def population(self) -> int:
        return self._trace.program.config.population

    def repeat(self, times: Any, body: Callable[[Cohort, Any, Any], Any], carry: Any) -> Any:
        trace = self._trace
        outside = trace.tally

        def iteration(t: Any, carry: Any, exchanges: Any, records: Record, finite: Any) -> tuple:
            trace.exchanges, trace.records, trace.finite, trace.tally = exchanges, records, finite, Tally()
            with trace.delivered.loop(t) as travels:
                carry = body(self, t, carry)
                trace.tally.settle(travels)
            return carry, trace.exchanges, trace.records, trace.finite, trace.tally.totals()

        iteration = jax.jit(iteration, inline=True)  # so that the shapes below and the loop share one trace
        first = (carry, trace.exchanges, trace.records, trace.finite)
        *_, cost = jax.eval_shape(iteration, jnp.zeros((), jnp.int32), *first)

        def loop(t: Any, inner: tuple) -> tuple:
            *state, total = inner
            *state, cost = iteration(jnp.asarray(t, jnp.int32), *state)
            return (*state, total + cost)

        last = jax.lax.fori_loop(0, times, loop, (*first, _zeros(cost)))
        carry, trace.exchanges, trace.records, trace.finite, total = last
        trace.tally = outside
        trace.tally.add(total)
        return carry

    def _with(self, members: Members, always: bool) -> CompiledCohort:
        return CompiledCohort(self._trace, members, self._full and always, self._audience)

    def _tick(self) -> Any:
        number = self._trace.exchanges
        self._trace.exchanges = number + 1
        return number

    def _exchange(self, phase: str, message: tuple, factors: jax.Array, update: bool) -> Any:
        trace, members = self._trace, self.members
        config, inputs = trace.program.config, trace.inputs
        key = exchange_key(trace.key, self._tick())
        touched, reply = False, None

        def one(record: Record, index: Any, weight: Any, probability: Any, times: Any) -> tuple:
            """What the client of one slot answers: what its reply adds, its new record, its oracle calls."""
            nonlocal touched, reply
            call = Call(index, weight, probability, times, trace.round, trace.first, trace.key, key)
            own = shard(inputs.levels, index)
            result, touched = answer(config, inputs.method, phase, update, own, call, record, message)
            reply = result.reply
            return summands(reply), result.record, result.oracles

        one = jax.jit(one, inline=True)  # so that the shapes below and the loop share one trace of the phase

        # The cohort's records are read before its clients work, and written when all have: where one loop reads and
        # writes the store of all clients, XLA copies the whole of it for every client.
        records = jax.tree.map(lambda store: store[members.index], trace.records)
        times = jnp.maximum(members.count, 1).astype(members.expected.dtype)
        slots = (records, members.index, self.weights, members.expected, times)
        terms, _, _ = jax.eval_shape(one, *row(slots, 0))
        share = jax.eval_shape(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) * factors[0], terms))
        sums = _Sums(
            total=_zeros(share),
            oracles=counts.zeros(len(ORACLES)),
            changed=(_zeros(records), trace.finite) if touched else None,
        )
        at_once = min(trace.program.at_once, members.index.shape[0])
        sums = _over_slots(one, slots, factors, members, at_once, sums, self._full)
        if sums.changed is not None:
            new, trace.finite = sums.changed
            filled = jnp.where(members.count > 0, members.index, self.population)
            trace.records = jax.tree.map(lambda store, own: store.at[filled].set(own, mode="drop"), trace.records, new)
        sent = trace.delivered.send(self._audience, message)
        trace.tally.exchange(phase, sent, reply, members.present, sums.oracles)
        return sums.total


class _Sums(NamedTuple):
    """What an exchange builds up over its slots: the aggregate, oracle calls, and, where the phase changes clients'
    records, the new ones of the cohort with whether all are finite."""

    total: Any
    oracles: jax.Array
    changed: tuple[Record, jax.Array] | None


def _over_slots(
    one: Callable[..., tuple],
    slots: tuple,
    factors: jax.Array,
    members: Members,
    at_once: int,
    sums: _Sums,
    full: bool,
) -> _Sums:
    """Adds up `one` over the filled slots, `at_once` of them side by side."""
    count = factors.shape[0]
    full = full and count % at_once == 0

    def single(slot: Any, sums: _Sums) -> _Sums:
        reply, record, calls = one(*row(slots, slot))
        # An unfilled slot's reply may be anything: it is dropped, not multiplied by 0.
        masked = lambda leaf: leaf if full else jnp.where(members.count[slot] > 0, leaf, 0)
        return _Sums(
            total=jax.tree.map(lambda total, leaf: total + masked(leaf * factors[slot]), sums.total, reply),
            oracles=counts.plus(sums.oracles, masked(calls)),
            changed=_changed(sums, slot, record, masked),
        )

    def block(number: Any, sums: _Sums) -> _Sums:
        # The last block may be short: its places past the end read the last slot again and do not count.
        place = number * at_once + jnp.arange(at_once, dtype=jnp.int32)
        slot = jnp.minimum(place, count - 1)
        filled = (members.count[slot] > 0) & (place < count)
        reply, record, calls = jax.vmap(one)(*row(slots, slot))
        weights = factors[slot] if full else jnp.where(filled, factors[slot], 0)

        def masked(leaf: jax.Array) -> jax.Array:
            return leaf if full else jnp.where(jnp.expand_dims(filled, range(1, leaf.ndim)), leaf, 0)

        def add(total: jax.Array, leaf: jax.Array) -> jax.Array:
            # A product with the factors: a sum over the leading axis is many times slower on a CPU.
            return total + jnp.tensordot(weights, masked(leaf).astype(factors.dtype), axes=1)

        return _Sums(
            total=jax.tree.map(add, sums.total, reply),
            oracles=counts.plus(sums.oracles, counts.total(jnp.swapaxes(masked(calls), 0, 1))),
            changed=_changed(sums, place, record, masked),
        )

    if at_once == 1 and count > 1:
        return jax.lax.fori_loop(0, members.present, single, sums)
    if at_once >= count:
        return (single if count == 1 else block)(jnp.zeros((), jnp.int32), sums)
    return jax.lax.fori_loop(0, (members.present + at_once - 1) // at_once, block, sums)


def _changed(sums: _Sums, place: Any, record: Record, masked: Callable) -> tuple[Record, jax.Array] | None:
    """The cohort's new records with those of one slot or block; places past the end are dropped."""
    if sums.changed is None:
        return None
    records, finite = sums.changed
    write = lambda old, new: old.at[place].set(new, mode="drop")
    return jax.tree.map(write, records, record), finite & _all_finite(jax.tree.map(masked, record))


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _all_finite(tree: Any) -> jax.Array:
    """Whether every float of a tree is finite."""
    flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack(flags)) if flags else jnp.ones((), bool)
