"""Channels: what stages do to one array, and the table of methods x channels."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from properties.checks import difference, flat, run
from properties.table import bed
from rookery.engines.eager import EagerSession
from rookery.federation import channels as ch
from rookery.federation.ledger import Ledger
from rookery.runs.prepare import precision_context, prepare

STAGES = [
    rk.TopK(0.25),
    rk.RandK(0.25),
    rk.Quantise(8),
    rk.Quantise(3, stochastic=True),
    rk.Quantise(2, stochastic=True),
    rk.Quantise(1, stochastic=True),
    rk.Quantise(5, stochastic=True, block=7),
    rk.Sign(),
    rk.LowRank(2),
    rk.CountSketch(0.5),
    rk.CountSketch(0.5, rows=3),
]


@dataclasses.dataclass(frozen=True)
class Unsure(ch.Stage):
    """Unbiased, and does not say how far off."""

    unbiased = True

    def pack(self, array, key):
        return {"same": array}

    def unpack(self, arrays, shape):
        return arrays["same"]


@dataclasses.dataclass(frozen=True)
class Unkept(Unsure):
    """Has no hash, since a list has none."""

    of: list


@dataclasses.dataclass(frozen=True)
class Slips(ch.Stage):
    """Packs or unpacks as a slip of the pen would."""

    how: str

    def pack(self, array, key) -> Any:
        if self.how == "error":
            raise ValueError("no")
        return [array] if self.how == "list" else {"same": array}

    def packs(self, shape):
        return 1 / (self.how != "packs") > 0

    def unpack(self, arrays, shape):
        return arrays["other" if self.how == "name" else "same"][: 1 if self.how == "shape" else None]


def line(*stages):
    return ch.make_channel("up", list(stages), ("x",))


def through(stage, array, key):
    packed, _ = ch.send(line(stage), array, {}, key)
    return ch.receive(line(stage), packed, {})[0]


@pytest.fixture(scope="module")
def array():
    return jax.random.normal(jax.random.key(3), (6, 9), jnp.float32)


# One array.


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_what_is_unpacked_is_like_what_was_packed(stage, array):
    again = through(stage, array, jax.random.key(1))
    assert again.shape == array.shape and again.dtype == array.dtype
    assert jnp.all(jnp.isfinite(again))
    assert not jnp.any(through(stage, jnp.zeros_like(array), jax.random.key(1)))


@pytest.mark.parametrize(
    "stage, size",
    [
        (rk.TopK(0.25), 14 * 4 + 14),  # a value of 4 bytes, and a place below 54 in one
        (rk.RandK(0.25), 14 * 4 + 8),  # the key
        (rk.Quantise(8), 54 + 4),
        (rk.Quantise(3), math.ceil(54 * 3 / 8) + 4),
        (rk.Quantise(5, block=7), math.ceil(54 * 5 / 8) + 8 * 4),
        (rk.Sign(), 7 + 4),
        (rk.LowRank(2), 2 * (6 + 9) * 4),
        (rk.CountSketch(0.5, rows=3), 3 * 9 * 4 + 8),
    ],
    ids=str,
)
def test_bytes_are_those_that_travel(stage, size, array):
    packed, _ = ch.send(line(stage), array, {}, jax.random.key(1))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(packed)) == size


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.unbiased], ids=str)
def test_unbiased_within_its_variance(stage, array):
    keys = jax.random.split(jax.random.key(0), 4000)
    found = jax.jit(jax.vmap(lambda key: through(stage, array, key)))(keys)
    squares = jnp.sum(array**2)
    omega = float(jnp.mean(jnp.sum((found - array) ** 2, axis=(1, 2))) / squares)
    assert omega <= 1.05 * stage.variance(array.shape)
    # The mean of N draws errs by omega / N, squared.
    bias = float(jnp.sum((found.mean(axis=0) - array) ** 2) / squares)
    assert bias <= 2 * max(omega, 1e-9) / len(keys)


@pytest.mark.parametrize("stage", [rk.TopK(0.25), rk.Quantise(4), rk.Sign(), rk.LowRank(2)], ids=str)
def test_biased_ones_contract(stage, array):
    lost = through(stage, array, jax.random.key(1)) - array
    assert jnp.sum(lost**2) < jnp.sum(array**2)


def test_numbers_too_large_to_be_divided_by_are_not_lost():
    huge = jnp.asarray([9e37, -9e37, 3e37], jnp.float32)
    np.testing.assert_allclose(through(rk.Quantise(8), huge, jax.random.key(0)), huge, rtol=0.01)


@pytest.mark.parametrize("stage", [rk.Quantise(8), rk.TopK(0.5), rk.Sign(), rk.Quantise(4, stochastic=True)], ids=str)
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_run_that_diverges_says_so(stage, way):
    """x <- x - 3 x doubles in every round, whatever a channel does to it."""
    if stage.random and way == "down":
        pytest.skip("down takes stages that draw nothing")
    clients = rk.federate([{"a": np.ones((2, 4))}])
    problem = rk.Single(lambda x, e: 0.5 * jnp.sum(e["a"] * x**2))
    with pytest.warns(rk.DivergenceWarning):
        result = rk.run(problem, rk.FedAvg(lr=3.0), clients, x=np.ones(4), rounds=400, **{way: [stage]})
    assert result.status == "diverged"


def test_a_variance_is_that_of_what_reaches_a_stage():
    """Diana's alpha is 1 / (1 + omega): RandK's of 60 entries, and Quantise's of the 12 that are left."""
    quantise = rk.Quantise(2, stochastic=True)
    both = (1 + 4) * (1 + min(12 / 4, math.sqrt(12)))
    kept = rk.Diana(rk.RandK(0.2), quantise).keeps(jnp.zeros(60), jnp.ones(60), jnp.zeros(60))
    np.testing.assert_allclose(kept, 1 / both, rtol=1e-6)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("stage", [rk.Quantise(8, stochastic=True), rk.Quantise(4, stochastic=True, block=7)])
