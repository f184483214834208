"""Server optimisers: any optax transformation, its numbers traced, on any sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from rookery.federation import codec
from rookery.federation.server import NEEDS_NO_RATE, read_server


def test_adam_on_the_server_is_adam_on_the_mean_direction():
    """With one local step and all clients, SimFBO's aggregate is the mean direction: optax by hand follows it."""
    exact = bed("E1a")
    optimiser = rk.ServerOptimiser(optax.adam, learning_rate=0.05, b1=0.8, b2=0.9)
    result = run(exact, rk.SimFBO(lr=0.1, server=optimiser), rounds=7)
    x = flat(exact.start()["x"]) + 0.3
    m = v = np.zeros_like(x)
    for t in range(1, 8):
        g = exact.hypergradient(x)
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        x = x - 0.05 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-8)
    np.testing.assert_allclose(flat(result.x), x, atol=1e-7)


@pytest.mark.parametrize("name", ["E1", "E2", "E3"])
def test_plain_descent_on_the_server_is_the_plain_step(name):
    plain = run(bed(name), rk.SimFBO(lr=rk.Rates(0.05), local_steps=2), sampling=rk.Uniform(2), batch_size=2)
    method = rk.SimFBO(lr=rk.Rates(0.05), local_steps=2, server=rk.ServerOptimiser(optax.sgd, learning_rate=0.05))
    assert difference(plain, run(bed(name), method, sampling=rk.Uniform(2), batch_size=2)) <= 1e-12


def test_numbers_are_traced_and_swept(compilations):
    exact = bed("E1a")
    make = lambda lr: rk.FedAvg(lr=0.05, local_steps=2, server=rk.ServerOptimiser(optax.yogi, learning_rate=lr))
    own = run(exact, make(0.1), rounds=5)
    with compilations.counted():
        other = run(exact, make(0.2), rounds=5)
    assert compilations.count == 0 and difference(own, other) > 1e-3
    start = {"x": {name: leaf + 0.3 for name, leaf in exact.start(leaves=2)["x"].items()}}
    table = rk.sweep(
        exact.problem, make(0.3), exact.clients, over={"server.learning_rate": [0.1, 0.2]}, rounds=5,
        precision="float64", **start,
    )  # fmt: skip
    for result, alone in zip(table.results, (own, other)):
        assert difference(result, alone) <= 1e-12


def test_an_optimiser_of_one_sequence_is_swept():
    exact = bed("E1")
    method = rk.SimFBO(lr=rk.Rates(0.05), server={"x": rk.ServerOptimiser(optax.adam, learning_rate=0.1)})
    grid = {"server.x.learning_rate": [0.01, 0.1]}
    table = rk.sweep(exact.problem, method, exact.clients, over=grid, rounds=5, **exact.start())
    assert np.abs(table.results[0].x - table.results[1].x).max() > 1e-2


@pytest.mark.parametrize("preset", [rk.FedAdam, rk.FedYogi, rk.FedAdagrad])
def test_adaptive_servers_are_the_papers(preset):
    """Against a program in numpy: algorithm 2 of Reddi et al., with Delta the mean of x_i - x, v from tau^2 on."""
    data, tau, b1, b2, rate = [np.array([1.0, 2.0]), np.array([-4.0])], 1e-2, 0.8, 0.95, 0.3
    given = {"b1": b1, "eps": tau} | ({} if preset is rk.FedAdagrad else {"b2": b2})
    result = rk.run(
        rk.Single(lambda x, e: 0.5 * (x - e["a"]) ** 2), preset(lr=0.1, server_lr=rate, local_steps=3, **given),
        rk.federate([{"a": own} for own in data], weights=[0.7, 0.3]), x=3.0, rounds=6, precision="float64",
    )  # fmt: skip
    x, m, v = 3.0, 0.0, tau**2
    for _ in range(6):
        delta = 0.0
        for p, own in zip((0.7, 0.3), data):
            at = x
            for _ in range(3):
                at -= 0.1 * np.mean(at - own)
            delta += p * (at - x)
        m = b1 * m + (1 - b1) * delta
        if preset is rk.FedAdam:
            v = b2 * v + (1 - b2) * delta**2
        elif preset is rk.FedYogi:
            v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        else:
            v = v + delta**2
        x += rate * m / (np.sqrt(v) + tau)
    np.testing.assert_allclose(float(result.x), x, rtol=1e-12)


