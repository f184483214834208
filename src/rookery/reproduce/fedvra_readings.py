"""How training images are augmented in FedVRA's table 3: readings of what the paper leaves open, side by side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.inputs import CropFlip
from rookery.data.partitions import Partition
from rookery.errors import InputError
from rookery.experiments.experiment import Experiment
from rookery.federation.steps import Epochs
from rookery.reproduce.fedvra import CIFAR10, CIFAR10_LEVELS, CIFAR10_MEASURES, SOURCE, make, names, options
from rookery.reproduce.study import Cell, Claim, Done, Study, summary
from rookery.tasks.base import Assembly
from rookery.tasks.classify import Classify


@dataclass(frozen=True)
class Versions:
    """Augments each image to one of a few versions of it, which are drawn once.

    Args:
      crop: What makes a version of an image.
      count: Versions of each image; a draw takes one of them at random.
      original: Whether the image itself is one version more.
      then: What is done to the version at every draw anew.
    """

    crop: CropFlip
    count: int = 1
    original: bool = False
    then: CropFlip | None = None

    def __call__(self, key: jax.Array, example: Any) -> Any:
        """Return one example with its input augmented."""
        pick, fresh = jax.random.split(key)
        version = jax.random.randint(pick, (), 0, self.count + self.original, dtype=jnp.int32)
        made = self.crop(jax.random.fold_in(_own_key(example["input"]), version), example)
        if self.original:
            made = {**made, "input": jnp.where(version == self.count, example["input"], made["input"])}
        return made if self.then is None else self.then(fresh, made)


def _own_key(stored: jax.Array) -> jax.Array:
    """Return a key that depends on an image's pixels alone, so that it is the same at every draw."""
    factors = np.arange(1, stored.size + 1, dtype=np.uint64) * 2654435761 % 2**32
    digest = jnp.sum(stored.astype(jnp.uint32) * jnp.asarray(factors.astype(np.uint32)), dtype=jnp.uint32)
    return jax.random.fold_in(jax.random.key(0), digest)


AUGMENTATIONS: dict[str, Any] = {
    "crops once, flips fresh": lambda crop: Versions(
        dataclasses.replace(crop, flip=False), then=dataclasses.replace(crop, padding=0)
    ),
    "2 versions": lambda crop: Versions(crop, 2),
    "4 versions": lambda crop: Versions(crop, 4),
    "8 versions": lambda crop: Versions(crop, 8),
    "1 version and the original": lambda crop: Versions(crop, original=True),
    "crops of 2 pixels": lambda crop: dataclasses.replace(crop, padding=2),
    "crops of 1 pixel": lambda crop: dataclasses.replace(crop, padding=1),
    "flips alone": lambda crop: dataclasses.replace(crop, padding=0),
    "fresh": lambda crop: crop,
}


@dataclass(frozen=True)
class Augmented(Classify):
    """Plain federated learning on images that are augmented by one of the readings."""

    reading: str = "fresh"
    """How images are augmented: one of the names in AUGMENTATIONS."""

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        assembly = super().assemble(partition, clients, seed, tuning)
        crop = assembly.clients.augment
        if not isinstance(crop, CropFlip) or self.reading not in AUGMENTATIONS:
            raise InputError(
                f"task.reading must be one of {', '.join(AUGMENTATIONS)}, and augment True; got {self.reading!r} and "
                f"{self.augment}."
            )
        augment = AUGMENTATIONS[self.reading](crop)
        return dataclasses.replace(assembly, clients=dataclasses.replace(assembly.clients, augment=augment))


READINGS = (*AUGMENTATIONS, "fresh, no decay")
JUDGED = ("FedVRA", "FedDyn")


def cells(quick: bool) -> list[Cell]:
    """FedVRA and FedDyn with every reading, iid; quickly, one reading on digits."""
    found = []
    for name in JUDGED:
        for reading in READINGS[:1] if quick else READINGS:
            augmentation = reading.partition(",")[0] if reading.startswith("fresh") else reading
            task = Augmented("cifar10", model="cnn", augment=True, init="pytorch", normalise="image")
            task = Augmented(widths=(16,), augment=True, init="pytorch") if quick else task
            method = make(name, Epochs(2, 2), 7.0)
            if reading.endswith("no decay"):
                method = dataclasses.replace(method, weight_decay=0.0)
            task = dataclasses.replace(task, reading=augmentation)
            experiment = Experiment("classify", task, name, method, options("iid", quick, every=2))
            numbers = dict(zip(names(CIFAR10_LEVELS), CIFAR10["iid"][name]))
            found.append(Cell(f"{reading}: {name}", "iid", experiment, numbers))
    return found


def distances(done: Mapping[str, Done]) -> list[Claim]:
    """How far each reading is from the paper's eight numbers; the closest is marked. None is a claim of the paper."""
    found: dict[str, tuple[float, str]] = {}
    for reading in READINGS:
        both = [each for name in JUDGED if (each := done.get(f"{reading}: {name}, iid"))]
        if not both:
            continue
        points, ratios = [], []
        for each in both:
            for measure in CIFAR10_MEASURES:
                ours, paper = summary(each, measure).mean, each.cell.paper[measure.name]
                (points if measure.percent else ratios).append(
                    100 * (ours - paper) if measure.percent else math.log(min(ours, 500) / paper)
                )
        off = sum(map(abs, points)) / len(points), sum(map(abs, ratios)) / len(ratios)
        text = f"accuracies by {', '.join(f'{each:+.1f}' for each in points)} points, rounds by a factor of "
        text += f"{math.exp(off[1]):.2f}" + ("" if len(both) == len(JUDGED) else f" ({both[0].cell.row} alone)")
        found[reading] = (off[0] + off[1] / math.log(1.1), text)
    closest = min(found, key=lambda reading: found[reading][0], default="")
    return [Claim(reading, reading == closest, text) for reading, (_, text) in found.items()]


READINGS_STUDY = Study(
    name="fedvra-readings",
    title="FedVRA, table 3: how images are augmented",
    source=f"{SOURCE}, table 3",
    settings="""
The paper says that images are cropped and flipped, and not when. FedVRA and FedDyn in the iid column of fedvra-table3,
with images that are normalised one by one, as in the paper, and these readings: **fresh**, a new crop (padding of four
pixels) and flip at every draw; **crops once, flips fresh**; a number of **versions** of each image, drawn once, of
which every draw takes one at random; one version **and the original**; smaller **crops**; **flips alone**; and fresh
draws with **no decay** in these two methods. One seed.
""",
    cells=cells,
    measures=CIFAR10_MEASURES,
    claims=distances,
    claims_heading="How far each reading is from the paper",
    claims_of_parts=True,
    judged=False,
    causes={"": "This reading is not the paper's."},
    misses_heading="What each reading does not reproduce",
    axes=("round",),
    seeds=1,
)
