"""From stored examples to a network's inputs, inside the program: scaling, and augmentation. Imports only errors.

Images stay as they are on disk, in unsigned bytes, on the device too: a quarter of the memory, and nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError


@dataclass(frozen=True)
class Scale:
    """(stored / divisor - mean) / std, in the precision of the run; with `per_image` each input's own mean and std.

    Args:
      shape: the shape of one input: (height, width, channels) of an image, (features,) of a record. It is stored flat.
      divisor: what 1 is stored as: 255 for bytes.
      mean, std: a number for each place on the last axis of the shape, or one number for all.
      per_image: whether each input is standardised by the mean and the standard deviation of its own numbers, in place
        of `mean` and `std`. A deviation below 0.001 counts as 0.001, so that an image of one colour becomes zeros.

    Equal scales are equal as static arguments, so a loss that holds one is compiled once.
    """

    shape: tuple[int, ...]
    divisor: float = 1.0
    mean: tuple[float, ...] | float = 0.0
    std: tuple[float, ...] | float = 1.0
    per_image: bool = False

    def __call__(self, stored: jax.Array) -> jax.Array:
        """One stored example, or a stack of them, as flat inputs."""
        return self.image(stored).reshape(stored.shape)

    def image(self, stored: jax.Array) -> jax.Array:
        """One stored example, or a stack of them, as inputs of their shape."""
        kind = jnp.result_type(float)  # float64 inside a float64 run
        values = stored.reshape(*stored.shape[:-1], *self.shape).astype(kind)
        if self.per_image:
            return self._by_itself(values / self.divisor)
        mean, std = jnp.asarray(self.mean, kind), jnp.asarray(self.std, kind)
        return (values / self.divisor - mean) / std

    def _by_itself(self, values: jax.Array) -> jax.Array:
        axes = tuple(range(-len(self.shape), 0))
        centred = values - values.mean(axes, keepdims=True)
        std = jnp.sqrt((centred**2).mean(axes, keepdims=True))
        return centred / jnp.maximum(std, 1e-3)


@dataclass(frozen=True)
class CropFlip:
    """Random crops of the padded image, and random flips from left to right: what augments training images.

    Args:
      shape: (height, width, channels) of an image, which is stored flat.
      padding: how many black pixels are added on every side before a window of the old size is cut out.
      flip: whether half of the images, at random, are mirrored.
      black: the stored number of the pixels that are added.

    Every draw of an example is augmented anew, by the key of the step that draws it: the same seed gives the same
    crops. Two derivatives on one sample see the same crops. A full batch (no batch size) is not augmented.
    """

    shape: tuple[int, int, int]
    padding: int = 4
    flip: bool = True
    black: float = 0

    def __post_init__(self):
        if len(self.shape) != 3 or self.padding < 0:
            raise InputError(
                f"augment: shape {self.shape} and padding {self.padding} were given; the shape of an image and a "
                "padding of at least 0 are needed"
            )

    def __call__(self, key: jax.Array, example: Any) -> Any:
        """One example with its input augmented."""
        height, width, _ = self.shape
        cut, mirror = jax.random.split(key)
        corner = jax.random.randint(cut, (2,), 0, 2 * self.padding + 1, dtype=jnp.int32)
        image = example["input"].reshape(self.shape)
        # Rows and columns are gathered, and those that fall outside are black: cheaper than a padded copy.
        rows = jnp.arange(height, dtype=jnp.int32) + corner[0] - self.padding
        columns = jnp.arange(width, dtype=jnp.int32) + corner[1] - self.padding
        inside = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))[None, :]
        if self.flip:
            turned = jax.random.bernoulli(mirror, jnp.float32(0.5))
            columns, inside = jnp.where(turned, columns[::-1], columns), jnp.where(turned, inside[:, ::-1], inside)
        picked = image[rows.clip(0, height - 1)][:, columns.clip(0, width - 1)]
        image = jnp.where(inside[:, :, None], picked, jnp.asarray(self.black, image.dtype))
        return {**example, "input": image.reshape(prod(self.shape))}
