"""E7, data cleaning with one logit per sample; imports problem kinds, federated data and numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Split, federate
from rookery.errors import InputError
from rookery.problems.exact import draws
from rookery.problems.exact.common import bar, flat, means, zeros
from rookery.problems.kinds import Bilevel


def lower(x, y, e):
    """g = sigmoid(x_k) 1/2 |w - z|^2 + C/2 |w|^2 on the client's noisy sample k; y is w."""
    w = flat(y)
    gap = w - e["z"]
    return 0.5 * jax.nn.sigmoid(flat(x)[e["index"]]) * jnp.dot(gap, gap) + 0.5 * e["C"] * jnp.dot(w, w)


def upper(x, y, e):
    """f = 1/2 |w - t|^2 on a clean sample; y is w."""
    gap = flat(y) - e["t"]
    return 0.5 * jnp.dot(gap, gap)


@dataclass(frozen=True, eq=False)
class DataCleaning:
    """E7: find the corrupted ones among samples z_1, ..., z_N, given a few clean ones.

    Sample k has weight s_k = sigmoid(x_k). Over all N samples of all clients, with the clean mean t,

        lower  1/N sum_k s_k 1/2 |w - z_k|^2 + C/2 |w|^2,   upper  1/2 |w - t|^2

        w* = sum s_k z_k / (sum s_k + C N),   v = (w* - t)/(mean s + C),
        d/dx_k = -s_k(1 - s_k)(w* - z_k)'v/N.

    **Weights.** A client averages over its n_i samples and the clients are averaged with p_i, so a sample
    counts with q_k = p_i/n_i. That is 1/N, and the formulas are those above, for p_i = n_i/N, the default.
    Other weights are allowed and mean sum q_k s_k in place of 1/N sum s_k:

        w* = sum q_k s_k z_k / (sum q_k s_k + C),   v = (w* - t)/(sum q_k s_k + C),
        d/dx_k = -q_k s_k(1 - s_k)(w* - z_k)'v.

    **Scope.** x is local: a client has a logit for each of its samples, in a vector padded to the largest
    client's size; a sample carries its index in it, and padding has derivative 0. Methods leave p_i out of
    local directions, so the direction of client i is its row of `hypergradient` divided by p_i; the two
    vanish together.

    There is no closed-form minimiser (many masks give w* = t), so the class has no `solution`; a found x is
    judged by `value` and by `auc`.

    Args:
      records: one dict per client with "lower" (z, index, C) and "upper" (t), each with a leading axis of
        examples.
      weights: p_i, with sum 1.
      corrupted: for every client, which of its samples are corrupted.
    """

    records: tuple[dict, ...] = field(repr=False)
    weights: np.ndarray
    corrupted: tuple[np.ndarray, ...] = field(repr=False)

    @classmethod
    def random(
        cls, clients=4, dims=3, heterogeneity=1.0, seed=0, examples=None, weights=None, noise=0.3, C=0.01
    ) -> DataCleaning:
        """An instance in which about a share `noise` of every client's samples is shifted in one direction.

        Samples are drawn around the client's own centre, which is also the mean of its clean ones; with
        heterogeneity 0 all centres are the same. `weights=None` stands for n_i/N here.
        """
        if not 0 < noise < 1:
            raise InputError(f"noise: {noise!r} was given; it must lie strictly between 0 and 1")
        rng, sizes = draws.generator(seed), draws.sizes_of(examples, clients, pattern=(6, 10, 14))
        if weights is None:
            weights = np.array(sizes) / sum(sizes)
        centres = draws.free_centres(rng, clients, (dims,), 0.2 * heterogeneity)
        shift = rng.standard_normal(dims)
        shift *= 3.0 / np.linalg.norm(shift)
        clean = [rng.normal(centre, 0.3, (n, dims)) for centre, n in zip(centres, sizes, strict=True)]
        corrupted = tuple(rng.permutation(n) < max(1, round(noise * n)) for n in sizes)
        noisy = draws.zipped(
            z=[z + np.outer(bad, shift) for z, bad in zip(clean, corrupted, strict=True)],
            index=[np.arange(n, dtype=np.int32) for n in sizes],
            C=draws.repeated(C, sizes),
        )
        target = draws.zipped(t=draws.free_examples(rng, centres, [2] * clients, spread=0.1))
        weights = draws.weights_of(weights, clients, seed)
        return cls(draws.zipped(lower=noisy, upper=target), weights, corrupted)

    @property
    def C(self) -> float:
        """The weight of the ridge on w."""
        return float(self.records[0]["lower"]["C"][0])

    @property
    def sizes(self) -> list[int]:
        """n_i, the number of noisy samples of every client."""
        return [len(record["lower"]["z"]) for record in self.records]

    @property
    def problem(self):
        """The bilevel problem with x local; every instance shares the same functions."""
        return Bilevel(upper=upper, lower=lower, upper_scope="local", lower_scope="shared")

    @property
    def clients(self):
        """The clients' noisy and clean samples with their weights."""
        return federate([Split(**record) for record in self.records], weights=self.weights)

    def start(self, leaves=1) -> dict:
        """Zero x for every client, which is weight one half for every sample, and zero y."""
        return zeros(leaves, x=max(self.sizes), y=self.records[0]["lower"]["z"].shape[1])

    def lower_solution(self, x) -> np.ndarray:
        """w*(x); x has one row per client."""
        s, q, z = self._samples(x)
        return (q * s) @ z / ((q * s).sum() + self.C)

    def adjoint(self, x) -> np.ndarray:
        """v(x); x has one row per client."""
        s, q, _ = self._samples(x)
        return (self.lower_solution(x) - self._target()) / ((q * s).sum() + self.C)

    def hypergradient(self, x) -> np.ndarray:
        """The derivative of the upper loss in every logit, a row per client as in x, zero in the padding."""
        s, q, z = self._samples(x)
        slopes = -q * s * (1.0 - s) * ((self.lower_solution(x) - z) @ self.adjoint(x))
        rows = np.zeros((len(self.records), max(self.sizes)))
        rows[self._real()] = slopes
        return rows

    def value(self, x) -> float:
        """1/2 |w*(x) - t|^2, the upper loss up to the spread of the clean samples."""
        return float(0.5 * np.sum((self.lower_solution(x) - self._target()) ** 2))

    def auc(self, x) -> float:
        """The chance that a clean sample has a larger logit than a corrupted one; ties count one half."""
        logits, bad = self._rows(x)[self._real()], np.concatenate(self.corrupted)
        gaps = logits[~bad][:, None] - logits[bad][None, :]
        return float(np.mean(np.heaviside(gaps, 0.5)))

    def _rows(self, x) -> np.ndarray:
        rows, shape = np.asarray(x, dtype=np.float64), (len(self.records), max(self.sizes))
        if rows.shape != shape:
            raise InputError(f"x: shape {rows.shape} was given; it must be {shape}, one row per client")
        return rows

    def _real(self) -> np.ndarray:
        """Which entries of the padded rows belong to a sample."""
        return np.arange(max(self.sizes)) < np.array(self.sizes)[:, None]

    def _samples(self, x) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """s_k, q_k and z_k of all samples, client after client."""
        q = np.repeat(self.weights / np.array(self.sizes), self.sizes)
        # 1/(1 + e^-x), in a form that does not overflow.
        s = 0.5 * (1.0 + np.tanh(0.5 * self._rows(x)[self._real()]))
        return s, q, np.concatenate([record["lower"]["z"] for record in self.records])

    def _target(self) -> np.ndarray:
        """t, the mean of the clean samples."""
        return bar(self.weights, means([record["upper"] for record in self.records], "t"))
