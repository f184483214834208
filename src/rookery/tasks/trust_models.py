"""What the task `trust` is made of: weights of records in each of its models, losses, and the choice among models.

One lower problem fits several linear models at once. They differ only in how much each record weighs:

    probe      unchecked records, weighted by the trust in their site; the upper loss judges this model
    plain      all records alike
    checked    the checked records alone, each site weighing as much as it does with all its records
    trusted    unchecked records weighted by trust, and the checked records
    oracle     the records whose labels are right, where these are known

plain, checked and trusted exist twice: without the held-out records, to be compared on them, and with all records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.tasks.models import Network, OfClasses, cross_entropy, squared_norm
from rookery.vectors import Values

CANDIDATES = ("plain", "checked", "trusted")
MODELS = ("probe", *(f"{name} without held-out" for name in CANDIDATES), *CANDIDATES)
ORACLE = "oracle"
START = 1.0  # a site's logit before anything is learnt: a trust of 0.73
DISTRUST = 4.0  # by which the logit of a record has to fall for a trust of 0.05 in a site of trust 0.73
TRACKING = 0.01  # weight of the terms of the upper loss that average the held-out losses over about 10 rounds


def trust_of(x: Any, e: Any) -> jax.Array:
    """The trust in a record: that in its site, or that in both where records have logits of their own."""
    if "record" in x:
        return jax.nn.sigmoid(x["site"] + e["gain"] * within_budget(x["record"], e) * x["record"][e["row"]])
    return jax.nn.sigmoid(x["site"][e["site"]])


def within_budget(record: jax.Array, e: Any) -> jax.Array:
    """The factor, at most 1, with which the record logits of a site move by no more than its budget in all.

    The budget is the number of records whose logit may move by `DISTRUST`; sqrt(n) record_k is the logit of record k.
    """
    moved = jnp.sum(jnp.abs(record)) * e["gain"]
    most = e["budget"] * DISTRUST
    return jnp.where(moved > most, most / jnp.where(moved > most, moved, 1.0), 1.0)


@dataclass(frozen=True)
class ModelsLoss(OfClasses):
    """sum_b w_b (CE_b + ridge / 2 |y_b|^2) of a record, over the models b; w_b = fixed_b + trust * trusted_b.

    The ridge has the record's weight, so that a model does not change when all its weights are scaled.
    """

    network: Network
    ridge: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        loss = lambda own: (
            cross_entropy(self.network(own, e["input"]), e["label"]) + 0.5 * self.ridge * squared_norm(own)
        )
        return jnp.dot(e["fixed"] + trust_of(x, e) * e["trusted"], jax.vmap(loss)(y))


@dataclass(frozen=True)
class CheckedLoss(OfClasses):
    """The probe's CE of a checked record, a prior of the logits, and terms that average the held-out losses.

    The last do not change the models: x.loss tends to the mean loss of each candidate on the held-out records, and
    x.variance to the squared standard error of the losses of plain and checked less that of trusted.
    """

    network: Network
    prior: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        losses = jax.vmap(lambda own: cross_entropy(self.network(own, e["input"]), e["label"]))(y)
        judged = e["upper"] * losses[0] + 0.5 * self.prior * jnp.sum((x["site"] - START) ** 2)
        if "record" in x:
            return judged + 0.5 * self.prior * jnp.sum(x["record"] ** 2)
        held = jax.lax.stop_gradient(losses[1 : 1 + len(CANDIDATES)])
        apart = held[:-1] - held[-1] - jax.lax.stop_gradient(x["loss"][:-1] - x["loss"][-1])
        mean = 0.5 * e["held"] * jnp.sum((x["loss"] - held) ** 2)
        variance = jnp.sum(0.5 * x["variance"] ** 2 - e["spread"] * apart**2 * x["variance"])
        return judged + TRACKING * (mean + variance)


@dataclass(frozen=True)
class WeightedLoss(OfClasses):
    """w (CE + ridge / 2 |y|^2) of a record of weight w: one of the models alone."""

    network: Network
    ridge: float

    def __call__(self, y: Any, e: Any) -> jax.Array:
        return e["weight"] * (
            cross_entropy(self.network(y, e["input"]), e["label"]) + 0.5 * self.ridge * squared_norm(y)
        )


@dataclass(frozen=True)
class Copies:
    """The initial values of several models: the network's own, alike in all."""

    network: Network
    count: int

    def __call__(self, key: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], self.count, axis=0), self.network.init(key))


