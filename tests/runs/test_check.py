"""`rk.check`: every method of the library passes, and methods that are broken in one place do not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.cli import main
from rookery.runs.check import CHECKS, CLIENTS, ON_A_GRAPH, PROBLEMS, fits
from rookery.runs.check_settings import same_runs_as
from rookery.runs.check_stage import ON_ARRAYS
from rookery.runs.findings import examined

QUICK = ["fedvrau"]  # one level; the others have many problems, or long programs, and are for the full tests


@pytest.mark.parametrize("name", QUICK)
def test_methods_of_the_library_hold(name):
    findings = rk.check(METHODS[name].method)
    assert findings, str(findings)
    assert "everything holds" in str(findings) and len(findings.rows) >= 10


@pytest.mark.parametrize("what", ["stable", "cohorts", "draws and counts", "local steps", "conserves"])
@pytest.mark.parametrize("name", [name for name in METHODS if name not in QUICK])
def test_methods_of_the_library_are_as_they_declare(name, what):
    """On the first problem that a method solves; the full test has all checks on all problems."""
    cls = METHODS[name].method
    method = cls(lr=rk.Rates(0.1))
    clients = ON_A_GRAPH if method.neighbours else CLIENTS
    problem = next(problem for problem in PROBLEMS if fits(method, problem))
    finding = examined(what, CHECKS[what], problem, method, PROBLEMS[problem](clients))
    assert finding.holds, finding.seen


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in METHODS if name not in QUICK])
def test_all_methods_of_the_library_hold(name):
    findings = rk.check(METHODS[name].method)
    assert findings, str(findings)


class Base:
    """A method for one level: what the broken ones below have in common."""

    kinds = ("single",)
    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=cohort.project(state.z + cohort.mean("steps", state.z)))

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1).moved


@rk.method
class WrongSolution(Base):
    """Its clients decay their weights, so it rests elsewhere."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1, correct=lambda d, x: d + 0.5 * x).moved


@rk.method
class Forgetful(Base):
    """It counts the clients in Python, where the compiled program counts once."""

    lr: rk.Rates
    seen = []  # noqa: RUF012

    def steps(self, client, z):
        self.seen.append(None)
        return rk.descend(client, z, client.at(self.lr), 1).moved * (1 + 1e-3 * len(self.seen))


@rk.method
class ByPlace(Base):
    """It gives the first client a weight of its own."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1).moved * jnp.where(client.index == 0, 2.0, 1.0)


@rk.method
class Structural(Base):
    """Its step size is structure: every other number is another program."""

    lr: rk.Rates = rk.static(default=rk.Rates(0.1))

    def steps(self, client, z):
        return rk.descend(client, z, self.lr, 1).moved


@rk.method
class Nothing(Base):
    """Its round gives nothing back."""

    lr: rk.Rates

    def round(self, state, cohort):
        cohort.mean("steps", state.z)


@rk.method
class Ascent(Base):
    """It climbs: its fixed point is the solution, and it moves away from it."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1).moved * -1.0


@rk.method
class Sums(Base):
    """It adds replies up without inclusion probabilities: right with all clients, too small with some."""

    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.sum("steps", state.z))


@rk.method
class Averages(Base):
    """A ratio of sums, which it does not declare."""

    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=cohort.project(state.z + cohort.average("steps", state.z)))


class Sampled(Base):
    """Takes a step on a minibatch of its own."""

    key: Any

    def steps(self, client, z):
        return -1.0 * (client.at(self.lr) * client.direction(z, client.sample(self.key(client))))


@rk.method
class SameInEveryRound(Sampled):
    """It draws one minibatch for all rounds."""

    lr: rk.Rates

    def key(self, client):
        return jax.random.fold_in(jax.random.key(0), client.index)


@rk.method
class SameAtEveryClient(Sampled):
    """All clients draw the same positions."""

    lr: rk.Rates

    def key(self, client):
        return jax.random.fold_in(jax.random.key(0), client.round)


