"""FedVRA and its family: the table of reductions, fixed points, duals, and drift control on nested problems."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import references_family
import rookery as rk
from properties.checks import difference, flat
from properties.table import bed
from rookery.engines import Local
from rookery.problems.exact import Midrange, QuadraticBilevel, QuadraticConsensus
from rookery.runs.prepare import precision_context, prepare

WEIGHTED = QuadraticConsensus.random(clients=4, dims=3, weights="random", seed=1, examples=[2, 5, 3, 4])
EVEN = QuadraticConsensus.random(clients=4, dims=3, seed=1, examples=[2, 5, 3, 4])
UNEQUAL = rk.FixedSteps([1, 4, 2, 3])
SAMPLED = {"sampling": rk.Uniform(2), "batch_size": 2}


def run(exact, method, rounds=20, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*\(a \+ d\) eta gamma Q~")
        return rk.run(
            exact.problem, method, exact.clients, rounds=rounds, precision="float64", **options, **exact.start(leaves=2)
        )


def vra(**options):
    return rk.FedVRA(lr=0.05, **({"local_steps": UNEQUAL} | options))


REDUCTIONS = {
    "federated ADMM": (rk.FedADMM(lr=0.05, gamma=0.3, local_steps=UNEQUAL), vra(gamma=0.3, a=1.0, d=1.0)),
    "federated ADMM, one gamma each": (
        rk.FedADMM(lr=0.05, gamma=rk.PerClient([0.3, 0.1, 0.4, 0.2]), local_steps=UNEQUAL),
        vra(gamma=rk.PerClient([0.3, 0.1, 0.4, 0.2]), a=1.0, d=1.0),
    ),
    "FedAvg": (rk.FedAvg(lr=0.05, local_steps=UNEQUAL), vra(gamma=0.0, a=0.0, d=4 / 2)),
    "FedAvg by probability": (rk.FedAvg(lr=0.05, local_steps=UNEQUAL), vra(gamma=0.0, a=0.0)),
    "FedProx": (rk.FedProx(lr=0.05, mu=0.4, local_steps=UNEQUAL), vra(gamma=0.4, a=0.0, d=4 / 2)),
    "FedNova": (rk.FedNova(lr=0.05, local_steps=UNEQUAL), vra(gamma=0.0, a=0.0, d="equal-progress")),
    "one gamma each": (vra(gamma=0.3, a=2.0), vra(gamma=rk.PerClient([0.3] * 4), a=2.0)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_native_method_is_fedvra_with_its_parameters(name):
    native, general = REDUCTIONS[name]
    assert difference(run(WEIGHTED, native, **SAMPLED), run(WEIGHTED, general, **SAMPLED)) <= 1e-12


def test_feddyn_is_fedvra_with_equal_weights():
    dyn = run(EVEN, rk.FedDyn(lr=0.05, alpha=0.4, local_steps=UNEQUAL), **SAMPLED)
    assert difference(dyn, run(EVEN, vra(gamma=0.4, a=1.0, d=4 / 2), **SAMPLED)) <= 1e-12


def test_fedpd_is_federated_admm_with_everybody():
    pd = run(WEIGHTED, rk.FedPD(lr=0.05, eta=2.0, local_steps=UNEQUAL))
    assert difference(pd, run(WEIGHTED, rk.FedADMM(lr=0.05, gamma=0.5, local_steps=UNEQUAL))) <= 1e-12


def test_vrlsgd_is_scaffold_with_everybody():
    vrl, scaffold = (run(WEIGHTED, cls(lr=0.05, local_steps=4), batch_size=2) for cls in (rk.VRLSGD, rk.Scaffold))
    assert difference(vrl, scaffold) <= 1e-12


@pytest.mark.parametrize(
    ("drift", "named"),
    [
        (rk.ControlVariates(), rk.Scaffold(lr=0.05, local_steps=UNEQUAL)),
        (rk.Duals(0.3, a=2.0), vra(gamma=0.3, a=2.0)),
        (rk.Duals(0.3, a=2.0, d=1.5), vra(gamma=0.3, a=2.0, d=1.5)),
    ],
)
def test_named_method_is_the_composed_one(drift, named):
    composed = rk.FedBiO(lr=0.05, local_steps=UNEQUAL, drift=drift)
    assert difference(run(WEIGHTED, composed, **SAMPLED), run(WEIGHTED, named, **SAMPLED)) <= 1e-12
    also = rk.SimFBO(lr=0.05, local_steps=UNEQUAL, drift=drift)
    assert difference(run(WEIGHTED, also, **SAMPLED), run(WEIGHTED, named, **SAMPLED)) <= 1e-12


def carries_of(exact, method, rounds, **options):
    """The server's state and the clients' after each of some rounds."""
    with precision_context("float64"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*\(a \+ d\) eta gamma Q~")
        options = {"sampling": rk.All(), "batch_size": None, "seed": 0, "precision": "float64"} | options
        setup = prepare(exact.problem, method, exact.clients, **options, **exact.start(leaves=2))
        session = Local().open(setup, rk.Ledger())
        for _ in range(rounds):
            session.advance(1)
            yield jax.device_get(session.carry)


def test_scaffolds_variates_are_fedvras_duals_as_gamma_vanishes():
    """With a = 1 / (eta gamma Q) the duals become the mean of a client's gradients, with an error of order gamma."""
    eta, steps = 0.05, 4
    last_state = lambda method: flat(list(carries_of(WEIGHTED, method, 1))[-1].records.state)
    variates = last_state(rk.Scaffold(lr=eta, local_steps=steps))

    def gap(gamma):
        a = 1 / (eta * gamma * steps)
        method = rk.FedVRA(lr=eta, gamma=gamma, a=a, d=1.0, local_steps=steps)
        return np.abs(gamma * last_state(method) - variates).max()

    assert gap(1e-3) > 1e-8
    assert abs(gap(1e-3) / gap(5e-4) - 2) < 0.05


