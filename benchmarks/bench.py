"""`make bench`: milliseconds per round of rookery and of its yardsticks, in one run, and compile times.

SimFBO on the MNIST-shaped two-layer network, 100 clients, 10 per round, batch 64, 1 and 10 local steps. Measured in
turns (ours, by hand, PyTorch, the floor, ours, ...), so that a slow moment of the machine meets all of them alike;
the best of the turns is reported, since other work on the machine only ever slows one down.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from benchmarks import baseline_jax as hand
from benchmarks import baseline_nested_jax as nested
from benchmarks import baseline_torch as torch_loop
from benchmarks import floor
from rookery.algorithms.registry import METHODS
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import precision_context, prepare


def cross_entropy(x, y, e):
    """The upper loss of one example, as a user writes it."""
    hidden = jax.nn.relu(e["input"] @ x["w"] + x["b"])
    return -jax.nn.log_softmax(hidden @ y["w"] + y["b"])[e["label"]]


def ridge_cross_entropy(x, y, e):
    """The lower loss of one example."""
    return cross_entropy(x, y, e) + 0.5 * hand.RIDGE * (jnp.sum(y["w"] ** 2) + jnp.sum(y["b"] ** 2))


PROBLEM = rk.Bilevel(upper=cross_entropy, lower=ridge_cross_entropy)


SINGLE = rk.Single(lambda x, e: cross_entropy(x["body"], x["head"], e))
# A bias of each client's own for the logits: the smallest block of its own that there is.
JOINT = rk.Joint(lambda x, y, e: cross_entropy(x["body"], {"w": x["head"]["w"], "b": x["head"]["b"] + y}, e))


def one_level(clients: rk.Clients) -> rk.Clients:
    """The lower level's examples alone."""
    return rk.federate([clients.client(i).lower for i in range(clients.population)])


def make_clients() -> rk.Clients:
    """The data of the hand-written loop, federated."""
    data = {name: np.asarray(array) for name, array in hand.make_data().items()}
    rows = [slice(i * hand.EXAMPLES, (i + 1) * hand.EXAMPLES) for i in range(hand.CLIENTS)]
    return rk.federate(
        [
            rk.Split(
                lower={"input": data["lower_x"][own], "label": data["lower_y"][own]},
                upper={"input": data["upper_x"][own], "label": data["upper_y"][own]},
            )
            for own in rows
        ]
    )


def open_session(method, clients: rk.Clients, engine: rk.Local):
    """A session of ours, compiled, with the seconds that compiling took."""
    z = hand.make_point()
    problem, start = PROBLEM, {"x": z["x"], "y": z["y"]}
    if method.kinds is not None and "bilevel" not in method.kinds:
        both = {"body": z["x"], "head": z["y"]}
        problem, start = (SINGLE, {"x": both}) if "single" in method.kinds else (JOINT, {"x": both, "y": np.zeros(10)})
        clients = one_level(clients)
    setup = prepare(
        problem,
        method,
        clients,
        **start,
        sampling=rk.All() if method.participation == "all" else rk.Uniform(hand.COHORT),
        batch_size=hand.BATCH,
        seed=0,
        precision="float32",
    )
    session = engine.open(setup, Ledger())
    begun = time.perf_counter()
    session.advance(0)
    return session, time.perf_counter() - begun


def ours(method: Any, clients: rk.Clients, engine: rk.Local) -> Callable[[int], Any]:
    """A function that does so many rounds of ours."""
    session, _ = open_session(method, clients, engine)

    def go(rounds: int) -> None:
        done = session.advance(rounds)
        if done.broken:
            raise FloatingPointError(f"diverged: {done.broken}")

    return go


def by_hand(steps: int, form: str) -> Callable[[int], Any]:
    """A function that does so many rounds of the hand-written loop."""
    run, data, z, key = hand.make(form), hand.make_data(), hand.make_point(), jax.random.key(0)
    return lambda rounds: jax.block_until_ready(run(data, z, key, rounds, steps, hand.ETA, hand.GAMMA))


