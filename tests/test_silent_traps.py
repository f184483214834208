"""A new user's session with traps. Each once gave a wrong answer without a word; each ends in the right one or a refusal."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.cli import main

SITES = rk.federate([{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 5.0])}])  # the mean is 2.75
MEAN = 2.75


def loss(x, e):
    return 0.5 * (x - e["a"]) ** 2


def gap(z):
    return {"gap": jnp.abs(z.x - MEAN)}


def solved(loss, **options):
    return float(rk.run(rk.Single(loss), rk.FedAvg(lr=0.05), SITES, x=0.0, rounds=400, **options).x)


# A notebook: cells are changed and run again.

weight = 0.0


def ridge(x, e):
    return loss(x, e) + 0.5 * weight * x**2


def test_a_global_that_a_loss_reads(monkeypatch):
    for value in (0.0, 1.0, 10.0):
        monkeypatch.setitem(globals(), "weight", value)
        assert solved(ridge) == pytest.approx(MEAN / (1 + value), abs=1e-4)


def test_an_array_that_is_changed_in_place():
    target = np.array([1.0])
    towards = lambda x, e: 0.5 * (x - target[0]) ** 2 + 0.0 * e["a"]
    assert solved(towards) == pytest.approx(1.0, abs=1e-4)
    target[0] = 3.0
    assert solved(towards) == pytest.approx(3.0, abs=1e-4)


def test_a_metric_of_a_changed_target():
    targets = {"x": 0.0}
    measure = lambda z: {"gap": jnp.abs(z.x - targets["x"])}
    run = lambda: rk.run(rk.Single(loss), rk.FedAvg(lr=0.05), SITES, x=0.0, rounds=400, metrics=measure)
    assert run().history["gap"][-1] == pytest.approx(MEAN, abs=1e-4)
    targets["x"] = MEAN
    assert run().history["gap"][-1] == pytest.approx(0.0, abs=1e-4)


def test_a_run_that_is_resumed_with_another_helper(tmp_path):
    sign = 1.0
    signed = lambda x, e: sign * loss(x, e)
    go = lambda how, **options: how(rk.Single(signed), rk.FedAvg(lr=0.05), SITES, x=0.0, **options)
    go(rk.run, rounds=2, checkpoints=rk.Checkpoints(tmp_path / "run"))
    sign = -1.0
    with pytest.raises(rk.InputError, match="is of a run with another"):
        go(lambda *given, **options: rk.resume(tmp_path / "run", *given, **options), rounds=4)


# A method of one's own.


@rk.method
class Scanned:
    """Takes five steps in a loop of JAX's own."""

    lr: rk.Rates
    loop: str = rk.static(default="scan")

    kinds = ("single",)

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.mean("steps", state.z))

    def steps(self, client, z):
        lr, keys = client.at(self.lr), jax.random.split(client.key, 5)
        step = lambda at, key: at - lr * client.direction(at, client.sample(key))
        if self.loop == "python":
            at = z
            for key in keys:
                at = step(at, key)
        elif self.loop == "scan":
            at = jax.lax.scan(lambda at, key: (step(at, key), None), z, keys)[0]
        else:
            at = jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, step(s[1], keys[s[0]])), (0, z))[1]
        return at - z


def test_gradients_in_a_scanned_loop_are_counted():
    run = lambda loop: rk.run(rk.Single(loss), Scanned(0.05, loop), SITES, x=0.0, rounds=3, batch_size=1)
    scanned, unrolled = run("scan"), run("python")
    assert scanned.history["gradients"][-1] == unrolled.history["gradients"][-1] == 3 * 2 * 5
    assert scanned.history["samples"][-1] == unrolled.history["samples"][-1] == 3 * 2 * 5
    assert float(scanned.x) == pytest.approx(float(unrolled.x), rel=1e-6)


def test_gradients_in_a_loop_of_unknown_length_are_refused():
    with pytest.raises(rk.InputError, match=r"client\.loop"):
        rk.run(rk.Single(loss), Scanned(0.05, "while"), SITES, x=0.0, rounds=3)