def weights_of(checked: np.ndarray, held: np.ndarray, wrong: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a site's records in every model of `MODELS`, and in the oracle where it is known which labels are
    wrong: the part that is fixed and the part that trust multiplies, both (records, models).

    Args:
      checked: whether a record's label was checked.
      held: whether a checked record is held out, to choose among the models.
      wrong: whether a record's label is wrong; None: nobody knows.
    """
    used = checked & ~held
    zero, unchecked = np.zeros(checked.size), ~checked
    each = lambda chosen: chosen * (checked.size / max(chosen.sum(), 1))
    fixed = [zero, ~held, each(used), used, np.ones(checked.size), each(checked), checked]
    trusted = [unchecked, zero, zero, unchecked, zero, zero, unchecked]
    if wrong is not None:
        fixed, trusted = [*fixed, ~wrong], [*trusted, zero]
    return np.stack(fixed, axis=1).astype(np.float32), np.stack(trusted, axis=1).astype(np.float32)


def records_of_site(
    own: Mapping[str, np.ndarray],
    checked: np.ndarray,
    wrong: np.ndarray | None,
    site: int,
    weight: float,
    held_out: float,
    seed: tuple[int, ...],
) -> dict[str, np.ndarray]:
    """A site's records with all that the losses need to know of each.

    Args:
      own: its inputs and labels.
      checked, wrong: as `weights_of` takes them.
      site: the number of the site.
      weight: the weight p_i of the site.
      held_out: the part of the checked records that chooses among the models; of two or more at least one.
      seed: what these are drawn from.
    """
    count = own["label"].size
    places = np.random.default_rng(seed).permutation(np.flatnonzero(checked))
    held = np.zeros(count, bool)
    held[places[: min(max(round(held_out * places.size), 1), places.size - 1) if places.size > 1 else 0]] = True
    used = checked & ~held
    fixed, trusted = weights_of(checked, held, wrong)
    share = held * (count / max(held.sum(), 1))
    return {
        "input": own["input"],
        "label": own["label"].astype(np.int32),
        "site": np.full(count, site, np.int32),
        "fixed": fixed,
        "trusted": trusted,
        "upper": (used * (count / max(used.sum(), 1))).astype(np.float32),
        "held": share.astype(np.float32),
        "spread": (share * (weight / max(held.sum(), 1))).astype(np.float32),
    }


def chosen_index(x: Any) -> jax.Array:
    """Which of `CANDIDATES` is chosen: trusted, unless another's held-out loss is lower by more than one standard
    error of the difference."""
    excess = x["loss"][:-1] - x["loss"][-1] + jnp.sqrt(jnp.maximum(x["variance"], 0.0))
    return jnp.where(jnp.min(excess) < 0, jnp.argmin(excess), len(CANDIDATES) - 1)


def choice_metrics(z: Values) -> dict[str, jax.Array]:
    """The held-out loss of each candidate, and which is chosen (0 plain, 1 checked, 2 trusted)."""
    losses = {f"held-out loss {name}": z.x["loss"][place] for place, name in enumerate(CANDIDATES)}
    return {**losses, "chosen": chosen_index(z.x).astype(float)}


@dataclass(frozen=True)
class ModelsOnOwn:
    """How the models do on one of a site's own test examples, the chosen one as `accuracy` and `loss`, and the trust
    in the site."""

    network: Network
    oracle: bool

    def __call__(self, z: Values, e: Any) -> dict[str, jax.Array]:
        scores = jax.vmap(lambda own: self.network(own, e["input"]))(z.y)
        right = (jnp.argmax(scores, axis=1) == e["label"]).astype(scores.dtype)
        at = MODELS.index(CANDIDATES[0])
        chosen = at + chosen_index(z.x)
        found = {"accuracy": right[chosen], "loss": cross_entropy(scores[chosen], e["label"])}
        names = [*MODELS, ORACLE] if self.oracle else [*MODELS]
        found |= {f"accuracy {name}": right[place] for place, name in enumerate(names) if place >= at}
        return {**found, "trust": jax.nn.sigmoid(jnp.asarray(z.x["site"])[e["site"]])}


@dataclass(frozen=True)
class RecordsOnOwn:
    """How the trusted model does on one of a site's own test examples where records have logits, and the trust in
    the site."""

    network: Network

    def __call__(self, z: Values, e: Any) -> dict[str, jax.Array]:
        scores = self.network(jax.tree.map(lambda leaf: leaf[1], z.y), e["input"])
        found = {"accuracy": jnp.argmax(scores) == e["label"], "loss": cross_entropy(scores, e["label"])}
        return {**found, "trust": jax.nn.sigmoid(jnp.asarray(z.x["site"]))}
