"""FLamby's Fed-Heart-Disease and Fed-TCGA-BRCA as tasks: the benchmark's forms, and nested ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.datasets import heart
from rookery.data.federated import Split, federate
from rookery.data.partitions import Partition
from rookery.data.parts import hold_out
from rookery.data.survival import tcga_brca
from rookery.data.tables import Reading, records_of
from rookery.metric import Metric
from rookery.problems.base import Batches, OfBatch, Problem, Sequence, gradients
from rookery.problems.bilevel import Bilevel
from rookery.problems.kinds import Joint, Single
from rookery.tasks.base import Assembly
from rookery.tasks.metrics import concordance
from rookery.tasks.models import squared_norm
from rookery.vectors import Values, Vector

Form = Literal["plain", "pooled", "local", "own heads", "penalties", "site weights"]
NESTED = ("penalties", "site weights")
CENTRES = {"heart": ("Cleveland", "Hungary", "Switzerland", "VA"), "brca": tuple(f"region {k}" for k in range(6))}
SPLIT_SEED = 43  # of the benchmark's division of the hospitals' patients
TRAINING = 0.66  # the part of them that is for training


def score(w: Any, inputs: jax.Array) -> jax.Array:
    """One linear layer with one output."""
    return inputs @ w["w"] + w["b"]


def logistic(w: Any, e: Any) -> jax.Array:
    """The logistic loss of one patient."""
    s = score(w, e["input"])
    return jnp.logaddexp(0.0, s) - e["label"] * s


def cox(w: Any, examples: Any, weights: jax.Array) -> jax.Array:
    """The negative partial log-likelihood of a minibatch: the mean over its patients i of
    event_i log sum_j exp(s_j - s_i), j over those who were seen at least as long."""
    s = score(w, examples["input"])
    later = (examples["time"][None, :] >= examples["time"][:, None]) & (weights > 0)[None, :]
    at_risk = jax.nn.logsumexp(jnp.where(later, s[None, :] - s[:, None], -jnp.inf), axis=1)
    return jnp.sum(weights * examples["event"] * at_risk)


@dataclass(frozen=True)
class Loss:
    """The benchmark's loss of some patients, with a ridge; `weighing` says what x does to it."""

    data: str
    ridge: float = 0.0
    weighing: Literal["none", "heads", "penalties", "site"] = "none"

    def whole(self, x: Any, y: Any, examples: Any, weights: jax.Array) -> jax.Array:
        own = y
        if self.weighing == "heads":  # x is the common model, y what a centre adds to it
            y = jax.tree.map(jnp.add, x, own)
        if self.data == "brca":
            loss = cox(y, examples, weights)
        else:
            loss = weights @ jax.vmap(lambda e: logistic(y, e))(examples)
        if self.weighing == "site":
            loss = 2 * jax.nn.sigmoid(x) * loss
        if self.weighing == "penalties":
            loss = loss + 0.5 * jnp.sum(jnp.exp(x) * y["w"] ** 2)
        return loss + 0.5 * self.ridge * squared_norm(own if self.weighing == "heads" else y["w"])


@dataclass(frozen=True)
class OfOne:
    """A loss of one sequence."""

    loss: Loss

    def __call__(self, x: Any, examples: Any, weights: jax.Array) -> jax.Array:
        return self.loss.whole(None, x, examples, weights)


@dataclass(frozen=True)
class OfBoth:
    """A loss of both sequences."""

    loss: Loss

    def __call__(self, x: Any, y: Any, examples: Any, weights: jax.Array) -> jax.Array:
        return self.loss.whole(x, y, examples, weights)


@dataclass(frozen=True)
class Refitted(Bilevel):
    """A bilevel problem with one more sequence w, the model that is used in the end: fitted as y is, under the same x,
    to all of a centre's training patients, those of the upper level too, of which `validation` is the part."""

    validation: float = 0.3

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (*super().sequences, Sequence("w"))

    def complete(self, values: Values, example: Callable[[str], Any]) -> Values:
        return Values({**super().complete(values, example), "w": values.y})

    def direction(self, z: Values, batches: Batches) -> Values:
        parts = [gradients(self.lower, (z.x, z.w), batches[level], of=(1,))[0] for level in ("lower", "upper")]
        together = (1 - self.validation) * Vector(parts[0]) + self.validation * Vector(parts[1])
        return Values({**super().direction(z, batches), "w": together.tree})


