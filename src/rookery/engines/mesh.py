"""Many devices, of one machine or of several: each has some of the clients. Imports contracts and the compiled engine.

Every device runs the local engine's program with its own clients' data and records; the server's state is on each of
them. They draw the same cohorts, each works for those members that it has, and an exchange ends with one sum over all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rookery.data.federated import Level
from rookery.engines.base import Carry, Inputs, PreparedRun, Seats
from rookery.engines.hosts import agreed
from rookery.engines.local import LocalSession, Program, copied
from rookery.errors import InputError
from rookery.federation.ledger import Ledger, Totals
from rookery.federation.steps import FixedSteps, check_count
from rookery.vectors import Tree, Values

AXIS = "devices"
COLLECTED = 2**26  # bytes of records that several processes tell one another in one go, about


@dataclass(frozen=True)
class Mesh:
    """Spreads the clients over devices: those of this machine and, where `jax.distributed` runs, of all machines. A
    sweep spreads its runs instead, each of them whole on one device.

    Args:
      devices: how many devices; None: all that there are.
      at_once: how many clients of a cohort a device computes side by side; None: as `rk.Local` does on a CPU (one by
        one, if in order), and all of a device's share at once on an accelerator.
      ordered: add up replies in the order of clients, so that the numbers are the same to the last bit on any number
        of devices. Every reply then goes to every device.
    """

    devices: int | None = None
    at_once: int | None = None
    ordered: bool = False

    def open(self, prepared: PreparedRun, ledger: Ledger) -> MeshSession:
        if self.at_once is not None:
            check_count("at_once", self.at_once)
        mesh = self.device_mesh()
        at_once = self.at_once
        if at_once is None and jax.default_backend() != "cpu":
            at_once = -(-prepared.inputs.sampling.slots(prepared.config.population) // mesh.size)
        elif at_once is None and self.ordered:  # side by side, what one gets may depend on who is beside it
            at_once = 1
        program = Program(prepared.config, at_once, AXIS, self.ordered)
        return MeshSession(program, mesh, prepared, ledger)

    def device_mesh(self) -> DeviceMesh:
        """The devices, on one axis."""
        if self.devices is not None:
            check_count("devices", self.devices)
        there = jax.devices()
        if self.devices is not None and self.devices > len(there):
            raise InputError(f"devices: {self.devices} was given; there are {len(there)} of kind {there[0].platform}")
        taken = there[: self.devices]
        if without := {each.process_index for each in there} - {each.process_index for each in taken}:
            raise InputError(
                f"devices: {self.devices} was given, which leaves process {min(without)} without any; every one of the "
                "processes that run together needs one, so give more of them, or None for all"
            )
        return DeviceMesh(np.asarray(taken), (AXIS,))


class Layout:
    """Which clients are on which device: as many on each, and about as much work."""

    def __init__(self, devices: int, work: np.ndarray):
        population = len(work)
        self.devices, self.each = devices, -(-population // devices)
        # By work, over the devices there and back again, as teams are chosen.
        turn, device = np.divmod(np.arange(population, dtype=np.int32), devices)
        self.device = np.empty(population, np.int32)
        self.device[np.argsort(-work, kind="stable")] = np.where(turn % 2, devices - 1 - device, device)
        self.clients = [np.flatnonzero(self.device == d) for d in range(devices)]
        self.place = np.empty(population, np.int32)
        for own in self.clients:
            self.place[own] = np.arange(len(own), dtype=np.int32)

    @property
    def position(self) -> np.ndarray:
        """Where each client is in an array over all devices."""
        return self.device * self.each + self.place

    def filled(self, device: int) -> np.ndarray:
        """A device's clients, and the first of all again where it has fewer than others."""
        own = self.clients[device]
        return np.concatenate([own, np.zeros(self.each - len(own), own.dtype)])


