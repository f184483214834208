"""The compiled engine: whole rounds, many at a time, as one XLA program. Imports contracts only."""

from __future__ import annotations

import time
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
from rookery.federation.channels import map_vectors, pack_vector, unpack_vectors
from rookery.federation.client import Call, ProgramConfig, Record, Traits, answer, received, with_own
from rookery.federation.cohort import Cohort
from rookery.federation.delivered import Audience, Delivered
from rookery.federation.evaluation import TEST, ClientMetrics, evaluate_all
from rookery.federation.graphs import Mixing
from rookery.federation.keys import before_first_round_key, exchange_key, round_key, sampling_key
from rookery.federation.ledger import ORACLES, Ledger, Tally, Totals
from rookery.federation.method import next_state
from rookery.federation.sampling import Members
from rookery.federation.scaled import summands
from rookery.federation.steps import check_count
from rookery.vectors import Vector, row, zeros

MOST, CACHED = 16, 2**20  # clients side by side on a CPU, and bytes of their replies, which are held until added up
RARELY = 50  # times as long as a copy of the carry takes, at least, until it is copied again


@dataclass(frozen=True)
class Local:
    """Runs everything on this machine as one compiled program.

    Args:
      at_once: how many clients of a cohort are computed side by side (`vmap`); the rest follow in a loop. None: all
        at once on an accelerator; on a CPU, as is faster there, one by one where a phase takes local steps, with which
        clients' points come apart, and else as many as have replies of 1 MiB together, up to 16.
    """

    at_once: int | None = None

    def open(self, prepared: PreparedRun, ledger: Ledger) -> LocalSession:
        return LocalSession(self.program(prepared), prepared, ledger)

    def program(self, prepared: PreparedRun) -> Program:
        """The program that runs a prepared."""
        if self.at_once is not None:
            check_count("at_once", self.at_once)
        default = None if jax.default_backend() == "cpu" else prepared.config.population
        return Program(prepared.config, self.at_once or default)


