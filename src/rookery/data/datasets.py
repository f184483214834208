"""Datasets: labelled examples with a test set, ready to be dealt to clients.

Imports only errors and its own package; scikit-learn inside the function that reads its data.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rookery.data import partitions
from rookery.data.federated import Augment, Clients, Split, federate
from rookery.data.inputs import Scale
from rookery.data.parts import check_fraction, hold_out
from rookery.data.tables import read_csv
from rookery.errors import InputError, unknown

__all__ = ["Dataset", "breast_cancer", "digits", "heart", "standardising", "synthetic", "wine"]


# Not comparable by value: == on arrays has no single answer.
@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples, split once and for all into training and test examples.

    Args:
      name: what tables and run folders call it.
      train: `{"input": (N, d), "label": (N,) int32}`, the examples that clients are given, as they are stored.
      test: the same for the examples that no client ever sees.
      classes: the number of classes; labels are 0, ..., classes - 1.
      scale: what makes a stored input one for a network, inside the program; by default nothing is changed.
      class_names: what the classes are called; by default their numbers.
      owner: of every training example, the number of the client whose it is, where the data has clients of its own.
      owners: who these are.
      test_owner: of every test example, whose it is, likewise.
      columns: what the inputs are called, where they came from a table.
      label: Column of the table that is the label; empty: it did not come from a table.
      scaling: How inputs are scaled (a name of `data.scaling.SHOWN`); empty: as `scale` shows.
    """

    name: str
    train: Mapping[str, np.ndarray] = field(repr=False)
    test: Mapping[str, np.ndarray] = field(repr=False)
    classes: int
    scale: Scale = field(default=None, repr=False)  # type: ignore[assignment]
    class_names: tuple[str, ...] = field(default=(), repr=False)
    owner: np.ndarray | None = field(default=None, repr=False)
    owners: tuple[str, ...] = field(default=(), repr=False)
    columns: tuple[str, ...] = field(default=(), repr=False)
    test_owner: np.ndarray | None = field(default=None, repr=False)
    label: str = field(default="", repr=False)
    scaling: str = field(default="", repr=False)

    def __post_init__(self):
        if self.scale is None:
            object.__setattr__(self, "scale", Scale(self.train["input"].shape[1:]))
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(str(c) for c in range(self.classes)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (height, width, channels), or (features,)."""
        return self.scale.shape

    @property
    def about(self) -> dict[str, Any]:
        """Label, classes and inputs, as a run's results state them."""
        return {
            "label": self.label or "label",
            "classes": list(self.class_names),
            "inputs": list(self.columns),
            "shape": "x".join(map(str, self.shape)),
            "scaling": self.scaling or ("none" if self.scale == Scale(self.shape) else "fixed"),
        }

    def has_own_tests(self, scheme: partitions.Partition | str) -> bool:
        """Whether a partition is that of the data's own clients, and each of them has test examples of its own."""
        if isinstance(scheme, str):
            scheme = partitions.parse(scheme)
        if not isinstance(scheme, partitions.Natural) or scheme.column is not None:
            return False
        return self.owner is not None and self.test_owner is not None and set(self.owner) <= set(self.test_owner)

    def for_tuning(self, fraction: float = 1 / 6, seed: int = 0) -> Dataset:
        """The training examples alone, a part of them in the place of the test set: what choices are made on.

        The same fraction of every class is held out, by a seed.
        """
        check_fraction("fraction", fraction)
        held_out = hold_out("fraction", self.train["label"], fraction, seed)
        kept, test = (None if self.owner is None else self.owner[where] for where in (~held_out, held_out))
        parts = {"train": _take(self.train, ~held_out), "test": _take(self.train, held_out)}
        return replace(self, **parts, owner=kept, test_owner=test)

    def first(self, train: int, test: int) -> Dataset:
        """The first training and test examples, as many as are asked for."""
        for name, number, whole in (("train", train, self.train), ("test", test, self.test)):
            if not 1 <= number <= len(whole["label"]):
                raise InputError(
                    f"{name}: {number} was given; {self.name} has {len(whole['label'])} examples of that part"
                )
        owner = None if self.owner is None else self.owner[:train]
        of_test = None if self.test_owner is None else self.test_owner[:test]
        parts = {"train": _take(self.train, slice(train)), "test": _take(self.test, slice(test))}
        return replace(self, **parts, owner=owner, test_owner=of_test)

    def partition(
        self,
        scheme: partitions.Partition | str,
        clients: int,
        seed: int = 0,
        validation: float | None = None,
        weights: Any = "size",
        augment: Augment | None = None,
        own_test: bool = False,
    ) -> Clients:
        """Deals the training examples to clients.

        Args:
          scheme: a partition such as `Dirichlet(0.2)`, or its short text, `"dirichlet:0.2"`.
          clients: the number of clients; those of "natural" are the data's own, however many.
          seed: what the partition and the validation split are drawn from.
          validation: None, or the fraction of each client's examples to set aside. With it a client's data
            is `Split(lower=training part, upper=validation part)`: the lower problem of a bilevel task
            fits the first, the upper one is judged on the second. The fraction is rounded to whole
            examples, with at least one on either side. Changing it does not change which examples a
            client has.
          weights: Weights p_i of the clients, as `federate` takes them; by default by number of examples, as tasks have
            them.
          augment: what is done to training examples inside the program, as `federate` takes it.
          own_test: whether the test examples are dealt as well, so that each client has some of its own: those that
            are its, where the data says so, or as many of each class as go with its part of the training examples.

        >>> clients = digits().partition(partitions.Dirichlet(0.2), clients=10, validation=0.2)
        >>> clients.population
        10
        """
        if isinstance(scheme, str):
            scheme = partitions.parse(scheme)
        if validation is not None:
            check_fraction("validation", validation)
        parts, names = self.deal(scheme, clients, seed)
        test = [_take(self.test, part) for part in self._deal_test(scheme, parts, names)] if own_test else None
        if validation is None:
            data = [_take(self.train, part) for part in parts]
        else:
            data = [self._split(part, validation, i, seed) for i, part in enumerate(parts)]
        made = federate(data, weights=weights, augment=augment, test=test)
        return replace(made, names=names or made.names, columns=self.columns, about=self.about)

    def deal(
        self, scheme: partitions.Partition | str, clients: int, seed: int
    ) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Which training examples each client is given, and who the clients are, where the data knows them."""
        if isinstance(scheme, str):
            scheme = partitions.parse(scheme)
        # A class passes the protocol's check as well as its instances do.
        if isinstance(scheme, type) or not isinstance(scheme, partitions.Partition):
            raise InputError(
                f"scheme: {scheme!r} was given; a partition such as Dirichlet(0.2) is needed, "
                "or a text such as 'dirichlet:0.2'"
            )
        if not isinstance(scheme, partitions.Natural):
            return partitions.deal(scheme, self.train["label"], clients, seed), ()
        owner, _, owners = self._owners(scheme)
        parts = {name: np.flatnonzero(owner == number) for number, name in enumerate(owners)}
        parts = {name: part for name, part in parts.items() if part.size}  # some may have test examples alone
        return list(parts.values()), tuple(parts)

    def _owners(self, scheme: partitions.Natural) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
        """Whose every training example is, whose every test example, and who they are."""
        if scheme.column is not None:
            if not self.columns:
                raise InputError(f"partition: natural:{scheme.column} was given, and {self.name} has no named columns")
            if scheme.column not in self.columns:
                raise unknown("partition: natural", scheme.column, self.columns)
            place = self.columns.index(scheme.column)
            whole = np.concatenate([part["input"][:, place] for part in (self.train, self.test)])
            values, owner = np.unique(whole, return_inverse=True)
            names = tuple(f"{scheme.column}={value:g}" for value in values)
            return owner[: len(self.train["label"])], owner[len(self.train["label"]) :], names
        if self.owner is None or self.test_owner is None:
            raise InputError(
                f"partition: natural was given, and {self.name} has no clients of its own; data that has is "
                "csv:FOLDER, a file per client, csv:FILE#COLUMN, and heart"
            )
        return self.owner, self.test_owner, self.owners

    def _deal_test(
        self, scheme: partitions.Partition, parts: list[np.ndarray], names: tuple[str, ...]
    ) -> list[np.ndarray]:
        """The test examples of each client."""
        if isinstance(scheme, partitions.Natural):
            _, owner, owners = self._owners(scheme)
            tests = [np.flatnonzero(owner == owners.index(name)) for name in names]
        else:
            tests = partitions.deal_like(self.train["label"], parts, self.test["label"])
        for number, part in enumerate(tests):
            if not part.size:
                called = repr(names[number]) if names else number
                raise InputError(
                    f"clients: {len(parts)} share the {len(self.test['label'])} test examples of {self.name}, and "
                    f"client {called} has none; fewer clients, or more examples of it, are needed"
                )
        return tests

    def _split(self, part, validation, client, seed):
        if part.size < 2:
            raise InputError(
                f"validation: {validation!r} was given and client {client} has {part.size} example; "
                "every client needs two or more, or validation=None"
            )
        upper = min(max(round(validation * part.size), 1), part.size - 1)
        # A stream of its own per client: no split depends on the sizes of the clients before it.
        part = np.random.default_rng((seed, 1, client)).permutation(part)
        return Split(lower=_take(self.train, part[upper:]), upper=_take(self.train, part[:upper]))


def digits(test_fraction: float = 0.2) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels in [0, 1], real data that comes with scikit-learn.

    Of every class the same fraction is held out, chosen by a fixed seed: the test set is part of the
    dataset's definition, not of a run, so that runs with different seeds are judged on the same examples.

    Args:
      test_fraction: the fraction of each class that goes to the test set, rounded to whole examples.

    >>> digits().train["input"].shape, digits().test["input"].shape
    ((1438, 64), (359, 64))

    Reference: Alpaydin, Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998 (its test part, which is what scikit-learn ships).
    """
    check_fraction("test_fraction", test_fraction)
    pixels, label = _digits()
    examples = {"input": (pixels / 16).astype(np.float32), "label": label.astype(np.int32)}
    is_test = hold_out("test_fraction", label, test_fraction, seed=0)
    return Dataset("digits", _take(examples, ~is_test), _take(examples, is_test), classes=10, scale=Scale((8, 8, 1)))


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels from scikit-learn's own file, where it is: to import all of it takes a second and more."""
    found = importlib.util.find_spec("sklearn")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz" if found and found.origin else None
    if path is None or not path.is_file():
        from sklearn.datasets import load_digits

        found_there: Any = load_digits(return_X_y=True)
        return found_there
    rows = np.loadtxt(path, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def breast_cancer(test_fraction: float = 0.2) -> Dataset:
    """569 tumours, 30 measurements of the cell nuclei of each, malignant or benign; comes with scikit-learn.

    Inputs are stored as they were measured; the scale gives every one mean 0 and standard deviation 1 over the
    training examples. The test set is held out as that of `digits` is.

    Args:
      test_fraction: the fraction of each class that goes to the test set, rounded to whole examples.

    >>> breast_cancer().train["input"].shape, breast_cancer().test["input"].shape
    ((456, 30), (113, 30))

    Reference: Wolberg, Mangasarian, Street, Street, "Breast Cancer Wisconsin (Diagnostic)", UCI Machine Learning
    Repository, 1995.
    """
    from sklearn.datasets import load_breast_cancer

    return _records("breast_cancer", load_breast_cancer(), test_fraction)


def wine(test_fraction: float = 0.2) -> Dataset:
    """178 wines of three cultivars, 13 chemical measurements of each; comes with scikit-learn.

    Stored, scaled and held out as `breast_cancer` is.

    Args:
      test_fraction: the fraction of each class that goes to the test set, rounded to whole examples.

    >>> wine().train["input"].shape, wine().test["input"].shape
    ((142, 13), (36, 13))

    Reference: Aeberhard, Forina, "Wine", UCI Machine Learning Repository, 1992.
    """
    from sklearn.datasets import load_wine

    return _records("wine", load_wine(), test_fraction)


HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def heart() -> dict[str, dict[str, np.ndarray]]:
    """740 patients of four hospitals, a table each: ten measurements, and whether the heart is ill.

    As the public benchmark FLamby has them: columns that most hospitals lack are left out, and rows with an empty cell.
    `cp` (kind of chest pain) and `restecg` (electrocardiogram) are codes: `rk.federate(heart(), label="ill",
    categories=["cp", "restecg"])`.

    >>> {name: len(table["ill"]) for name, table in heart().items()}
    {'cleveland': 303, 'hungarian': 261, 'switzerland': 46, 'va': 130}

    Reference: Janosi, Steinbrunn, Pfisterer, Detrano, "Heart Disease", UCI Machine Learning Repository, 1989
    (CC BY 4.0).
    """
    tables = {}
    for hospital in HOSPITALS:
        columns = read_csv(Path(__file__).parent / "heart" / f"{hospital}.csv")
        known = ~np.any([np.isnan(columns[name].astype(float)) for name in (*HEART, "num")], axis=0)
        table = {name: columns[name][known].astype(np.float64) for name in HEART}
        tables[hospital] = table | {"ill": (columns["num"][known] > 0).astype(np.int32)}
    return tables


def standardising(inputs: np.ndarray) -> Scale:
    """The scale that gives every feature mean 0 and standard deviation 1 over these inputs, a constant one mean 0."""
    mean, std = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64)
    return Scale(inputs.shape[1:], mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1).tolist()))