def by_torch(steps: int) -> Callable[[int], Any]:
    """A function that does so many rounds of the PyTorch loop, on the accelerator where there is one."""
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    data, z = torch_loop.make_data(device=device), torch_loop.make_point(device=device)
    end = lambda z: float(z[0].sum())  # waits for the device
    return lambda rounds: end(torch_loop.run(data, z, rounds, steps, hand.ETA, hand.GAMMA))


def longer() -> int:
    """How many times as many rounds a turn has: on an accelerator they are short, and a call costs milliseconds."""
    return 1 if jax.default_backend() == "cpu" else 20


def take_turns(contenders: dict[str, Callable[[int], Any]], rounds: int, turns: int) -> dict[str, float]:
    """Best ms per round of each; the first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, go in contenders.items():
            count = max(1, rounds // 6) if name == "PyTorch loop" else rounds
            begun = time.perf_counter()
            go(count)
            if turn:
                times[name].append(1e3 * (time.perf_counter() - begun) / count)
    return {name: min(column) for name, column in times.items()}


NESTED = {
    "fednest": rk.FedNest(
        lr=rk.Rates(x=nested.ALPHA, y=nested.BETA),
        neumann_step=nested.LAM,
        neumann_terms=nested.T,
        lower_rounds=nested.N,
        lower_steps=nested.LOWER_STEPS,
        upper_steps=nested.UPPER_STEPS,
    ),
    "aggitd": rk.AggITD(
        lr=rk.Rates(x=nested.ALPHA, y=nested.BETA),
        neumann_step=nested.LAM,
        lower_rounds=nested.N,
        lower_steps=nested.LOWER_STEPS,
        upper_steps=nested.UPPER_STEPS,
    ),
}


def measure_nested(name: str, turns: int, clients: rk.Clients) -> dict[str, float]:
    """Best ms per round of a two-loop method: ours, by hand, PyTorch."""

    def by_hand_nested(form: str) -> Callable[[int], Any]:
        run, data, z, key = nested.make(name, form), hand.make_data(), hand.make_point(), jax.random.key(0)
        return lambda rounds: jax.block_until_ready(run(data, z, key, rounds))

    contenders = {
        "rookery": ours(NESTED[name], clients, rk.Local()),
        "rookery, side by side": ours(NESTED[name], clients, rk.Local(at_once=hand.COHORT)),
        "by hand, map": by_hand_nested("map"),
        "by hand, vmap": by_hand_nested("vmap"),
    }
    if torch_loop.available():
        from benchmarks import baseline_nested_torch

        device = "cpu" if jax.default_backend() == "cpu" else "cuda"
        data, z = torch_loop.make_data(device=device), torch_loop.make_point(device=device)
        contenders["PyTorch loop"] = lambda rounds: float(
            baseline_nested_torch.run(name, data, z, rounds)[0][0].detach().sum()
        )
    return take_turns(contenders, 20 * longer(), turns)


def every_method() -> dict[str, Any]:
    """One setting of every method for shared lower levels; those of one level learn the same network as a whole, those
    that need all clients with all 100. GBDSBO's matrices would take more than there is."""
    methods = {}
    for name, row in METHODS.items():
        if "shared" in row.method.scopes and name != "gbdsbo":
            methods[name] = NESTED.get(name) or row.method(lr=rk.Rates(0.01))
    lr = rk.Rates(0.01)
    methods["simfbo, control variates"] = rk.SimFBO(lr, drift=rk.ControlVariates())
    methods["simfbo, duals"] = rk.SimFBO(lr, drift=rk.Duals())
    return methods


