"""A user's mistakes: one clear sentence each, before anything is compiled."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

CLIENTS = rk.federate([{"a": np.array([[1.0, 2.0]])}, {"a": np.array([[3.0, 1.0]])}])
SPLIT = rk.federate([rk.Split(lower={"a": np.ones((1, 2))}, upper={"a": np.ones((1, 2))})])


def loss(x, y, e):
    return jnp.sum((x["w"] - e["a"]) ** 2) + jnp.sum((y - e["a"]) ** 2)


PROBLEM = rk.Bilevel(upper=loss, lower=loss)
GOOD = {
    "problem": PROBLEM,
    "method": rk.SimFBO(lr=rk.Rates(0.1)),
    "clients": CLIENTS,
    "x": {"w": np.zeros(2)},
    "y": np.zeros(2),
    "rounds": 2,
}


def test_the_good_case_is_good():
    rk.run(**GOOD)


VECTOR_LOSS = rk.Bilevel(upper=lambda x, y, e: (y - e["a"]) ** 2, lower=loss)
INTEGER_LOSS = rk.Bilevel(upper=lambda x, y, e: jnp.argmax(y), lower=loss)
PAIR_LOSS = rk.Bilevel(upper=lambda x, y, e: (jnp.sum(y), jnp.sum(y)), lower=loss)
FIELD = rk.Field(lambda z, e: {"x": z.x}, ["x", "u"])
WRONG_FIELD = rk.Field(lambda z, e: {"x": jnp.zeros(3)}, ["x"])
LOCAL = rk.Bilevel(upper=loss, lower=loss, lower_scope="local")

CASES = {
    "zero rounds": ({"rounds": 0}, "rounds: 0 was given; a whole number of at least 1 is needed"),
    "half a round": ({"rounds": 2.5}, "rounds: 2.5 was given"),
    "no problem": ({"problem": loss}, "problem: function was given; a problem such as rk.Bilevel(...) is needed"),
    "method class": ({"method": rk.SimFBO}, "method: the class SimFBO was given; a method such as rk.SimFBO("),
    "method name": ({"method": "simfbo"}, "method: str was given"),
    "plain data": ({"clients": [{"a": np.ones(2)}]}, "clients: list was given; make them with rk.federate(...)"),
    "sampling": ({"sampling": 10}, "sampling: 10 was given; a scheme such as rk.All() or rk.Uniform(10) is needed"),
    "cohort": ({"sampling": rk.Uniform(3)}, "sampling: a cohort of 3 was given; the population has 2 clients"),
    "seed": ({"seed": -1}, "seed: -1 was given; a whole number from 0"),
    "precision": ({"precision": "float16"}, "precision: 'float16' is not known"),
    "engine": ({"engine": "locl"}, "engine: 'locl' is not known (did you mean 'local'?)"),
    "engine kind": ({"engine": 3}, "engine: 3 was given"),
    "side by side": ({"engine": rk.Local(at_once=0)}, "at_once: 0 was given; a whole number of at least 1 is needed"),
    "side by side as text": ({"engine": rk.Local(at_once="3")}, "at_once: '3' was given; a whole number of at least 1"),
    "no metrics": ({"metrics": lambda z: 3.0}, "metrics: the function gives float; a mapping from names to scalars"),
    "metrics that fail": ({"metrics": lambda z: {"a": z.w}}, "metrics: the function of the initial values fails, with"),
    "metrics that are words": ({"metrics": lambda z: {"a": "good"}}, "metrics: 'a' is 'good'; every metric must be a scalar"),
    "metrics without names": ({"metrics": lambda z: {1: z.y[0]}}, "metrics: the name 1 was given; names are texts"),
    "a target that is no number": (
        {"metrics": lambda z: {"a": z.y[0]}, "stop": {"a": "high"}}, "stop: 'high' was given for 'a'; a number or a function"
    ),
    "values that fail": ({"x": lambda key: {"w": key + 1}}, "x: the function of a key fails, with"),
    "every": ({"every": 0}, "every: 0 was given"),
    "batch size": ({"batch_size": 0}, "batch_size: 0 was given; None (all examples) or a whole number from 1"),
    "metrics": ({"metrics": {"a": 1}}, "metrics: dict was given; a function of the sequences is needed"),
    "vector metric": ({"metrics": lambda z: {"y": z.y}}, "metrics: 'y' has shape (2,); every metric must be a scalar"),
    "stop": ({"stop": 0.9}, "stop: 0.9 was given; a mapping"),
    "stop name": ({"stop": {"acc": 1}}, "stop: there is no metric 'acc'; there are none"),
    "rates name": ({"method": rk.SimFBO(lr=rk.Rates(0.1, w=1))}, "lr: there is no sequence 'w'; this problem has x, y, v"),
    "rates missing": ({"method": rk.SimFBO(lr=rk.Rates(x=0.1))}, "lr: no rate for y, v"),
    "plain rate": ({"method": rk.SimFBO(lr=0.1)}, "lr: 0.1 was given and this problem has x, y, v; use rk.Rates(0.1)"),
    "server rates": ({"method": rk.SimFBO(lr=rk.Rates(0.1), server_lr=rk.Rates(z=1))}, "server_lr: there is no sequence"),
    "steps": ({"method": rk.SimFBO(lr=rk.Rates(0.1), local_steps=0)}, "local_steps: 0 was given"),
    "radius": ({"method": rk.SimFBO(lr=rk.Rates(0.1), radius=-1.0)}, "radius: -1.0 was given"),
    "coefficients": (
        {"method": rk.SimFBO(lr=rk.Rates(0.1), local_steps=3, coefficients=[1.0, 2.0])},
        "coefficients: 2 were given; a client may take 3 steps",
    ),
    "coefficients shape": (
        {"method": rk.SimFBO(lr=rk.Rates(0.1), coefficients=np.ones((5, 1)))},
        "coefficients: shape (5, 1) was given",
    ),
    "momentum": (
        {"method": rk.FedBiOAcc(lr=rk.Rates(0.1), momentum=rk.Rates(5.0))},
        "momentum: c alpha^2 is 3.15 at the first iteration; it must be at most 1",
    ),
    "one integer": (
        {"method": rk.FedBiOAcc(lr=rk.Rates(0.1), local_steps=rk.RandomSteps(1, 2))},
        "local_steps: RandomSteps(low=1, high=2) was given; a whole number of at least 1 is needed",
    ),
    "local scope": (
        {"problem": LOCAL, "method": rk.FedMSA(lr=rk.Rates(0.1))},
        "FedMSA: it needs every sequence shared, and y, v of this bilevel problem stay local; a method that keeps",
    ),
    "no y": ({"y": None}, "y: no initial value was given; this bilevel problem needs one"),
    "needless y": (
        {"problem": rk.Single(lambda x, e: jnp.sum(x["w"] * e["a"])), "method": rk.FedAvg(lr=0.1)},
        "y: a value was given, and this problem has no y; it has x",
    ),
    "NaN in x": ({"x": {"w": np.array([0.0, np.nan])}}, "x: a value that is NaN or infinite was given"),
    "text in x": ({"x": {"w": "zero"}}, "x: a leaf of type str was given; initial values are pytrees of numbers"),
    "empty x": ({"x": {}}, "x: an empty value was given"),
    "x of wrong structure": ({"x": np.zeros(2)}, "upper: the loss on the initial values and one example fails"),
    "y of wrong shape": ({"y": np.zeros(3)}, "upper: the loss on the initial values and one example fails"),
    "start": ({"start": {"w": 1.0}}, "start: 'w' is not known"),
    "start twice": ({"start": {"x": 1.0}}, "start: x is given twice"),
    "start of wrong shape": ({"start": {"v": np.zeros(5)}}, "v: shapes [(5,)] were given; [(2,)] are needed"),
    "vector loss": ({"problem": VECTOR_LOSS}, "upper: the loss of one example gives shape (2,) of float32; it must give"),
    "integer loss": ({"problem": INTEGER_LOSS}, "upper: the loss of one example gives shape () of int32"),
    "pair loss": ({"problem": PAIR_LOSS}, "upper: the loss of one example gives tuple; it must give a scalar"),
    "field misses": ({"problem": FIELD, "x": 1.0, "y": None, "start": {"u": 1.0}}, "direction: it gives x; it must also give u"),
    "field's shape": ({"problem": WRONG_FIELD, "x": 1.0, "y": None}, "direction: its x has shapes [(3,)]; the sequence has [()]"),
    "split for one level": (
        {"clients": SPLIT, "problem": rk.Minimax(loss)},
        "clients: they are a Split, and a minimax problem has one level",
    ),
    "split batch for one level": (
        {"batch_size": rk.Split(lower=1, upper=1), "problem": rk.Minimax(loss)},
        "batch_size: a Split was given, and this problem has one level",
    ),
    "state": ({"state": {"round": 3}}, "state: dict was given; a result's state is needed"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_sentence(name):
    changes, sentence = CASES[name]
    with pytest.raises(rk.InputError) as error:
        rk.run(**(GOOD | changes))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_local_values_of_different_shapes_are_refused():
    with pytest.raises(rk.InputError, match=r"y: shapes .* were given at client 1"):
        rk.run(
            LOCAL, rk.SimFBO(lr=rk.Rates(0.1)), CLIENTS, x={"w": np.zeros(2)}, rounds=1,
            y=lambda key, data: np.zeros(2 if data["a"][0, 0] == 1.0 else 1),
        )  # fmt: skip


def test_a_method_needs_a_round():
    with pytest.raises(rk.InputError, match=r"Idle: a method needs round\(self, state, cohort\)"):

        @rk.method
        class Idle:
            lr: rk.Rates