SCHEMES = [
    rk.All(),
    rk.Uniform(2),
    rk.WithReplacement(3),
    rk.Bernoulli(0.5),
    rk.Bernoulli(lambda r: np.array([0.2, 0.4, 0.6, 0.8]) * (1 + r % 2) / 2),
]


@pytest.mark.parametrize("sampling", SCHEMES, ids=["all", "uniform", "with replacement", "bernoulli", "varying"])
def test_the_servers_dual_is_the_mean_of_the_clients(sampling):
    methods = {
        "u": vra(gamma=0.2, a=rk.PerClient([0.5, 1.0, 0.3, 0.8])),
        "c": rk.Scaffold(lr=0.05, local_steps=UNEQUAL),
        "h": rk.FedDyn(lr=0.05, alpha=0.4, local_steps=UNEQUAL),
    }
    for name, method in methods.items():
        for carry in carries_of(WEIGHTED, method, 9, sampling=sampling, batch_size=2):
            mean = jax.tree.map(lambda leaf: np.tensordot(WEIGHTED.weights, leaf, axes=1), carry.records.state)
            assert np.abs(flat(getattr(carry.state, name)) - flat(mean)).max() <= 1e-12
        assert np.abs(flat(mean)).max() > 1e-3


def test_fixed_points_are_the_closed_forms():
    steps = UNEQUAL.steps
    start = WEIGHTED.start(leaves=2)
    for method, expected in [
        (rk.FedAvg(lr=0.1, local_steps=UNEQUAL), WEIGHTED.fedavg_solution(0.1, steps)),
        (rk.FedProx(lr=0.1, mu=0.5, local_steps=UNEQUAL), WEIGHTED.fedprox_solution(0.1, steps, 0.5)),
        (rk.FedNova(lr=0.1, local_steps=UNEQUAL), WEIGHTED.fednova_solution(0.1, steps)),
    ]:
        point = rk.fixed_point(WEIGHTED.problem, method, WEIGHTED.clients, **start)
        np.testing.assert_allclose(point.flat("x"), expected, atol=1e-11)
        assert np.abs(expected - WEIGHTED.solution()).max() > 1e-3


