"""Methods without a server in plain numpy, from their formulas, on quadratic bilevel problems with full batches.

A client has `M` and `k`, D_i(z) = M_i z + k_i with z = (x, y, v) in a row, and `share`, n p_i; for GBDSBO also the
matrices of f and g.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def gossip(own: dict[str, Any], W: Any, z: Any, rounds: int, eta: float, steps: int, adapt: str, theta: Any) -> Any:
    """Everybody's points after some rounds."""
    h = np.zeros_like(z)
    for _ in range(rounds):
        at = z
        for _ in range(steps):
            at = at - eta * (np.einsum("ist,it->is", own["M"], at) + own["k"])
        h = (1 - theta) * h + theta * own["share"][:, None] * (at - z)
        z = W @ (z + h) if adapt == "first" else W @ z + h
    return z


def gossiptracking(own: dict[str, Any], W: Any, z: Any, rounds: int, eta: float) -> Any:
    s = before = np.zeros_like(z)
    for _ in range(rounds):
        d = own["share"][:, None] * (np.einsum("ist,it->is", own["M"], z) + own["k"])
        s, before = s + d - before, d
        z, s = W @ (z - eta * s), W @ s
    return z


def gbdsbo(own: dict[str, Any], W: Any, z: Any, rounds: int, eta: float, lam: float, terms: int, beta: float) -> Any:
    """Of x and y; all estimates begin at 0."""
    n, (dy, dx) = len(z), own["B"].shape[1:]
    x, y = z[:, :dx], z[:, dx : dx + dy]
    s, h, u = np.zeros((n, dx)), np.zeros((n, dy)), np.zeros((n, dx, dy))
    H = np.zeros((terms - 1, n, dy, dy))
    share = own["share"]
    mixed = lambda old, new: (1 - beta) * np.tensordot(W, old, 1) + beta * np.einsum("i,i...->i...", share, new)
    for _ in range(rounds):
        moves = []
        for i in range(n):
            product, series = np.eye(dy), np.eye(dy)
            for each in H[:, i]:
                product = product @ (np.eye(dy) - lam * each)
                series = series + product
            moves.append(s[i] - u[i] @ (lam * series @ h[i]))
        lower = np.einsum("iab,ib->ia", own["A"], y) - np.einsum("iab,ib->ia", own["B"], x) - own["c"]
        upper_x = np.einsum("iab,ib->ia", own["R"], x) - own["Re"]
        upper_y = np.einsum("iab,ib->ia", own["E"], y) - own["Ed"]
        x, y = W @ x - eta * np.stack(moves), W @ y - eta * share[:, None] * lower
        s, h = mixed(s, upper_x), mixed(h, upper_y)
        u = mixed(u, -np.swapaxes(own["B"], 1, 2))
        H = np.stack([mixed(each, own["A"]) for each in H])
    return np.concatenate([x, y], axis=1)


REFERENCES = {"gossip": gossip, "gossiptracking": gossiptracking, "gbdsbo": gbdsbo}
