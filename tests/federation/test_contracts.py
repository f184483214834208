"""Rates, steps, the ledger's counters and the wire: the small contracts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.federation.counts import count, zeros
from rookery.federation.delivered import Delivered, Dispatch
from rookery.federation.ledger import Ledger, Tally, parcel_of
from rookery.federation.steps import check_steps, draw_steps
from rookery.federation.wire import Wire
from rookery.vectors import Sequences, Vector


def test_rates_scale_name_by_name():
    z = Sequences.of({"x": jnp.ones(2), "y": jnp.ones(1)})
    scaled = rk.Rates(0.5, x=2.0) * z
    np.testing.assert_allclose(scaled.x.tree, 2.0)
    np.testing.assert_allclose(scaled.y.tree, 0.5)
    half = 1 - rk.Rates(0.5, x=2.0) * 0.5
    assert half["x"] == 0.0 and half["v"] == 0.75


def test_decaying_rates_fall_as_they_say():
    fall = rk.Decay(0.4, scale=2.0, power=0.5)
    assert [float(fall(round)) for round in (0, 6, 30)] == pytest.approx([0.4, 0.2, 0.1])
    clients = rk.federate([{"a": np.array([1.0])}])
    problem = rk.Single(lambda x, e: x * e["a"])
    end = rk.run(problem, rk.FedAvg(lr=fall), clients, x=0.0, rounds=7, precision="float64").x
    assert float(end) == pytest.approx(-sum(0.4 / np.sqrt(1 + t / 2) for t in range(7)))
    with pytest.raises(rk.InputError, match="were given; a finite rate, scale > 0 and power >= 0 are needed"):
        rk.Decay(0.1, scale=0.0, power=0.5)


def test_schedules_are_structure_and_numbers_are_leaves():
    rates = rk.Rates(0.5, x=lambda t: 1.0 / (1 + t))
    assert jax.tree.leaves(rates) == [0.5]
    assert rates.at(3)["x"] == 0.25 and rates.at(3)["y"] == 0.5
    again = jax.tree.map(lambda a: 2 * a, rates)
    assert again.at(1)["x"] == 0.5 and again["y"] == 1.0


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        (rk.Rates(x=0.1, w=0.2), "lr: there is no sequence 'w'; this problem has x, y, v"),
        (rk.Rates(x=0.1), "lr: no rate for y, v"),
        (rk.Rates(x=0.1, y="a", v=1), "lr.y: 'a' was given; a finite number or a schedule is needed"),
        (rk.Rates(float("nan")), "lr.default: nan was given"),
    ],
)
def test_bad_rates_are_refused(rates, sentence):
    with pytest.raises(rk.InputError) as error:
        rates.check("lr", ("x", "y", "v"))
    assert sentence in str(error.value)


def test_steps_draw_what_they_promise():
    keys = jax.random.split(jax.random.key(0), 3000)
    drawn = jax.vmap(lambda key: draw_steps(rk.RandomSteps(2, 5), jnp.int32(0), jnp.int32(0), key))(keys)
    assert sorted(set(drawn.tolist())) == [2, 3, 4, 5]
    np.testing.assert_allclose(np.bincount(drawn)[2:] / 3000, 0.25, atol=0.04)
    assert draw_steps(rk.FixedSteps([1, 7, 3]), jnp.int32(1), jnp.int32(0), keys[0]) == 7
    assert draw_steps(4, jnp.int32(1), jnp.int32(0), keys[0]) == 4


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (0, "local_steps: 0 was given; a whole number of at least 1"),
        (1.5, "local_steps: 1.5 was given"),
        (True, "local_steps: True was given"),
        (rk.FixedSteps([1, 2]), "local_steps: 2 numbers of steps were given for 3 clients"),
        (rk.FixedSteps([1, 0, 2]), "local_steps: 0 was given"),
        (rk.RandomSteps(3, 2), "local_steps: RandomSteps(3, 2) was given"),
        (rk.StepsBy(lambda i, t: 1, 0), "local_steps: StepsBy("),
        (rk.StepsBy(lambda i, t: 2.5, 3), "one whole number is needed"),
        (rk.StepsBy(lambda i, t: [1, 2], 3), "one whole number is needed"),
        (rk.StepsBy(lambda i, t: 1 if t > 0 else 2, 3), "local_steps: StepsBy's function of a traced"),
    ],
)
def test_bad_steps_are_refused(steps, sentence):
    with pytest.raises(rk.InputError) as error:
        check_steps("local_steps", steps, 3)
    assert sentence in str(error.value)


def test_classes_with_the_same_fields_are_different_structures():
    """Or JAX could run one method's compiled program for the other."""
    assert jax.tree.structure(rk.SimFBO(lr=rk.Rates(0.1))) != jax.tree.structure(rk.ShroFBO(lr=rk.Rates(0.1)))
    assert jax.tree.structure(rk.Uniform(2)) != jax.tree.structure(rk.WithReplacement(2))
    assert jax.tree.structure(rk.Uniform(2)) == jax.tree.structure(rk.Uniform(2)) != jax.tree.structure(rk.Uniform(3))