class Steps:
    kinds = ("single",)
    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.mean("steps", state.z))

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1).moved


@rk.method
class Ascends(Steps):
    lr: rk.Rates

    def steps(self, client, z):
        return -1.0 * rk.descend(client, z, client.at(self.lr), 1).moved


@rk.method
class SumsUp(Steps):
    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.sum("steps", state.z))


@rk.method
class DrawsOnce(Steps):
    lr: rk.Rates

    def steps(self, client, z):
        return -1.0 * client.at(self.lr) * client.direction(z, client.sample(jax.random.key(0)))


@pytest.mark.parametrize(
    ("broken", "what"), [(Ascends, "stable"), (SumsUp, "cohorts"), (DrawsOnce, "draws and counts")]
)
def test_a_check_finds_a_broken_method(broken, what):
    findings = rk.check(broken)
    assert what in {row.what for row in findings.failed}, str(findings)


# A comparison.


def test_a_baseline_with_a_server_is_tuned_as_well():
    adam = rk.FedAvg(lr=0.1, server=rk.ServerOptimiser(optax.adam, learning_rate=0.001))
    options = {"clients": SITES, "metrics": gap, "x": 0.0, "exchanges": 20, "seeds": 1, "progress": False}
    found = rk.compare(rk.Single(loss), {"FedAdam": adam}, tune=True, **options)
    assert found.tunings["FedAdam"].method.server.options["learning_rate"] > 0.001


def test_a_loss_is_not_maximised():
    methods = {"slow": rk.FedAvg(lr=1e-6), "fast": rk.FedAvg(lr=0.1)}
    options = {"clients": SITES, "metrics": lambda z: {"loss": 0.5 * (z.x - MEAN) ** 2}, "x": 0.0, "progress": False}
    found = rk.compare(rk.Single(loss), methods, exchanges=40, seeds=1, tune=True, **options)
    assert found.tunings["slow"].method.lr["default"] > 1e-6
    assert "lower is better" in str(found)


def test_a_run_that_explodes_is_named():
    with pytest.warns(rk.DivergenceWarning):
        result = rk.run(rk.Single(loss), rk.FedAvg(lr=3.0), SITES, x=0.0, rounds=60)
    assert result.status == "diverged" and math.isfinite(float(result.x))


# Tables.

ROWS = "age,diagnosis,missing\n" + "".join(f"{30 + i},{i % 2},{int(i % 7 == 0)}\n" for i in range(40))


def command(capsys, *arguments):
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out + said.err


def test_the_last_column_is_not_the_label(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(ROWS)
    (tmp_path / "b.csv").write_text(ROWS)
    options = ["--partition", "natural", "--rounds", "1", "--out", str(tmp_path / "out")]
    _, said = command(capsys, "run", "classify", "fedavg", "--task.data", f"csv:{tmp_path}", *options)
    assert "diagnosis" in said and "age, missing" in said
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(ROWS.replace("diagnosis", "state"))
    options[-1] = str(tmp_path / "other")
    code, said = command(capsys, "run", "classify", "fedavg", "--task.data", f"csv:{tmp_path}", *options)
    assert code == 2 and "--task.label" in said


def test_one_site_that_codes_its_labels_differently_is_refused():
    table = lambda codes: {"age": np.arange(20.0), "label": np.asarray(codes)[np.arange(20) % 2]}
    with pytest.raises(rk.InputError, match="label"):
        rk.federate({"north": table([0, 1]), "south": table([1, 2])}, label="label")


def test_one_dataset_is_not_two_clients():
    with pytest.raises(rk.InputError, match="one dataset"):
        rk.federate({"input": np.zeros((10, 3)), "label": np.arange(10) % 2})


def test_a_partition_that_deals_an_example_twice_is_refused():
    class Overlapping:
        def assign(self, labels, clients, seed):
            return [np.arange(6), np.arange(4, 10)]

    with pytest.raises(rk.InputError, match=r"Overlapping\.assign"):
        rk.data.load("wine").partition(Overlapping(), clients=2)