@rk.method
class Hidden(Base):
    """It takes a second gradient where it is not compiled."""

    lr: rk.Rates

    def steps(self, client, z):
        if not isinstance(jax.tree.leaves(z)[0], Tracer):
            client.direction(z, client.sample(client.key))
        return rk.descend(client, z, client.at(self.lr), 1).moved


@rk.method
class Declared(Averages):
    """A ratio of sums, which it declares."""

    lr: rk.Rates
    aggregation = "ratio"


@rk.method
class Scans(Base):
    """Correct, with its steps in a jax.lax.scan."""

    lr: rk.Rates

    def steps(self, client, z):
        step = lambda w, key: (w - client.at(self.lr) * client.direction(w, client.sample(key)), None)
        return jax.lax.scan(step, z, jax.random.split(client.key, 2))[0] - z


BROKEN = {
    Ascent: ("stable", "it is unstable: a round at step sizes of 0.0016 has spectral radius 1.0"),
    Sums: ("cohorts", "two like clients do not give what three give"),
    Averages: ("cohorts", "the mean over all cohorts is not the round of all clients"),
    SameInEveryRound: ("draws and counts", "in round 1 draws the same minibatch as client"),
    SameAtEveryClient: ("draws and counts", "draws the same minibatch as client"),
    Hidden: ("draws and counts", "the ledger counts"),
    WrongSolution: ("fixed point", "it rests off the solution by"),
    Forgetful: ("engines agree", "it is another run"),
    ByPlace: ("order of clients", "clients in another order give another run"),
    Structural: ("compiles once", "other step sizes and another seed compile"),
    Nothing: ("runs", "Nothing: its round gives NoneType"),
}


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_method_is_found(cls, request):
    what, sentence = BROKEN[cls]
    if what == "compiles once":
        request.getfixturevalue("compilations")  # which skips where every run traces again
    finding = finding_of(cls, what)
    assert not finding.holds and sentence in finding.seen, finding.seen


def test_findings_name_what_does_not_hold():
    findings = rk.check(Ascent)
    assert not findings and "stable" in {row.what for row in findings.failed}
    assert "do not hold" in str(findings)


@rk.method
class HalfSteps(Base):
    """FedAvg whose server goes half as far: nothing is wrong with it but that it is another method."""

    lr: rk.Rates
    local_steps: rk.Steps = 1

    def round(self, state, cohort):
        return state.next(z=cohort.project(state.z + 0.5 * cohort.mean("steps", state.z)))

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), self.local_steps).moved


@rk.method
class PlainFedAvg(Base):
    kinds = ("single",)
    lr: rk.Rates
    local_steps: rk.Steps = 1

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), self.local_steps).moved


@pytest.mark.parametrize(("cls", "holds"), [(HalfSteps, False), (PlainFedAvg, True)])
def test_a_method_is_compared_with_one_that_must_give_the_same_runs(cls, holds):
    like = same_runs_as(rk.FedAvg(lr=rk.Rates(0.1)))
    finding = examined("like", like, "single", cls(lr=rk.Rates(0.1)), PROBLEMS["single"](CLIENTS))
    assert finding.holds is holds, finding.seen
    assert ("defaults, local steps, lr, local_steps" if holds else "defaults: runs are") in finding.seen


@rk.method
class Refuses(Base):
    """It refuses every run."""

    lr: rk.Rates

    def check(self, problem, population):
        raise rk.InputError("it refuses")


def test_nothing_compared_is_not_the_same():
    like = same_runs_as(Refuses(lr=rk.Rates(0.1)))
    finding = examined("like", like, "single", Refuses(lr=rk.Rates(0.1)), PROBLEMS["single"](CLIENTS))
    assert not finding.holds and finding.seen == "both refuse it (it refuses)"


def test_a_set_that_nothing_reaches_is_not_checked(monkeypatch):
    monkeypatch.setattr("rookery.runs.check_settings.WIDTH", 1e3)
    assert finding_of(PlainFedAvg, "sets").seen == "not checked: nothing reaches the boundary of the box"


