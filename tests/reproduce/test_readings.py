"""What the studies' readings of the papers compute: versions of images, and the authors' adjoint."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.table import bed
from rookery.data.inputs import CropFlip
from rookery.reproduce.fedvra_readings import AUGMENTATIONS, Augmented, Versions
from rookery.reproduce.published import PublishedFedMSA, PublishedFedNest

CROP = CropFlip((6, 5, 1), padding=2)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 30), dtype=np.uint8)


def seen(augment, image, draws=60):
    """The different results of some draws of one image."""
    keys = jax.random.split(jax.random.key(1), draws)
    made = jax.vmap(lambda key: augment(key, {"input": jnp.asarray(image)})["input"])(keys)
    return {row.tobytes() for row in np.asarray(made)}


def test_an_image_has_as_many_versions_as_were_asked_for():
    assert len(seen(Versions(CROP), IMAGES[0])) == 1
    assert len(seen(Versions(CROP, 3), IMAGES[0])) == 3
    both = seen(Versions(CROP, original=True), IMAGES[0])
    assert len(both) == 2 and IMAGES[0].tobytes() in both
    fixed = Versions(CropFlip((6, 5, 1), padding=2, flip=False), then=CropFlip((6, 5, 1), padding=0))
    assert len(seen(fixed, IMAGES[0])) == 2  # one crop, and its mirror image
    assert len(seen(CROP, IMAGES[0])) > 20


def test_images_have_crops_of_their_own():
    """The version is drawn from the image: others of the same shape are not cropped alike."""
    marked = np.tile(np.arange(30, dtype=np.uint8), (12, 1))
    marked[:, 0] = np.arange(100, 112)
    assert len({next(iter(seen(Versions(CROP), image, draws=1)))[6:] for image in marked}) > 3


def test_every_reading_augments_and_an_unknown_one_is_refused():
    for reading in AUGMENTATIONS:
        task = Augmented(widths=(4,), augment=True, reading=reading)
        made = task.assemble(rk.IID(), 5, 0).clients.augment
        assert made is not None and seen(made, np.arange(64, dtype=np.float32), draws=2)
    for task in (Augmented(augment=True, reading="sideways"), Augmented(reading="fresh")):
        with pytest.raises(rk.InputError, match="task\\.reading must be one of"):
            task.assemble(rk.IID(), 5, 0)


EXACT = bed("E1")
X, Y = np.full(2, 0.3), np.full(3, 0.3)
STEP, TERMS = 0.1, 4


def harmonic_adjoint(x, y):
    """b + sum_j M((I - lambda A_i)^j b) / j on E1, in numpy."""
    mean = lambda name: np.stack([record[name].mean(axis=0) for record in EXACT.records])
    products = np.stack([np.einsum("kij,kj->i", r["E"], y - r["d"]) / len(r["E"]) for r in EXACT.records])
    b = EXACT.weights @ products
    total = b.copy()
    for j in range(1, TERMS + 1):
        powers = [np.linalg.matrix_power(np.eye(3) - STEP * A, j) @ b for A in mean("A")]
        total += EXACT.weights @ np.stack(powers) / j
    return total


def of(method, rounds):
    return rk.run(EXACT.problem, method, EXACT.clients, x=X, y=Y, rounds=rounds, precision="float64")


def test_fedmsa_starts_its_adjoint_at_the_scripts_series_after_its_warm_up():
    population = len(EXACT.records)
    options = {"local_steps": 1, "local_clients": population, "neumann_step": STEP, "neumann_terms": TERMS}
    still = PublishedFedMSA(lr=rk.Rates(0.0), warm_lr=0.0, **options)
    result = of(still, rounds=1)
    np.testing.assert_allclose(result.sequences.v, harmonic_adjoint(X, Y), rtol=1e-10)
    np.testing.assert_allclose(result.y, Y)
    assert result.ledger.exchanges == 5 + 1 + TERMS + 2
    warm = of(PublishedFedMSA(lr=rk.Rates(0.0), warm_lr=0.01, warm_rounds=2, **options), rounds=1)
    assert np.abs(warm.y - Y).max() > 1e-3
    np.testing.assert_allclose(warm.sequences.v, harmonic_adjoint(X, warm.y), rtol=1e-10)


def test_fednest_as_published_counts_its_exchanges_and_has_the_scripts_adjoint():
    made = PublishedFedNest(
        lr=rk.Rates(x=0.1, y=0.0),
        neumann_step=STEP,
        neumann_terms=TERMS,
        lower_rounds=2,
        clients_per_exchange=len(EXACT.records),
    )
    result = of(made, rounds=1)
    assert result.ledger.exchanges == 2 * 2 + TERMS + 3
    np.testing.assert_allclose(result.sequences.v, harmonic_adjoint(X, Y), rtol=1e-10)
