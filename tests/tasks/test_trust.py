"""Trust in sites: the hypergradient of a site's logit, the models of one run, the choice, and which records are checked."""

from __future__ import annotations

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.data.partitions import parse
from rookery.tasks.models import MLP
from rookery.tasks.trust import Choice, assemble_sites
from rookery.tasks.trust_data import draw_checked, wrong_labels
from rookery.tasks.trust_models import (
    CANDIDATES,
    MODELS,
    START,
    CheckedLoss,
    ModelsLoss,
    choice_metrics,
    chosen_index,
    records_of_site,
    trust_of,
    weights_of,
)
from rookery.vectors import Values


def trusted(form="nested", rounds=300, partition="natural", clients=4, lr=None, seed=0, **options):
    task = rk.tasks.Trust(form=form, **options)
    parts = task.assemble(parse(partition), clients, seed=seed)
    method = rk.SimFBO if form in ("nested", "records") else rk.FedAvg
    return rk.run(
        parts.problem, method(lr=lr or rk.Rates(**task.rates)), parts.clients, x=parts.x, y=parts.y, rounds=rounds,
        every=rounds, metrics=parts.metrics, client_metrics=parts.client_metrics,
    )  # fmt: skip


def tiny(bad=(), sites=4, rows=40, seed=0, task=None, spread=1.0):
    """Sites with two features and two classes, which a line tells apart; bad sites have them swapped."""
    rng = np.random.default_rng(seed)
    records, tests = {}, []
    for i in range(sites):
        label = np.arange(rows) % 2
        inputs = rng.normal(0, spread, (rows, 2)) + np.where(label, 1.5, -1.5)[:, None]
        own = {"input": inputs.astype(np.float32), "label": label.astype(np.int32)}
        checked = draw_checked(rows, 0.25, (seed, i))
        records[str(i)] = wrong_labels({**own, "checked": checked}, float(i in bad), "next", 2, (seed, 1, i))
        tests.append(own)
    return assemble_sites(MLP(2, (), 2), records, tests, task or rk.tasks.Trust(), seed, truth=True)


def solve(parts, rounds=300, **options):
    return rk.run(
        parts.problem, rk.SimFBO(lr=rk.Rates(x=10.0, y=0.3, v=0.3)), parts.clients, x=parts.x, y=parts.y,
        rounds=rounds, every=rounds, metrics=parts.metrics, client_metrics=parts.client_metrics, **options,
    )  # fmt: skip


# The hypergradient of a site's logit, in closed form.


class Mean:
    """A model that is one number: the losses below are squares, so that everything has a closed form."""

    classes = None

    def __call__(self, own, value):
        return jnp.stack([0.5 * (own["m"] - value) ** 2, jnp.zeros(())])


def test_the_hypergradient_of_a_logit_is_the_one_in_closed_form(monkeypatch):
    """With 0.5 (m - a)^2 in the place of the cross-entropy the probe is m = sum w a / (W + ridge W), W = sum w over
    sites of p_i sigmoid(x_i), and dF/dx_i = (m - c) p_i s_i (1 - s_i) (a_i - (1 + ridge) m) / ((1 + ridge) W)."""
    monkeypatch.setattr("rookery.tasks.trust_models.cross_entropy", lambda scores, label: scores[0])
    a, c, ridge, prior = np.array([1.0, 4.0, -2.0]), 0.5, 0.2, 0.01
    p, x = np.array([0.2, 0.5, 0.3]), np.array([0.3, -0.7, 1.4])
    s = 1 / (1 + np.exp(-x))
    whole = np.sum(p * s)
    m = np.sum(p * s * a) / ((1 + ridge) * whole)
    expected = (m - c) * p * s * (1 - s) * (a - (1 + ridge) * m) / ((1 + ridge) * whole) + prior * (x - START)
    v = np.array([(m - c) / ((1 + ridge) * whole), 0.0, 0.0, 0.0])
    with jax.enable_x64(True):
        one = jnp.zeros(4).at[0].set(1.0)
        row = lambda i, value, upper: {
            "input": jnp.asarray([value]), "label": jnp.zeros(1, int), "site": jnp.asarray([i]), "held": jnp.zeros(1),
            "fixed": jnp.zeros((1, 4)), "trusted": one[None], "upper": jnp.asarray([upper]), "spread": jnp.zeros(1),
        }  # fmt: skip
        clients = rk.federate(
            [rk.Split(lower=row(i, a[i], 0.0), upper=row(i, c, 1.0)) for i in range(3)], weights=list(p)
        )
        problem = rk.Bilevel(CheckedLoss(Mean(), prior), ModelsLoss(Mean(), ridge))
        z = Values(
            x={"site": jnp.asarray(x), "loss": jnp.zeros(3), "variance": jnp.zeros(2)},
            y={"m": jnp.array([m, 0.0, 0.0, 0.0])}, v={"m": jnp.asarray(v)},
        )  # fmt: skip
        from rookery.data.batches import shard

        total = jnp.zeros(3)
        for i in range(3):
            own = shard(clients.levels, i)
            batches = {level: own.batch(level, None, 1, jnp.float64) for level in ("lower", "upper")}
            d = problem.direction(z, batches)
            total = total + p[i] * d.x["site"]
    np.testing.assert_allclose(total, expected, rtol=1e-10)


