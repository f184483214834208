"""What sites and the server say to one another before a run, and what each refuses; all in one process."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import rookery as rk
from federations.conftest import HERE, SITES, alone, exact
from federations.test_processes import CASES, made, same
from rookery.cli import main
from rookery.data.catalogue import load
from rookery.data.sites import Outline, read_holding
from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.engines.transport import Outcome, Request
from rookery.engines.worker import REFUSED
from rookery.errors import MessageError
from rookery.experiments import federation, flower, loopback
from rookery.experiments.configuration import common, write_configuration
from rookery.experiments.experiment import Experiment, Options, finish, launch
from rookery.experiments.federation import FEDERATION, serve
from rookery.experiments.loopback import sources_of
from rookery.experiments.site import Site, reports_problem
from rookery.federation.wire import Wire, seal
from rookery.files import slug
from rookery.runs.checkpoint import latest_round
from rookery.tasks.registry import find_task

NOSY = f"{HERE / 'exact_task.py'}:Nosy"


class Direct:
    """Sites in this process."""

    slow = False

    def __init__(self, sites: dict[str, Site]):
        self.sites, self.all = list(sites), list(sites.values())

    def ask(self, requests: Sequence[Request], deadline):
        return Outcome({i: self.all[seat.site].receive(body) for i, (seat, body) in enumerate(requests)})

    def close(self): ...


def sites_of(experiment, folder, names=SITES, data=None, told=None):
    write_configuration(experiment, folder / "configuration", {FEDERATION: {"run": "r"}})
    data = data or {}
    return Direct(
        {
            name: Site(folder / "configuration", folder / name, (told or {}).get(name, name), data.get(name))
            for name in names
        }
    )


CLASSIFY = Options(partition="natural", rounds=3, precision="float64", batch_size=0)
METHODS = {
    "classify": (rk.FedAvg(lr=rk.Rates(0.1), local_steps=2), CLASSIFY),
    "hyperrep": (rk.SimFBO(lr=rk.Rates(0.1)), CLASSIFY),
    "regularisation": (rk.SimFBO(lr=rk.Rates(0.1)), CLASSIFY),
    "fairness": (rk.FedAvg(lr=rk.Rates(0.1)), CLASSIFY),
    "personalised": (rk.SimFBO(lr=rk.Rates(0.1)), CLASSIFY),
}


@pytest.mark.parametrize("name", METHODS)
def test_tasks_on_the_data_of_four_hospitals_give_the_numbers_of_one_machine(name, tmp_path):
    """Each site has its own rows, the server none; what is measured is measured at the sites."""
    method, options = METHODS[name]
    form = {"form": "heads"} if name == "personalised" else {}
    method = rk.FedAvg(lr=rk.Rates(0.1)) if form else method
    experiment = Experiment(name, made(name, data="heart", **form), "m", method, options)
    names = load("heart").owners
    transport = sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names})
    found, expected = serve(tmp_path / "server", transport, experiment, told={"run": "r"}), alone(experiment)
    assert found.ledger == expected.ledger and found.clients is not None
    for mine, theirs in zip(found.clients.rows, expected.clients.rows):
        assert mine["client"] == theirs["client"]
        assert all(np.isclose(mine[key], theirs[key], rtol=1e-9) for key in mine if key != "client")
    for a, b in zip(found.history.rows, expected.history.rows):
        assert all(np.isclose(a[key], b[key], rtol=1e-9) for key in a if key != "seconds")


def test_a_task_that_looks_at_everybodys_labels_is_refused(tmp_path):
    """It would be another problem at every party: the server has none of them."""
    experiment = Experiment(NOSY, find_task(NOSY)(), "m", rk.FedAvg(lr=rk.Rates(0.1)), CLASSIFY)
    names = load("heart").owners
    transport = sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names})
    with pytest.raises(rk.InputError, match="site cleveland: it makes another problem of the configuration than the"):
        serve(tmp_path / "server", transport, experiment)
    assert not (tmp_path / "server").exists()


SCAFFOLD = exact(*CASES["E1a scaffold"])


def test_names_are_of_one_site_each_and_of_this_federation(tmp_path):
    with pytest.raises(rk.InputError, match="site site-1: two sites say that they are it"):
        serve(tmp_path / "s", sites_of(SCAFFOLD, tmp_path / "a", told={"site-2": "site-1"}), SCAFFOLD)
    with pytest.raises(rk.InputError, match="site site-3: it says that it is 'stranger'"):
        serve(tmp_path / "s", sites_of(SCAFFOLD, tmp_path / "b", told={"site-3": "stranger"}), SCAFFOLD)


def test_all_sites_have_data_of_their_own_or_none(tmp_path):
    experiment = Experiment("classify", made("classify", data="heart"), "m", rk.FedAvg(lr=rk.Rates(0.1)), CLASSIFY)
    transport = sites_of(experiment, tmp_path, ("cleveland", "va"), {"va": "heart#va"})
    with pytest.raises(rk.InputError, match="site cleveland: it has no data of its own, and site va has"):
        serve(tmp_path / "server", transport, experiment)


def test_own_data_is_divided_as_it_is(tmp_path):
    options = Options(partition="iid", clients=2, rounds=2)
    experiment = Experiment("classify", made("classify", data="heart"), "m", rk.FedAvg(lr=rk.Rates(0.1)), options)
    names = ("cleveland", "va")
    transport = sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names})
    with pytest.raises(rk.InputError, match="partition: iid was given, and sites have data of their own"):
        serve(tmp_path / "server", transport, experiment)


def test_a_run_goes_on_with_the_data_that_it_began_with(tmp_path):
    data = tmp_path / "va.csv"
    rows = ["age,marker,label", *(f"{i},{i % 7},{i % 2}" for i in range(30))]
    other = ["age,marker,label", *(f"{i + 1},{i % 5},{i % 2}" for i in range(30))]
    data.write_text("\n".join(rows))
    (tmp_path / "b.csv").write_text("\n".join(other))
    experiment = Experiment("classify", made("classify", data="csv:x"), "m", rk.FedAvg(lr=rk.Rates(0.01)), CLASSIFY)
    sources = {"va": f"csv:{data}", "bonn": f"csv:{tmp_path / 'b.csv'}"}
    serve(tmp_path / "server", sites_of(experiment, tmp_path, tuple(sources), sources), experiment, told={"run": "r"})
    shutil.rmtree(tmp_path / "server")
    data.write_text("\n".join([rows[0], *(f"{i + 0.5},{i % 7},{i % 2}" for i in range(30))]))
    with pytest.raises(rk.InputError, match="site va: its data is not what it was when the run began"):
        serve(
            tmp_path / "server", sites_of(experiment, tmp_path, tuple(sources), sources), experiment, told={"run": "r"}
        )


def swapped(lines):
    """The lines of a table with the labels of two rows of different classes exchanged."""
    one, other = (next(i for i, line in enumerate(lines) if line.endswith(f",{label}")) for label in (0, 1))
    flip = {one: "1", other: "0"}
    return [f"{line[:-1]}{flip[i]}" if i in flip else line for i, line in enumerate(lines)]


CHANGES = {
    "two labels swapped": (swapped, "begin a run in a new folder"),
    "a value changed": (lambda lines: [lines[0], "99,99,0", *lines[2:]], "as then, but other values or labels"),
    "rows removed": (
        lambda lines: lines[:-5],
        r"it has 20 training and 5 test examples, and then 24 .* 6 test examples",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_data_that_changed_before_a_resume_is_refused_with_the_name_of_its_site(change, tmp_path):
    made_so, sentence = CHANGES[change]
    for number, name in enumerate(("bonn", "va")):
        rows = ["age,marker,label", *(f"{i + number},{i % 7},{i % 2}" for i in range(30))]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
    sources = {name: f"csv:{tmp_path / name}.csv" for name in ("bonn", "va")}
    experiment = Experiment("classify", made("classify", data="csv:x"), "m", rk.FedAvg(lr=rk.Rates(0.01)), CLASSIFY)
    start = lambda: serve(
        tmp_path / "server", sites_of(experiment, tmp_path, tuple(sources), sources), experiment, told={"run": "r"}
    )
    start()
    (tmp_path / "server" / "result.json").unlink()
    (tmp_path / "va.csv").write_text("\n".join(made_so((tmp_path / "va.csv").read_text().split("\n"))))
    with pytest.raises(rk.InputError, match=f"site va: its data is not what it was when the run began.*{sentence}"):
        start()


def test_a_site_that_was_not_there_is_named(tmp_path):
    names = load("heart").owners
    experiment = Experiment("classify", made("classify", data="heart"), "m", rk.FedAvg(lr=rk.Rates(0.01)), CLASSIFY)
    start = lambda names: serve(
        tmp_path / "server",
        sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names}),
        experiment,
        told={"run": "r"},
    )
    start(names[:3])
    (tmp_path / "server" / "result.json").unlink()
    with pytest.raises(rk.InputError, match="site va: it did not take part when the run began; leave it out"):
        start(names)
    with pytest.raises(rk.InputError, match="site switzerland: it took part when the run began, and is not there now"):
        start(names[:2])


def test_a_site_is_told_of_others_only_how_many_training_examples_they_have(tmp_path):
    names = load("heart").owners
    experiment = Experiment("classify", made("classify", data="heart"), "m", rk.FedAvg(lr=rk.Rates(0.01)), CLASSIFY)
    transport = sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names})
    serve(tmp_path / "server", transport, experiment, told={"run": "r"})
    held = {name: read_holding(f"heart#{name}").facts() for name in names}
    for number, name in enumerate(names):
        (path,) = (tmp_path / name / "records").rglob("joined.json")
        told = json.loads(json.loads(path.read_text())["told"])["outline"]
        assert not any(other in path.read_text() for other in names if other != name)
        assert told["names"][number] == name and told["test"][number] == held[name]["test"]
        assert told["train"] == [held[each]["train"] for each in names]
        assert [size for place, size in enumerate(told["test"]) if place != number] == [1, 1, 1]


def test_names_that_the_task_has_are_kept_in_an_outline():
    good = read_holding("heart#va").facts()
    outline = Outline.of({"a": good, "b": good, "site 1": good})
    assert outline.seen_by("a").names == ("a", "site 1'", "site 2") and outline.seen_by("a").train == outline.train
    assert outline.seen_by("a", ("b",)).names == ("a", "b", "site 2")


def test_a_sites_log_says_what_it_did(tmp_path, capfd):
    names = load("heart").owners
    experiment = Experiment("classify", made("classify", data="heart"), "m", rk.FedAvg(lr=rk.Rates(0.01)), CLASSIFY)
    transport = sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names})
    serve(tmp_path / "server", transport, experiment, told={"run": "r"})
    log = capfd.readouterr().err
    assert "info: va: joined run r: classify with m, 3 rounds; clients here: 3" in log
    assert "info: va: run r has ended; this process sent 7 replies" in log  # three rounds and four measurements
    assert not reports_problem(log.encode()) and reports_problem(log.encode() + b"Traceback\n")


def test_sites_that_are_not_alike_are_refused(tmp_path):
    good = read_holding("heart#va").facts()
    for change, sentence in (
        ({"columns": ["age"], "mean": [1.0], "squares": [1.0]}, "do not have the same columns"),
        ({"train": "many"}, "does not say how many examples"),
        ({"mean": [float("nan")] * len(good["columns"])}, "its mean cannot be"),
        ({"classes": [0.5]}, "does not say its classes"),
    ):
        with pytest.raises(rk.InputError, match=sentence):
            Outline.of({"a": good, "b": good | change})
    with pytest.raises(rk.InputError, match="two or more classes of one kind"):
        Outline.of({"a": good | {"classes": [1]}})


OF_A_TABLE = {"label": "ill", "checked": "", "scaling": "pooled"}
IMPOSSIBLE = {
    "more digits than a float has": ({"mean": 10**400}, "column 'age': its mean cannot be"),
    "beyond single precision": ({"mean": 1e39}, "column 'age': its mean cannot be"),
    "infinite": ({"squares": float("inf")}, "column 'age': its squares cannot be"),
    "negative squares": ({"squares": -1.0}, "column 'age': its squares cannot be; a number from 0 to"),
    "a flag": ({"mean": True}, "column 'age': its mean cannot be"),
    "another unit": ({"mean": 1e6}, "column 'age' of site 'liar' has mean 1e.06 .* check the column's unit"),
    "large squares": ({"squares": 1e18}, "column 'age' of site 'liar' has mean .* check the column's unit"),
    "one example that deviates": ({"train": 1}, "one example has no deviation"),
    "too many examples": ({"train": 10**9 + 1}, "how many examples it has"),
    "no tests": ({"test": 0}, "how many examples it has"),
    "half an example": ({"train": 10.5}, "how many examples it has"),
    "columns twice": ({"columns": ["age", "age"]}, "does not say its columns"),
    "a column with an escape": ({"columns": ["age", "b\x1b[2J"]}, "does not say its columns"),
    "a column with a surrogate": ({"columns": ["age", "\ud800"]}, "does not say its columns"),
    "a long column": ({"columns": ["age", "b" * 2000]}, "does not say its columns"),
    "a class with a line break": ({"classes": ["a\nb", "c"]}, "does not say its classes"),
    "more classes than examples": ({"classes": list(range(100))}, "does not say its classes"),
    "a class with 400 digits": ({"classes": [0, 10**400]}, "does not say its classes"),
    "classes that are lists": ({"classes": [[0], [1]]}, "does not say its classes"),
    "a label that is a number": ({"label": 3}, "must give its label as the name of a column"),
    "a checked column with an escape": ({"checked": "\x1b[2J"}, "must give its checked as the name of a column"),
    "an unknown scaling": ({"scaling": "magic"}, "must give its scaling as one of"),
    "means without their scaling": ({"scaling": "none"}, "must not give means or squares"),
}


@pytest.mark.parametrize(("change", "sentence"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_facts_that_cannot_be_are_refused_by_name(change, sentence):
    """A mean of 1e6 at one site, or negative squares, spoilt the inputs of all others, and the run said `done`."""
    honest = {"train": 30, "test": 8, "columns": ["age", "b"], "classes": [0, 1], "mean": [50.0, 0.0]} | OF_A_TABLE
    honest |= {"squares": [3000.0, 30.0]}
    assert Outline.of({"a": honest, "b": honest, "liar": honest}).train == (30, 30, 30)
    change = {name: [value, 0.0] if name in ("mean", "squares") else value for name, value in change.items()}
    with pytest.raises(rk.InputError, match="site 'liar'") as caught:
        Outline.of({"a": honest, "b": honest, "liar": honest | change})
    assert re.search(sentence, str(caught.value)) and str(caught.value).isprintable()


def test_a_column_that_is_one_number_at_all_other_sites_may_vary_at_one():
    facts = {
        "train": 30,
        "test": 8,
        "columns": ["rare"],
        "classes": [0, 1],
        "mean": [0.0],
        "squares": [0.0],
    } | OF_A_TABLE
    assert Outline.of({"a": facts, "b": facts, "c": facts | {"mean": [0.1], "squares": [2.0]}}).std[0] > 0


def liars(monkeypatch, tmp_path, **lies):
    """Two sites with data of their own, one of which lies in its greeting, and its experiment."""
    experiment = Experiment("classify", made("classify", data="heart"), "m", rk.FedAvg(lr=rk.Rates(0.1)), CLASSIFY)
    names = ("cleveland", "va")
    transport = sites_of(experiment, tmp_path, names, {name: f"heart#{name}" for name in names})
    hello = Site._hello

    def lying(self, header):
        said = hello(self, header)
        return said | {name: lie(said) for name, lie in lies.items()} if self.name == "va" else said

    monkeypatch.setattr(Site, "_hello", lying)
    return transport, experiment


def test_more_examples_than_memory_are_refused_before_any_row_is_made(monkeypatch, tmp_path):
    """A site that said 10**9 made every party take 37 GiB of blank rows; the labels alone would be too many."""
    monkeypatch.setattr("rookery.memory.available", lambda: 2**34)
    monkeypatch.setattr(Outline, "dataset", lambda *given: pytest.fail("rows are made"))

    def lie(said):
        """As many examples, as far from their mean as the true ones."""
        facts = said["facts"]
        return facts | {"train": 10**9, "squares": [n * 10**9 / facts["train"] for n in facts["squares"]]}

    transport, experiment = liars(monkeypatch, tmp_path, facts=lie)
    with pytest.raises(
        rk.InputError,
        match=r"site va: examples: 1000000000 was given; each party.s list of labels and places takes .* GiB",
    ):
        serve(tmp_path / "server", transport, experiment)


def test_a_site_that_outweighs_all_others_is_named(monkeypatch, tmp_path):
    transport, experiment = liars(monkeypatch, tmp_path, facts=lambda said: said["facts"] | {"train": 30_000})
    said = []
    with pytest.raises(rk.InputError, match=r"its log says why"):
        serve(tmp_path / "server", transport, experiment, say=said.append)
    assert any("site va says that it has 30000 of" in sentence for sentence in said)


BAD = "\x1b[2J\ud800\n=1+1"


@pytest.mark.parametrize(
    ("lies", "sentence"),
    [
        ({"name": BAD}, "it says that it is"),
        ({"name": [1]}, "it says that it is 'list'"),
        ({"configuration": {"task": 1}}, "it has another configuration than the server"),
        ({"configuration": {BAD: "x"}}, "it has another configuration than the server"),
        ({"facts": [BAD]}, "a site does not say how much it has"),
        ({"refused": BAD}, "2J"),
    ],
)
def test_a_greeting_with_strange_text_is_one_clean_sentence(lies, sentence, monkeypatch, tmp_path):
    transport, experiment = liars(monkeypatch, tmp_path, **{name: lambda said, v=v: v for name, v in lies.items()})
    with pytest.raises(rk.InputError, match=sentence) as caught:
        serve(tmp_path / "server", transport, experiment)
    assert str(caught.value).isprintable()


def test_versions_with_strange_text_are_said_clean(monkeypatch, tmp_path):
    transport, experiment = liars(monkeypatch, tmp_path, versions=lambda said: {"python": BAD, "jax": 10**400})
    said = []
    serve(tmp_path / "server", transport, experiment, say=said.append)
    assert all(sentence.isprintable() for sentence in said) and any("has jax int" in sentence for sentence in said)


def test_an_agreement_that_is_none_is_refused_by_name(monkeypatch, tmp_path):
    transport = sites_of(SCAFFOLD, tmp_path)
    join = Site._join
    for lie in ({"method": 1}, [], {BAD: "x"}, None):
        given = lambda self, header, lie=lie: join(self, header) | ({"agreement": lie} if self.name == "site-2" else {})
        monkeypatch.setattr(Site, "_join", given)
        with pytest.raises(rk.InputError, match="site site-2: it makes another run of the configuration"):
            serve(tmp_path / "server", transport, SCAFFOLD)


@pytest.mark.parametrize(
    "content", ["", "{", "7", "[]", '{"told": {}}', '{"told": "{}", "checksum": "0"}', "[" * 10**5]
)
def test_a_site_whose_joined_json_is_damaged_joins_again(content, tmp_path):
    """It was refused in every round, for ever."""
    transport = sites_of(SCAFFOLD, tmp_path)
    serve(tmp_path / "server", transport, SCAFFOLD, told={"run": "r"})
    (joined,) = (tmp_path / "site-2").rglob("joined.json")
    joined.write_text(content)
    again = Site(tmp_path / "configuration", tmp_path / "site-2", "site-2")
    header = Wire().header(again.receive(Wire().encode((), {"asked": "phase", "run": "r", "client": 1})))
    assert header["need"] == "join", header


def test_a_function_gives_a_sites_own_data(tmp_path, monkeypatch):
    (tmp_path / "registry_of_ours.py").write_text(
        "import numpy as np\n"
        "def patients():\n"
        "    rng = np.random.default_rng(0)\n"
        "    return {'input': rng.normal(size=(20, 3)), 'label': np.arange(20) % 2}\n"
        "def nothing():\n"
        "    return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    held = read_holding("registry_of_ours:patients")
    assert held.train["input"].shape == (16, 3) and len(held.test["label"]) == 4
    with pytest.raises(rk.InputError, match="gives int; a table with columns by name is needed"):
        read_holding("registry_of_ours:nothing")
    for source, sentence in (
        ("registry_of_ours:absent", "when it is read, fails"),
        ("nonsense", "a site's own data is csv:FILE, NAME#CLIENT"),
        ("csv:/not/there.csv", "the csv file of one site is needed"),
        ("heart#bonn", "'bonn' is not known"),
    ):
        with pytest.raises(rk.InputError, match=sentence):
            read_holding(source)


# Messages.


@pytest.fixture
def joined(tmp_path):
    transport = sites_of(SCAFFOLD, tmp_path)
    kept: list[bytes] = []
    ask = transport.ask
    transport.ask = lambda requests, deadline: kept.extend(r.body for r in requests) or ask(requests, deadline)
    found = serve(tmp_path / "server", transport, SCAFFOLD, told={"run": "r"})
    same(found, alone(SCAFFOLD))
    return transport.all[0], kept


def test_whatever_a_site_is_sent_it_answers_in_a_sentence(joined):
    """Messages that are cut, changed and forged: no crash, and nothing of its record changes."""
    site, kept = joined
    rng, wire = np.random.default_rng(0), Wire()
    before = [version.attempt for version in site._workers[0].versions.all]
    for number in range(3000):
        body = bytearray(kept[rng.integers(len(kept))])
        if number % 3 == 0:
            body = body[: rng.integers(len(body))]
        elif number % 3 == 1:
            body[rng.integers(len(body))] ^= int(rng.integers(1, 256))
        else:  # sealed anew, so that what is inside is read
            opened = wire.open(bytes(body))
            name = rng.choice(list(opened.header))
            value = [None, -1, 7, "x", [], {}, [1, 2], 1e300, True][rng.integers(9)]
            described = json.dumps({"header": opened.header | {name: value}, "tree": opened.tree}).encode()
            body = bytearray(seal(described, opened.arrays))
        said = wire.header(site.receive(bytes(body)))
        assert isinstance(said, dict)
        if REFUSED in said:
            assert isinstance(said[REFUSED], str) and len(said[REFUSED]) < 500
    assert [version.attempt for version in site._workers[0].versions.all] == before


@pytest.mark.parametrize("phase", ["nothing", "__init__", "_hidden", "steps.more", 7])
def test_a_phase_that_is_none_is_refused(joined, phase):
    site, kept = joined
    wire = Wire()
    asked = next(body for body in kept if wire.header(body).get("asked") == "phase")
    opened = wire.open(asked)
    header = opened.header | {"phase": phase, "attempt": [99, 0, "s"], "builds_on": None}
    described = json.dumps({"header": header, "tree": opened.tree}).encode()
    said = wire.header(site.receive(seal(described, opened.arrays)))
    assert REFUSED in said


def test_what_differs_is_named(tmp_path):
    experiment = SCAFFOLD
    write_configuration(experiment, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    ours = common(config)
    assert common(config | {"keep": 7, "checkpoint_every": "9s"}) == ours, "what no number depends on is not compared"
    for key, part in (("seed", "set of options"), ("task", "task"), ("task_source", "code of the task")):
        theirs = common(config | {key: "other"})
        assert [name for name in ours if ours[name] != theirs[name]] == [part]


def test_an_outline_that_is_none_is_refused():
    with pytest.raises(rk.InputError, match="it does not say who there is"):
        Outline.from_json({"names": ["a"]})


def test_policies_of_python(tmp_path):
    with pytest.raises(rk.InputError, match="transport: 'pigeon' is not known"):
        rk.federated(rk.tasks.HyperRep(), rk.SimFBO(lr=0.1), out=tmp_path / "a", transport="pigeon")
    with pytest.raises(rk.InputError, match="sites: 0 was given"):
        rk.federated(rk.tasks.HyperRep(), rk.SimFBO(lr=0.1), out=tmp_path / "a", sites=0)
    with pytest.raises(rk.InputError, match="options: 'tempo' is not known"):
        rk.federated(rk.tasks.HyperRep(), rk.SimFBO(lr=0.1), out=tmp_path / "a", tempo=1)
    assert OnFailure("drop", minimum=2).minimum == 2 and not (tmp_path / "a").exists()
    assert issubclass(MessageError, rk.InputError)


# Folders.


def test_a_folder_is_of_one_run(tmp_path):
    transport = sites_of(SCAFFOLD, tmp_path)
    serve(tmp_path / "server", transport, SCAFFOLD, told={"run": "r"})
    other = exact(*CASES["E1a scaffold"], rounds=9)
    with pytest.raises(rk.InputError, match="holds a run with another set of options; give a new or empty folder"):
        serve(tmp_path / "server", transport, other)
    with pytest.raises(rk.InputError, match="is there already; give a new or empty folder"):
        rk.federated(rk.tasks.HyperRep(), rk.SimFBO(lr=0.1), out=tmp_path / "server")
    alone_there = Experiment("hyperrep", made("hyperrep"), "SimFBO", rk.SimFBO(lr=rk.Rates(0.1)), Options(rounds=2))
    launch(alone_there, tmp_path / "alone")
    with pytest.raises(rk.InputError, match="holds a run with another task; give a new or empty folder"):
        serve(tmp_path / "alone", transport, SCAFFOLD)


def test_an_interrupt_when_all_is_done_takes_nothing_away(tmp_path, monkeypatch):
    def late(*given):
        finish(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(federation, "finish", late)
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path / "server", sites_of(SCAFFOLD, tmp_path), SCAFFOLD, told={"run": "r"})
    assert (tmp_path / "server" / "result.json").is_file()


def test_a_run_that_aborts_keeps_what_was_done(tmp_path):
    transport = sites_of(SCAFFOLD, tmp_path)
    ask, count = transport.ask, [0]

    def failing(requests, deadline):
        outcome = ask(requests, deadline)
        count[0] += 1
        return Outcome({0: outcome.replies[0]}, {1: "the line is dead", 2: "too"}) if count[0] == 5 else outcome

    transport.ask = failing
    with pytest.raises(ClientsFailed, match="client 1 did not answer: the line is dead, and 1 more"):
        serve(tmp_path / "server", transport, SCAFFOLD, told={"run": "r"})
    assert latest_round(tmp_path / "server" / "checkpoints") == 2
    assert "the line is dead" in (tmp_path / "server" / "missing.csv").read_text()
    same(serve(tmp_path / "server", transport, SCAFFOLD), alone(SCAFFOLD))


def test_a_federation_is_not_gone_on_with_on_one_machine(tmp_path):
    serve(tmp_path / "server", sites_of(SCAFFOLD, tmp_path), SCAFFOLD, told={"run": "r", "transport": "nvflare"})
    (tmp_path / "server" / "result.json").unlink()
    with pytest.raises(rk.InputError, match="is of a federation on nvflare, which starts its sites"):
        rk.resume(tmp_path / "server")


@pytest.mark.parametrize(("clients", "sites"), [(12, None), (3, 2)])
def test_how_many_processes_are_started(clients, sites):
    experiment = Experiment("hyperrep", made("hyperrep"), "m", rk.SimFBO(lr=0.1), Options(clients=clients))
    assert len(sources_of(experiment, sites)) == (sites or 3)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("A B", "A_B"), "'A B' and 'A_B' would share the folder 'A_B'; rename one"),
        (("north", "North"), "'north' and 'North' would share the folder"),
        (("a\x1b[2J", "b"), "cannot name a site"),
        (("\ud800", "b"), "cannot name a site"),
        (("", "b"), "cannot name a site"),
        (("=1+1", "b"), "cannot name a site"),
        (("x" * 101, "b"), "cannot name a site"),
    ],
)
def test_names_of_sites_are_folders_of_their_own(names, sentence, tmp_path):
    for make in (
        lambda: loopback.federate(SCAFFOLD, tmp_path / "run", dict.fromkeys(names)),
        lambda: flower.write_app(SCAFFOLD, tmp_path / "app", dict.fromkeys(names), OnFailure(), "run"),
    ):
        with pytest.raises(rk.InputError, match=re.escape(sentence)):
            make()
    assert not list(tmp_path.rglob("site.json"))


def test_names_of_folders_stay_inside():
    for name in ("..", ".", "__", "", "/", "../..", "...", "\0", "\ud800", "a/../b"):
        made = slug(name)
        assert made.strip(".") and "/" not in made and Path("x", made).resolve().parent == Path("x").resolve(), name
        made.encode()
    long = [slug("x" * 400 + end) for end in "ab"]
    assert len({*long}) == 2 and all(len(name) <= 100 for name in long)
    assert slug("A B") == "A_B" and slug("SimFBO-lr=0.1") == "SimFBO-lr=0.1"


def test_resume_says_which_functions_a_folder_has_it_call(tmp_path, capsys):
    """A folder from somebody else named any MODULE:FUNCTION, and resume called it without a word."""
    experiment = Experiment("classify", made("classify", data="heart"), "fedavg", rk.FedAvg(lr=rk.Rates(0.1)), CLASSIFY)
    sites = {"va": "heart#va", "bonn": "not_there_at_all:patients", "essen": "csv:/data/essen.csv"}
    told = {"run": "r", "transport": "loopback", "sites": sites, "on_failure": vars(OnFailure())}
    write_configuration(experiment, tmp_path / "run", {FEDERATION: told})
    main(["resume", str(tmp_path / "run")])
    said = " ".join(capsys.readouterr().out.split())
    assert "site bonn calls not_there_at_all:patients" in said
    assert "va calls" not in said and "essen calls" not in said
