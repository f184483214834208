"""Tables of people's own: matched by name, and every way to be wrong has its sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import rookery as rk
from rookery.data.tables import read_csv, read_folder

ALL = pd.DataFrame(
    {
        "site": ["A", "A", "A", "B", "B"],
        "age": [40, 50, 45, 60, 70],
        "bp": [1.5, 2.0, 1.0, 3.0, 2.5],
        "ill": [0, 1, 1, 1, 0],
    }
)
A, B = (frame.drop(columns="site") for _, frame in ALL.groupby("site"))


def test_one_table_of_all():
    clients = rk.federate(ALL, by="site", label="ill")
    assert clients.names == ("A", "B") and clients.columns == ("age", "bp") and clients.classes == (0, 1)
    np.testing.assert_array_equal(clients.client(0)["input"], [[40, 1.5], [50, 2], [45, 1]])
    np.testing.assert_array_equal(clients.client(1)["label"], [1, 0])
    assert repr(clients) == "Clients(2 clients, 5 examples, 2 to 3 each, weights by size, 0.4 to 0.6)"


FORMS = {
    "frames by name": lambda: rk.federate({"A": A, "B": B}, label="ill"),
    "grouped": lambda: rk.federate(ALL.groupby("site"), label="ill", columns=["age", "bp"]),
    "columns in another order": lambda: rk.federate({"A": A, "B": B[["ill", "bp", "age"]]}, label="ill"),
    "a mapping of columns": lambda: rk.federate({name: list(ALL[name]) for name in ALL}, by="site", label="ill"),
    "mappings by name": lambda: rk.federate({"A": dict(A), "B": dict(B)}, label="ill"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_same_tables(form):
    clients, same = FORMS[form](), rk.federate(ALL, by="site", label="ill")
    assert (clients.names, clients.columns, clients.classes) == (same.names, same.columns, same.classes)
    for i in range(2):
        np.testing.assert_array_equal(clients.client(i)["input"], same.client(i)["input"])
        np.testing.assert_array_equal(clients.client(i)["label"], same.client(i)["label"])


def test_a_list_of_frames_and_pytrees_by_name():
    assert rk.federate([A, B], label="ill").names == ("0", "1")
    clients = rk.federate({"mine": {"a": np.ones(3)}, "yours": {"a": np.zeros(2)}})
    assert clients.names == ("mine", "yours") and clients.sizes.tolist() == [3, 2]
    assert clients.subset([1]).names == ("yours",)


def test_categories_are_alike_at_all_clients():
    tables = {"A": {"cp": ["x", "y"], "ill": ["no", "yes"]}, "B": {"cp": ["z", "x"], "ill": ["yes", "yes"]}}
    clients = rk.federate(tables, label="ill", categories=["cp"])
    assert clients.columns == ("cp=x", "cp=y", "cp=z") and clients.classes == ("no", "yes")
    np.testing.assert_array_equal(clients.client(1)["input"], [[0, 0, 1], [1, 0, 0]])
    same = rk.federate(tables, label="ill", categories=True)
    np.testing.assert_array_equal(same.client(0)["input"], clients.client(0)["input"])


def test_a_label_that_is_no_class_is_a_number():
    clients = rk.federate({"A": {"x": [1, 2], "t": [0.5, 1.25]}}, label="t")
    assert clients.classes == () and clients.client(0)["label"].tolist() == [0.5, 1.25]


def test_rows_with_empty_cells_are_dropped_on_request():
    table = {"x": [1.0, np.nan, 3.0], "y": ["a", "b", None], "ill": [0, 1, 1]}
    clients = rk.federate({"A": table, "B": {"x": [1, 2], "y": ["a", "b"], "ill": [1, 0]}}, label="ill", categories=["y"],
                          missing="drop")  # fmt: skip
    assert clients.sizes.tolist() == [1, 2]


def test_own_parts_for_validation_and_test():
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(3, 2, 100), "one": np.ones(100), "ill": rng.integers(0, 2, 100)}
    clients = rk.federate({"A": table}, label="ill", test=0.3, validation=0.2, standardise=True)
    lower, upper, test = clients.client(0).lower, clients.client(0).upper, clients.own_test(0)
    assert len(test["label"]) == 30 and len(upper["label"]) == 14 and len(lower["label"]) == 56
    np.testing.assert_allclose(lower["input"].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(lower["input"].std(axis=0), [1, 0], atol=1e-12)
    every = np.concatenate([part["input"][:, 0] for part in (lower, upper, test)])
    assert len(np.unique(every)) == 100  # all different: none is in two parts
    again = rk.federate({"A": table}, label="ill", test=0.3, validation=0.2, standardise=True)
    np.testing.assert_array_equal(again.own_test(0)["input"], test["input"])
    given = rk.federate([{"a": np.ones(3)}], test=[{"a": np.zeros(2)}])
    assert given.own_test(0)["a"].tolist() == [0, 0] and given.subset([0]).own_test(0)["a"].size == 2


NAN, INF = np.nan, np.inf
WRONG = {
    "a missing column": (({"A": A, "B": B.drop(columns="bp")}, {"label": "ill"}), "client 'B' has no column 'bp', which client 'A' has"),
    "another column": (({"A": A, "B": B.assign(sex=1)}, {"label": "ill"}), "client 'B' has the column 'sex', which client 'A' has not"),
    "no label at a client": (({"A": A, "B": B.drop(columns="ill")}, {"label": "ill"}), "client 'B' has no column 'ill'"),
    "no such label": ((ALL, {"by": "site", "label": "il"}), "label: 'il' was given, and client 'A' has no such column (did you mean 'ill'?)"),
    "no such by": ((ALL, {"by": "sites", "label": "ill"}), "by: 'sites' was given, and the table has no such column (did you mean 'site'?)"),
    "no by": ((ALL, {"label": "ill"}), "by: none was given; one table of all clients needs the column"),
    "by with many tables": (({"A": A, "B": B}, {"by": "ill"}), "by: 'ill' was given with a table for each client; it is for one table of all"),
    "an empty by": ((ALL.assign(site=["A", None, "A", "B", "B"]), {"by": "site", "label": "ill"}), "by: column 'site' is empty in row 1"),
    "texts": ((ALL.assign(bp=["x", "y", "x", "z", "y"]), {"by": "site", "label": "ill"}), "client 'A', column 'bp' holds 'x' in 3 rows (0, 1, 2); make numbers of it, or give categories=['bp']"),
    "a text among numbers": ((ALL.assign(bp=[1, 2, "3?", 4, 5]), {"by": "site", "label": "ill"}), "client 'A', column 'bp' holds '3?' in row 2"),
    "NaN": ((ALL.assign(age=[40, NAN, NAN, 1, 2]), {"by": "site", "label": "ill"}), "client 'A', column 'age' is empty in 2 rows (1, 2); fill the cells, or give missing="),
    "None": (({"A": {"x": [1, None], "ill": [0, 1]}}, {"label": "ill"}), "client 'A', column 'x' is empty in row 1"),
    "an empty label": ((ALL.assign(ill=[0, 1, NAN, 1, 0]), {"by": "site", "label": "ill"}), "client 'A', column 'ill' is empty in row 2"),
    "infinite": ((ALL.assign(bp=[1, INF, 1, 1, 1]), {"by": "site", "label": "ill"}), "client 'A', column 'bp' is infinite in row 1; all must be finite"),
    "dates": ((ALL.assign(bp=pd.date_range("2020", periods=5)), {"by": "site", "label": "ill"}), "column 'bp' holds dates; make numbers of them"),
    "a label outside": ((ALL, {"by": "site", "label": "ill", "classes": [0, 2]}), "label: client 'A', column 'ill' holds 1 in 2 rows (1, 2); the classes are 0, 2"),
    "one class": ((ALL.assign(ill=1), {"by": "site", "label": "ill"}), "label: column 'ill' has one class only, 1; at least two are needed"),
    "one class given": ((ALL, {"by": "site", "label": "ill", "classes": [1]}), "one class only, 1"),
    "a class twice": ((ALL, {"by": "site", "label": "ill", "classes": [0, 1, 1]}), "classes: [0, 1, 1] was given; name each once"),
    "labels of two kinds": (({"A": {"x": [1, 2], "t": ["a", 1]}}, {"label": "t"}), "label: column 't' holds numbers and the text 'a'; one kind is needed"),
    "an infinite target": (({"A": {"x": [1, 2], "t": [0.5, INF]}}, {"label": "t"}), "label: client 'A', column 't' is infinite in row 1"),
    "no such column": ((ALL, {"by": "site", "label": "ill", "columns": ["ages"]}), "columns: 'ages' was given, and client 'A' has no such column (did you mean 'age'?)"),
    "a column twice": ((ALL, {"by": "site", "label": "ill", "columns": ["age", "age"]}), "columns: 'age' was given twice"),
    "the label as input": ((ALL, {"by": "site", "label": "ill", "columns": ["ill"]}), "columns: 'ill' is the label; it cannot be an input"),
    "only a label": ((ALL[["site", "ill"]], {"by": "site", "label": "ill"}), "columns: there are none but the label"),
    "no such category": ((ALL, {"by": "site", "label": "ill", "categories": ["sex"]}), "categories: 'sex' was given, which is no input"),
    "a category as text": ((ALL, {"by": "site", "label": "ill", "categories": "age"}), "categories: 'age' was given; a list of columns is needed"),
    "missing": ((ALL, {"by": "site", "label": "ill", "missing": "mean"}), "missing: 'mean' was given; allowed are refuse and drop"),
    "nothing left": ((ALL.assign(bp=[NAN, NAN, NAN, 1, 2]), {"by": "site", "label": "ill", "missing": "drop"}), "client 'A' has no row left: column 'bp' is empty in all rows"),
    "no rows": (({"A": A, "B": B.iloc[:0]}, {"label": "ill"}), "client 'B' has no rows; every client needs at least one"),
    "no columns": (({"A": pd.DataFrame()}, {"label": "ill"}), "client 'A' has no columns"),
    "no clients": (({}, {"label": "ill"}), "data: no client was given"),
    "two of a name": ((pd.DataFrame(np.ones((2, 2)), columns=["a", "a"]), {"by": "a"}), "data: data has the column 'a' twice"),
    "a column without a name": ((pd.DataFrame(np.ones((2, 2))), {"by": "a"}), "has the column 0; names of columns are texts"),
    "lengths": (({"A": {"x": [1, 2], "t": [1]}}, {"label": "t"}), "client 'A' has columns of different lengths, x 2, t 1"),
    "columns in columns": (({"A": {"x": [[1, 2]], "t": [1]}}, {"label": "t"}), "column 'x' has shape (1, 2); one value per row is needed"),
    "no table": (({"A": A, "B": 3}, {"label": "ill"}), "client 'B' is int; a table with columns by name is needed"),
    "a test that is none": ((ALL, {"by": "site", "label": "ill", "test": 1.5}), "test: 1.5 was given; a number strictly between 0 and 1 is needed"),
    "a test of too few": (({"A": A, "B": B.iloc[:1]}, {"label": "ill", "test": 0.5}), "test: 0.5 was given, and client 'B' has 1 examples; two are needed"),
    "pytrees": (([{"a": np.ones(2)}], {"missing": "drop"}), "missing: it was given, and the clients hold pytrees; it is for tables"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_has_its_sentence(name):
    (data, options), sentence = WRONG[name]
    with pytest.raises(rk.InputError) as raised:
        rk.federate(data, **options)
    assert sentence in str(raised.value), str(raised.value)
    assert "\n" not in str(raised.value)


FILES = {
    "no header": ("1,2\n3,4\n", "begins with numbers; its first line must name the columns"),
    "one line": ("a,b\n", "has 1 lines; a header and at least one row are needed"),
    "ragged": ("a,b\n1,2\n1\n", "row 1 of .* has 1 cells and its header 2"),
    "twice": ("a,a\n1,2\n", "has the column 'a' twice"),
    "no name": ("a,\n1,2\n", "has a column without a name"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_has_its_sentence(name, tmp_path):
    text, sentence = FILES[name]
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(rk.InputError, match=sentence):
        read_csv(tmp_path / "a.csv")


def test_files_are_read(tmp_path):
    (tmp_path / "b.csv").write_text("\ufeffage,name,x\n 40 ,Ann,1.5\n50,Bob,?\n")
    found = read_csv(tmp_path / "b.csv")
    assert found["age"].tolist() == [40, 50] and found["age"].dtype.kind == "i"
    assert found["name"].tolist() == ["Ann", "Bob"] and np.isnan(found["x"][1])
    assert list(read_folder(tmp_path)) == ["b"]
    with pytest.raises(rk.InputError, match="holds no csv file; one per client is needed"):
        (tmp_path / "empty").mkdir()
        read_folder(tmp_path / "empty")
    (tmp_path / "c.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(rk.InputError, match="does not read as a csv file"):
        read_csv(tmp_path / "c.csv")