# What one run fits.


def test_one_run_has_the_models_that_plain_learning_fits_alone():
    nested = trusted(rounds=30, lr=rk.Rates(x=10.0, y=0.5, v=0.5))
    for form in ("plain", "checked", "oracle"):
        alone = trusted(form, rounds=30)
        place = [*MODELS, "oracle"].index(form)
        of_run = jax.tree.map(lambda leaf, place=place: leaf[place], nested.y)
        for a, b in zip(jax.tree.leaves(of_run), jax.tree.leaves(alone.x)):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        name = f"accuracy {form} weighted"
        np.testing.assert_allclose(nested.history[name][-1], alone.history["accuracy weighted"][-1], atol=0.01)


def test_weights_are_those_that_the_models_are_said_to_have():
    checked, held = np.array([1, 1, 1, 0, 0, 0], bool), np.array([1, 0, 0, 0, 0, 0], bool)
    wrong = np.array([0, 0, 0, 1, 0, 0], bool)
    fixed, by_trust = weights_of(checked, held, wrong)
    names = [*MODELS, "oracle"]
    weight = lambda name, trust: fixed[:, names.index(name)] + trust * by_trust[:, names.index(name)]
    np.testing.assert_array_equal(weight("probe", 0.5), [0, 0, 0, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(weight("plain", 0.5), np.ones(6))
    np.testing.assert_array_equal(weight("checked", 0.5), [2, 2, 2, 0, 0, 0])
    np.testing.assert_array_equal(weight("trusted", 0.5), [1, 1, 1, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(weight("oracle", 0.5), [1, 1, 1, 0, 1, 1])
    for name in CANDIDATES:  # no model that is compared sees a held-out record
        assert (weight(f"{name} without held-out", 0.5) * held == 0).all()
        assert (weight(f"{name} without held-out", 0.5)[1:] > 0).any()


def test_held_out_records_are_not_those_that_trust_learns_from():
    own = {"input": np.zeros((20, 1)), "label": np.zeros(20, np.int32)}
    checked = np.arange(20) < 10
    made = records_of_site(own, checked, None, 2, 0.25, 0.3, (0,))
    held, upper = made["held"] > 0, made["upper"] > 0
    assert held.sum() == 3 and upper.sum() == 7 and not (held & upper).any() and (held | upper)[:10].all()
    np.testing.assert_allclose([made["held"].mean(), made["upper"].mean()], [1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(made["spread"].sum() / 20, 0.25 / 3, rtol=1e-6)
    nobody = records_of_site(own, np.zeros(20, bool), None, 0, 0.25, 0.3, (0,))
    assert not any(nobody[name].any() for name in ("held", "upper", "spread"))


def test_the_scores_are_the_losses_on_the_held_out_records():
    parts = tiny(bad=(1,))
    result = solve(parts, precision="float64")
    network, losses, square = MLP(2, (), 2), np.zeros(3), np.zeros(2)
    for i, p in enumerate(parts.clients.weights):
        own = parts.clients.client(i)
        held = own["held"] > 0
        each = np.zeros((held.sum(), 3))
        for k in range(3):
            model = jax.tree.map(lambda leaf, k=k: leaf[1 + k], result.y)
            scores = jax.vmap(lambda e, model=model: jax.nn.log_softmax(network(model, e)))(own["input"][held])
            each[:, k] = -np.asarray(scores)[np.arange(held.sum()), own["label"][held]]
        losses += p * each.mean(axis=0)
        square += (
            p**2
            * ((each[:, :2] - each[:, 2:] - (result.x["loss"][:2] - result.x["loss"][2])) ** 2).mean(axis=0)
            / held.sum()
        )
    np.testing.assert_allclose(result.x["loss"], losses, rtol=1e-2)
    np.testing.assert_allclose(result.x["variance"], square, rtol=5e-2)


# What is found and what is chosen.


@pytest.mark.parametrize("bad", [(1,), (0, 2)])
def test_sites_that_code_labels_differently_are_found(bad):
    result = solve(tiny(bad))
    choice = rk.tasks.Trust.choice(result)
    trust = np.array(list(choice.trust.values()))
    assert trust[list(bad)].max() < 0.1 and np.delete(trust, bad).min() > 0.7
    assert choice.accuracies["chosen"] >= choice.accuracies["oracle"] - 0.02
    # Checked records of a bad site are right and share its trust: they count one half.
    ties = 10 * len(bad) / (160 - 30 * len(bad))
    np.testing.assert_allclose(result.history["auc"][-1], 1 - ties / 2, rtol=1e-5)


def test_with_nothing_wrong_no_baseline_is_better_and_no_auc_is_given():
    result = solve(tiny())
    choice = rk.tasks.Trust.choice(result)
    best = max(choice.accuracies["plain"], choice.accuracies["checked"])
    assert choice.accuracies["chosen"] >= best - 0.01
    assert "auc" not in result.history


def test_six_digit_sites_of_which_three_code_labels_as_the_next_class():
    result = trusted(
        data="digits", partition="iid", clients=6, site="0,1,2", checked_part=0.05, rounds=150, seed=1
    )  # fmt: skip
    choice = rk.tasks.Trust.choice(result)
    assert choice.chosen == "trusted"
    assert max(choice.trust[site] for site in "012") < 0.1 < 0.9 < min(choice.trust[site] for site in "345")
    right = choice.accuracies
    assert right["chosen"] == right["trusted"] > right["checked"] + 0.02 > right["plain"] + 0.1
    assert str(choice).startswith("chosen: trusted (loss on held-out checked records: plain ")


def test_measured_step_sizes_find_the_same_site():
    result = trusted(lr=rk.Rates(x=10.0, y="auto", v="auto"), seed=3)
    trust = rk.tasks.Trust.choice(result).trust
    assert trust["cleveland"] < 0.2 and trust["cleveland"] == min(trust.values())


@pytest.mark.parametrize(
    ("loss", "variance", "chosen"),
    [
        ([0.5, 0.6, 0.5], [0.01, 0.01], "trusted"),  # alike
        ([0.45, 0.6, 0.5], [0.01, 0.01], "trusted"),  # lower by less than a standard error, 0.1
        ([0.35, 0.6, 0.5], [0.01, 0.01], "plain"),
        ([0.35, 0.2, 0.5], [0.01, 0.01], "checked"),
        ([0.35, 0.2, 0.5], [0.01, 0.09], "plain"),  # the other's difference is within its standard error
        ([0.0, 0.0, 0.0], [0.0, 0.0], "trusted"),  # before anything is measured
    ],
)
def test_another_model_is_chosen_only_beyond_one_standard_error(loss, variance, chosen):
    x = {"site": np.ones(2), "loss": np.array(loss), "variance": np.array(variance)}
    assert CANDIDATES[int(chosen_index(x))] == chosen
    found = choice_metrics(Values(x=jax.tree.map(jnp.asarray, x)))
    assert CANDIDATES[int(found["chosen"])] == chosen and float(found["held-out loss checked"]) == np.float32(loss[1])


def test_records_have_logits_of_their_own_where_asked():
    result = trusted("records", rounds=20)
    assert result.x["record"].shape == (4, 242) and result.x["site"].shape == (4,)
    assert result.history["auc"][-1] > 0.5
    strong = trusted("records", rounds=20, prior=0.05)
    assert np.abs(strong.x["record"]).max() < np.abs(result.x["record"]).max(), "a prior holds records back"
    with pytest.raises(rk.InputError, match="result: it is not of the nested form of trust"):
        rk.tasks.Trust.choice(result)


@pytest.mark.parametrize("moves", [[0.5, -0.5], [3.0, -1.0, 2.0]], ids=["within", "beyond"])
def test_record_logits_stay_within_the_budget(moves):
    """All together they move by the budget times 4; beyond that all are scaled down alike."""
    count = 4
    record = np.zeros(count)
    record[: len(moves)] = np.array(moves) / count**0.5  # sqrt(n) times it is the move
    budget = 1.0  # records: a sum of moves of 4
    e = {"gain": np.sqrt(count), "budget": budget}
    x = {"site": np.float64(0.3), "record": jnp.asarray(record)}
    trust = np.array([trust_of(x, e | {"row": row}) for row in range(count)])
    logits = np.log(trust / (1 - trust)) - 0.3
    total = np.abs(moves).sum()
    expected = np.array([*moves, *[0.0] * (count - len(moves))]) * min(1.0, 4 * budget / total)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert np.abs(logits).sum() <= 4 * budget + 1e-5


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.5])
def test_a_budget_that_is_no_part_is_refused(budget):
    with pytest.raises(rk.InputError, match=rf"task.budget: {budget} was given; a number above 0 and at most 1"):
        rk.tasks.Trust(form="records", budget=budget).assemble(parse("natural"), 4, seed=0)


# Which records are checked, and whose labels are wrong.


def test_wrong_labels_are_where_they_are_said_to_be():
    task = rk.tasks.Trust(site="va,hungarian")
    clients = task.assemble(parse("natural"), 4, seed=0).clients
    right = rk.tasks.Trust(wrong=0.0).assemble(parse("natural"), 4, seed=0).clients
    for i, name in enumerate(clients.names):
        own, checked = clients.client(i), clients.client(i)["fixed"][:, MODELS.index("checked")] > 0
        changed = own["label"] != right.client(i)["label"]
        assert (
            changed[~checked].all() and not changed[checked].any() if name in ("va", "hungarian") else not changed.any()
        )
        np.testing.assert_array_equal(clients.own_test(i)["label"], right.own_test(i)["label"])
    with pytest.raises(rk.InputError, match=r"task.site: 'vaa' is not known .did you mean 'va'"):
        rk.tasks.Trust(site="cleveland, vaa").assemble(parse("natural"), 4, seed=0)
    own = {"label": np.arange(1000) % 10, "checked": np.zeros(1000, bool)}
    by_chance = wrong_labels(own, 1.0, "random", 10, (0,))
    assert 0.85 < by_chance["wrong"].mean() < 0.95, "a tenth of the random labels are right by chance"
    np.testing.assert_array_equal(wrong_labels(own, 1.0, "next", 10, (0,))["label"], (own["label"] + 1) % 10)


@pytest.fixture
def hospitals(tmp_path):
    """The four hospitals' tables, with a column of checked records."""
    rng = np.random.default_rng(0)
    for name, table in rk.data.heart().items():
        table = {"audited": (rng.random(len(table["ill"])) < 0.2).astype(int), **table}
        label = table.pop("ill")
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*table, "label"])
            writer.writerows(zip(*(column.tolist() for column in table.values()), label.tolist()))
    return tmp_path


def test_a_column_says_which_records_are_checked_and_is_no_input(hospitals):
    task = rk.tasks.Trust(data=f"csv:{hospitals}", checked="audited")
    parts = task.assemble(parse("natural"), 4, seed=0)
    own = parts.clients.client(0)
    assert own["input"].shape[1] == 10 and parts.metrics is choice_metrics
    checked = own["fixed"][:, MODELS.index("checked")] > 0
    assert 0.1 < checked.mean() < 0.3 and not (own["upper"][~checked] > 0).any()
    assert own["fixed"].shape[1] == len(MODELS), "no oracle where nobody knows what is wrong"
    again = rk.tasks.Trust(data=f"csv:{hospitals}", checked="audited").assemble(parse("natural"), 4, seed=9)
    np.testing.assert_array_equal(again.clients.client(0)["label"], own["label"])  # no label of own data is changed


def test_checked_records_are_never_assumed(hospitals, capsys):
    own = f"csv:{hospitals}"
    for options, sentence in [
        ({"data": own}, "task.checked: none was given, and 'csv:.*--task.checked COLUMN"),
        (
            {"data": own, "checked": "audit"},
            r"task.checked: 'audit' was given, .* has no such column .did you mean 'audited'",
        ),
        (
            {"data": own, "checked": "age"},
            "task.checked: client 'cleveland', column 'age' must hold 0 and 1",
        ),
        ({"checked": "0.05"}, "task.checked: '0.05' was given; it names a column. .*--task.checked-part 0.05"),
        ({"data": own, "checked": "audited", "form": "oracle"}, "task.form: oracle was given, and nobody knows"),
        ({"form": "own"}, "task.form: 'own' was given; nested, records, plain, checked or oracle is needed"),
        ({"wrong": 1.5}, "task.wrong: 1.5 was given; a number from 0 to 1"),
        ({"checked_part": 1.0}, "task.checked_part: 1.0 was given"),
        ({"kind": "swap"}, "task.kind: 'swap' was given; next or random"),
    ]:
        with pytest.raises(rk.InputError, match=sentence):
            rk.tasks.Trust(**options).assemble(parse("natural"), 4, seed=0)
    for path in hospitals.glob("*.csv"):
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], *("0" + line[1:] for line in lines[1:])]) + "\n")
    with pytest.raises(rk.InputError, match=r"task.checked: no training record is checked"):
        rk.tasks.Trust(data=own, checked="audited").assemble(parse("natural"), 4, seed=0)
    assert main(["run", "trust", "simfbo", "--task.data", own, "--rounds", "1"]) == 2
    assert "--task.checked COLUMN" in capsys.readouterr().err.replace("\n", " ")