@dataclass(frozen=True)
class Benchmark:
    """FLamby's Fed-Heart-Disease or Fed-TCGA-BRCA, in the benchmark's forms and in nested ones.

    plain: one model of all centres. pooled: their data in one place. local: one centre alone. own heads: one model,
    to which each centre adds one of its own, with a ridge. penalties: a penalty per feature, x = its logarithm. site
    weights: 2 sigmoid(x_i) times centre i's loss, x_i its own. In nested forms the upper level sees `validation` of
    each centre's training patients.
    """

    data: str = "heart"
    """heart or brca."""
    form: Form = "plain"
    """plain, pooled, local, own heads, penalties or site weights."""
    centre: int = 0
    """Which one, of local."""
    scaling: Literal["none", "centre", "pooled"] = "centre"
    """Inputs as they are, or with mean 0 and deviation 1 over the centre's training patients, or over all centres'."""
    ridge: float = 0.0
    """Weight of |w|^2 / 2 in the loss."""
    validation: float = 0.3
    """Part of a centre's training patients that the upper level sees."""

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 0.1, "y": 0.1, "v": 0.1, "w": 0.1} if self.form in NESTED else {"x": 0.001}

    @property
    def batch_size(self) -> int | None:
        return 4 if self.data == "heart" else 8

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        centres = [_for_tuning(centre) if tuning else centre for centre in centres_of(self.data)]
        scaled = self.scaling != "none"
        pooled = _scale(np.concatenate([centre["train"]["input"] for centre in centres]), scaled)
        own = [_scale(centre["train"]["input"], scaled) for centre in centres]
        scales = [pooled] * len(own) if self.scaling == "pooled" else own
        if self.form == "pooled":
            whole = {key: np.concatenate([c["train"][key] for c in centres]) for key in centres[0]["train"]}
            data = [_scaled(whole, pooled)]
        elif self.form == "local":
            data = [_scaled(centres[self.centre]["train"], scales[self.centre])]
        else:
            data = [_scaled(centre["train"], scale) for centre, scale in zip(centres, scales)]
        if self.form in NESTED:
            data = [_split(own, self.validation, (seed, k)) for k, own in enumerate(data)]
        first = data[0].lower if isinstance(data[0], Split) else data[0]
        start = partial(make_layer, first["input"].shape[1])
        nothing = {"w": np.zeros(first["input"].shape[1], np.float32), "b": np.zeros((), np.float32)}
        return Assembly(
            problem=self._problem(),
            clients=federate(data, weights="size"),
            x=self._x(start),
            y=start if self.form in NESTED else nothing if self.form == "own heads" else None,
            metrics=self._metrics(centres, scales, pooled),
            main_metric="pooled",
            falling=False,
        )

    def _problem(self) -> Problem:
        if self.form == "own heads":
            return Joint(OfBatch(OfBoth(Loss(self.data, self.ridge, "heads"))))
        if self.form not in NESTED:
            return Single(OfBatch(OfOne(Loss(self.data, self.ridge))))
        weighing: Any = {"penalties": "penalties", "site weights": "site"}[self.form]
        return Refitted(
            validation=self.validation,
            upper=OfBatch(OfBoth(Loss(self.data))),
            lower=OfBatch(OfBoth(Loss(self.data, self.ridge, weighing))),
            upper_scope="local" if self.form == "site weights" else "shared",
        )

    def _x(self, start: Any) -> Any:
        if self.form == "penalties":
            return np.full(start.args[0], np.log(0.01), np.float32)
        return np.zeros((), np.float32) if self.form == "site weights" else start

    def _metrics(self, centres: list, scales: list, pooled: Any) -> Metric:
        """Of every centre's test patients, scaled by the centre (or by all, where training patients are), and of all
        together, scaled as all training patients together would be."""
        tests = [_scaled(centre["test"], scale) for centre, scale in zip(centres, scales)]
        together = [_scaled(centre["test"], pooled) for centre in centres]
        arrays = {f"c{k}": _floats(test) for k, test in enumerate(tests)}
        arrays |= {f"p{k}": _floats(test) for k, test in enumerate(together)}
        return Metric(Judged(self.data, "w" if self.form in NESTED else "x", self.form == "own heads"), **arrays)