@dataclass(frozen=True)
class Program:
    """The static side of a compiled run: two equal programs share one compilation.

    Where clients are on several devices, each runs the program with its own; all of them draw the same cohorts and
    change the server's state alike, and sums go over `axis`.
    """

    config: ProgramConfig
    at_once: int | None  # clients side by side; None: as suits the phase, on a CPU
    axis: str | None = None  # that of devices, if there are several
    ordered: bool = False  # whether sums over devices are in the order of clients

    def round(
        self, inputs: Inputs, carry: Carry, noted: dict[str, list[Any]] | None = None
    ) -> tuple[Carry, Totals, jax.Array]:
        """One round as a pure function: the new carry, what it cost, and whether everything is still finite. What
        every phase replies is noted, by its shapes, where somebody asks."""
        key = round_key(inputs.key, carry.state.round)
        members = self.members(inputs, key, carry.state.round)
        trace = _Trace(self, inputs, carry, key, noted)
        cohort = CompiledCohort(trace, members, inputs.sampling.always_full)
        state = next_state(inputs.method, carry.state, cohort)
        if inputs.sampling.may_be_empty:
            happened = members.present > 0
            state = jax.tree.map(partial(jnp.where, happened), state, carry.state.skip())
        return Carry(state, trace.records), trace.tally.totals(), trace.finite & _all_finite(state)

    def start(self, inputs: Inputs, carry: Carry, noted: dict[str, list[Any]] | None = None) -> tuple[Carry, Totals]:
        """What a method does once, before the first round."""
        key = before_first_round_key(inputs.key)
        trace = _Trace(self, inputs, carry, key, noted)
        members = self.members(inputs, key, carry.state.round)
        state = inputs.method.start(carry.state, CompiledCohort(trace, members, inputs.sampling.always_full))
        return Carry(state, trace.records), trace.tally.totals()

    def places(self, slots: int, loops: bool, reply: Any) -> int:
        """How many of so many slots are computed side by side, of a phase that loops or does not and replies so."""
        if self.at_once is not None:
            return min(self.at_once, slots)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(reply))
        most = 1 if loops else max(1, min(MOST, CACHED // max(size, 1)))
        return -(-slots // -(-slots // most))  # in blocks that are as even as can be

    def members(self, inputs: Inputs, key: jax.Array, round: Any) -> Members:
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

        first = (carry, zeros(cost), jnp.zeros((), jnp.int32), jnp.ones((), bool))
        return jax.lax.while_loop(lambda loop: (loop[2] < rounds) & loop[3], body, first)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance(program: Program, inputs: Inputs, carry: Carry, rounds: Any) -> tuple:
    """The compiled form of `Program.advance`, cached over runs. It takes the carry over: the store of all clients'
    records is changed where it is, and not copied."""
    return program.advance(inputs, carry, rounds)


def copied(carry: Carry) -> Carry:
    """A carry of its own, which `advance` may take over. Nothing is compiled for it, so that it may be made at any
    time."""

    def copy(leaf: Any) -> jax.Array:
        at = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None  # of several processes, too
        return jax.device_put(leaf, at, may_alias=False)

    return jax.tree.map(copy, carry)


def placed(carry: Carry) -> Carry:
    """A carry of the host on the device, which `advance` may take over. Records that begin alike are a view of one
    there, and are made many on the device."""
    leaves, structure = jax.tree.flatten(carry)
    one = [leaf[:1] if isinstance(leaf, np.ndarray) and leaf.strides[:1] == (0,) else leaf for leaf in leaves]
    made = _filled(jax.device_put(one), tuple(np.shape(leaf) for leaf in leaves))
    return jax.tree.unflatten(structure, made)


@partial(jax.jit, static_argnums=1)
def _filled(leaves: list[jax.Array], shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    """Copies of arrays, with one row made as many as there are to be."""
    return [jnp.copy(jnp.broadcast_to(leaf, shape)) for leaf, shape in zip(leaves, shapes)]


@partial(jax.jit, static_argnums=0)
def start(program: Program, inputs: Inputs, carry: Carry) -> tuple:
    """The compiled form of `Program.start`."""
    return program.start(inputs, carry)


class _Standing(NamedTuple):
    """Where a run stands. Replaced as a whole, since an interrupt may come at any moment."""

    carry: Carry | None  # None: a call has taken it over
    ledger: Ledger
    held: Carry | None = None  # a copy from some rounds ago; None: what the session was opened with, on the host
    since: int = 0  # how many


class LocalSession:
    """A run in progress: its carry stays on the device between calls.

    A call takes the carry over, so that what it began from is gone. Rounds are a function of the carry: where a call
    diverges, or an interrupt comes before its end, what there was is found by running up to it again: from what it was
    opened with, which is on the host, and later from a copy that is made anew where that takes a small part of the time
    since.
    """

    def __init__(self, program: Program, prepared: PreparedRun, ledger: Ledger):
        self.program = program
        self.inputs = self._put_inputs(prepared.inputs)
        self._first: Carry | None = prepared.carry  # as long as the copy to go back to is this one
        begun = time.perf_counter()
        self._at = _Standing(jax.block_until_ready(self._put_carry(prepared.carry)), ledger)
        self._copied(begun)
        self._test: Shard | None = None  # the clients' test examples, when they are first asked for

    @property
    def ledger(self) -> Ledger:
        return self._at.ledger

    @property
    def carry(self) -> Carry:
        return self._whole(self.standing)

    @property
    def standing(self) -> Carry:
        """The carry as it is on the devices; the next call takes it over."""
        if self._at.carry is None:  # found again
            at = self._at
            if at.held is None:
                assert self._first is not None
                carry = self._put_carry(self._first)
            else:
                carry = copied(at.held)
            carry, _, _, _ = self._advance(carry, at.since)
            self._at = at._replace(carry=carry)
        return self._at.carry  # type: ignore[return-value]

    def _whole(self, carry: Carry) -> Carry:
        """A carry as others see it: in the order of clients."""
        return carry

    def _put_inputs(self, inputs: Inputs) -> Inputs:
        return jax.device_put(inputs)

    def _put_carry(self, carry: Carry) -> Carry:
        return placed(carry)

    def _advance(self, carry: Carry, rounds: int) -> tuple:
        return advance(self.program, self.inputs, carry, jnp.int32(rounds))

    def _start(self, carry: Carry) -> tuple[Carry, Totals]:
        return start(self.program, self.inputs, carry)

    def start(self) -> None:
        carry, cost = self._start(self.standing)
        self._first = None
        self._at = _Standing(copied(carry), self.ledger.plus(cost))

    def advance(self, rounds: int) -> Advance:
        self._hold()
        done, broken = self._call(rounds)
        if not broken:
            return Advance(done)
        self._call(done - 1)  # up to the last good one
        return Advance(done - 1, broken)

    def _call(self, rounds: int) -> tuple[int, tuple[str, ...]]:
        """Some rounds: how many were run, and what is not finite after them; in that case nothing has changed."""
        carry, at = self.standing, self._at
        self._at = at._replace(carry=None)
        carry, cost, done, finite = self._advance(carry, rounds)
        if not bool(finite):
            return int(done), non_finite(self._whole(carry)) or ("state",)
        self._at = at._replace(carry=carry, ledger=self.ledger.plus(cost), since=at.since + int(done))
        return int(done), ()

    def _is_recent(self, seconds: float) -> bool:
        return seconds < RARELY * self._copy_seconds

    def _hold(self) -> None:
        """Holds a copy of where the run stands, unless the last one is recent for what a copy takes."""
        carry, at, begun = self.standing, self._at, time.perf_counter()
        has_one = at.held is not None or self._first is not None
        if has_one and self._is_recent(begun - self._copied_at):
            return
        self._at = at = at._replace(held=None)  # there is no room for two copies
        self._at = at._replace(held=jax.block_until_ready(copied(carry)), since=0)
        self._first = None
        self._copied(begun)

    def _copied(self, begun: float) -> None:
        """Notes when a copy was made, and how long it took."""
        self._copied_at = time.perf_counter()
        self._copy_seconds = self._copied_at - begun

    def measure(self, function: ClientMetrics, test: Level) -> dict[str, np.ndarray]:
        if self._test is None:  # on the device once, not at every evaluation
            self._test = jax.device_put(Shard(cast({TEST: test}, self.program.config.dtype)))
        config, largest, carry = self.program.config, int(np.max(test.size)), self.carry
        found = evaluate_all(config, function, largest, self._test, carry.state.z, carry.records)
        return {name: np.asarray(values) for name, values in found.items()}


class _Trace:
    """What one round builds up while its program is traced."""

    def __init__(
        self, program: Program, inputs: Inputs, carry: Carry, key: jax.Array, noted: dict[str, list[Any]] | None = None
    ):
        self.noted = noted
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

        last = jax.lax.fori_loop(0, times, loop, (*first, zeros(cost)))
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
        trace = self._trace
        answered = self._answered(phase, message, factors, update)
        config = trace.program.config
        sent = [(packed_part(config, part), way) for part, way in trace.delivered.send(self._audience, message)]
        trace.tally.exchange(phase, sent, answered.reply, self.members.present, answered.oracles)
        return answered.total

    @property
    def _whole(self) -> bool:
        return self._full and super()._whole

    def _mix(self, mixing: Mixing, give: str, take: str) -> Any:
        population, everybody = self.population, jnp.ones_like(self.weights)
        mixing.check_channel(self._trace.program.config.up)
        given = self._answered(give, (), everybody, update=True, apart=True)
        values, lost = given.total
        own = (with_own(mixing.mix(values), lost),)
        taken = self._answered(take, (), everybody / population, update=True, own=own)
        oracles, messages = counts.plus(given.oracles, taken.oracles), mixing.messages(population)
        self._trace.tally.mixing(give, given.reply, population, messages, oracles)
        return taken.total

    def _answered(
        self, phase: str, message: tuple, factors: jax.Array, update: bool, own: tuple = (), apart: bool = False
    ) -> _Answered:
        """What comes of a phase at all clients of the cohort. Beside the message each gets its row of `own`, which is
        stacked over slots. `apart`: replies are not added up but stacked, with what was lost of them on the way."""
        trace, members = self._trace, self.members
        config, inputs = trace.program.config, trace.inputs
        key = exchange_key(trace.key, self._tick())
        traits, reply = Traits(changes=False, loops=False), None
        told = unpack_vectors(config.down, map_vectors(partial(pack_vector, config.down), message))

        def one(record: Record, index: Any, weight: Any, probability: Any, times: Any, own: tuple) -> tuple:
            """What the client of one slot answers: what its reply adds, its new record, its oracle calls."""
            nonlocal traits, reply
            call = Call(index, weight, probability, times, trace.round, trace.first, trace.key, key)
            examples = shard(inputs.levels, inputs.place(index))
            result, traits = answer(config, inputs.method, phase, update, examples, call, record, (*told, *own))
            reply = result.reply
            value, _ = received(config, phase, reply, record.channels)
            return summands((value, result.lost) if apart else value), result.record, result.oracles

        one = jax.jit(one, inline=True)  # so that the shapes below and the loop share one trace of the phase

        here = _here(inputs, trace.program.axis, members)
        full = self._full and inputs.seats is None
        # The cohort's records are read before its clients work, and written when all have: where one loop reads and
        # writes the store of all clients, XLA copies the whole of it for every client.
        records = jax.tree.map(lambda store: store[here.place], trace.records)
        mine, weights, factors = here.members, self.weights[here.slot], factors[here.slot]
        times = jnp.maximum(mine.count, 1).astype(mine.expected.dtype)
        slots = (records, mine.index, weights, mine.expected, times, row(own, here.slot))
        terms, _, _ = jax.eval_shape(one, *row(slots, 0))
        if trace.noted is not None and phase not in inputs.method.silent:
            note(trace.noted, phase, reply)
        ordered = trace.program.ordered or apart
        rows = factors.shape if ordered else ()  # one by one, to be added up in their order when all are there
        share = jax.eval_shape(
            lambda: jax.tree.map(lambda leaf: jnp.zeros((*rows, *leaf.shape), leaf.dtype) * factors[0], terms)
        )
        sums = _Sums(
            total=zeros(share),
            oracles=counts.zeros(len(ORACLES)),
            changed=(zeros(records), trace.finite) if traits.changes else None,
        )
        at_once = trace.program.places(mine.index.shape[0], traits.loops, terms)
        sums = _over_slots(one, slots, factors, mine, at_once, sums, full, ordered)
        sums = _over_devices(sums, trace.program.axis, here.slot if ordered else None)
        if sums.changed is not None:
            new, trace.finite = sums.changed
            filled = jnp.where(mine.count > 0, here.place, self.population)
            trace.records = jax.tree.map(lambda store, own: store.at[filled].set(own, mode="drop"), trace.records, new)
        total = sums.total if apart or not ordered else _in_order(sums.total)
        return _Answered(total, reply, sums.oracles)


class _Answered(NamedTuple):
    """What came of a phase: the aggregate, or replies stacked over slots, what one reply is like, and oracle calls."""

    total: Any
    reply: Any
    oracles: jax.Array


def note(noted: dict[str, list[Any]], phase: str, reply: Any) -> None:
    """Notes what a phase replies, by its shapes; those of one name may differ."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), reply)
    if shapes not in noted.setdefault(phase, []):
        noted[phase].append(shapes)


def packed_part(config: ProgramConfig, part: Any) -> Any:
    """A part of a message as it travels, by its shapes."""
    if config.down is None or not isinstance(part, Vector):
        return part
    return jax.eval_shape(partial(pack_vector, config.down), part)


class _Here(NamedTuple):
    """The members of a cohort whose data and records are on this device, the others' slots left unfilled."""

    members: Members
    slot: Any  # which slot of the cohort each of these is; a slice, where all are here
    place: Any  # where its data and record are


def _here(inputs: Inputs, axis: str | None, members: Members) -> _Here:
    seats = inputs.seats
    if seats is None:
        return _Here(members, slice(None), inputs.place(members.index))
    mine = seats.device[members.index] == jax.lax.axis_index(axis)
    count = jnp.where(mine, members.count, 0)
    slot = jnp.argsort(count == 0, stable=True)  # filled ones first
    own = Members(members.index[slot], count[slot], members.expected[slot])
    return _Here(own, slot, seats.place[own.index])


def _over_devices(sums: _Sums, axis: str | None, slot: jax.Array | None) -> _Sums:
    """What all devices found, on each of them; new records stay where they are. Where terms are apart, `slot` says
    which of the cohort's each is."""
    if axis is None:
        return sums
    total, changed = sums.total, sums.changed
    if slot is not None:
        total = jax.tree.map(lambda terms: jnp.zeros_like(terms).at[slot].set(terms), total)
    total = jax.lax.psum(total, axis)  # where terms are apart, each is of one device: it rounds nothing
    if changed is not None:
        changed = changed[0], jax.lax.pmin(changed[1].astype(jnp.int32), axis) > 0
    return _Sums(
        total=total,
        oracles=counts.total(jnp.swapaxes(jax.lax.all_gather(sums.oracles, axis), 0, 1)),
        changed=changed,
    )


def _in_order(terms: Any) -> Any:
    """The sum of terms that are apart, in the order of slots."""
    first = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), terms)
    add = lambda k, sum: jax.tree.map(lambda sum, leaf: sum + leaf[k], sum, terms)
    slots = jax.tree.leaves(terms)[0].shape[0] if jax.tree.leaves(terms) else 0
    return jax.lax.fori_loop(0, slots, add, first)


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
    apart: bool,
) -> _Sums:
    """Adds up `one` over the filled slots, `at_once` of them side by side; or keeps the terms apart."""
    count = factors.shape[0]
    full = full and count % at_once == 0

    def single(slot: Any, sums: _Sums) -> _Sums:
        reply, record, calls = one(*row(slots, slot))
        # An unfilled slot's reply may be anything: it is dropped, not multiplied by 0.
        masked = lambda leaf: leaf if full else jnp.where(members.count[slot] > 0, leaf, 0)

        def add(total: jax.Array, leaf: jax.Array) -> jax.Array:
            term = masked(leaf * factors[slot])
            return total.at[slot].set(term) if apart else total + term

        return _Sums(
            total=jax.tree.map(add, sums.total, reply),
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
            if apart:
                terms = masked(leaf) * jnp.expand_dims(weights, range(1, leaf.ndim))
                return total.at[place].set(terms, mode="drop")
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


def _all_finite(tree: Any) -> jax.Array:
    """Whether every float of a tree is finite."""
    flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack(flags)) if flags else jnp.ones((), bool)