def measure(steps: int, turns: int, clients: rk.Clients) -> dict[str, float]:
    """Best ms per round of everything at one number of local steps."""
    simfbo = rk.SimFBO(lr=rk.Rates(hand.ETA), local_steps=steps)
    contenders = {
        "rookery": ours(simfbo, clients, rk.Local()),
        "rookery, side by side": ours(simfbo, clients, rk.Local(at_once=hand.COHORT)),
        "by hand, map": by_hand(steps, "map"),
        "by hand, vmap": by_hand(steps, "vmap"),
    }
    if torch_loop.available():
        contenders["PyTorch loop"] = by_torch(steps)
    return take_turns(contenders, max(3, 60 // steps) * longer(), turns)


def compile_times(methods: dict[str, Any], clients: rk.Clients) -> dict[str, float]:
    """Seconds to compile each method, from nothing."""
    jax.config.update("jax_enable_compilation_cache", False)
    seconds = {}
    for name, method in methods.items():
        jax.clear_caches()
        seconds[name] = open_session(method, clients, rk.Local())[1]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 10], help="numbers of local steps")
    parser.add_argument("--turns", type=int, default=7, help="turns to take the best of")
    options = parser.parse_args()
    clients = make_clients()
    with precision_context("float32"):
        rates = [floor.peak_rate(), floor.shape_rate()]
        for steps in options.steps:
            times = measure(steps, options.turns, clients)
            rates = [max(rates[0], floor.peak_rate()), max(rates[1], floor.shape_rate())]
            floors = floor.floor_ms(steps, rates)
            times["floor, machine's peak"], times["floor, network's shapes"] = floors["peak_ms"], floors["shape_ms"]
            print(f"\nSimFBO, {steps} local step{'s' * (steps > 1)}: ms per round, and ours against it", flush=True)
            for name, ms in times.items():
                print(f"  {name:26s} {ms:9.3f} {times['rookery'] / ms:8.2f}x")
            best = min(times["by hand, map"], times["by hand, vmap"])
            print(f"  ours / by hand {times['rookery'] / best:.2f} (goal: at most 1.10)")
            print(f"  ours / floor {times['rookery'] / floors['peak_ms']:.2f} (goal: at most 2)")
            if "PyTorch loop" in times:
                ratio = times["PyTorch loop"] / times["rookery"]
                print(f"  PyTorch loop / ours {ratio:.2f} (goal at 10 local steps: at least 4)")
            else:
                print("  PyTorch loop: skipped, torch is not installed (the extra `bench` brings it)")
        for name in NESTED:
            times = measure_nested(name, options.turns, clients)
            print(
                f"\n{name}, N = {nested.N}, T = {nested.T}, {nested.LOWER_STEPS} lower steps: ms per round", flush=True
            )
            for contender, ms in times.items():
                print(f"  {contender:26s} {ms:9.3f} {times['rookery'] / ms:8.2f}x")
            best = min(times["by hand, map"], times["by hand, vmap"])
            own = min(times["rookery"], times["rookery, side by side"])
            print(f"  ours / by hand {own / best:.2f}, each in its faster form (goal: at most 1.10)")
        print("\nevery method, one local step: ms per round")
        contenders = {name: ours(method, clients, rk.Local()) for name, method in every_method().items()}
        for name, ms in take_turns(contenders, 10, options.turns).items():
            print(f"  {name:26s} {ms:9.3f}")
        print("\nseconds to compile (goal: under 10)")
        for name, seconds in compile_times(every_method(), clients).items():
            print(f"  {name:26s} {seconds:9.2f}")
        print("\nseconds to compile two-loop methods with N = T (goal: under 15, and the same for both)")
        deep = {
            f"{name}, N = T = {n}": dataclasses.replace(
                method, lower_rounds=n, **({"neumann_terms": n} if name == "fednest" else {})
            )
            for n in (5, 50)
            for name, method in NESTED.items()
        }
        for name, seconds in compile_times(deep, clients).items():
            print(f"  {name:26s} {seconds:9.2f}")


if __name__ == "__main__":
    main()