@dataclass(frozen=True)
class Judged:
    """The benchmark's metric of each centre's test patients and of all: accuracy, or the concordance index."""

    data: str
    model: str  # the sequence that it is in
    heads: bool  # whether every centre adds its own y to it

    def __call__(self, z: Values, **tests: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        count = len(CENTRES[self.data])
        own = lambda k: jax.tree.map(lambda leaf: leaf[k], z.y)
        added = lambda test, k: score(own(k), test["input"]) if self.heads else 0.0
        scored = lambda test, k: score(z[self.model], test["input"]) + added(test, k)
        found = {name: self._of(scored(tests[f"c{k}"], k), tests[f"c{k}"]) for k, name in enumerate(CENTRES[self.data])}
        whole = {key: jnp.concatenate([tests[f"p{k}"][key] for k in range(count)]) for key in tests["p0"]}
        scores = jnp.concatenate([scored(tests[f"p{k}"], k) for k in range(count)])
        return {"pooled": self._of(scores, whole)} | found

    def _of(self, scores: jax.Array, test: Mapping[str, jax.Array]) -> jax.Array:
        if self.data == "heart":
            return jnp.mean((scores > 0) == (test["label"] > 0))
        return concordance(scores, test["time"], test["event"])


def centres_of(data: str) -> list[dict[str, dict[str, np.ndarray]]]:
    """The training and test patients of each centre, as the benchmark divides them."""
    if data == "brca":
        return tcga_brca()
    from sklearn.model_selection import train_test_split

    records = records_of(heart(), None, Reading(label="ill", categories=("cp", "restecg")))
    # Of each code the first value is left out, as the benchmark does.
    kept = [k for k, name in enumerate(records.columns) if name not in ("cp=1", "restecg=0")]
    centres = []
    for own in records.data:
        label = own["label"]
        levels, counts = np.unique(label, return_counts=True)
        train, test = train_test_split(
            np.arange(label.size), test_size=1.0 - TRAINING, train_size=TRAINING, random_state=SPLIT_SEED,
            stratify=label if levels.size > 1 and counts.min() > 2 else None,
        )  # fmt: skip
        pick = lambda rows, own=own, label=label: {
            "input": own["input"][np.sort(rows)][:, kept],
            "label": label[np.sort(rows)].astype(np.float64),
        }
        centres.append({"train": pick(train), "test": pick(test)})
    return centres


def _for_tuning(centre: Mapping[str, Any]) -> dict[str, Any]:
    """A centre without its test patients; a quarter of the others is in their place."""
    held = _held(centre["train"], 0.25, 17)
    pick = lambda where: {key: values[where] for key, values in centre["train"].items()}
    return {"train": pick(~held), "test": pick(held)}


def _held(examples: Mapping[str, np.ndarray], fraction: float, seed: Any) -> np.ndarray:
    """Which patients are held out: of the ill, or of those who died, the same part as of the others."""
    kinds = examples["label"] if "label" in examples else examples["event"]
    return hold_out("validation", kinds, fraction, seed, rare=True)


def _split(examples: Mapping[str, np.ndarray], validation: float, seed: Any) -> Split:
    held = _held(examples, validation, seed)
    pick = lambda where: {key: values[where] for key, values in examples.items()}
    return Split(lower=pick(~held), upper=pick(held))


def _scale(inputs: np.ndarray, standardise: bool) -> tuple[np.ndarray, np.ndarray]:
    if not standardise:
        return np.zeros(inputs.shape[1]), np.ones(inputs.shape[1])
    spread = inputs.std(axis=0, ddof=1)
    return inputs.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _scaled(examples: Mapping[str, np.ndarray], scale: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    return {**examples, "input": (examples["input"] - scale[0]) / scale[1]}


def _floats(examples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key: values.astype(np.float32) for key, values in examples.items()}


def make_layer(features: int, key: jax.Array) -> dict[str, jax.Array]:
    """A linear layer as PyTorch makes it: weights and bias uniform in +- 1 / sqrt(inputs)."""
    weights, bias = jax.random.split(key)
    draw = lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -1, 1) / features**0.5
    return {"w": draw(weights, (features,)), "b": draw(bias, ())}