def test_unbiased_in_types_of_few_digits(stage, kind):
    """In bfloat16 the mean of `stochastic:8` was away by 0.5 % of the norm."""
    array = jnp.asarray(np.random.default_rng(0).normal(size=200), kind)
    one = lambda key: stage.unpack(stage.pack(array, key), array.shape).astype(jnp.float32)
    draws = 20_000
    mean = jnp.mean(jax.lax.map(one, jax.random.split(jax.random.key(1), draws), batch_size=1000), axis=0)
    exact = array.astype(jnp.float32)
    off, noise = jnp.linalg.norm(mean - exact), jnp.linalg.norm(one(jax.random.key(2)) - exact) / draws**0.5
    assert float(off) < 3 * float(noise) + 1e-5 * float(jnp.linalg.norm(exact)), (float(off), float(noise))


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_all_stages_pack_types_of_few_digits(kind):
    array = jnp.asarray(np.random.default_rng(0).normal(size=(8, 12)), kind)
    for stage in STAGES:
        found = stage.unpack(stage.pack(array, jax.random.key(0)), array.shape)
        assert found.dtype == array.dtype and found.shape == array.shape and bool(jnp.isfinite(found).all()), stage


def test_low_rank_of_few_digits_is_near_that_of_many():
    array = np.random.default_rng(0).normal(size=(20, 2)) @ np.random.default_rng(1).normal(size=(2, 30))
    short = jnp.asarray(array, jnp.bfloat16)
    found = rk.LowRank(2).unpack(rk.LowRank(2).pack(short, jax.random.key(0)), array.shape).astype(jnp.float32)
    assert np.linalg.norm(found - array) < 0.02 * np.linalg.norm(array)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_signs_of_the_largest_numbers_have_a_size(kind):
    largest = jnp.finfo(kind).max
    array = jnp.asarray([largest, -largest, largest / 2, 0], kind)
    found = rk.Sign().unpack(rk.Sign().pack(array, jax.random.key(0)), array.shape).astype(jnp.float32)
    expected = np.mean(np.abs(np.asarray(array, np.float64)))
    np.testing.assert_allclose(np.abs(np.asarray(found, np.float64)), expected, rtol=0.01)


def test_low_rank_is_near_the_best_of_its_rank():
    matrix = jnp.outer(jnp.arange(1.0, 9), jnp.arange(1.0, 13)) + 0.01 * jax.random.normal(jax.random.key(0), (8, 12))
    lost = jnp.linalg.norm(through(rk.LowRank(1), matrix, jax.random.key(1)) - matrix)
    assert lost <= 1.01 * jnp.linalg.norm(jnp.linalg.svd(matrix)[1][1:])


def test_stages_one_after_another(array):
    """The second packs the values that the first kept."""
    channel = line(rk.TopK(0.25), rk.Quantise(8))
    packed, _ = ch.send(channel, array, {}, jax.random.key(1))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(packed)) == 14 + 14 + 4
    kept = through(rk.TopK(0.25), array, jax.random.key(1))
    again = ch.receive(channel, packed, {})[0]
    assert jnp.max(jnp.abs(again - kept)) <= jnp.max(jnp.abs(array)) / 127
    assert jnp.sum(again != 0) == 14