def test_structs_rebuild_without_their_checks():
    scheme = rk.Weighted(np.array([0.5, 0.5]))
    traced = jax.jit(lambda s: s.expected(2) * s.cohort)(scheme)
    np.testing.assert_allclose(traced, [0.5, 0.5])


def test_counters_do_not_overflow_at_32_bits():
    tally, amount = Tally(), 2**30 - 1
    tally.count("samples", amount)
    total = cost = tally.totals()
    for _ in range(8):
        total = total + cost
    assert total.values() == {"samples": 9 * amount} and 9 * amount > 2**31
    assert (total + total).values() == {"samples": 18 * amount}


def test_tallies_add_up_to_the_ledger():
    message, reply = (Vector(jnp.zeros(3)), jnp.float32(1)), np.zeros(2)
    assert parcel_of("steps", "up", reply) == ("steps", "up", 2, 16)
    tally = Tally()
    sent = [(part, None) for part in message]
    later = Dispatch((1,), 0)
    tally.exchange("steps", sent, reply, 5, count(jnp.array([7, 1, 0, 0])))
    tally.exchange("steps", sent, reply, 0, zeros(4))
    tally.exchange("more", [(message[0], later), (message[1], None)], reply, 2, zeros(4))
    tally.settle(lambda dispatch: (jnp.bool_(dispatch != later), False))
    total = Ledger()
    total.add(tally.totals())
    total.add(tally.totals())
    assert (total.exchanges, total.replies, total.floats_up) == (4, 14, 28)
    assert total.floats_down == 2 * (5 * 4 + 2) and total.bytes_down == 4 * total.floats_down
    assert total.exchanges_of == {"steps": 2, "more": 2} and total.replies_of == {"steps": 10, "more": 4}
    assert total.samples == 14
    assert Ledger.from_json(total.to_json()) == total


@jax.tree_util.register_pytree_node_class
class Custom:
    """A user's own pytree, as a Flax or Equinox module is."""

    def __init__(self, w, b):
        self.w, self.b = w, b

    def tree_flatten(self):
        return (self.w, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_the_wire_brings_back_what_was_sent():
    mine = Custom(np.arange(3.0), np.float32(2))
    message = (
        Sequences({"x": Vector(mine), "y": Vector({"a": [np.ones(2, np.float32)], "b": None})}),
        Vector(mine),
        {"flag": np.bool_(True), "count": np.int32(3)},
        np.float64(0.1),
    )
    wire = Wire({"inside": [mine]})
    data = wire.encode(message, {"phase": "steps"})
    assert isinstance(data, bytes)
    back, header = wire.decode(data)
    assert header == {"phase": "steps"}
    assert jax.tree.structure(back) == jax.tree.structure(message)
    for sent, got in zip(jax.tree.leaves(message), jax.tree.leaves(back)):
        np.testing.assert_array_equal(sent, got)
        assert np.asarray(sent).dtype == got.dtype
    with pytest.raises(rk.InputError, match="message: Custom cannot travel"):
        Wire().encode(mine)


def test_vectors_that_the_receiver_has_travel_as_numbers():
    wire, kept = Wire(), {}
    x, y = Vector(np.arange(3.0)), Vector(np.ones(2))
    first = wire.encode((x, y), names=lambda vector: (0 if vector is x else 1, False))
    second = wire.encode((x, np.float32(2)), {"phase": "b"}, names=lambda vector: (0, True))
    wire.decode(first, kept)
    (again, two), header = wire.decode(second, kept)
    np.testing.assert_array_equal(again.tree, x.tree)
    assert two == 2 and header == {"phase": "b"} == wire.header(second) and len(second) < len(first)
    assert set(kept) == {0, 1}


def test_a_vector_goes_to_a_client_once():
    delivered = Delivered()
    everyone = delivered.audience()
    some, others = delivered.audience(everyone), delivered.audience(everyone)
    x, y, z = (Vector(np.zeros(2)) for _ in range(3))
    assert delivered.send(everyone, (x, 1)) == [(x, None), (1, None)]
    assert delivered.send(some, Sequences({"x": x, "y": y})) == [(y, None)]  # everyone has x, some of them now y
    assert delivered.send(some, (y, x)) == []
    assert delivered.send(others, y) == [(y, None)] and delivered.send(everyone, (y, z, z)) == [(y, None), (z, None)]
    assert delivered.send(everyone, Vector(z.tree)) == []  # the same arrays
    assert delivered.number(x) == delivered.number(Vector(x.tree)) != delivered.number(y)
