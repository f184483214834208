"""What XLA is told where there is a GPU, and that a user's own flags stay."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.accelerators import record_loops


@pytest.mark.parametrize(
    "environment, gpu, told",
    [({}, True, True), ({}, False, False), ({"XLA_FLAGS": ""}, True, False), ({"JAX_PLATFORMS": "cpu"}, True, False)],
)
def test_loops_are_recorded_unless_the_user_says_otherwise(environment, gpu, told):
    before = dict(environment)
    record_loops(environment, gpu)
    assert ("WHILE" in environment.get("XLA_FLAGS", "")) == told
    assert told or environment == before


@pytest.mark.parametrize(
    "precision, product", [("float32", "float32"), ("tf32", "tensorfloat32"), ("bfloat16", "bfloat16")]
)
def test_products_are_made_as_asked_and_numbers_held_in_32_bits(precision, product):
    seen = []

    def loss(x, e):
        seen.append(jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
        return 0.5 * (e["a"] @ x - e["b"]) ** 2

    rows = {"a": np.eye(3), "b": np.arange(3.0)}
    result = rk.run(
        rk.Single(loss), rk.FedAvg(lr=0.5), rk.federate([rows]), x=np.zeros(3), rounds=3, precision=precision
    )
    assert set(seen) == {product}
    assert result.x.dtype == np.float32


def test_an_unknown_precision_is_refused():
    with pytest.raises(rk.InputError, match=r"precision: .*half.*tf32"):
        rk.run(
            rk.Single(lambda x, e: x * e),
            rk.FedAvg(lr=0.5),
            rk.federate([np.ones(2)]),
            x=0.0,
            rounds=1,
            precision="half",
        )