def test_scalars_and_whole_numbers_travel_as_they_are():
    message = {"a": jnp.float32(2), "n": jnp.arange(4), "x": jnp.ones(40)}
    packed, _ = ch.send(line(rk.Sign()), message, {}, jax.random.key(0))
    assert packed["a"] is message["a"] and packed["n"] is message["n"] and packed["x"] is not message["x"]


def test_error_feedback_loses_nothing_in_the_long_run(array):
    channel = ch.make_channel("up", rk.ErrorFeedback(rk.TopK(0.1)), ("x",))
    kept, total = ch.initial_kept(channel, array), jnp.zeros_like(array)
    for number in range(200):
        packed, after = ch.send(channel, array, kept, jax.random.key(number))
        value, _ = ch.receive(channel, packed, kept)
        total, kept = total + value, after
    np.testing.assert_allclose(total + kept["0"], 200 * array, rtol=2e-4)
    assert jnp.max(jnp.abs(total / 200 - array)) < 0.2


# Methods x channels.

LR = rk.Rates(0.1)
METHODS = {
    "simfbo": ("E1", rk.SimFBO(lr=LR)),
    "fedbioacc": ("E1", rk.FedBiOAcc(lr=LR, local_steps=2)),
    "aggitd": ("E1", rk.AggITD(lr=LR, neumann_step=0.1, lower_rounds=2, lower_steps=2, upper_steps=2)),
    "scaffold": ("E1a", rk.Scaffold(lr=LR, local_steps=2)),
    "fedavg": ("E1a", rk.FedAvg(lr=LR, local_steps=2)),
    "simfbo, control variates": ("E1", rk.SimFBO(lr=LR, local_steps=2, drift=rk.ControlVariates())),
    "shrofbo": ("E1", rk.ShroFBO(lr=LR, local_steps=2)),
    "fedbio": ("E1", rk.FedBiO(lr=LR, local_steps=2)),
    "fedmsa": ("E1", rk.FedMSA(lr=LR, local_steps=2)),
    "fednest": ("E1", rk.FedNest(lr=LR, lower_steps=2)),
    "commfedbio": ("E1", rk.CommFedBiO(lr=LR, adjoint_rounds=2)),
}
CHANNELS = {
    "topk+quantise": "topk:0.5+stochastic:4",
    "error feedback": rk.ErrorFeedback(rk.RandK(0.5, scaled=False)),
    "ef21": "ef21:topk:0.5",
    "diana": rk.Diana(rk.RandK(0.5)),
}


# Some of the table always, the others in the long run.
ALWAYS = {
    ("simfbo", "ef21"),
    ("fedbioacc", "ef21"),
    ("scaffold", "error feedback"),
    ("fedavg", "diana"),
    ("fedmsa", "ef21"),
    ("fednest", "topk+quantise"),
}
PAIRS = [
    pytest.param(name, channel, marks=() if (name, channel) in ALWAYS else pytest.mark.full)
    for name in METHODS
    for channel in CHANNELS
]


@pytest.mark.parametrize("name, channel", PAIRS)
def test_engines_agree(name, channel):
    problem, method = METHODS[name]
    options = {"sampling": rk.Uniform(2), "batch_size": 2, "seed": 5, "rounds": 6}
    options |= {"up": CHANNELS[channel], "down": rk.Quantise(8)}
    compiled = run(bed(problem), method, **options)
    eager = run(bed(problem), method, engine="eager", **options)
    assert difference(compiled, eager) <= 1e-12
    assert compiled.ledger == eager.ledger
    for a, b in zip(compiled.state.leaves, eager.state.leaves):
        np.testing.assert_allclose(a, b, atol=1e-12, rtol=0)
    plain = run(bed(problem), method, **(options | {"up": (), "down": ()}))
    assert difference(compiled, plain) > 1e-6
    assert compiled.ledger.exchanges == plain.ledger.exchanges


@pytest.mark.parametrize("engine", [rk.Local(at_once=2), rk.Mesh(), rk.Streamed(window=2000)], ids=str)
def test_other_engines_agree(engine):
    options = {"sampling": rk.Uniform(2), "batch_size": 2, "rounds": 6, "up": "ef21:topk:0.5+stochastic:4"}
    method = METHODS["simfbo"][1]
    results = [run(bed("E1"), method, engine=each, **options) for each in ("local", engine)]
    assert difference(*results) <= 1e-12
    assert results[0].ledger == results[1].ledger


