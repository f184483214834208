"""What becomes of stored examples inside the program: scaling in the run's precision, seeded crops and flips."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.data.datasets import digits
from rookery.data.inputs import CropFlip, Scale


def test_bytes_are_scaled_by_channel_and_in_the_precision_of_the_run():
    scale = Scale((2, 2, 3), 255.0, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
    stored = np.arange(12, dtype=np.uint8) * 20
    expected = (stored.reshape(2, 2, 3) / 255.0 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 0.125]
    np.testing.assert_allclose(scale.image(stored), expected, rtol=1e-6)
    np.testing.assert_allclose(scale(np.stack([stored, stored])), np.stack([expected.ravel()] * 2), rtol=1e-6)
    with jax.enable_x64(True):
        assert scale(stored).dtype == jnp.float64
        np.testing.assert_allclose(scale(stored), expected.ravel(), rtol=1e-15)


def test_images_may_be_normalised_one_by_one():
    scale = Scale((2, 3, 1), 255.0, mean=0.5, std=0.1, per_image=True)
    stored = np.array([[0, 51, 102, 153, 204, 255], [7, 7, 7, 7, 7, 7]], np.uint8)
    found = np.asarray(scale(stored))
    expected = stored[0] / 255 - np.mean(stored[0] / 255)
    np.testing.assert_allclose(found[0], expected / np.std(expected), rtol=1e-5)
    np.testing.assert_allclose(found[1], 0, atol=1e-6)  # an image of one colour has no deviation
    np.testing.assert_allclose(scale.image(stored[0]), found[0].reshape(2, 3, 1), rtol=1e-6)


def test_crops_and_flips_are_windows_of_the_padded_image():
    shape, image = (5, 4, 2), np.arange(1, 41, dtype=np.uint8).reshape(5, 4, 2)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = {}
    for i in range(5):
        for j in range(5):
            window = padded[i : i + 5, j : j + 4]
            windows[window.tobytes()] = (i, j, False)
            windows[window[:, ::-1].tobytes()] = (i, j, True)
    augment = jax.jit(CropFlip(shape, padding=2))
    seen = set()
    for k in range(400):
        out = augment(jax.random.key(k), {"input": jnp.asarray(image.ravel()), "label": 3})
        assert out["label"] == 3 and out["input"].dtype == jnp.uint8
        seen.add(windows[np.asarray(out["input"]).tobytes()])
    assert len(seen) == 50  # all windows, each also mirrored
    plain = CropFlip(shape, padding=0, flip=False)(jax.random.key(0), {"input": jnp.asarray(image.ravel())})
    np.testing.assert_array_equal(plain["input"], image.ravel())


def mean_of_inputs(x, e):
    return jnp.sum(x * jnp.mean(e["input"].astype(x.dtype)))


def total(engine="local", seed=0, batch_size=4, augment=None, steps=2):
    data = [{"input": np.full((6, 9), i + 1, np.uint8)} for i in range(3)]
    method = rk.FedAvg(lr=rk.Rates(1.0), local_steps=steps)
    clients = rk.federate(data, augment=augment)
    return rk.run(
        rk.Single(mean_of_inputs), method, clients, x=0.0, rounds=2, batch_size=batch_size, seed=seed, engine=engine
    ).x


def test_a_run_augments_by_its_seed_on_every_engine():
    augment = CropFlip((3, 3, 1), padding=1)
    plain, first = total(), total(augment=augment)
    assert plain == -2.0 * 2 * 2 and first > plain  # black pixels lower the mean of every crop
    assert first == total(augment=augment) == total("eager", augment=augment) != total(seed=1, augment=augment)
    assert total(batch_size=None, augment=augment) == plain
    assert total(augment=augment, steps=rk.Epochs(1)) > total(steps=rk.Epochs(1))


def test_a_held_out_part_takes_the_place_of_the_test_set():
    dataset = digits()
    tuning = dataset.for_tuning()
    assert len(tuning.train["label"]) + len(tuning.test["label"]) == len(dataset.train["label"])
    rows = lambda part: {image.tobytes() for image in part["input"]}
    assert rows(tuning.train) | rows(tuning.test) == rows(dataset.train)
    np.testing.assert_allclose(np.bincount(tuning.test["label"]), np.bincount(dataset.train["label"]) / 6, atol=0.51)


def test_bad_augmentations_are_refused():
    with pytest.raises(rk.InputError, match="augment: 'flip' was given"):
        rk.federate([{"a": np.zeros(1)}], augment="flip")
    with pytest.raises(rk.InputError, match=r"augment: shape .64,. and padding 4"):
        CropFlip((64,))
