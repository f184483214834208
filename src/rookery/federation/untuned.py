"""Server optimisers that need no step size, by their names, of the optax kind. Imports vectors.

D-Adaptation (`optax.contrib.dadapt_adamw`) and Prodigy (`optax.contrib.prodigy`) are optax's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.vectors import Sequences


class AdagradNorm(NamedTuple):
    """An optimiser with one step size for all entries, which shrinks as directions add up."""

    learning_rate: Any
    b0: Any

    def init(self, z: Sequences) -> jax.Array:
        leaf = jax.tree.leaves(z)[0]
        return jnp.full((), self.b0, leaf.dtype) ** 2

    def update(self, d: Sequences, kept: jax.Array, z: Sequences | None = None) -> tuple[Sequences, jax.Array]:
        total = kept + sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(d))
        scale = self.learning_rate / jnp.sqrt(jnp.where(total > 0, total, 1))
        return jax.tree.map(lambda d: -scale * d, d), total


def adagrad_norm(learning_rate: Any = 1.0, b0: Any = 0.0) -> AdagradNorm:
    r"""AdaGrad-norm: b^2 <- b^2 + ||d||^2, z <- z - eta d / b, from b = b0.

    It converges at any eta, and none need be given; the first step has the length eta.

    Args:
      learning_rate: eta.
      b0: b_0; more of it makes the first steps shorter.

    Reference: Ward, Wu, Bottou, AdaGrad Stepsizes: Sharp Convergence over Nonconvex Landscapes, 2019.
    """
    return AdagradNorm(learning_rate, b0)


def mechanic(weight_decay: Any = 1e-2, s_init: Any = 1e-6) -> Any:
    """Mechanic on plain descent: the scale of all steps so far is learnt, from `s_init`.

    Args:
      weight_decay: how much shorter a way is taken to be better, when the scale is learnt.
      s_init: the first scale.

    Reference: Cutkosky, Defazio, Mehta, Mechanic: A Learning Rate Tuner, 2023; `optax.contrib.mechanize`.
    """
    try:
        import optax
        from optax import contrib
    except ImportError:
        raise InputError("server: optax is not installed; install it with pip install optax") from None
    return contrib.mechanize(optax.sgd(1.0), weight_decay=weight_decay, s_init=s_init)


UNTUNED: dict[str, Callable[..., Any]] = {make.__name__: make for make in (adagrad_norm, mechanic)}
