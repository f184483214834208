import dataclasses

import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.federation import fields

# No future import in this file: types are types here and texts elsewhere, and both must mean the same.

CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)


@rk.method
class Plain:
    """Fields by their types alone."""

    lr: rk.Rates
    beta: float = 0.9
    local_steps: rk.Steps = 1
    server_lr: rk.Rates | None = None
    clip: float | None = None
    terms: int = 2
    word: str = rk.static(default="a")
    flag: bool = rk.static(default=False)

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.mean("steps", state.z))

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), self.local_steps).moved


@rk.method
class Said:
    """The same by specifiers."""

    lr: rk.Rates = rk.rates()
    beta: float = rk.number(default=0.9)
    local_steps: rk.Steps = rk.steps(default=1)
    server_lr: rk.Rates | None = rk.rates(default=None)
    clip: float | None = rk.number(default=None)
    terms: int = rk.count(default=2)

    round, steps = Plain.round, Plain.steps


def run(method, **options):
    return rk.run(PROBLEM, method, CLIENTS, x=0.0, rounds=2, **options)


@pytest.mark.parametrize("cls", [Plain, Said])
def test_types_and_specifiers_mean_the_same(cls):
    assert run(cls(lr=0.1, local_steps=rk.Epochs(2)), batch_size=1).status == "done"
    for options, sentence in (
        ({"beta": float("nan")}, "beta: nan was given"),
        ({"beta": lambda t: 0.1}, "beta: a function was given; one number for the whole run is needed"),
        ({"beta": None}, "beta: None was given"),
        ({"lr": float("inf")}, "lr.default: inf was given"),
        ({"lr": None}, "lr"),
        ({"server_lr": rk.Rates(w=1.0)}, "server_lr: there is no sequence 'w'"),
        ({"clip": "much"}, "clip: 'much' was given"),
        ({"local_steps": 0}, "local_steps: 0 was given"),
        ({"terms": 2.5}, "terms: 2.5 was given; a whole number"),
        ({"terms": 2**40}, "terms: 1099511627776 was given"),
    ):
        with pytest.raises(rk.InputError) as error:
            run(cls(**({"lr": 0.1} | options)))
        assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"word": 3}, "word: 3 was given; a word"), ({"flag": 1}, "flag: 1 was given; True or False")],
)
def test_structure_is_checked_too(options, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        run(Plain(lr=0.1, **options))


def test_a_type_that_cannot_be_looked_up_is_said():
    namespace = {}
    text = "from __future__ import annotations\nimport rookery as rk\n\n@rk.method\nclass Odd:\n    lr: Nowhere\n"
    exec(text + "    def round(self, state, cohort):\n        return state.next()\n", namespace)
    with pytest.raises(rk.InputError, match="Odd: the type 'Nowhere' of lr cannot be looked up; say what it is with"):
        run(namespace["Odd"](lr=0.1))


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_every_method_says_what_it_is(name):
    cls = METHODS[name].method
    for field, meaning in fields.meanings(cls).items():
        assert type(meaning) is not fields.Field and meaning.explain(), (name, field)
        option = meaning.option(
            next(f.default for f in dataclasses.fields(cls) if f.name == field), {"x": 0.1, "y": 0.2, "v": 0.2}, "what"
        )
        if isinstance(option, fields.Option):  # what a shell gives when nothing is given is what Python does
            default = next(f.default for f in dataclasses.fields(cls) if f.name == field)
            parsed = meaning.wrap(meaning.parse(field, option.default))
            if getattr(meaning, "rate_of", None) is None:
                assert parsed == meaning.wrap(default), (name, field)


@pytest.mark.parametrize("name", METHODS)
def test_every_field_comes_back_from_json(name):
    made = METHODS[name].method(lr=rk.Rates(0.1, x=0.2))
    for field, meaning in fields.meanings(type(made)).items():
        value = getattr(made, field)
        back = meaning.decode(meaning.encode(field, value))
        assert repr(back) == repr(value), (name, field)


def test_a_part_of_ones_own_is_kept_by_its_name():
    @rk.part
    @rk.struct
    class Halved:
        by: float = 2.0

    meaning = fields.ComponentField()
    assert meaning.decode(meaning.encode("it", Halved(3.0))) == Halved(3.0)
    with pytest.raises(rk.InputError, match="part: there is a part 'Duals' already"):

        @rk.part
        @rk.struct
        class Duals:
            by: float = 1.0

    @rk.struct
    class Unknown:
        by: float = 2.0

    with pytest.raises(rk.InputError, match=r"parts that are registered by rk\.part alone"):
        meaning.encode("it", Unknown())


# Slips in a method's contract: one sentence each, on both engines.


def contract(round=None, steps=None, **extra):
    body = {"__annotations__": {"lr": rk.Rates}, "round": round or Plain.round, "steps": steps or Plain.steps, **extra}
    return rk.method(type("Slip", (), body))(lr=rk.Rates(0.1))


STATEFUL = {"client": lambda self, problem, z: z.zeros()}


@pytest.mark.parametrize("engine", ["local", "eager"])
@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            lambda: contract(round=lambda self, state, cohort: None),
            "Slip: its round gives NoneType; it must give the next",
        ),
        (
            lambda: contract(round=lambda self, state, cohort: state.next(z=state.z.only(()))),
            "Slip: its round gives a state of structure",
        ),
        (
            lambda: contract(steps=lambda self, client, z: (z, client.state), **STATEFUL),
            r"phase 'steps': it gives \(reply, client state\), and this exchange keeps no state; ask for it with update",
        ),
        (
            lambda: contract(steps=lambda self, client, z: z.y),
            "z: there is no sequence 'y'; there are x; a client's own",
        ),
        (lambda: contract(steps=lambda self, client, z: client.nothing), "has no attribute 'nothing'"),
    ],
)
def test_slips_in_a_method_are_one_sentence(method, sentence, engine):
    expected = AttributeError if "attribute" in sentence else rk.InputError
    made = dataclasses.replace(method(), lr=rk.Rates(0.1))
    with pytest.raises(expected, match=sentence):
        run(made, engine=engine)


