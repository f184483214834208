"""Where runs side by side are: on one device, or spread over those of a mesh. Imports contracts and the mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rookery.engines.hosts import together
from rookery.engines.mesh import AXIS, everywhere, here, is_key, spread, wrapped
from rookery.vectors import Tree, row


@dataclass(frozen=True)
class Place:
    """Where lanes are: all of them on one device."""

    @property
    def devices(self) -> int:
        """How many devices share the lanes; there is a multiple of that many of them, some for nothing."""
        return 1

    @property
    def several(self) -> bool:
        """Whether other processes have some of the lanes: all must then make the same calls."""
        return False

    def stacked(self, *trees: Tree) -> Tree:
        """The lanes' trees as one, with a leading axis of lanes."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    def shared(self, tree: Tree) -> Tree:
        """A tree that all lanes read."""
        return jax.device_put(tree)

    def over(self, function: Callable[..., Any], axes: Any) -> Callable[..., Any]:
        """A function of one lane as one of all of them; `axes` as `jax.vmap` takes them, 0 or None."""
        return jax.vmap(function, in_axes=axes)

    def lane(self, tree: Tree, i: int) -> Tree:
        """One lane of what is stacked."""
        return row(tree, i)

    def read(self, tree: Tree) -> Tree:
        """All lanes of what is stacked, as numpy has it."""
        return jax.device_get(tree)


@dataclass(frozen=True)
class Spread(Place):
    """Every device has as many lanes, in their order. None waits for another's before all of its own are done."""

    mesh: DeviceMesh

    @property
    def devices(self) -> int:
        return self.mesh.size

    @property
    def several(self) -> bool:
        return together()

    def stacked(self, *trees: Tree) -> Tree:
        """The last lane fills the places for which there is none."""
        return jax.tree.map(lambda *leaves: self._spread(leaves), *trees)

    def _spread(self, leaves: tuple) -> jax.Array:
        if is_key(leaves[0]):
            return wrapped(self._spread(tuple(map(jax.random.key_data, leaves))), leaves[0])
        each = -(-len(leaves) // self.devices)
        own = lambda device: [min(i, len(leaves) - 1) for i in range(device * each, (device + 1) * each)]
        block = lambda device: np.stack([np.asarray(leaves[i]) for i in own(device)])
        return spread(self.mesh, (each, *np.shape(leaves[0])), block)

    def shared(self, tree: Tree) -> Tree:
        return jax.tree.map(partial(everywhere, self.mesh), tree)

    def over(self, function: Callable[..., Any], axes: Any) -> Callable[..., Any]:
        is_none = lambda axis: axis is None
        specs = jax.tree.map(lambda axis: P() if is_none(axis) else P(AXIS), axes, is_leaf=is_none)
        side_by_side = super().over(function, axes)
        return jax.shard_map(side_by_side, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)

    def lane(self, tree: Tree, i: int) -> Tree:
        return here(_lane(self.mesh, tree, np.int32(i)))

    def read(self, tree: Tree) -> Tree:
        return jax.device_get(here(_on_all(tree, NamedSharding(self.mesh, P()))))


@partial(jax.jit, static_argnums=0)
def _lane(mesh: DeviceMesh, tree: Tree, i: Any) -> Tree:
    """One lane, on every device: each gives one of its own, so that no device has ever all lanes."""

    def chosen(leaf: jax.Array, i: Any) -> jax.Array:
        each = leaf.shape[0]
        return jax.lax.all_gather(leaf[i % each], AXIS)[i // each]

    on_each = lambda tree, i: jax.tree.map(lambda leaf: chosen(leaf, i), tree)
    return jax.shard_map(on_each, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(), check_vma=False)(tree, i)


@partial(jax.jit, static_argnums=1)
def _on_all(tree: Tree, sharding: NamedSharding) -> Tree:
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), tree)
