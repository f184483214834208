"""The contracts of what may come from outside, held by everything that is inside, and by things that are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.drift import NoControl
from rookery.algorithms.registry import METHODS
from rookery.engines.base import Session
from rookery.federation.protocols import fulfils
from rookery.federation.server import PerSequence, PlainServer

CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0])}])
PROBLEM = rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_method(name):
    made = METHODS[name].method(lr=rk.Rates(0.1))
    assert fulfils(made, rk.Method) and not fulfils(METHODS[name].method, rk.Method)
    if hasattr(made, "drift"):
        assert fulfils(made.drift, rk.Drift)
    if hasattr(made, "server"):
        assert fulfils(made.server, rk.ServerStep)
    if "hypergradient" in {field.name for field in dataclasses.fields(made)}:
        assert fulfils(made.hypergradient, rk.Estimator)


def test_every_part_is_what_it_says():
    assert all(fulfils(part, rk.Drift) for part in (NoControl(), rk.ControlVariates(), rk.Duals()))
    assert all(fulfils(part, rk.Estimator) for part in (rk.Neumann(), rk.ConjugateGradient(), rk.Tracked()))
    assert all(fulfils(part, rk.ServerStep) for part in (PlainServer(), PerSequence({})))
    assert all(fulfils(engine, rk.Engine) for engine in (rk.Local(), rk.Eager()))
    assert not fulfils(rk.Neumann(), rk.Drift) and not fulfils(3, rk.Engine)


def test_a_servers_step_from_outside():
    @rk.struct
    class Signed:
        """z - rate sign(d)."""

        rate: float = 0.1

        def init(self, z):
            return ()

        def step(self, z, d, gamma, kept):
            return z - self.rate * d.map(lambda _, v: rk.Vector(np.sign(1.0) * v.tree / abs(v.tree))), ()

    one, two = (
        rk.run(PROBLEM, rk.FedAvg(lr=0.1, server=Signed()), CLIENTS, x=0.0, rounds=3, engine=e)
        for e in ("local", "eager")
    )
    assert one.x == two.x == pytest.approx(0.3)


def test_drift_control_from_outside():
    @rk.struct
    class Pulled(NoControl):
        """Directions with a pull to the server's point."""

        weight: float = 0.5

        def correct(self, client, z, told):
            return lambda d, z_i: d + self.weight * (z_i - z)

    method = rk.SimFBO(lr=rk.Rates(0.1), local_steps=3, drift=Pulled())
    one, two = (rk.run(PROBLEM, method, CLIENTS, x=0.0, rounds=3, engine=e) for e in ("local", "eager"))
    plain = rk.run(PROBLEM, dataclasses.replace(method, drift=None), CLIENTS, x=0.0, rounds=3)
    assert one.x == pytest.approx(two.x) and one.x != plain.x


def test_an_engine_from_outside():
    class Counting:
        """The local engine, with a count of its sessions."""

        opened = 0

        def open(self, setup, ledger) -> Session:
            self.opened += 1
            return rk.Local().open(setup, ledger)

    engine = Counting()
    result = rk.run(PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, x=0.0, rounds=3, engine=engine)
    assert engine.opened == 1 and result.x == rk.run(PROBLEM, rk.FedAvg(lr=0.1), CLIENTS, x=0.0, rounds=3).x


def test_what_is_not_linear_is_named():
    exact = rk.exact.QuadraticBilevel.random(clients=2, dims=(2, 3), seed=0)
    with pytest.raises(rk.InputError, match="method: a round of SimFBO is not an affine map of the state"):
        rk.fixed_point(exact.problem, rk.SimFBO(lr=rk.Rates(0.1), radius=1e-3), exact.clients, **exact.start())
    quartic = rk.Single(lambda x, e: (x - e["a"]) ** 4)
    with pytest.raises(rk.InputError, match="problem: a round is not an affine map of the state"):
        rk.fixed_point(quartic, rk.FedAvg(lr=0.1), CLIENTS, x=0.0)