def arrays(rows=60, bad=False, seed=0, **more):
    rng = np.random.default_rng(seed)
    label = np.arange(rows) % 2
    checked = np.arange(rows) < rows // 3
    inputs = rng.normal(size=(rows, 2)) * [1.0, 50.0] + np.where(label, 1.5, -1.5)[:, None] * [1.0, 50.0]
    return {"input": inputs, "label": np.where(checked | (not bad), label, 1 - label), "checked": checked, **more}


def test_arrays_say_which_records_are_checked():
    sites = {name: arrays(bad=name == "south", seed=i) for i, name in enumerate(("north", "south", "west"))}
    parts = rk.tasks.Trust().of_sites(sites)
    assert parts.clients.names == ("north", "south", "west") and parts.clients.sizes.tolist() == [48, 48, 48]
    trust = rk.tasks.Trust.choice(solve(parts)).trust
    assert trust["south"] < 0.1 < 0.9 < min(trust["north"], trust["west"])


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"input": np.ones((4, 1)), "label": np.ones(4, int)}, "sites: site 'a' has no 'checked'"),
        (arrays(checked=np.full(60, 2)), r"sites: site 'a' has \[2\] in checked; 0 and 1 are allowed"),
        (arrays(checked=np.zeros(60)), "task.checked: no training record is checked"),
        (arrays(label=np.full(60, 0.5)), "sites: site 'a' has labels .*whole numbers from 0"),
        (arrays(label=np.zeros(3, int)), r"sites: site 'a' has input \(60, 2\), label \(3,\)"),
        (arrays(input=np.full((60, 2), np.nan)), "sites: site 'a' has an input that is not finite"),
    ],
)
def test_arrays_that_do_not_say_it_are_refused(own, sentence):
    with pytest.raises(rk.InputError, match=sentence):
        rk.tasks.Trust().of_sites({"a": own})


def test_the_command_says_what_was_chosen(hospitals, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["run", "trust", "simfbo", "--task.data", f"csv:{hospitals}", "--task.checked", "audited"]
    assert main([*command, "--rounds", "5", "--every", "5", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "chosen: " in said and "loss on held-out checked records: plain" in said and "auc" not in said
    assert (out / "conclusion.txt").read_text().strip() in said
    history = (out / "history.csv").read_text().splitlines()[0].split(",")
    wanted = [
        "chosen",
        *(f"held-out loss {name}" for name in CANDIDATES),
        "accuracy trusted weighted",
        "accuracy weighted",
    ]
    assert set(wanted) <= set(history) and "auc" not in history
    choice = rk.tasks.Trust.choice(rk.Result.load(out))
    assert isinstance(choice, Choice) and set(choice.trust) == {"cleveland", "hungarian", "switzerland", "va"}
    assert set(choice.accuracies) == {"chosen", *CANDIDATES}