@pytest.mark.parametrize("preset", [rk.FedAvgM, rk.FedAdam, rk.FedYogi, rk.FedAdagrad])
def test_presets_learn(preset):
    exact = bed("E1a")
    result = run(exact, preset(lr=0.05, server_lr=0.1, local_steps=1), rounds=800)
    assert np.abs(flat(result.x) - exact.solution()).max() < 1e-2


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("adam", "server: 'adam' was given; rk.ServerOptimiser"),
        (rk.ServerOptimiser(optax.adam, learning_rat=0.1), "server: .* cannot be built: .*learning_rat"),
        ({"w": rk.ServerOptimiser(optax.sgd, learning_rate=0.1)}, "server: 'w' is not known"),
        (rk.ServerOptimiser(dict), "server: .* cannot be built"),
        (rk.ServerOptimiser(optax.adam, learning_rate="a"), "server: .* cannot be built"),
        (rk.ServerOptimiser(optax.adam, learning_rate=float("nan")), "server.learning_rate: nan was given; a finite"),
    ],
)
def test_bad_optimisers_are_refused(server, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        run(bed("E1a"), rk.FedAvg(lr=0.1, server=server), rounds=1)


def test_one_step_size_is_enough():
    method = rk.SimFBO(lr=0.1, server_lr=rk.Rates(0.1), server=rk.ServerOptimiser(optax.sgd, learning_rate=0.1))
    with pytest.raises(rk.InputError, match="server_lr: it was given together with server"):
        run(bed("E1a"), method, rounds=1)
    with pytest.raises(rk.InputError, match=r"server: 3 was given; a constructor such as optax\.adam"):
        rk.ServerOptimiser(3)


def test_adagrad_norm_is_its_formula():
    """One local step, all clients: b^2 <- b^2 + ||g||^2, x <- x - eta g / b, by hand."""
    exact = bed("E1a")
    optimiser = rk.ServerOptimiser(rk.adagrad_norm, learning_rate=0.7, b0=0.2)
    result = run(exact, rk.SimFBO(lr=0.1, server=optimiser), rounds=7)
    x, square = flat(exact.start()["x"]) + 0.3, 0.2**2
    for _ in range(7):
        g = exact.hypergradient(x)
        square += g @ g
        x = x - 0.7 * g / np.sqrt(square)
    np.testing.assert_allclose(flat(result.x), x, rtol=1e-12)


def test_each_sequence_has_an_optimiser_of_its_own():
    exact = bed("E1")
    norm = rk.ServerOptimiser(rk.adagrad_norm)
    each = run(exact, rk.SimFBO(lr=rk.Rates(0.1), server=rk.EachSequence(norm)), rounds=5)
    named = run(exact, rk.SimFBO(lr=rk.Rates(0.1), server=dict.fromkeys("xyv", norm)), rounds=5)
    together = run(exact, rk.SimFBO(lr=rk.Rates(0.1), server=norm), rounds=5)
    assert difference(each, named) == 0 and difference(each, together) > 1e-3


@pytest.mark.parametrize("word", NEEDS_NO_RATE)
def test_servers_without_a_rate_solve(word):
    exact = rk.exact.QuadraticConsensus.random(clients=3, dims=3, seed=1)
    method = rk.SimFBO(lr="auto", server=read_server("server", word))
    result = rk.run(exact.problem, method, exact.clients, rounds=400, precision="float64", **exact.start())
    begun = np.abs(exact.start()["x"] - exact.solution()).max()
    assert np.abs(result.x - exact.solution()).max() < 0.05 * begun


@pytest.mark.parametrize("word", NEEDS_NO_RATE)
def test_servers_without_a_rate_go_on_bit_for_bit(word, tmp_path):
    exact = rk.exact.QuadraticConsensus.random(clients=3, dims=3, seed=1)
    method = rk.SimFBO(lr=rk.Rates("auto"), server=read_server("server", word))
    server: Any = method.server
    assert codec.decode(codec.encode(server)).optimiser.constructor is server.optimiser.constructor
    whole = rk.run(exact.problem, method, exact.clients, rounds=8, **exact.start())
    kept = rk.Checkpoints(tmp_path / "c", every=2)
    rk.run(exact.problem, method, exact.clients, rounds=4, checkpoints=kept, **exact.start())
    went_on = rk.resume(tmp_path / "c", exact.problem, method, exact.clients, rounds=8, **exact.start())
    assert np.array_equal(went_on.x, whole.x) and not np.array_equal(whole.x, exact.start()["x"])