@pytest.mark.parametrize("engine", ["local", "eager"])
@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (
            lambda self, client, z: client.loop(2, lambda z_i, k, key: client.leave(client.enter(z_i)), z) - z,
            "client.leave: it was called inside client.loop, which has no end yet; carry the point out of it",
        ),
        (
            lambda self, client, z: client.choose(True, lambda: client.leave(client.enter(z)), lambda: z) - z,
            "client.leave: it was called inside client.choose",
        ),
    ],
)
def test_a_client_leaves_when_its_loops_have_ended(steps, sentence, engine):
    """What it keeps would be a value of the loop that is still being made."""
    problem = rk.Joint(lambda x, y, e: (x - e["a"]) ** 2 + (y - x) ** 2)
    with pytest.raises(rk.InputError, match=sentence):
        rk.run(problem, contract(steps=steps), CLIENTS, x=0.0, y=0.0, rounds=1, engine=engine)


SAID = {
    "a negative step": (rk.SimFBO(lr=rk.Rates(0.1, x=-0.1)), "lr.x: -0.1 was given; a step size is not negative"),
    "all negative": (rk.SimFBO(lr=rk.Rates(-0.1)), "lr: -0.1 was given; a step size is not negative"),
    "a negative client": (
        rk.SimFBO(lr=rk.Rates(rk.PerClient([0.1, -0.1, 0.1]))),
        "lr: PerClient.* was given; a step size is not negative",
    ),
    "a rate that the method does not take": (
        rk.FedNest(lr=rk.Rates(x=0.1, y=0.1, v=0.1)),
        "lr.v: 0.1 was given, and this method takes no rate for 'v'; it takes x, y",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_rates_that_cannot_be_are_refused(name):
    method, sentence = SAID[name]
    exact = rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 2), seed=0)
    with pytest.raises(rk.InputError, match=sentence):
        rk.run(exact.problem, method, exact.clients, rounds=1, **exact.start())
