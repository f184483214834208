"""The client as a phase sees it: who it is, what it keeps, its loops and branches. Imports oracles and contracts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.data.batches import Shard
from rookery.errors import InputError
from rookery.federation import counts
from rookery.federation.channels import receive, send
from rookery.federation.epochs import Place
from rookery.federation.keys import channel_key, client_key, loop_key, steps_key, whole_round_key
from rookery.federation.ledger import ORACLES
from rookery.federation.marks import Mark, mark_total, marked
from rookery.federation.meter import Meter
from rookery.federation.method import find_phase
from rookery.federation.oracles import Oracles, ProgramConfig, Sample
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs, SingleStep, Steps, draw_steps
from rookery.problems.base import Problem
from rookery.vectors import Sequences

__all__ = ["Answer", "Call", "Client", "ProgramConfig", "Record", "Sample", "Traits", "answer", "received"]


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
    """What a client keeps between exchanges: its local sequences, its state of the method, and, by phase, what the
    channel of its replies keeps."""

    local: Sequences
    state: Any
    channels: Any = ()


class Answer(NamedTuple):
    """What comes of a phase: the reply as it travels, the client's new record, how often it called each of ORACLES,
    and, where neighbours mix, what a channel lost of the reply."""

    reply: Any
    record: Record
    oracles: jax.Array
    lost: Any = ()


class Traits(NamedTuple):
    """What is known of a phase once it is traced: whether it may change the client's record, and whether it loops."""

    changes: bool
    loops: bool