@pytest.mark.parametrize("what", ["step sizes", "switched schedule", "fields"])
def test_a_server_step_size_that_is_given_is_no_fault(what):
    method = rk.SimFBO(lr=rk.Rates(0.1), server_lr=rk.Rates(0.05))
    finding = examined(what, CHECKS[what], "single", method, PROBLEMS["single"](CLIENTS))
    assert finding.holds, finding.seen


def test_like_must_be_a_method():
    with pytest.raises(rk.InputError, match=r"like must be a method or None; got int\."):
        rk.check(PlainFedAvg, like=3)
    with pytest.raises(rk.InputError, match=r"like must solve a problem that PlainFedAvg solves; got FedBiOLocal\."):
        rk.check(PlainFedAvg, like=rk.FedBiOLocal)
    with pytest.raises(rk.InputError, match=r"like must be None for a stage"):
        rk.check(rk.TopK(0.1), like=rk.FedAvg)


class Steps(Base):
    """Takes several local steps, as FedAvg does."""

    lr: rk.Rates
    local_steps: rk.Steps

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), self.local_steps).moved


@rk.method
class SaysItIsExact(Steps):
    """FedAvg, which unequal local steps bias."""

    lr: rk.Rates
    local_steps: rk.Steps = 1
    local_bias = "none"


@rk.method
class BiasedByMoreSteps(Steps):
    """It decays weights in all local steps but the first."""

    lr: rk.Rates
    local_steps: rk.Steps = 1

    def steps(self, client, z):
        return rk.descend(
            client, z, client.at(self.lr), self.local_steps, correct=lambda d, x: d + 2 * (x - z)
        ).moved + (rk.descend(client, z, client.at(self.lr), self.local_steps).norm - 1) * -0.01 * (
            client.at(self.lr) * z
        )


@rk.method
class SwitchesLater(Base):
    """It decays weights from the fourth round on."""

    lr: rk.Rates

    def steps(self, client, z):
        decay = jnp.where(client.round > 3, 0.5, 0.0)
        return rk.descend(client, z, client.at(self.lr), 1, correct=lambda d, x: d + decay * x).moved


@rk.struct
class ControlState(rk.State):
    c: rk.Sequences


class Controlled(Steps):
    """SCAFFOLD."""

    lr: rk.Rates
    factor: Any

    def init(self, problem, z):
        return ControlState(z, rk.first_round(), c=z.zeros())

    def client(self, problem, z):
        return z.only(problem.shared).zeros()

    def round(self, state, cohort):
        moved, changed = cohort.update_mean("steps", state.z, state.c)
        return state.next(z=cohort.project(state.z + moved), c=state.c + changed)

    def steps(self, client, z, c):
        eta = client.at(self.lr)
        work = rk.descend(client, z, eta, self.local_steps, correct=lambda d, x: d + c - client.state)
        new = eta.inverse() * (work.moved / -work.norm) - (c - client.state)
        return (work.moved, self.factor(client) * (new - client.state)), new


@rk.method
class KeepsItsSum(Controlled):
    lr: rk.Rates
    local_steps: rk.Steps = 1
    local_bias = "none"

    def factor(self, client):
        return client.once_factor


@rk.method
class LosesItsSum(Controlled):
    """Its c is the mean of changes in the place of their sum: right with all clients."""

    lr: rk.Rates
    local_steps: rk.Steps = 1
    local_bias = "none"

    def factor(self, client):
        return 1.0


@rk.method
class OwnStepSize(Base):
    """Its step size is a number of its own."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, rk.Rates(0.01), 1).moved


@rk.method
class Unused(Base):
    """A field that nothing reads."""

    lr: rk.Rates
    momentum: float = 0.5


@rk.method
class WrongAtOtherValues(Base):
    """A term that is 0 at the default of its field."""

    lr: rk.Rates
    momentum: float = 1.0
    local_bias = "none"

    def steps(self, client, z):
        return rk.descend(client, z, client.at(self.lr), 1, correct=lambda d, x: d + (1 - self.momentum) * x).moved


@rk.method
class Early(Base):
    """It reads the next round's step size."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, self.lr.at(client.round + 1), 1).moved


