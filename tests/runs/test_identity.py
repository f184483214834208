"""A compiled program is used again only while the code and the constants that it was traced from stay the same."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines import local

CLIENTS = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 5.0])}])  # mean 2.75
ENGINES = ["local", "eager", "mesh", "streamed"]


def one_step(loss, engine="local", method=None, **options):
    """x after one step of 0.5 from x = 1. With 0.5 (x - a)^2 + 0.5 lam x^2 it is 1.875 - 0.5 lam."""
    method = rk.FedAvg(lr=0.5) if method is None else method
    result = rk.run(rk.Single(loss), method, CLIENTS, x=1.0, rounds=1, precision="float64", engine=engine, **options)
    return float(result.x)


def expected(lam):
    return 1.875 - 0.5 * lam


def programs():
    """The number of compiled runs."""
    advance: Any = local.advance
    return advance._cache_size()


def namespace(source):
    """The names that a notebook cell defines."""
    names = {"jax": jax, "jnp": jnp, "np": np, "functools": functools, "__name__": "__main__"}
    exec(source, names)
    return names


LOSS = "def loss(x, e): return 0.5 * (x - e['a']) ** 2 + 0.5 * penalty(x)\n"

# A first cell that defines loss, and, by the value of lam, what a person runs next. Each must take effect.
CELLS = {
    "a global number": (
        "lam = 0.0\ndef penalty(x): return lam * x**2",
        "lam = {lam}",
    ),
    "a helper function that is defined again": (
        "def penalty(x): return 0.0 * x**2",
        "def penalty(x): return {lam} * x**2",
    ),
    "a helper of a helper": (
        "def weight(): return 0.0\ndef penalty(x): return weight() * x**2",
        "def weight(): return {lam}",
    ),
    "an array changed in place": (
        "lam = np.zeros(3)\ndef penalty(x): return lam[1] * x**2",
        "lam[1] = {lam}",
    ),
    "a JAX array that shares memory with a numpy array": (
        "host = np.zeros(4096, np.float32)\nlam = jnp.asarray(host)\ndef penalty(x): return lam[1] * x**2",
        "host[1] = {lam}; lam = jnp.array(host) if float(lam[1]) != {lam} else lam",
    ),
    "a nested container": (
        "settings = {{'penalties': [0.0, {{'lam': 0.0}}]}}\ndef penalty(x): return settings['penalties'][1]['lam'] * x**2",
        "settings['penalties'][1]['lam'] = {lam}",
    ),
    "the attribute of an object": (
        "class Settings: pass\nsettings = Settings(); settings.lam = 0.0\ndef penalty(x): return settings.lam * x**2",
        "settings.lam = {lam}",
    ),
    "the attribute of a class": (
        "class Settings: lam = 0.0\ndef penalty(x): return Settings.lam * x**2",
        "Settings.lam = {lam}",
    ),
    "an object with slots": (
        "class Settings: __slots__ = ('lam',)\nsettings = Settings(); settings.lam = 0.0\n"
        "def penalty(x): return settings.lam * x**2",
        "settings.lam = {lam}",
    ),
    "a default": (
        "def penalty(x, lam=0.0): return lam * x**2",
        "penalty.__defaults__ = ({lam},)",
    ),
    "a default by keyword": (
        "def penalty(x, *, lam=0.0): return lam * x**2",
        "penalty.__kwdefaults__['lam'] = {lam}",
    ),
    "an attribute of a function": (
        "def penalty(x): return penalty.lam * x**2\npenalty.lam = 0.0",
        "penalty.lam = {lam}",
    ),
    "a closed-over variable": (
        "def make():\n  lam = 0.0\n  def penalty(x): return lam * x**2\n  def change(value):\n    nonlocal lam\n    lam = value\n"
        "  return penalty, change\npenalty, change = make()",
        "change({lam})",
    ),
    "a partial function": (
        "def scaled(lam, x): return lam[0] * x**2\nlam = [0.0]\npenalty = functools.partial(scaled, lam)",
        "lam[0] = {lam}",
    ),
    "the code of a function": (
        "def penalty(x): return 0.0 * x**2",
        "def other(x): return {lam} * x**2\npenalty.__code__ = other.__code__",
    ),
    "the body of a scan": (
        "lam = 0.0\ndef body(c, t): return c * lam, None\ndef penalty(x): return jax.lax.scan(body, x**2, jnp.arange(1))[0]",
        "lam = {lam}",
    ),
    "a helper with jax.jit": (
        "lam = 0.0\n@jax.jit\ndef penalty(x): return lam * x**2",
        "lam = {lam}",
    ),
    "a helper with jax.checkpoint": (
        "lam = 0.0\n@jax.checkpoint\ndef penalty(x): return lam * x**2",
        "lam = {lam}",
    ),
    "the backward pass of a custom_vjp": (
        "lam = 0.0\n@jax.custom_vjp\ndef penalty(x): return x**2\n"
        "def forward(x): return penalty(x), x\ndef backward(x, g): return (g * 2.0 * lam * x,)\npenalty.defvjp(forward, backward)",
        "lam = {lam}",
    ),
    "a name that is looked up as a text": (
        "lam = 0.0\ndef penalty(x): return globals()['lam'] * x**2",
        "lam = {lam}",
    ),
    "a random generator": (  # whatever it draws, it draws again: 0 for lam = 0
        "state = [0.0]\nclass Draw:\n  __slots__ = ('rng', '__weakref__')\n  def __call__(self): return state[0]\n"
        "draw = Draw(); draw.rng = np.random.default_rng(0)\ndef penalty(x): return draw() * x**2",
        "state[0] = {lam}",
    ),
}  # fmt: skip


def fill(source, lam):
    return source.replace("{{", "{").replace("}}", "}").replace("{lam}", repr(lam))


@pytest.mark.parametrize("cell", CELLS)
def test_a_change_of_what_a_loss_reads_takes_effect(cell):
    first, change = CELLS[cell]
    names = namespace(fill(first, 0.0) + "\n" + LOSS)
    assert one_step(names["loss"]) == pytest.approx(expected(0.0), abs=1e-14)
    for lam in (1.0, 2.0, 0.0):
        exec(fill(change, lam), names)
        assert one_step(names["loss"]) == pytest.approx(expected(lam), abs=1e-14), lam


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_sees_a_changed_global(engine):
    names = namespace("lam = 0.0\ndef penalty(x): return lam * x**2\n" + LOSS)
    for lam in (0.0, 1.0, 0.0):
        names["lam"] = lam
        assert one_step(names["loss"], engine) == pytest.approx(expected(lam), abs=1e-14)


def test_a_bound_method_of_a_changed_object_is_traced_again():
    class Ridge:
        lam = 0.0

        def loss(self, x, e):
            return 0.5 * (x - e["a"]) ** 2 + 0.5 * self.lam * x**2

    ridge = Ridge()
    loss = ridge.loss
    for lam in (0.0, 1.0):
        ridge.lam = lam
        assert one_step(loss) == pytest.approx(expected(lam), abs=1e-14)


@rk.method
class Scaled:
    lr: rk.Rates

    def round(self, state, cohort):
        q = cohort.mean("gradient", state.z)
        return state.next(z=state.z - self.lr.at(state.round) * (FACTOR * q))

    def gradient(self, client, z):
        return client.direction(z, client.sample(client.key))


FACTOR = 1.0


def test_a_global_of_a_method_is_read_again(monkeypatch):
    loss = lambda x, e: 0.5 * (x - e["a"]) ** 2
    assert one_step(loss, method=Scaled(0.5)) == pytest.approx(1.875, abs=1e-14)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert one_step(loss, method=Scaled(0.5)) == pytest.approx(2.75, abs=1e-14)


@pytest.mark.parametrize("kind", ["metrics", "client_metrics", "rk.Metric"])
def test_a_global_of_a_metric_is_read_again(kind):
    source = "scale = 1.0\ndef measure(z, *e, **arrays): return {'m': scale * z.x}"
    names = namespace(source)
    loss = lambda x, e: 0.5 * (x - e["a"]) ** 2
    clients = rk.federate([{"a": np.ones(4)}] * 2, test=0.5)
    given, column = {"metrics": names["measure"]}, "m"
    if kind == "client_metrics":
        given, column = {"client_metrics": names["measure"]}, "m mean"
    elif kind == "rk.Metric":
        given = {"metrics": rk.Metric(names["measure"], unused=np.zeros(2))}
    for scale in (1.0, 3.0, 1.0):
        names["scale"] = scale
        result = rk.run(rk.Single(loss), rk.FedAvg(lr=0.5), clients, x=1.0, rounds=1, **given)
        assert result.history.rows[0][column] == pytest.approx(scale)


def test_a_sweep_reads_a_changed_global():
    names = namespace("lam = 0.0\ndef penalty(x): return lam * x**2\n" + LOSS)
    for lam in (0.0, 1.0):
        names["lam"] = lam
        over = {"lr": [0.5, 0.25]}
        found = rk.sweep(rk.Single(names["loss"]), rk.FedAvg(lr=0.5), CLIENTS, over=over, x=1.0, rounds=1)
        assert float(found.results[0].x) == pytest.approx(expected(lam), abs=1e-6)


def test_the_harness_reads_a_changed_global():
    names = namespace("lam = 0.0\ndef penalty(x): return lam * x**2\n" + LOSS)
    for lam in (0.0, 1.0):
        names["lam"] = lam
        found = rk.fixed_point(rk.Single(names["loss"]), rk.FedAvg(lr=0.5), CLIENTS, x=1.0)
        assert found.flat("x")[0] == pytest.approx(2.75 / (1 + lam), abs=1e-10)


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A module of the user's own, as a file beside a notebook, and a loss that uses it in one of three ways."""

    def write(lam):
        (tmp_path / "own_helper.py").write_text(f"lam = {lam}\ndef penalty(x): return lam * x**2\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(0.0)
    yield write
    sys.modules.pop("own_helper", None)


@pytest.mark.parametrize(
    "use", ["import own_helper\n{}own_helper.penalty(x)", "from own_helper import penalty\n{}penalty(x)"]
)
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_module_that_is_loaded_again_takes_effect(helper, use, where):
    statement, call = use.split("\n{}")
    body = f"return 0.5 * (x - e['a']) ** 2 + 0.5 * {call}"
    source = f"{statement}\ndef loss(x, e):\n  {body}"
    if where == "inside":
        source = f"def loss(x, e):\n  {statement}\n  {body}"
    names = namespace(source)
    assert one_step(names["loss"]) == pytest.approx(expected(0.0), abs=1e-14)
    helper(1.0)
    importlib.invalidate_caches()
    importlib.reload(importlib.import_module("own_helper"))
    if where == "outside":
        exec(statement, names)
    assert one_step(names["loss"]) == pytest.approx(expected(1.0), abs=1e-14)
    vars(sys.modules["own_helper"])["lam"] = 2.0
    assert one_step(names["loss"]) == pytest.approx(expected(2.0), abs=1e-14)


def test_an_unchanged_run_compiles_nothing(compilations):
    names = namespace("lam = 1.0\ntable = np.ones(1000)\ndef penalty(x): return lam * table[3] * x**2\n" + LOSS)
    measure = lambda z: {"m": names["lam"] * z.x}
    run = lambda: one_step(names["loss"], metrics=measure)
    run()
    with compilations.counted():
        run()
    assert compilations.count == 0
    names["lam"] = 2.0
    run()
    names["lam"] = 1.0
    run()
    with compilations.counted():  # both are known by now
        assert run() == pytest.approx(expected(1.0))
        names["lam"] = 2.0
        assert run() == pytest.approx(expected(2.0))
    assert compilations.count == 0


def test_what_cannot_be_digested_is_traced_again_and_compiled_once():
    source = "lam = 1.0\ntraced = []\ndef penalty(x):\n  traced.append(1)\n  return globals()['lam'] * x**2\n"
    names = namespace(source + LOSS)
    one_step(names["loss"])
    traces, compiled = len(names["traced"]), programs()
    assert one_step(names["loss"]) == pytest.approx(expected(1.0), abs=1e-14)
    assert len(names["traced"]) > traces
    assert programs() == compiled
    names["lam"] = 2.0
    assert one_step(names["loss"]) == pytest.approx(expected(2.0), abs=1e-14)
    assert programs() == compiled + 1


def test_a_change_that_does_not_matter_compiles_nothing():
    names = namespace("traced = []\ndef penalty(x):\n  traced.append(1)\n  return 0.0 * x\n" + LOSS)
    one_step(names["loss"])
    one_step(names["loss"])
    traces, compiled = len(names["traced"]), programs()
    assert one_step(names["loss"]) == pytest.approx(expected(0.0), abs=1e-14)
    assert len(names["traced"]) > traces and programs() == compiled


def test_two_functions_of_one_code_are_told_apart():
    make = lambda lam: lambda x, e: 0.5 * (x - e["a"]) ** 2 + 0.5 * lam * x**2
    losses = [make(lam) for lam in (0.0, 1.0)]
    for _ in range(2):
        for lam, loss in zip((0.0, 1.0), losses):
            assert one_step(loss) == pytest.approx(expected(lam), abs=1e-14)


def test_a_type_is_no_obstacle():
    """Objects that describe themselves badly do not stop a run."""

    class Odd:
        def __getattr__(self, name):
            raise RuntimeError(name)

    odd, module = Odd(), types.ModuleType("module_without_a_file")
    vars(module)["lam"] = 0.0

    def loss(x, e):
        return 0.5 * (x - e["a"]) ** 2 + 0.5 * module.lam * x**2 * (odd is not None)

    assert one_step(loss) == pytest.approx(expected(0.0), abs=1e-14)
    vars(module)["lam"] = 1.0
    assert one_step(loss) == pytest.approx(expected(1.0), abs=1e-14)


def test_what_jax_traced_before_the_first_run_is_not_reused():
    names = namespace("lam = 0.0\n@jax.jit\ndef penalty(x): return lam * x**2\n" + LOSS)
    with jax.enable_x64(True), jax.default_matmul_precision("float32"):  # a user tries the loss, set up as a run is
        slope = jax.vmap(lambda a: jax.grad(names["loss"])(jnp.asarray(np.float64(1)), {"a": a}))
        assert float(slope(jnp.asarray(np.array([2.75])))[0]) == -1.75
    names["lam"] = 1.0
    assert one_step(names["loss"]) == pytest.approx(expected(1.0), abs=1e-14)


@pytest.mark.parametrize(
    "read",
    ["float(os.environ['LAM_OF_A_TEST'])", "opened()", "float(FOLDER.joinpath('a').read_text())", "np.load(FILE)[0]"],
)
def test_what_a_loss_reads_from_outside_takes_effect(read, tmp_path, monkeypatch):
    names = namespace(f"import os, pathlib\nPATH, FILE = {str(tmp_path / 'a')!r}, {str(tmp_path / 'a.npy')!r}\n")
    exec(
        "def opened():\n  with open(PATH) as file: return float(file.read())\nFOLDER = pathlib.Path(PATH).parent", names
    )
    exec(f"def penalty(x): return {read} * x**2\n" + LOSS, names)
    for lam in (0.0, 1.0):
        monkeypatch.setenv("LAM_OF_A_TEST", str(lam))
        (tmp_path / "a").write_text(str(lam))
        np.save(tmp_path / "a.npy", np.array([lam]))
        assert one_step(names["loss"]) == pytest.approx(expected(lam), abs=1e-14)


@pytest.mark.parametrize("base", ["rk.OfBatch", "Exception"])
def test_a_private_attribute_of_a_dataclass_is_read_again(base):
    source = "import dataclasses\nimport rookery as rk\n@dataclasses.dataclass(frozen=True)\n"
    source += f"class Own({base}):\n  function: object = None\n"
    names = namespace(source + "settings = Own()\ndef penalty(x): return settings._lam * x**2\n" + LOSS)
    for lam in (0.0, 1.0):
        object.__setattr__(names["settings"], "_lam", lam)
        assert one_step(names["loss"]) == pytest.approx(expected(lam), abs=1e-14)