def synthetic(
    examples: int = 60_000,
    features: int = 784,
    classes: int = 10,
    seed: int = 0,
    test_examples: int | None = None,
) -> Dataset:
    """Random images shaped like MNIST, for benchmarks and tests that should not depend on a download.

    Class c is a Gaussian cluster around a random centre m_c, clipped to [0, 1]:

        image = clip(m_c + sigma e, 0, 1),   m_c = 1/2 + (6 sigma / sqrt(2 d)) g_c,   e, g_c ~ N(0, I_d)

    with sigma = 0.15, so that two centres are about 6 sigma apart whatever d is: nearly, but not quite,
    linearly separable (98 to 99 % with ten classes and enough examples). Classes are balanced to within one
    example.

    Args:
      examples: training examples N.
      features: pixels d of an image.
      classes: number of classes.
      seed: what centres, noise and order are drawn from.
      test_examples: test examples, N // 6 (MNIST's ratio) but at least one if None.
    """
    partitions.check_integer("examples", examples, at_least=1)
    partitions.check_integer("features", features, at_least=1)
    partitions.check_integer("classes", classes, at_least=1)
    partitions.check_integer("seed", seed, at_least=0)
    if test_examples is None:
        test_examples = max(examples // 6, 1)
    partitions.check_integer("test_examples", test_examples, at_least=1)
    sigma = np.float32(0.15)
    rng = np.random.default_rng(seed)
    spread = sigma * np.float32(6 / np.sqrt(2 * features))
    centres = np.float32(0.5) + spread * rng.standard_normal((classes, features), np.float32)

    def draw(number):
        label = rng.permutation(np.arange(number, dtype=np.int32) % classes)
        # In place: at MNIST's size every temporary is 190 MB.
        image = rng.standard_normal((number, features), np.float32)
        image *= sigma
        image += centres[label]
        return {"input": np.clip(image, 0, 1, out=image), "label": label}

    return Dataset("synthetic", draw(examples), draw(test_examples), classes)


def _records(name, source, test_fraction):
    """A dataset of scikit-learn's, a part of it held out."""
    check_fraction("test_fraction", test_fraction)
    examples = {"input": source.data.astype(np.float32), "label": source.target.astype(np.int32)}
    is_test = hold_out("test_fraction", examples["label"], test_fraction, seed=0)
    train, names = _take(examples, ~is_test), tuple(str(c) for c in source.target_names)
    scale = standardising(train["input"])
    return Dataset(name, train, _take(examples, is_test), len(names), scale, names, scaling="pooled")


def _take(examples, index):
    return {name: array[index] for name, array in examples.items()}