@rk.method
class FirstRateOnly(Base):
    """It reads the first round's step size in all rounds."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, self.lr.at(0), 1).moved


@rk.method
class RateOfAnother(Base):
    """Every client takes the step size of the first."""

    lr: rk.Rates

    def steps(self, client, z):
        return rk.descend(client, z, self.lr.at(client.round, 0), 1).moved


@rk.method
class SameInEveryStep(Steps):
    """All local steps of a round draw the same minibatch."""

    lr: rk.Rates
    local_steps: rk.Steps = 1

    def steps(self, client, z):
        step = lambda w, k, key: w - client.at(self.lr) * client.direction(w, client.sample(client.key))
        return client.loop(client.steps(self.local_steps), step, z) - z


@rk.method
class LeavesSets(Base):
    """It does not project."""

    lr: rk.Rates

    def round(self, state, cohort):
        return state.next(z=state.z + cohort.mean("steps", state.z))


@rk.method
class DecaysTheOtherWay(Base):
    """Its weights grow."""

    lr: rk.Rates
    weight_decay: float = 0.0

    def steps(self, client, z):
        grow = lambda d, x: d - self.weight_decay * x
        return rk.descend(client, z, client.at(self.lr), 1, correct=grow).moved


@rk.method
class MeansOfRatios(Steps):
    """FedNova whose parts are unbiased means: their product is not the round of all clients in expectation."""

    lr: rk.Rates
    local_steps: rk.Steps = 1
    aggregation = "ratio"

    def round(self, state, cohort):
        per_step, steps = cohort.mean("steps", state.z)
        return state.next(z=cohort.project(state.z + steps * per_step))

    def steps(self, client, z):
        work = rk.descend(client, z, client.at(self.lr), self.local_steps)
        return work.moved / work.norm, work.norm


UNDER_OTHER_SETTINGS = {
    SaysItIsExact: ("local steps", "weighted by the numbers of local steps, and it declares local_bias = 'none'"),
    BiasedByMoreSteps: ("local steps", "with 1, 2, 4 local steps it rests off the solution by"),
    SwitchesLater: ("converges", "from the fixed point of its own round"),
    LosesItsSum: ("conserves", "sampled rounds change them by"),
    OwnStepSize: ("step sizes", "scale its steps by lr"),
    Unused: ("fields", "momentum changes nothing in eight rounds"),
    WrongAtOtherValues: ("fields", "momentum = 0.75 it rests off the solution by"),
    Early: ("switched schedule", "changes earlier rounds by"),
    FirstRateOnly: ("switched schedule", "has no effect in that round"),
    RateOfAnother: ("rates per client", "another order of clients gives another run"),
    SameInEveryStep: ("fresh draws", "draw each step's sample with the key that client.loop gives"),
    LeavesSets: ("sets", "x leaves its set by"),
    DecaysTheOtherWay: ("weight decay", "weight_decay is not a ridge of that weight in the loss"),
    MeansOfRatios: ("cohorts", "with clients alike the mean over all cohorts is not the round of all clients"),
}


def finding_of(cls, what):
    return examined(what, CHECKS[what], "single", cls(lr=rk.Rates(0.1)), PROBLEMS["single"](CLIENTS))


@pytest.mark.parametrize("cls", UNDER_OTHER_SETTINGS, ids=lambda cls: cls.__name__)
def test_what_is_wrong_only_under_other_settings_is_found(cls):
    what, sentence = UNDER_OTHER_SETTINGS[cls]
    finding = finding_of(cls, what)
    assert not finding.holds and sentence in finding.seen, finding.seen


@pytest.mark.parametrize("what", ["local steps", "conserves", "converges", "fields"])
def test_a_correct_method_with_control_variates_passes(what):
    finding = finding_of(KeepsItsSum, what)
    assert finding.holds, finding.seen


@pytest.mark.parametrize(("cls", "what"), [(Declared, "cohorts"), (Scans, "draws and counts")])
def test_a_correct_method_passes(cls, what):
    method, exact = cls(lr=rk.Rates(0.1)), PROBLEMS["single"](CLIENTS)
    finding = examined(what, CHECKS[what], "single", method, exact)
    assert finding.holds, finding.seen


def test_an_unknown_aggregation_is_refused():
    method = Declared(lr=rk.Rates(0.1))
    object.__setattr__(method, "aggregation", "mean")
    finding = examined("cohorts", CHECKS["cohorts"], "single", method, PROBLEMS["single"](CLIENTS))
    assert finding.seen == "aggregation must be one of unbiased, ratio, biased; got 'mean'."


def test_the_command_checks_a_file(tmp_path, capsys):
    text = "import rookery as rk\n\n\n@rk.method\nclass Mine:\n    lr: rk.Rates\n    kinds = ('single',)\n\n"
    text += "    def round(self, state, cohort):\n        return state.next(z=cohort.project(state.z + cohort.mean('steps', state.z)))\n\n"
    text += "    def steps(self, client, z):\n        return rk.descend(client, z, client.at(self.lr), 1).moved\n"
    (tmp_path / "mine.py").write_text(text)
    assert main(["check", f"{tmp_path / 'mine.py'}:Mine", "--like", "fedavg"]) == 0
    said = capsys.readouterr().out
    assert "Mine: everything holds" in said and "like FedAvg" in said
    (tmp_path / "mine.py").write_text(text.replace("return state.next(z", "state.next(z"))
    assert main(["check", f"{tmp_path / 'mine.py'}:Mine"]) == 1
    assert main(["check"]) == 2


STAGE = """import dataclasses