@pytest.mark.parametrize(
    "method",
    [
        rk.Scaffold(lr=0.05, local_steps=UNEQUAL),
        rk.FedDyn(lr=0.05, alpha=0.4, local_steps=UNEQUAL),
        rk.FedADMM(lr=0.05, gamma=0.4, local_steps=UNEQUAL),
        rk.FedVRA(lr=0.05, gamma=0.4, a=0.5, local_steps=UNEQUAL),
        rk.FedVRA(lr=rk.PerClient([0.05, 0.03, 0.06, 0.04]), gamma=rk.PerClient([0.4, 0.2, 0.5, 0.3]), a=0.5, local_steps=UNEQUAL),
    ],
    ids=["scaffold", "feddyn", "fedadmm", "fedvra", "fedvra each"],
)  # fmt: skip
def test_the_optimum_is_reached_under_partial_participation_and_unequal_steps(method):
    result = run(WEIGHTED, method, rounds=5000, sampling=rk.Uniform(2))
    assert np.abs(flat(result.x) - WEIGHTED.solution()).max() <= 1e-8


@pytest.mark.parametrize("drift", [rk.ControlVariates(), rk.Duals(rk.Rates(3.0), a=0.5)], ids=["variates", "duals"])
def test_drift_control_makes_nested_local_steps_exact(drift):
    """Ten steps on clients that differ: SimFBO errs, with drift control it does not, also when clients are sampled."""
    exact = QuadraticBilevel.random(clients=6, dims=(2, 3), heterogeneity=1.0, seed=0)
    start = exact.start()
    plain = rk.fixed_point(exact.problem, rk.SimFBO(lr=rk.Rates(0.03), local_steps=10), exact.clients, **start)
    assert np.abs(plain.flat("x") - exact.solution()).max() > 1e-2
    controlled = rk.SimFBO(lr=rk.Rates(0.03), local_steps=10, drift=drift)
    point = rk.fixed_point(exact.problem, controlled, exact.clients, **start)
    assert np.abs(point.flat("x") - exact.solution()).max() <= 1e-9 and point.radius < 1
    options = {"sampling": rk.Uniform(3), "precision": "float64", "rounds": 1500}
    sampled = rk.run(exact.problem, controlled, exact.clients, **options, **start)
    assert np.abs(flat(sampled.x) - exact.solution()).max() <= 1e-9
    stalled = rk.run(exact.problem, rk.SimFBO(lr=rk.Rates(0.03), local_steps=10), exact.clients, **options, **start)
    assert np.abs(flat(stalled.x) - exact.solution()).max() > 1e-3


def test_fair_learning_ends_at_the_midrange():
    """E4: a game over the simplex, by projected descent and ascent."""
    exact = Midrange.random(clients=4, seed=1)
    method = rk.SimFBO(lr=rk.Rates(x=0.05, y=0.02))
    result = rk.run(exact.problem, method, exact.clients, rounds=6000, precision="float64", **exact.start())
    assert abs(float(result.x[0]) - exact.solution()[0]) <= 1e-6
    assert abs(exact.biased_solution("mean")[0] - exact.solution()[0]) > 0.1
    assert np.min(result.y) >= 0 and abs(np.sum(result.y) - 1) < 1e-9


