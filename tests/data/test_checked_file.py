"""Checked records that a csv file names, in place of a column of the tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rookery as rk
from rookery.cli import main
from rookery.data.catalogue import load_with
from rookery.data.own_tables import TableOptions
from rookery.data.schema import schema_of
from rookery.data.sites import Outline, read_holding
from rookery.errors import InputError

LINES = ["site,row", "north,1", "north,4", "south,2", "south,20"]


@pytest.fixture
def sites(tmp_path):
    """Two csv files whose first column is the number of the row, and a file of checked records."""
    folder = tmp_path / "sites"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for place, name in enumerate(("north", "south")):
        rows = [f"{row},{rng.normal() + place:.6f},{row % 2}" for row in range(1, 41)]
        (folder / f"{name}.csv").write_text("\n".join(["number,a,label", *rows]) + "\n")
    (tmp_path / "audit.csv").write_text("\n".join(LINES) + "\n")
    return tmp_path


def checked_rows(part, owner, number):
    rows = part["input"][owner == number, 0].astype(int)
    return set(rows[part["checked"][owner == number] > 0].tolist())


def read(sites, **options):
    options = {"checked": str(sites / "audit.csv"), "standardise": "none"} | options
    return load_with(f"csv:{sites / 'sites'}", TableOptions(**options))


@pytest.mark.parametrize("inside", [False, True], ids=["beside the folder", "inside the folder"])
def test_the_named_records_are_checked_and_no_others(inside, sites):
    path = sites / "audit.csv"
    if inside:
        path = path.rename(sites / "sites" / "audit.csv")
    data = read(sites, checked=str(path))
    assert data.owners == ("north", "south") and data.columns == ("number", "a")
    for number, rows in enumerate(({1, 4}, {2, 20})):
        train, test = checked_rows(data.train, data.owner, number), checked_rows(data.test, data.test_owner, number)
        assert train | test == rows


def test_a_changed_file_is_read_again(sites):
    read(sites)
    (sites / "audit.csv").write_text("\n".join([*LINES, "north,7"]) + "\n")
    data = read(sites)
    assert checked_rows(data.train, data.owner, 0) | checked_rows(data.test, data.test_owner, 0) == {1, 4, 7}


def test_a_site_takes_its_own_lines_and_states_as_much_as_the_others(sites):
    options = TableOptions(checked=str(sites / "audit.csv"), standardise="none")
    held = {name: read_holding(f"csv:{sites}/sites/{name}.csv", options) for name in ("north", "south")}
    south = held["south"]
    rows = {
        int(row)
        for part in (south.train, south.test)
        for row in part["input"][part["checked"] > 0][:, south.columns.index("number")]
    }
    assert rows == {2, 20} and {own.checked for own in held.values()} == {"checked by audit.csv"}
    outline = Outline.of({name: json.loads(json.dumps(own.facts())) for name, own in held.items()})
    assert outline.checked == ("checked by audit.csv",) * 2
    found = outline.dataset("csv:x", {"south": south})
    assert found.train["checked"][found.owner == 1].sum() == south.train["checked"].sum()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["site,row", "west,1"], r"line 2: there is no site 'west'; sites are 'north', 'south'\."),
        (["site,row", "north,41"], r"line 2: row must be a number from 1 to 40, or 0 for none; got 41\."),
        (["site,row", "north,-1"], r"line 2: row must be a number from 1 to 40, or 0 for none; got -1\."),
        (["site,row", "north,3", "north,2.5"], r"line 3: row must be a number .* got 2.5\."),
        (["site,row", "north,3", "north,"], r"line 3: row must be a number .* got nan\."),
        (["site,row", "north,3", "north,x"], r"line 3: row must be a number .* got x\."),
        (["site,row", "north,3", "north,3"], r"line 3: row 3 of 'north' is named twice"),
        (["site,row", "north,3", "north,0"], r"line 3: row 0 of 'north' is named twice, or beside row 0"),
        (["row", "3"], r"has no column 'site', and there are 2 tables; add it\."),
        (["site,line", "north,3"], r"has a column 'line'; 'row' and 'site' are allowed\."),
        (["site", "north"], r"has no column 'row'; give the number of each checked record\."),
    ],
)
def test_a_file_that_does_not_name_records_is_refused(lines, sentence, sites):
    (sites / "audit.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=sentence):
        read(sites)


def test_a_site_that_the_file_does_not_name_is_refused_and_row_0_says_none(sites):
    options = TableOptions(checked=str(sites / "audit.csv"))
    (sites / "audit.csv").write_text("site,row\nNorth,1\nsouth,2\n")
    with pytest.raises(
        InputError, match=r"does not name the site 'north'; it names 'North', 'south'\. Name the site as"
    ):
        read_holding(f"csv:{sites}/sites/north.csv", options)
    (sites / "audit.csv").write_text("site,row\nnorth,0\nsouth,2\n")
    held = read_holding(f"csv:{sites}/sites/north.csv", options)
    assert not held.train["checked"].any() and not held.test["checked"].any()


def test_a_folder_with_nothing_but_the_file_holds_no_table(tmp_path):
    (tmp_path / "audit.csv").write_text("row\n1\n")
    with pytest.raises(InputError, match="holds no csv file; one per client is needed"):
        load_with(f"csv:{tmp_path}", TableOptions(checked=str(tmp_path / "audit.csv")))


def test_a_missing_file_and_a_schema_are_refused(sites):
    with pytest.raises(InputError, match=r"checked: no file '.*gone.csv'; name a column, or a csv file"):
        read(sites, checked=str(sites / "gone.csv"))
    table = {"number": np.arange(1, 41), "a": np.arange(40.0), "label": np.arange(40) % 2}
    for load in (read, lambda sites, **options: read_holding(f"csv:{sites}/sites/north.csv", TableOptions(**options))):
        with pytest.raises(InputError, match=r"was given with a schema; give the tables a column of 0 and 1 instead"):
            load(sites, checked=str(sites / "audit.csv"), schema=schema_of(table, "label"))


def test_trust_learns_from_the_records_of_a_file(sites, monkeypatch, capsys):
    """The path is one of the working directory."""
    (sites / "audit.csv").write_text(
        "\n".join(["site,row", *(f"{s},{r}" for s in ("north", "south") for r in range(1, 21))])
    )
    monkeypatch.chdir(sites)
    task = rk.tasks.Trust(data="csv:sites", checked="audit.csv")
    clients = task.assemble(rk.data.Natural(), 2, seed=0).clients
    dataset = load_with("csv:sites", TableOptions(checked="audit.csv"))
    own = clients.client(0)
    np.testing.assert_array_equal(own["fixed"][:, 5] > 0, dataset.train["checked"][dataset.owner == 0] > 0)
    command = ["run", "trust", "simfbo", "--task.data", "csv:sites", "--task.checked", "audit.csv", "--rounds", "1"]
    assert main([*command, "--out", "out"]) == 0
    (sites / "audit.csv").unlink()
    assert main([*command, "--out", "other"]) == 2
    assert "task.checked: no file 'audit.csv'" in capsys.readouterr().err.replace("\n", " ")
