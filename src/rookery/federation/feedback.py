"""Feedback around the stages of a channel: what is kept between messages, what was lost of them or what was said so
far. Imports stages.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp

from rookery.errors import InputError
from rookery.federation.stages import RandK, Stage, check_stages, variances


class Feedback(ABC):
    """Stages, and what their sender keeps of every array between messages; a *shift* is kept at both ends.

    Args:
      stages: what packs the difference or the corrected array.
    """

    stages: tuple[Stage, ...]
    shifts: bool = False  # whether the receiver needs what is kept, too

    def __init__(self, *stages: Any):
        object.__setattr__(self, "stages", check_stages(type(self).__name__, stages))
        if not self.stages:
            raise InputError(f"{type(self).__name__}: no stage was given; one such as rk.TopK(0.01) is needed")

    @abstractmethod
    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        """What the stages are given of a value."""

    @abstractmethod
    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        """The value that the receiver has."""

    @abstractmethod
    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        """What is kept next."""

    def __str__(self) -> str:
        return f"{WORD_OF[type(self)]}:{'+'.join(map(str, self.stages))}"


def _check_contracts(feedback: Feedback) -> None:
    for stage in feedback.stages:
        if not stage.contracts:
            name = type(feedback).__name__
            remedy = "rk.RandK(..., scaled=False)" if isinstance(stage, RandK) else "rk.TopK(0.01) or rk.Quantise(8)"
            raise InputError(
                f"{name}: {stage!r} was given, which may lose more than it is given, so that what {name} keeps would "
                f"grow; one that does not, such as {remedy}, is needed"
            )


@dataclasses.dataclass(frozen=True, init=False)
class ErrorFeedback(Feedback):
    """Error feedback (EF, Seide et al. 2014): the stages are given r + e, and what they lose of it is the next e. They
    must lose less than they are given, or e grows without a bound."""

    stages: tuple[Stage, ...]

    def __init__(self, *stages: Any):
        super().__init__(*stages)
        _check_contracts(self)

    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        return value + kept

    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return unpacked

    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return offered - unpacked


@dataclasses.dataclass(frozen=True, init=False)
class EF21(Feedback):
    """Packed differences (Richtarik et al. 2021): both ends keep g, the stages C are given r - g, and
    g <- g + C(r - g) is the reply. Where replies come to rest, so does g, at the same point: fixed points stay exact,
    also with biased stages, as long as they lose less than they are given."""

    stages: tuple[Stage, ...]

    shifts = True

    def __init__(self, *stages: Any):
        super().__init__(*stages)
        _check_contracts(self)

    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        return value - kept

    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return kept + unpacked

    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return kept + unpacked


@dataclasses.dataclass(frozen=True, init=False)
class Diana(Feedback):
    """Packed differences with unbiased stages (Mishchenko et al. 2019): the reply is h + C(r - h), whose mean is r, and
    h <- h + alpha C(r - h) at both ends.

    Args:
      alpha: None: 1 / (1 + omega), omega the stages' variance.
    """

    stages: tuple[Stage, ...]
    alpha: float | None = None

    shifts = True

    def __init__(self, *stages: Any, alpha: float | None = None):
        super().__init__(*stages)
        object.__setattr__(self, "alpha", alpha)
        for stage in self.stages:
            if not stage.unbiased:
                raise InputError(
                    f"Diana: {stage} was given, which is biased; an unbiased one such as rk.RandK(0.01) is needed, or "
                    "rk.EF21"
                )
            if alpha is None and type(stage).variance is Stage.variance:
                raise InputError(f"Diana: {stage} was given, which does not say its variance; give alpha=, too")
        if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha <= 1):
            raise InputError(f"Diana: alpha {alpha!r} was given; a number above 0 and up to 1, or None, is needed")

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.alpha is None else text.replace("diana", f"diana@{float(self.alpha)!r}", 1)

    def offered(self, value: jax.Array, kept: jax.Array) -> jax.Array:
        return value - kept

    def read(self, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        return kept + unpacked

    def keeps(self, offered: jax.Array, unpacked: jax.Array, kept: jax.Array) -> jax.Array:
        alpha = self.alpha
        if alpha is None:
            alpha = 1 / math.prod(1 + omega for omega in variances(self.stages, offered.shape, offered.dtype))
        return kept + jnp.asarray(alpha, unpacked.dtype) * unpacked


# As a shell gives them.

FEEDBACKS: dict[str, type[Any]] = {"error-feedback": ErrorFeedback, "ef21": EF21, "diana": Diana}
WORD_OF = {cls: word for word, cls in FEEDBACKS.items()}