def test_fedvra_warns_with_the_number():
    with pytest.warns(UserWarning, match=r"FedVRA: \(a \+ d\) eta gamma Q~ is 2\.6., and at most 1"):
        prepare_only(rk.FedVRA(lr=0.1, gamma=5.0, a=1.0, local_steps=3), rk.Uniform(2))
    for steps in (2, 1000):  # gamma eta > 2 is unstable for any number of steps
        with pytest.warns(rk.AdviceWarning, match="at most 1 is known to converge"):
            prepare_only(rk.FedVRA(lr=0.5, gamma=10.0, local_steps=steps), rk.Uniform(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_only(rk.FedVRA(lr=0.1, gamma=0.5, a=1.0, local_steps=3), rk.Uniform(2))


def prepare_only(method, sampling):
    with precision_context("float64"):
        prepare(
            EVEN.problem, method, EVEN.clients, sampling=sampling, batch_size=None, seed=0, precision="float64",
            **EVEN.start(),
        )  # fmt: skip


def test_fedpd_skips_communication():
    references_family.fedpd_skips()


def test_fedpds_local_rounds_have_samples_of_their_own():
    references_family.fedpd_draws()


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (rk.VRLSGD(lr=0.1), r"sampling: Uniform\(m=2\) was given; VRLSGD needs all clients in every round"),
        (rk.FedPD(lr=0.1), "FedPD needs all clients in every round"),
        (rk.FedVRA(lr=0.1, gamma=-1.0), r"gamma: -1.0 was given; it must not be negative"),
        (rk.FedVRA(lr=0.1, gamma=lambda r: 0.1), "gamma: .* one number, or rk.PerClient, is needed"),
        (rk.FedVRA(lr=0.1, gamma=rk.PerClient([0.0] * 4)), "nor 0 for each client"),
        (rk.FedADMM(lr=0.1, gamma=lambda r: 0.1), "gamma: .* one number, or rk.PerClient, is needed"),
        (rk.FedVRA(lr=0.1, a=rk.PerClient([0.1, 0.2])), r"a: PerClient of shape \(2,\) was given; 4 finite"),
        (rk.FedVRA(lr=0.1, a="much"), "a: 'much' was given; a finite number or a schedule"),
        (rk.FedDyn(lr=0.1, alpha=0.0), "alpha: 0.0 was given; a positive number is needed"),
        (rk.FedPD(lr=0.1, eta=-1.0), "eta: -1.0 was given; a positive number is needed"),
        (rk.FedPD(lr=0.1, skip=1.0), "skip: 1.0 was given; 0 <= skip < 1 is needed"),
        (rk.VRLSGD(lr=0.1, local_steps=UNEQUAL), "local_steps: .* was given; a whole number of at least 1 is needed"),
        (rk.FedVRA(lr=0.1, gamma=None), "gamma: None was given; a number, a schedule or rk.PerClient is needed"),
        (rk.FedVRA(lr=0.1, a=rk.Rates(x=1.0)), "a: Rates was given; one number for all sequences is needed"),
        (rk.FedVRA(lr=0.1, a=lambda r: rk.PerClient([0.1])), r"a: PerClient of shape \(1,\) was given"),
        (rk.FedProx(lr=0.1, mu=lambda r: 0.1), "mu: a function was given; one number for the whole run is needed"),
        (rk.SimFBO(lr=0.1, drift=rk.ControlVariates), "drift: .* was given; None, rk.ControlVariates"),
        (rk.SimFBO(lr=0.1, drift=rk.Duals(rk.PerClient([0.1] * 4))), "drift.gamma.default: .* the same for all clients"),
        (rk.SimFBO(lr=0.1, drift=rk.Duals(-1.0)), "drift.gamma.default: -1.0 was given; a number that is not negative"),
        (rk.FedBiO(lr=rk.PerClient([0.1] * 4)), "lr: rk.PerClient was given, and the server steps with lr, too"),
        (rk.FedAvg(lr=0.1, local_steps=rk.Epochs(0)), r"local_steps: Epochs\(0\) was given"),
        (rk.FedAvg(lr=0.1, local_steps=rk.Epochs(3, 2)), r"local_steps: Epochs\(3, 2\) was given"),
        (rk.SimFBO(lr=0.1, drift="duals"), r"drift: 'duals' was given; None, rk.ControlVariates\(\) or"),
        (rk.SimFBO(lr=0.1, drift=rk.Duals(a="x")), "drift.a: 'x' was given"),
        (rk.FedVRAU(lr=0.1), "FedVRAU: it solves joint problems, and this one is single"),
        (rk.SimFBO(lr=rk.PerClient([0.1] * 4)), "lr: rk.PerClient was given, and the server steps with lr, too"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_bad_input_is_one_sentence(method, sentence):
    sampling = rk.Uniform(2) if "all clients" in sentence else None
    with pytest.raises(rk.InputError, match=sentence):
        rk.run(EVEN.problem, method, EVEN.clients, rounds=1, sampling=sampling, **EVEN.start())


def test_numbers_may_change_over_clients_and_rounds():
    table = np.array([0.5, 1.0, 0.3, 0.8])
    both = run(WEIGHTED, vra(gamma=0.2, a=lambda r: rk.PerClient(table * (1 + r % 2))), rounds=1)
    assert difference(both, run(WEIGHTED, vra(gamma=0.2, a=rk.PerClient(table)), rounds=1)) <= 1e-12
    more = run(WEIGHTED, vra(gamma=0.2, a=lambda r: rk.PerClient(table * (1 + r % 2))), rounds=3)
    assert difference(more, run(WEIGHTED, vra(gamma=0.2, a=rk.PerClient(table)), rounds=3)) > 1e-6


def test_clients_may_have_step_sizes_of_their_own_beside_the_servers():
    each, one = rk.PerClient([0.05, 0.02, 0.04, 0.03]), rk.Rates(0.05)
    for drift in (None, rk.ControlVariates()):
        method = rk.SimFBO(lr=each, server_lr=one, local_steps=3, drift=drift)
        assert run(WEIGHTED, method).status == "done"


def test_a_step_size_of_zero_holds_a_sequence():
    exact = QuadraticBilevel.random(clients=4, dims=(2, 3), seed=0)
    for drift in (rk.ControlVariates(), rk.Duals(rk.Rates(1.0))):
        method = rk.SimFBO(lr=rk.Rates(0.03, v=0.0), local_steps=3, drift=drift)
        result = rk.run(exact.problem, method, exact.clients, rounds=5, **exact.start())
        assert result.status == "done" and np.abs(result.sequences["v"]).max() == 0


def test_scaffold_and_vrlsgd_agree_with_falling_step_sizes():
    falling = rk.Rates(lambda r: 0.1 / (1 + r))
    results = [run(WEIGHTED, cls(lr=falling, local_steps=3), rounds=6) for cls in (rk.VRLSGD, rk.Scaffold)]
    assert difference(*results) <= 1e-12


@pytest.mark.parametrize("engine", [rk.Local(), rk.Local(at_once=4), rk.Eager()], ids=["one", "all", "eager"])
def test_a_client_may_be_away_for_whole_rounds(engine):
    away = rk.Bernoulli(lambda r: jax.numpy.where(r % 2 == 0, 0.5, jax.numpy.array([0.0, 1.0, 0.5, 0.5])))
    result = run(WEIGHTED, rk.Scaffold(lr=0.05, local_steps=2), rounds=8, sampling=away, engine=engine)
    assert result.status == "done"


def test_admm_is_fedvra_also_with_replacement():
    native, general = REDUCTIONS["federated ADMM"]
    options = {"sampling": rk.WithReplacement(3), "batch_size": 2}
    assert difference(run(WEIGHTED, native, **options), run(WEIGHTED, general, **options)) <= 1e-12


def test_unknown_aggregation_step_sizes_are_refused():
    with pytest.raises(
        rk.InputError, match=r"d: 'inverse-probabilty' is not known .did you mean 'inverse-probability'"
    ):
        rk.FedVRA(lr=0.1, d="inverse-probabilty")
    with pytest.raises(rk.InputError, match="d: 'equal-progress' is not known"):
        rk.Duals(d="equal-progress")


def test_family_is_for_one_level():
    with pytest.raises(rk.InputError, match="Scaffold: it solves single and joint problems, and this one is bilevel"):
        exact = bed("E1")
        rk.run(exact.problem, rk.Scaffold(lr=rk.Rates(0.1)), exact.clients, rounds=1, **exact.start())


def test_fedvrau_counts_the_gradients_that_it_takes():
    exact = bed("E1a-joint")
    method = rk.FedVRAU(lr=0.05, gamma=0.2, a=0.5, local_steps=3, client_lr=0.3, client_steps=2)
    result = rk.run(exact.problem, method, exact.clients, rounds=4, batch_size=2, **exact.start())
    assert result.ledger.oracles["gradients"] == 4 * 3 * (3 + 2) and result.ledger.samples == 2 * 4 * 3 * (3 + 2)


def test_a_step_of_nothing_leaves_control_variates_as_they_are():
    exact = rk.exact.QuadraticConsensus.random(clients=3, dims=3, weights="random", seed=4)
    still = lambda t: jnp.where(t % 2 == 0, 0.1, 0.0)
    states = [
        rk.run(
            exact.problem, rk.Scaffold(lr=still), exact.clients, rounds=n, precision="float64", **exact.start()
        ).state
        for n in (1, 2)
    ]
    for a, b in zip(*(state.leaves for state in states)):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-15)