class MeshSession(LocalSession):
    """A run in progress whose clients are on several devices."""

    def __init__(self, program: Program, mesh: DeviceMesh, prepared: PreparedRun, ledger: Ledger):
        self.mesh = mesh
        self.layout = Layout(mesh.size, _work(prepared))
        super().__init__(program, prepared, ledger)

    def _put_inputs(self, inputs: Inputs) -> Inputs:
        whole = jax.tree.map(self._everywhere, inputs._replace(levels={}))
        levels = {name: self._spread_level(level) for name, level in inputs.levels.items()}
        seats = Seats(self._everywhere(self.layout.device), self._everywhere(self.layout.place))
        return whole._replace(levels=levels, seats=seats)

    def _put_carry(self, carry: Carry) -> Carry:
        def own(store: Any) -> jax.Array:
            shape = (self.layout.each, *np.shape(store)[1:])
            return spread(self.mesh, shape, lambda device: np.asarray(store)[self.layout.filled(device)])

        return copied(Carry(jax.tree.map(self._everywhere, carry.state), jax.tree.map(own, carry.records)))

    def _advance(self, carry: Carry, rounds: int) -> tuple:
        carry, *found = advance(self.program, self.mesh, self.inputs, carry, np.int32(rounds))
        return carry, *here(found)

    def _start(self, carry: Carry) -> tuple[Carry, Totals]:
        carry, cost = start(self.program, self.mesh, self.inputs, carry)
        return carry, here(cost)

    def _is_recent(self, seconds: float) -> bool:
        # All processes hold a copy of the same round: who goes back, goes back equally far.
        return bool(agreed(super()._is_recent(seconds)))

    def _whole(self, carry: Carry) -> Carry:
        return Carry(here(carry.state), self._collected(carry.records))

    @property
    def values(self) -> Values:
        """Those of the carry, without what else there is in clients' records."""
        standing = self.standing
        return Values({**here(standing.state.z).trees(), **self._collected(standing.records.local).trees()})

    def _collected(self, tree: Tree) -> Tree:
        """What is spread over devices, in the order of clients, on the host: no device has room for all of it."""
        return jax.tree.map(self._collected_leaf, tree)

    def _collected_leaf(self, leaf: jax.Array) -> np.ndarray:
        position = self.layout.position
        if leaf.is_fully_addressable:
            return np.asarray(leaf)[position]
        whole = np.empty((len(position), *leaf.shape[1:]), leaf.dtype)
        most = max(1, COLLECTED // max(1, whole[:1].nbytes))
        for begin in range(0, len(whole), most):  # a part at a time on every device of every process
            some = np.minimum(np.arange(begin, begin + most), len(whole) - 1)
            part = _collect(leaf, self._everywhere(position[some]), NamedSharding(self.mesh, P()))
            whole[begin : begin + most] = np.asarray(here(part))[: len(whole) - begin]
        return whole

    def _everywhere(self, leaf: Any) -> jax.Array:
        return everywhere(self.mesh, leaf)

    def _spread_level(self, level: Level) -> Level:
        """Every device's clients' examples, with where they begin there."""
        offset, size = np.asarray(level.offset), np.asarray(level.size)
        longest = max(int(size[own].sum()) for own in self.layout.clients)
        starts = lambda own: np.cumsum(size[own]) - size[own]

        def rows(leaf: np.ndarray, device: int) -> np.ndarray:
            own = self.layout.clients[device]
            taken = np.arange(size[own].sum()) + np.repeat(offset[own] - starts(own), size[own])
            padded = np.zeros(longest, np.int64)
            padded[: len(taken)] = taken
            return leaf[padded]

        def begins(device: int) -> np.ndarray:
            own = self.layout.clients[device]
            # Places that no client has begin at the device's first example; nobody asks for them.
            return np.concatenate([starts(own), np.zeros(self.layout.each - len(own), int)]).astype(np.int32)

        own = lambda leaf: spread(self.mesh, (longest, *leaf.shape[1:]), partial(rows, np.asarray(leaf)))
        each = (self.layout.each,)
        return Level(
            jax.tree.map(own, level.rows),
            spread(self.mesh, each, begins),
            spread(self.mesh, each, lambda device: size[self.layout.filled(device)]),
        )


def _work(prepared: PreparedRun) -> np.ndarray:
    """About how much every client has to do in a round: its examples, times its steps where they are its own."""
    levels: Mapping[str, Level] = prepared.inputs.levels
    work = np.sum([np.asarray(level.size, np.float64) for level in levels.values()], axis=0)
    for steps in jax.tree.leaves(prepared.inputs.method, is_leaf=lambda part: isinstance(part, FixedSteps)):
        if isinstance(steps, FixedSteps):
            work = work * np.asarray(steps.steps, np.float64)
    return work


def _specs(inputs: Inputs) -> tuple[Any, Carry]:
    """Which inputs, and which part of the carry, are spread."""
    levels = {name: Level(P(AXIS), P(AXIS), P(AXIS)) for name in inputs.levels}
    of_inputs = Inputs(method=P(), sampling=P(), levels=levels, weights=P(), key=P(), seats=P())  # type: ignore
    return of_inputs, Carry(state=P(), records=P(AXIS))  # type: ignore[arg-type]


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def advance(program: Program, mesh: DeviceMesh, inputs: Inputs, carry: Carry, rounds: Any) -> tuple:
    """`Program.advance` on every device of a mesh; it takes the carry over."""
    of_inputs, of_carry = _specs(inputs)
    on_each = jax.shard_map(
        program.advance,
        mesh=mesh,
        in_specs=(of_inputs, of_carry, P()),
        out_specs=(of_carry, P(), P(), P()),
        check_vma=False,
    )
    return on_each(inputs, carry, rounds)


@partial(jax.jit, static_argnums=(0, 1))
def start(program: Program, mesh: DeviceMesh, inputs: Inputs, carry: Carry) -> tuple:
    """`Program.start` likewise."""
    of_inputs, of_carry = _specs(inputs)
    on_each = jax.shard_map(
        program.start, mesh=mesh, in_specs=(of_inputs, of_carry), out_specs=(of_carry, P()), check_vma=False
    )
    return on_each(inputs, carry)


def everywhere(mesh: DeviceMesh, leaf: Any) -> jax.Array:
    """An array that every device of a mesh has."""
    if is_key(leaf):
        return wrapped(everywhere(mesh, jax.random.key_data(leaf)), leaf)
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, P()), lambda index: array[index])


def spread(mesh: DeviceMesh, shape: tuple[int, ...], block: Callable[[int], np.ndarray]) -> jax.Array:
    """An array of which every device of a mesh has a block, of this shape, made where the device is."""

    def part(index: Any) -> np.ndarray:
        return block((index[0].start or 0) // shape[0])

    whole = (shape[0] * mesh.size, *shape[1:])
    return jax.make_array_from_callback(whole, NamedSharding(mesh, P(AXIS)), part)


def is_key(leaf: Any) -> bool:
    """Whether an array is one of keys for random numbers."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def wrapped(data: jax.Array, like: jax.Array) -> jax.Array:
    """Keys of their data, of the kind that others are."""
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def here(tree: Tree) -> Tree:
    """What is the same on all devices, as one of this process's has it."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


@partial(jax.jit, static_argnums=2)
def _collect(store: jax.Array, position: jax.Array, sharding: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(store[position], sharding)