def error_of(**options):
    exact = bed("E1")
    result = run(exact, rk.SimFBO(lr=rk.Rates(0.05)), rounds=6000, **options)
    return np.abs(flat(result.x) - exact.solution()).max()


@pytest.mark.parametrize("channel", ["ef21:topk:0.3", "ef21:sign", "ef21:topk:0.3+quantise:4", "diana:randk:0.4"])
def test_packed_differences_keep_the_fixed_point(channel):
    """SimFBO with one local step and all clients: where replies come to rest, differences vanish."""
    assert error_of(up=channel) <= 1e-9


@pytest.mark.parametrize("method", [rk.FedBiO, rk.FedMSA, rk.ShroFBO], ids=lambda cls: cls.__name__)
def test_packed_differences_rest_where_the_method_does(method):
    """Methods of one exchange and of two, at their own fixed points."""
    exact, made = bed("E1"), method(lr=rk.Rates(0.05))
    own = rk.fixed_point(exact.problem, made, exact.clients, **exact.start(leaves=2)).flat("x")
    rested = run(exact, made, rounds=3000, up="ef21:topk:0.5")
    np.testing.assert_allclose(flat(rested.x), own, atol=1e-8)


@pytest.mark.parametrize(
    "name, method",
    [
        ("E1a", rk.Scaffold(lr=LR)),
        ("E1a", rk.FedVRA(lr=LR)),
        ("E1a", rk.FedADMM(lr=LR, gamma=1.0)),
        ("E1a", rk.FedDyn(lr=LR)),
        ("E1a", rk.VRLSGD(lr=LR)),
        ("E1", rk.SimFBO(lr=LR, drift=rk.ControlVariates())),
        ("E1", rk.FedBiO(lr=LR, drift=rk.Duals())),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_sums_of_packed_differences_are_advised_against(name, method):
    """The server's sum of what clients send is off for good; what error feedback holds back it sends later."""
    exact = bed(name)
    with pytest.warns(rk.AdviceWarning, match="its server adds up what clients send, and up sends packed differences"):
        off = rk.run(exact.problem, method, exact.clients, rounds=4, up="ef21:topk:0.4", **exact.start())
    assert off.status == "done"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* adds up", rk.AdviceWarning)
        rk.run(exact.problem, method, exact.clients, rounds=4, up="error-feedback:topk:0.4", **exact.start())


@pytest.mark.parametrize("stage", ["topk:0.4", "quantise:4"])
def test_sums_of_what_error_feedback_sends_are_exact(stage):
    exact, method = bed("E1a"), rk.Scaffold(lr=rk.Rates(0.05), local_steps=2)
    rested = run(exact, method, rounds=4000, up=f"error-feedback:{stage}")
    assert np.abs(flat(rested.x) - exact.solution()).max() <= 1e-9


@pytest.mark.parametrize("feedback", ["error-feedback", "ef21"])
def test_a_text_means_entries_that_are_not_scaled_up_there(feedback):
    """Scaled up by 1 / fraction, what is kept would grow without a bound."""
    for text, fraction in (("randk:0.4", 0.4), ("randk", 0.01)):
        channel = ch.make_channel("up", f"{feedback}:{text}", ("x",))
        assert channel is not None and channel.default.stages == (rk.RandK(fraction, scaled=False),)
    assert error_of(up=f"{feedback}:randk:0.4") < 1


@pytest.mark.parametrize("channel", ["topk:0.3", "sign"])
def test_biased_stages_alone_do_not(channel):
    assert error_of(up=channel) > 1e-2


def test_ledger_counts_what_travels():
    """E1: x of 2 and y, v of 3 numbers, each of two leaves (1, 1), (2, 1), (2, 1): arrays of one number stay."""
    exact = bed("E1")
    options = {"rounds": 4, "precision": "float32"}
    plain = run(exact, rk.SimFBO(lr=LR), **options)
    packed = run(exact, rk.SimFBO(lr=LR), up=rk.Quantise(8), down=rk.Sign(), **options)
    sizes = [np.size(leaf) for name in ("x", "y", "v") for leaf in jax.tree.leaves(plain.sequences[name])]
    replies = 4 * exact.clients.population
    assert plain.ledger.bytes_up == replies * 4 * sum(sizes)
    assert packed.ledger.bytes_up == replies * sum(n + 4 if n > 1 else 4 for n in sizes)
    assert packed.ledger.bytes_down == replies * sum(-(-n // 8) + 4 if n > 1 else 4 for n in sizes)


def test_by_sequence():
    exact = bed("E1")
    shapes = lambda name: [np.size(leaf) for leaf in jax.tree.leaves(exact.start(leaves=2)[name])]
    plain = run(exact, rk.SimFBO(lr=LR), rounds=2)
    only_y = run(exact, rk.SimFBO(lr=LR), rounds=2, up=rk.Per(y=rk.TopK(0.01)))
    saved = sum(8 * n - 9 for n in shapes("y") if n > 1)
    assert plain.ledger.bytes_up - only_y.ledger.bytes_up == 2 * exact.clients.population * saved
    assert difference(plain, run(exact, rk.SimFBO(lr=LR), rounds=2, up=rk.Per(default=()))) == 0


@pytest.mark.parametrize("engine", ["local", "eager"])
@pytest.mark.parametrize("channel", ["error-feedback:topk:0.5", "ef21:topk:0.5"])
def test_goes_on_bit_for_bit(engine, channel):
    options = {"sampling": rk.Uniform(2), "batch_size": 2, "up": channel, "engine": engine}
    method = rk.FedBiOAcc(lr=LR, local_steps=2)
    whole = run(bed("E1"), method, rounds=8, **options)
    half = run(bed("E1"), method, rounds=4, **options)
    again = run(bed("E1"), method, rounds=4, state=half.state, **options)
    for a, b in zip(whole.state.leaves, again.state.leaves):
        np.testing.assert_array_equal(a, b)
    assert whole.ledger == again.ledger


@pytest.mark.parametrize("engine", ["local", "streamed", "eager"])
def test_goes_on_from_a_folder_bit_for_bit(engine, tmp_path):
    """What error feedback holds back is in the checkpoint."""
    exact = bed("E1")
    options = {"sampling": rk.Uniform(2), "batch_size": 2, "up": "error-feedback:topk:0.5", "precision": "float64"}
    options |= {"engine": engine, **exact.start()}
    given = (exact.problem, METHODS["simfbo, control variates"][1], exact.clients)
    whole = rk.run(*given, rounds=8, **options)
    rk.run(*given, rounds=5, checkpoints=rk.Checkpoints(tmp_path / "c", every=5), **options)
    again = rk.resume(tmp_path / "c", *given, rounds=8, **options)
    for a, b in zip(whole.state.leaves, again.state.leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.ledger == again.ledger


def test_a_stage_of_other_code_is_another_run(tmp_path):
    """Of one's own stages the code is compared, as that of losses."""
    exact, plan = bed("E1"), rk.Checkpoints(tmp_path / "c", every=2)
    options = {"precision": "float64", **exact.start()}
    given = (exact.problem, rk.SimFBO(lr=LR), exact.clients)

    def halving(factor):
        class Halved(Unsure):
            def unpack(self, arrays, shape):
                return arrays["same"] * factor

        return Halved()

    rk.run(*given, rounds=4, up=halving(0.5), checkpoints=plan, **options)
    with pytest.raises(rk.InputError, match="another functions of the channels"):
        rk.resume(tmp_path / "c", *given, rounds=6, up=halving(0.25), **options)


def test_other_channels_are_another_run(tmp_path):
    exact, method = bed("E1"), rk.SimFBO(lr=LR)
    start = exact.start()
    options = {"precision": "float64", **start}
    plan = rk.Checkpoints(tmp_path / "c", every=2)
    rk.run(exact.problem, method, exact.clients, rounds=4, up="ef21:topk:0.5", checkpoints=plan, **options)
    with pytest.raises(rk.InputError, match="another channels"):
        rk.resume(tmp_path / "c", exact.problem, method, exact.clients, rounds=6, up="ef21:topk:0.9", **options)


def test_what_another_feedback_kept_is_refused():
    exact, method = bed("E1"), rk.SimFBO(lr=LR)
    half = run(exact, method, rounds=2, up="error-feedback:topk:0.4").state
    for up, kept in (("ef21:topk:0.4", "EF21 of default"), ((), "nothing")):
        said = f"state: its clients' channels keep ErrorFeedback of default, and those of this run \\(up\\) keep {kept}"
        with pytest.raises(rk.InputError, match=said):
            run(exact, method, rounds=2, up=up, state=half)


@pytest.mark.parametrize("engine", ["local", "eager"])
def test_what_is_kept_must_be_finite(engine):
    """A reply that is not finite where it is not drawn: what is kept of it is not, and no good state has that."""
    clients = rk.federate([{"a": np.ones((1, 4))}])
    # The gradient of the last entry is infinite at 0, which the second round comes to.
    problem = rk.Single(lambda x, e: jnp.sum(e["a"][:3] * x[:3]) + jnp.sqrt(jnp.abs(x[3])))
    up = rk.ErrorFeedback(rk.RandK(0.25, scaled=False))
    with pytest.warns(rk.DivergenceWarning, match="what a channel keeps|x"):
        result = rk.run(problem, rk.FedAvg(lr=0.5), clients, x=np.zeros(4), rounds=3, up=up, engine=engine)
    assert result.status == "diverged" and result.state.round == 0
    assert all(np.isfinite(leaf).all() for leaf in result.state.leaves if leaf.dtype.kind == "f")


def test_stages_by_sequence_need_no_one_shape():
    """A phase that replies in two shapes: a feedback is kept for one, and stages keep nothing."""

    @rk.method
    class TwoShapes(rk.SimFBO):
        def round(self, state, cohort):
            whole = cohort.mean("told", state.z)
            part = cohort.mean("told", state.z.only(("x",)))
            return state.next(z=state.z - 0.1 * whole.merged(whole.only(("x",)) - part))

        def told(self, client, z):
            return z

    exact = bed("E1")
    run(exact, TwoShapes(lr=LR), rounds=1, up=rk.Per(x=rk.TopK(0.5)))
    with pytest.raises(rk.InputError, match="phase 'told' replies in several shapes, and a feedback is kept for one"):
        run(exact, TwoShapes(lr=LR), rounds=1, up=rk.Per(x=rk.EF21(rk.TopK(0.5))))


def test_an_absent_client_keeps_what_it_has():
    exact = bed("E1")
    options = {"sampling": rk.Uniform(1), "up": rk.ErrorFeedback(rk.TopK(0.01))}
    result = run(exact, rk.SimFBO(lr=LR), rounds=1, **options)
    records = result.state.leaves[-len(jax.tree.leaves(exact.start(leaves=2))) :]
    moved = np.any([[np.any(row != 0) for row in leaf] for leaf in records if leaf.ndim > 1], axis=0)
    assert moved.sum() == 1


def test_a_sweep_over_channels():
    exact = bed("E1")
    table = rk.sweep(
        exact.problem, rk.SimFBO(lr=LR), exact.clients, over={"up": ["none", "ef21:topk:0.5"], "seed": [0, 1]},
        rounds=3, metrics=lambda z: {"x": jnp.sum(z.x)}, batch_size=2, **exact.start(),
    )  # fmt: skip
    assert table["bytes_up"][0] > table["bytes_up"][2]
    one = rk.run(
        exact.problem, rk.SimFBO(lr=LR), exact.clients, rounds=3, up="ef21:topk:0.5", seed=1, batch_size=2,
        **exact.start(),
    )  # fmt: skip
    np.testing.assert_allclose(flat(table.results[3].x), flat(one.x), rtol=1e-6)


# What a user gives.


@pytest.mark.parametrize(
    "stage",
    [
        *STAGES,
        rk.TopK(np.float64(0.1)),
        rk.EF21(rk.TopK(0.1), rk.Quantise(4)),
        rk.Diana(rk.RandK(0.5)),
        rk.Diana(rk.RandK(0.5), alpha=0.25),
        rk.EF21(rk.RandK(0.1, scaled=False)),
        rk.EF21(rk.RandK(0.7)),
        rk.RandK(0.1, scaled=False),
        rk.EF21(rk.RandK(scaled=False)),
    ],
    ids=str,
)
def test_a_text_says_the_same(stage):
    assert ch.make_channel("up", str(stage), ("x",)) == ch.make_channel("up", stage, ("x",))


def test_a_text_by_sequence():
    for text in ("x=sign;topk:0.1", "topk:0.1; x=sign;", "default=topk:0.1;x=sign"):
        assert ch.make_channel("up", text, ("x",)) == ch.make_channel("up", rk.Per(rk.TopK(0.1), x=rk.Sign()), ("x",))
    given = rk.Per(rk.Sign(), x=rk.EF21(rk.TopK(0.5)), y=())
    assert ch.make_channel("up", str(given), ("x", "y")) == ch.make_channel("up", given, ("x", "y"))


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: rk.TopK(0), "TopK: a fraction of 0"),
        (lambda: rk.Quantise(9), "Quantise: 9 bits"),
        (lambda: rk.CountSketch(rows=2), "CountSketch: 2 rows"),
        (lambda: rk.Diana(rk.TopK(0.1)), "Diana: topk:0.1 was given, which is biased"),
        (lambda: rk.Diana(rk.RandK(0.1), alpha="a"), "Diana: alpha 'a' was given"),
        (lambda: ch.make_channel("up", "diana@much:randk:0.5", ("x",)), "up: 'diana@much:randk:0.5' was given"),
        (lambda: ch.make_channel("up", "ef21@0.5:topk", ("x",)), "up: 'ef21@0.5:topk' was given; allowed are"),
        (lambda: ch.make_channel("up", "randk:0.5:odd", ("x",)), "up: 'randk:0.5:odd' was given; allowed are"),
        (lambda: rk.Per(rk.Sign(), default=rk.Sign()), "Per: default is given twice"),
        (lambda: ch.make_channel("up", "x=", ("x",)), "up: 'x=' has x without a channel or a name"),
        (lambda: rk.Diana(Unsure()), "Diana: Unsure() was given, which does not say its variance; give alpha=, too"),
        (lambda: ch.make_channel("up", "x=sign;x=topk", ("x",)), "up: 'x=sign;x=topk' has x twice"),
        (lambda: ch.make_channel("up", "ef21:", ("x",)), "up: 'ef21:' was given; allowed are"),
        (lambda: ch.make_channel("up", "quantise:9", ("x",)), "up: Quantise: 9 bits"),
        (lambda: rk.EF21(), "EF21: no stage"),
        (lambda: rk.EF21(rk.RandK(0.1)), "EF21: RandK(fraction=0.1, scaled=True) was given, which may lose more"),
        (lambda: rk.ErrorFeedback(rk.CountSketch(0.1)), "ErrorFeedback: CountSketch(fraction=0.1, rows=1) was given"),
        (lambda: ch.make_channel("up", "ef21:quantise:1", ("x",)), "up: EF21: Quantise(bits=1"),
        (lambda: rk.EF21(rk.Quantise(2, stochastic=True)), "EF21: Quantise(bits=2, stochastic=True"),
        (lambda: rk.EF21(Unkept([1])), "EF21: Unkept(of=[1]) was given, which has no hash"),
        (lambda: through(Slips("list"), jnp.ones(4), jax.random.key(0)), "Slips(how='list'): it packs an array as ["),
        (
            lambda: through(Slips("name"), jnp.ones(4), jax.random.key(0)),
            "Slips(how='name'): to unpack an array of shape (4,) fails, with",
        ),
        (
            lambda: through(Slips("packs"), jnp.ones(4), jax.random.key(0)),
            "Slips(how='packs'): to say whether it packs",
        ),
        (lambda: through(Slips("shape"), jnp.ones(4), jax.random.key(0)), "Slips(how='shape'): it unpacks an array"),
        (
            lambda: through(Slips("error"), jnp.ones(4), jax.random.key(0)),
            "Slips(how='error'): to pack an array of shape (4,)",
        ),
        (lambda: rk.Quantise(8, stochastic="no"), "Quantise: stochastic='no' was given; True or False is needed"),  # type: ignore
        (lambda: rk.RandK(0.1, scaled=1), "RandK: scaled=1 was given"),  # type: ignore
        (lambda: ch.make_channel("up", "=", ("x",)), "up: '=' has '=' without a channel or a name"),
        (lambda: ch.make_channel("up", "topq:0.1", ("x",)), "up: 'topq:0.1' was given"),
        (lambda: ch.make_channel("up", "topk:much", ("x",)), "up: 'topk:much' was given"),
        (lambda: ch.make_channel("up", rk.Per(z=rk.Sign()), ("x",)), "up: 'z'"),
        (lambda: ch.make_channel("up", [rk.EF21(rk.Sign()), rk.Sign()], ("x",)), "up: ef21:sign was given beside"),
        (lambda: ch.make_channel("down", rk.RandK(0.1), ("x",)), "down: a feedback or a random stage"),
        (lambda: ch.make_channel("down", rk.Per(x=rk.Sign()), ("x",)), "down: rk.Per"),
    ],
)
def test_bad_input_gets_one_sentence(make, said):
    with pytest.raises(rk.InputError) as found:
        make()
    assert str(found.value).startswith(said)


def test_a_key_that_a_packed_array_could_be_taken_for_is_refused():
    problem = rk.Single(lambda x, e: jnp.sum((x["packed w"] - e["a"]) ** 2))
    clients = rk.federate([{"a": np.ones((2, 4))}])
    for way in ("up", "down"):
        with pytest.raises(rk.InputError, match=f"{way}: a sequence has the key 'packed w'"):
            rk.run(problem, rk.FedAvg(lr=0.1), clients, x={"packed w": np.zeros(4)}, rounds=1, **{way: "quantise:8"})


def test_a_channel_is_of_a_sequence_and_not_of_a_users_keys():
    """y has an entry that is called x, and x one that is called y."""
    problem = rk.Bilevel(
        upper=lambda x, y, e: jnp.sum((x["y"] - y["x"]) ** 2), lower=lambda x, y, e: jnp.sum((y["x"] - e["a"]) ** 2)
    )
    clients = rk.federate([{"a": np.ones((2, 4))}])
    options = {"x": {"y": np.zeros(4)}, "y": {"x": np.zeros(4)}, "rounds": 1}
    plain, packed = (
        rk.run(problem, rk.SimFBO(lr=LR), clients, up=up, **options).ledger.bytes_up for up in ((), rk.Per(x=rk.Sign()))
    )
    assert plain - packed == 4 * 4 - (1 + 4)  # x alone: four numbers are a byte and a scale


def test_a_channel_for_what_no_reply_names_is_refused():
    exact = rk.exact.QuadraticBilevel.random(clients=3, dims=(2, 3), seed=0)
    with pytest.raises(
        rk.InputError, match="up: a channel for y was given, and no reply of FedNest has it; it has none"
    ):
        rk.run(exact.problem, rk.FedNest(lr=LR), exact.clients, up=rk.Per(y=rk.Sign()), rounds=1, **exact.start())


def test_what_a_gossiping_client_takes_goes_through_no_channel():
    """z is the mean of the points as they are, and nothing is kept of what is not sent."""
    exact = rk.exact.QuadraticBilevel.random(clients=3, dims=(4, 5), seed=0)
    for engine in ("local", "eager"):
        options = {"engine": engine, "rounds": 2, "up": "ef21:topk:0.3", "precision": "float64", **exact.start()}
        result = rk.run(exact.problem, rk.Gossip(lr=LR, mixing=rk.Ring()), exact.clients, **options)
        points = [leaf for leaf in result.state.leaves if leaf.shape == (3, 4)]
        assert len(points) == 2  # every client's x, and what was said of it
        assert min(np.abs(leaf.mean(axis=0) - result.x).max() for leaf in points) <= 1e-14


def test_who_fails_half_way_keeps_the_shift_that_the_server_has():
    """CommFedBiO asks for v twice a round; a client's second answer is lost, and it was at work by then."""
    exact = rk.exact.QuadraticBilevel.random(clients=3, dims=(3, 5), seed=0)
    method = rk.CommFedBiO(lr=rk.Rates(0.05), adjoint_rounds=2)
    options = {"sampling": rk.All(), "batch_size": None, "seed": 0, "precision": "float64"}
    with precision_context("float64"):
        up = rk.Per(v=rk.EF21(rk.TopK(0.4)))
        prepared = prepare(exact.problem, method, exact.clients, up=up, **options, **exact.start())
        session = EagerSession(prepared, Ledger(), True, rk.OnFailure("drop"))
        session.advance(1)
        asked, lost = session.transport.ask, []

        def losing(requests, deadline=None):
            outcome: Any = asked(requests, deadline)
            lost.append(None)
            if len(lost) == 3:  # the lower round, v, v again
                outcome.replies.pop(0)
            return outcome

        session.transport.ask = losing
        session.advance(3)
        assert [each.client for each in session.missing] == ["0"]
        for client, worker in enumerate(session.workers):
            kept = worker.record_of(session.last[client]).channels
            for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(session.shifts[client])):
                np.testing.assert_array_equal(a, b)


def test_error_feedback_keeps_control_variates_exact():
    """The server adds up what they send, so nothing may be lost for good; packed differences lose it."""
    exact, method = bed("E1"), rk.SimFBO(lr=rk.Rates(0.02), drift=rk.ControlVariates())
    wrong = lambda up: np.abs(flat(run(exact, method, rounds=8000, up=up).x) - exact.solution()).max()
    assert wrong("error-feedback:topk:0.5") <= 1e-9
    assert wrong("ef21:topk:0.5") > 1e-3