import jax.numpy as jnp

import rookery as rk


@dataclasses.dataclass(frozen=True)
class Halves(rk.Stage):
    \"\"\"Every entry in 16 bits.\"\"\"

    def pack(self, array, key):
        return {"half": array.astype(jnp.bfloat16)}

    def unpack(self, arrays, shape):
        return jnp.asarray(arrays["half"]).astype(jnp.float32).reshape(shape)
"""


def test_stages_are_checked(tmp_path, capsys):
    findings = rk.check(rk.RandK(0.25))
    assert findings and "in Diana exact" in str(findings), str(findings)
    (tmp_path / "mine.py").write_text(STAGE)
    assert main(["check", f"{tmp_path / 'mine.py'}:Halves"]) == 1
    assert "an array of float64 comes back as float32" in capsys.readouterr().out


class Wrong(rk.Stage):
    """What the broken stages below have in common: arrays travel as they are."""

    def pack(self, array, key):
        return {"same": array}

    def unpack(self, arrays, shape):
        return jnp.asarray(arrays["same"]).reshape(shape)


class Shifted(Wrong):
    unbiased = True

    def unpack(self, arrays, shape):
        return 0.9 * super().unpack(arrays, shape)


class Growing(Wrong):
    def unpack(self, arrays, shape):
        return 3 * super().unpack(arrays, shape)


class Secretive(Wrong):
    def pack(self, array, key):
        return {"same": jnp.where(jnp.isfinite(array), array, 0)}


class Noisy(Wrong):
    contracts = False

    def pack(self, array, key):
        return {"same": array * jax.random.uniform(key)}


@pytest.mark.parametrize(
    ("stage", "what", "sentence"),
    [
        (Shifted, "means", "and `unbiased` is True"),
        (Growing, "means", "and `contracts` is True"),
        (Secretive, "hides nothing", "an array of nan comes back finite"),
        (Noisy, "draws", "it draws, and `random` is False"),
    ],
)
def test_a_broken_stage_is_found(stage, what, sentence):
    findings = examined_on_an_array(stage())
    assert sentence in next(row.seen for row in findings if row.what == what and not row.holds)


def examined_on_an_array(stage):
    array = jax.random.normal(jax.random.key(0), (40,), jnp.float32)
    return [examined(what, examine, "an array", stage, array) for what, examine in ON_ARRAYS.items()]


def test_what_is_no_method_is_refused():
    with pytest.raises(rk.InputError, match="method: ndarray was given, which is no method"):
        rk.check(np.zeros(3))
