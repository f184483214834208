"""Replies that say more than they weigh: a vector with scalars, from which the server forms several sums.

Imports structs only.
"""

from __future__ import annotations

from typing import Any

import jax

from rookery.structs import struct


@struct
class Scaled:
    """A reply r_i with scalars s_i: it travels as it is, and every aggregate of it is a pair

    sum f_i r_i,   {name: sum f_i s_i r_i},      f_i the factors of the exchange.
    """

    value: Any
    by: dict[str, Any]


def summands(reply: Any) -> Any:
    """What the server adds up of a reply."""

    def node(part: Any) -> Any:
        if not isinstance(part, Scaled):
            return part
        return part.value, {name: part.value * factor for name, factor in part.by.items()}

    return jax.tree.map(node, reply, is_leaf=lambda part: isinstance(part, Scaled))
