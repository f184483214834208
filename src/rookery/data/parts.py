"""Which examples are set aside: of every class the same part, by a seed. Imports only errors."""

from __future__ import annotations

from numbers import Real

import numpy as np

from rookery.errors import InputError


def hold_out(name, label, fraction, seed, rare=False):
    """Which examples are held out: of every class the same fraction, rounded, chosen by a seed. A class of which that
    is none, or all, is refused, but for `rare` ones, of which none is."""
    rng = np.random.default_rng(seed)
    held_out = np.zeros(label.size, bool)
    for c in np.unique(label):
        of_class = rng.permutation(np.flatnonzero(label == c))
        count = round(fraction * of_class.size)
        if rare and count == of_class.size:
            count = 0
        if not 0 < count < of_class.size and not rare:
            raise InputError(
                f"{name}: {fraction!r} was given, which takes {count} of the {of_class.size} examples of class {c}; "
                "both sides need examples of every class"
            )
        held_out[of_class[:count]] = True
    return held_out


def check_fraction(name, value):
    """Refuses what is no part of a whole."""
    if not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name}: {value!r} was given; a number strictly between 0 and 1 is needed")