class Client(Oracles):
    """One client in one exchange. Phases use it and nothing else to reach data and state."""

    def __init__(self, config: ProgramConfig, shard: Shard, call: Call, record: Record):
        super().__init__(config, shard, config.problem.at(call.round))
        self._call = call
        self._record = record
        self._loops = False  # whether it has come to a loop
        self.key = client_key(call.exchange_key, call.index)

    @property
    def round_key(self) -> jax.Array:
        """Its key of the whole round: what is drawn with it is the same in all exchanges of the round."""
        return whole_round_key(self._call.round_key, self._call.index)

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
    def population(self) -> int:
        """n, the number of clients in all."""
        return self._config.population

    @property
    def probability(self) -> Any:
        """pi_i, its inclusion probability (drawn with replacement: its expected number of draws)."""
        return self._call.probability

    @property
    def once_factor(self) -> Any:
        """What makes `cohort.mean` count it once with weight p_i: pi_i over the times it was drawn."""
        return self._call.probability / self._call.times

    @property
    def round(self) -> Any:
        """The number of the round, from 0."""
        return self._call.round

    @property
    def first(self) -> Any:
        """Whether this is where the run begins: nobody was part of any round before this one."""
        return self._call.first

    def at(self, rates: Rates) -> Rates:
        """Step sizes or other numbers as they are for this client in this round."""
        return rates.at(self._call.round, self._call.index)

    # What it keeps.

    @property
    def state(self) -> Any:
        """Its state of the method."""
        return self._record.state

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the sequences that stay on this client."""
        return self._problem.local

    def enter(self, z: Sequences) -> Sequences:
        """The shared sequences together with this client's own."""
        together = z.merged(self._record.local)
        return Sequences({name: together[name] for name in self._problem.names if name in together})

    def leave(self, z: Sequences) -> Sequences:
        """Keeps the local sequences of z on this client and gives back the shared ones."""
        local = self._record.local.names
        if local:
            if self._stretch.inside:
                raise InputError(
                    f"client.leave: it was called inside client.{self._stretch.inside}, which has no end yet; carry "
                    "the point out of it, and leave there"
                )
            self._record = self._record._replace(local=z.only(local))
        return self.shared(z)

    def shared(self, z: Sequences) -> Sequences:
        """The shared sequences of z."""
        return z.only(self._problem.shared)

    def project_local(self, z: Sequences) -> Sequences:
        """z with its local sequences projected onto their sets; the server projects the shared ones."""
        return self._problem.project(z, self._problem.local)

    def project_shared(self, z: Sequences) -> Sequences:
        """z with its shared sequences projected onto their sets, where there is no server to do it."""
        return self._problem.project(z, self._problem.shared)

    def project(self, z: Sequences) -> Sequences:
        """z with all its sequences projected onto their sets, for a look ahead that stays on this client."""
        return self._problem.project(z, self._problem.names)

    # Work.

    def steps(self, work: Steps) -> jax.Array:
        """tau_i, this client's number of local steps in this round."""
        drawn = draw_steps(work, self.index, self.round, steps_key(self._call.round_key, self.index))
        return drawn * self._passes().length if isinstance(work, Epochs) else drawn

    def loop(
        self, work: Any, step: Callable[[Any, Any, jax.Array], Any], carry: Any, key: jax.Array | None = None
    ) -> Any:
        """`carry = step(carry, k, key)` for k = 0 .. steps - 1, with a fresh key in each. `work` is a number of steps,
        a schedule of them, or epochs. A phase with more than one loop gives the others a `key` of their own."""
        key = self.key if key is None else key
        fresh, steps = loop_key(key), jnp.asarray(self.steps(work), jnp.int32)
        passes = self._passes() if isinstance(work, Epochs) else None
        around = self._stretch
        self._loops |= not isinstance(work, SingleStep)

        def one(k: Any, carry: Any, place: Place | None) -> Any:
            own = jax.random.fold_in(fresh, k)
            if passes is not None:
                self._stretch = self._stretch._replace(place=place, step_key=own)
            return step(carry, k, own)

        def through(body: Callable[[Any, Any, Place | None], Any], carry: Any) -> Any:
            if passes is not None:
                return passes.run(key, steps, body, carry)
            if isinstance(work, SingleStep):
                return body(jnp.zeros((), jnp.int32), carry, None)
            return jax.lax.fori_loop(0, steps, lambda k, carry: body(jnp.asarray(k, jnp.int32), carry, None), carry)

        stretch = around._replace(meter=Meter(), inside="loop")
        if self._plain:
            return through(partial(self._run, stretch._replace(meter=around.meter), one), carry)
        place = None if passes is None else jax.eval_shape(passes.begin, key)
        traced = self._traced(one, stretch, jnp.zeros((), jnp.int32), carry, place)
        if not traced.totals:  # every step costs the same
            after = through(lambda *args: traced(*args)[0], carry)
            inside = counts.zeros(len(ORACLES))
        else:

            def counting(k: Any, both: tuple, place: Place | None) -> tuple:
                after, totals = traced(k, both[0], place)
                return after, reduce(counts.plus, totals, both[1])

            after, inside = through(counting, (carry, counts.zeros(len(ORACLES))))
        known = self._cost(stretch.meter, around.place if passes is None else None)
        total = counts.plus(inside, counts.times(known, jnp.maximum(steps, 0)))
        if passes is not None:
            samples = counts.times(passes.samples(stretch.meter.passes), steps // passes.length)
            total = total.at[:, 0].set(counts.plus(total[:, 0], samples))
        return self._counted_apart(after, total, "loop")

    def choose(self, flag: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """`then()` or `otherwise()`, whichever the traced flag says: only that one is run and counted."""
        around = self._stretch
        if self._plain:
            inside = around._replace(inside="choose")
            return jax.lax.cond(flag, *(partial(self._run, inside, branch) for branch in (then, otherwise)))

        def counted(branch: Callable[[], Any]) -> Callable[[], tuple]:
            own = Meter()
            traced = self._traced(branch, around._replace(meter=own, inside="choose", branch=own))

            def run() -> tuple:
                result, totals = traced()
                return result, reduce(counts.plus, totals, self._cost(own, around.place))

            return run

        result, total = jax.lax.cond(flag, counted(then), counted(otherwise))
        return self._counted_apart(result, total, "choose")

    def _counted_apart(self, result: Any, total: jax.Array, call: str) -> Any:
        """The result of a loop or a branch, marked with what it has cost."""
        mark = Mark(f"client.{call}", self._executed)
        mark_total(total, mark)
        return marked(result, mark)


def answer(
    config: ProgramConfig,
    program: Any,
    phase: str,
    update: bool,
    shard: Shard,
    call: Call,
    record: Record,
    message: tuple,
) -> tuple[Answer, Traits]:
    """Runs a phase at a client; every engine goes through here."""
    client = Client(config, shard, call, record)

    def run() -> tuple[Any, Any, Any]:
        """The reply, and the new client state and local sequences where they may change."""
        reply, state = find_phase(program, phase)(client, *message), None
        if update:
            if not (isinstance(reply, tuple) and len(reply) == 2):
                raise InputError(
                    f"phase {phase!r}: an update form needs (reply, new client state), not {type(reply).__name__}"
                )
            reply, state = reply
        else:
            _refuse_state(phase, reply, record.state)
        _refuse_local(config.problem, phase, reply)
        return reply, state, None if client._record.local is record.local else client._record.local

    (reply, state, local), oracles = client._measured(run)
    new = record._replace(state=state if update else record.state, local=record.local if local is None else local)
    changed, lost = update or local is not None, ()
    if config.up is not None and phase not in program.silent:
        kept, whole = record.channels[phase] if record.channels else {}, reply
        reply, kept = send(config.up, reply, kept, channel_key(client.key))
        if program.neighbours:
            lost = _difference(whole, received(config, phase, reply, record.channels)[0])
        if record.channels:
            new, changed = new._replace(channels={**record.channels, phase: kept}), True
    return Answer(reply, new, oracles, lost), Traits(changed, client._loops)


def _difference(whole: Any, received: Any) -> Any:
    """What a reply had and its receivers have not."""
    floating = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return jax.tree.map(lambda a, b: a - b if floating(a) else jnp.zeros_like(a), whole, received)


def with_own(mean: Any, lost: Any) -> Any:
    """What a client makes of its neighbours' values, sum_j W_ij g_j, of which the g_j are what came of theirs r_j:
    r_i + sum_j W_ij (g_j - g_i), from r_i - g_i, which it knows. Whatever is lost on the way, the mean over clients
    stays that of the r_i."""
    return jax.tree.map(jnp.add, mean, lost) if jax.tree.leaves(lost) else mean


def received(config: ProgramConfig, phase: str, reply: Any, channels: Any) -> tuple[Any, Any]:
    """The reply that the server has of what travelled, and what it keeps of this client; `channels` is what was kept
    before that."""
    if config.up is None:
        return reply, channels
    value, kept = receive(config.up, reply, channels.get(phase, {}) if channels else {})
    return value, {**channels, phase: kept} if channels and phase in channels else channels


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
