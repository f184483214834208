"""Partitions: how the examples of one labelled dataset are dealt to clients. Imports only errors.

A partition is a frozen dataclass with one method, `assign(labels, clients, seed)`, which returns one array of
example indices per client. For every partition here:

- no example goes to two clients, and every client has at least one example;
- the same labels, number of clients and seed give the same answer;
- a client's indices come in random order, so that its first few are a fair draw from it.

| partition                   | sizes   | left over       | labels                                          |
|-----------------------------|---------|-----------------|-------------------------------------------------|
| `IID()`                     | equal   | none            | every client as the whole                       |
| `Shards(k)`                 | equal   | none            | every client about k of them                    |
| `Dirichlet(a)`              | equal   | `len % clients` | every client its own Dirichlet over the classes |
| `Dirichlet(a, by="class")`  | unequal | none            | every class its own Dirichlet over the clients  |
| `ClassHeterogeneity(q)`     | equal   | none            | every client a share q of one class             |
| `QuantitySkew(a)`           | unequal | none            | every client as the whole                       |
| `LongTail(r, then)`         | by then | most            | classes of falling frequency, then as `then`    |

Equal means equal up to one example (one per shard), exactly equal where some are left over. The two of Dirichlet
share a name in the literature and differ in what is drawn, so a table should say which it used.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from rookery.errors import InputError, unknown

__all__ = [
    "IID",
    "PARTITIONS",
    "ClassHeterogeneity",
    "Dirichlet",
    "LongTail",
    "Natural",
    "Partition",
    "QuantitySkew",
    "Shards",
    "class_counts",
    "parse",
]

By = Literal["client", "class"]

# Draws of Dirichlet(by="class") before examples are moved by hand to reach the minimum.
TRIES = 100


@runtime_checkable
class Partition(Protocol):
    """What a partition offers; write your own as any class with this method."""

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        """Deals the examples to clients.

        Args:
          labels: the label of every example, one-dimensional.
          clients: the number of clients, at most the number of examples.
          seed: a non-negative integer; all randomness comes from it.

        Returns:
          One array of indices into `labels` per client: disjoint and not empty.
        """
        ...


@dataclass(frozen=True)
class IID:
    """Every client is a uniform sample of the whole: shuffle, then cut into sizes that differ by at most one.

    >>> [part.size for part in IID().assign([0, 1, 0, 1, 0, 1, 0], clients=3, seed=0)]
    [3, 2, 2]

    Reference: the IID split of McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient
    Learning of Deep Networks from Decentralized Data", AISTATS 2017, section 3.
    """

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        labels, rng = _checked(labels, clients, seed)
        return np.array_split(rng.permutation(labels.size), clients)


@dataclass(frozen=True)
class Shards:
    """Every client holds a few runs of the examples sorted by label, hence few labels.

    This is what papers call pathological non-IID. The examples are sorted by label (in random order within a
    label), cut into `clients * per_client` shards whose sizes differ by at most one, and every client is
    dealt `per_client` of them at random.

    A shard no longer than the smallest class touches at most two labels; where the cuts fall on the borders
    between classes, as with MNIST-sized balanced data, a client has at most `per_client` labels. Two shards
    of a client may also carry the same label.

    Args:
      per_client: shards per client; the paper has 2 (200 shards of 300 MNIST examples on 100 clients).

    >>> labels = np.repeat([0, 1, 2, 3], 4)
    >>> [sorted(set(labels[part].tolist())) for part in Shards(1).assign(labels, clients=4, seed=0)]
    [[0], [2], [1], [3]]

    Reference: McMahan et al., AISTATS 2017, section 3.
    """

    per_client: int = 2

    def __post_init__(self):
        check_integer("per_client", self.per_client, at_least=1)

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        labels, rng = _checked(labels, clients, seed, per_client=self.per_client)
        shards = np.array_split(_sorted_by_label(labels, rng), clients * self.per_client)
        hands = rng.permutation(len(shards)).reshape(clients, self.per_client)
        return [rng.permutation(np.concatenate([shards[s] for s in hand])) for hand in hands]


@dataclass(frozen=True)
class Dirichlet:
    """Label skew with one knob: small `alpha` gives clients of few labels, large `alpha` tends to IID.

    With C classes, n clients and N examples:

    - `by="client"`: client i draws class proportions q_i ~ Dirichlet(alpha, ..., alpha) over the C classes
      and takes floor(N / n) examples one at a time, each of a class drawn from q_i; clients take turns in
      random order. When a class has run out, q_i is renormalised over the classes that still have examples.
      Sizes are exactly equal and N mod n examples, chosen by the process, are left over. Because nearly all
      examples are handed out, the last draws take what is left and realised proportions are closer to the
      whole than q_i: at alpha = 0.2 on ten balanced classes their variance is about nine tenths of the
      Dirichlet's with 100 clients, but less than half with 5.
    - `by="class"`: class c draws p_c ~ Dirichlet(alpha, ..., alpha) over the n clients and is cut in these
      proportions. Sizes are unequal and all examples are used. A draw that leaves a client with fewer than
      `minimum` examples is drawn again; after 100 draws the last one is kept and examples are moved one by
      one, from the largest client's commonest class to the smallest client.

    Args:
      alpha: the concentration alpha > 0 of each component, not their total: Hsu et al. write
        Dirichlet(alpha' p) with p the class frequencies, so on C balanced classes alpha' = C * alpha.
      by: who draws, "client" or "class".
      minimum: the least number of examples a client may have.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> [part.size for part in Dirichlet(0.2).assign(labels, clients=4, seed=0)]
    [250, 250, 250, 250]

    Deviations: FedDyn's code redraws until it meets a class with examples, which never ends when all of a
    client's mass lies on classes that have run out; here such a client then draws uniformly from the rest.
    Several `by="class"` codes also give nothing more to a client that already has N / n examples; here not.

    References: `by="client"`: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", arXiv:1909.06335; taking turns until classes run out: the code of Acar,
    Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization"
    (FedDyn), ICLR 2021. `by="class"`: Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, "Bayesian
    Nonparametric Federated Learning of Neural Networks", ICML 2019.
    """

    alpha: float
    by: By = "client"
    minimum: int = 1

    def __post_init__(self):
        _check_alpha(self.alpha)
        if self.by not in get_args(By):
            raise unknown("by", str(self.by), get_args(By))
        check_integer("minimum", self.minimum, at_least=1)

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        labels, rng = _checked(labels, clients, seed, minimum=self.minimum)
        examples = _sorted_by_label(labels, rng)
        stock = np.unique(labels, return_counts=True)[1]
        if self.by == "client":
            counts = self._taken_by_clients(stock, clients, rng)
        else:
            counts = self._split_by_classes(stock, clients, rng)
        # A class is in random order: hand its first examples to client 0, the next to client 1, and so on;
        # what is left over goes to one client too many, which is dropped.
        counts = np.column_stack([counts, stock - counts.sum(axis=1)])
        owner = np.repeat(np.tile(np.arange(clients + 1), stock.size), counts.ravel())
        parts = np.split(examples[np.argsort(owner, kind="stable")], np.cumsum(counts.sum(axis=0))[:-1])
        return [rng.permutation(part) for part in parts[:clients]]

    def _taken_by_clients(self, stock, clients, rng):
        """How many examples of each class every client takes, (classes, clients), for `by="client"`."""
        proportions = _dirichlet(self.alpha, stock.size, clients, rng)
        turns = rng.permutation(np.repeat(np.arange(clients), stock.sum() // clients))
        taken = _take_turns(turns, proportions, stock, rng)
        counts = np.zeros((stock.size, clients), int)
        np.add.at(counts, (taken, turns), 1)
        return counts

    def _split_by_classes(self, stock, clients, rng):
        """How many examples of each class every client is given, (classes, clients), for `by="class"`."""
        for _ in range(TRIES):
            proportions = _dirichlet(self.alpha, clients, stock.size, rng)
            # Rounding the cumulative sum, not the sizes, makes them add up and favours no client.
            cuts = np.rint(np.cumsum(proportions, axis=1) * stock[:, None]).astype(int)
            cuts[:, -1] = stock
            counts = np.diff(cuts, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.minimum:
                return counts
        return _top_up(counts, self.minimum)


@dataclass(frozen=True)
class ClassHeterogeneity:
    """Groups of clients that lean to one class: a share q of it in every group, the rest as it comes.

    With C classes there are C groups, one for each class, and N examples make quotas of N / C. Every group first
    takes q of its quota from its own class, as far as the class goes; what is then left of all classes fills the
    quotas uniformly. A group is divided evenly among its clients: with n of them, client i is in group
    floor(i C / n).

    Args:
      q: the share of a group's own class; 0 is IID, 1 gives clients of one class when the classes are balanced.
      groups: the number of groups, by default C; group g leans to class g mod C. It divides the number of clients.

    >>> labels = np.repeat([0, 1], 8)
    >>> [np.bincount(labels[part]).tolist() for part in ClassHeterogeneity(0.5).assign(labels, clients=2, seed=0)]
    [[6, 2], [2, 6]]

    Reference: the loss-tuning experiments of "Federated Multi-Sequence Stochastic Approximation with Local
    Hypergradient Estimation" (FedMSA), ten groups of ten clients on MNIST.
    """

    q: float
    groups: int | None = None

    def __post_init__(self):
        if not isinstance(self.q, Real) or not 0 <= float(self.q) <= 1:
            raise InputError(f"q: {self.q!r} was given; a number from 0 to 1 is needed")
        if self.groups is not None:
            check_integer("groups", self.groups, at_least=1)

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        labels, rng = _checked(labels, clients, seed)
        stock = np.unique(labels, return_counts=True)[1]
        groups = self.groups or stock.size
        if clients % groups:
            raise InputError(f"clients: {clients} was given for {groups} groups of clients; a multiple is needed")
        quotas = (labels.size + np.arange(groups)) // groups
        classes, begin = np.arange(groups) % stock.size, np.cumsum(stock) - stock
        examples, taken = _sorted_by_label(labels, rng), np.zeros(stock.size, int)
        own = []
        for quota, c in zip(quotas, classes):
            size = min(round(self.q * int(quota)), stock[c] - taken[c])
            own.append(examples[begin[c] + taken[c] :][:size])
            taken[c] += size
        left = rng.permutation(np.setdiff1d(examples, np.concatenate(own)))
        rest = np.split(left, np.cumsum(quotas - [part.size for part in own])[:-1])
        whole = [rng.permutation(np.concatenate(parts)) for parts in zip(own, rest)]
        return [part for group in whole for part in np.array_split(group, clients // groups)]


@dataclass(frozen=True)
class QuantitySkew:
    """Clients of unequal sizes whose labels are those of the whole: sizes N p with p ~ Dirichlet(alpha, ..., alpha).

    A draw that leaves a client with fewer than `minimum` examples is drawn again; after 100 draws the last one is
    kept and examples are moved one by one from the largest client to the smallest.

    Args:
      alpha: the concentration alpha > 0 of each client; small ones give few large clients.
      minimum: the least number of examples a client may have.

    >>> [part.size for part in QuantitySkew(0.5).assign(np.zeros(100), clients=4, seed=0)]
    [9, 36, 28, 27]

    Reference: the quantity skew of Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental
    Study", ICDE 2022.
    """

    alpha: float
    minimum: int = 1

    def __post_init__(self):
        _check_alpha(self.alpha)
        check_integer("minimum", self.minimum, at_least=1)

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        labels, _ = _checked(labels, clients, seed, minimum=self.minimum)
        # It is the division of one class over the clients, when all examples are of that class.
        one_class = Dirichlet(self.alpha, by="class", minimum=self.minimum)
        return one_class.assign(np.zeros(labels.size, int), clients, seed)


@dataclass(frozen=True)
class LongTail:
    """Classes of exponentially falling frequency, dealt by another partition.

    Of class c = 0, ..., C - 1, by sorted labels, the first ceil(largest * ratio^(c / (C - 1))) examples are kept,
    or all where there are fewer. The other examples go to no client, and which are kept does not depend on the seed.

    Args:
      ratio: the size of the last class over that of the first, in (0, 1].
      then: the partition that deals the kept examples.
      largest: the size of the first class, by default the mean size of a class, N / C rounded up: 6,000 for MNIST.

    >>> labels = np.repeat([0, 1, 2], 100)
    >>> np.bincount(labels[np.concatenate(LongTail(0.01).assign(labels, clients=2, seed=0))])
    array([100,  10,   1])

    Reference: the loss-tuning experiments of "Federated Multi-Sequence Stochastic Approximation with Local
    Hypergradient Estimation" (FedMSA), where 14,817 examples of MNIST are kept; the profile is that of Cui, Jia, Lin,
    Song, Belongie, "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019.
    """

    ratio: float
    then: Partition = IID()
    largest: int | None = None

    def __post_init__(self):
        if not isinstance(self.ratio, Real) or not 0 < float(self.ratio) <= 1:
            raise InputError(f"ratio: {self.ratio!r} was given; a number above 0 and at most 1 is needed")
        # A class passes the protocol's check as well as its instances do.
        if isinstance(self.then, type) or not isinstance(self.then, Partition):
            raise InputError(f"then: {self.then!r} was given; a partition such as IID() is needed")
        if self.largest is not None:
            check_integer("largest", self.largest, at_least=1)

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        labels, _ = _checked(labels, clients, seed)
        kept = self._kept(labels)
        if clients > kept.size:
            raise InputError(
                f"clients: {clients} was given for the {kept.size} examples of a long tail; "
                "at most one per example is allowed"
            )
        return [kept[part] for part in self.then.assign(labels[kept], clients, seed)]

    def _kept(self, labels):
        """The indices of the examples that are kept, in their order."""
        values, class_of, stock = np.unique(labels, return_inverse=True, return_counts=True)
        largest = self.largest or -(-labels.size // values.size)
        # Rounded first: a size that is a whole number must not become the next one by a rounding error.
        sizes = np.ceil(np.round(largest * float(self.ratio) ** np.linspace(0, 1, values.size), 9))
        # The place of an example among those of its class.
        order = np.argsort(class_of, kind="stable")
        place = np.empty(labels.size, int)
        place[order] = np.arange(labels.size) - np.repeat(np.cumsum(stock) - stock, stock)
        return np.flatnonzero(place < sizes[class_of])


def deal_like(labels: np.ndarray, parts: Sequence[np.ndarray], others: np.ndarray) -> list[np.ndarray]:
    """Deals other examples as some were dealt: of every class, a client's part of these is as its part of those.

    Parts are rounded so that every example of a class that some client has is dealt; then a client that got none is
    given one, of the class that it has most of, by the client with the most of them.

    >>> labels = np.array([0, 0, 0, 1])
    >>> [part.tolist() for part in deal_like(labels, [np.array([0, 3]), np.array([1, 2])], np.array([0, 0, 0, 1, 1]))]
    [[0, 3, 4], [1, 2]]
    """
    classes = int(max(labels.max(), others.max(initial=0))) + 1
    had = class_counts(labels, parts, classes)
    taken = np.zeros_like(had)
    for c in np.flatnonzero(had.sum(axis=0)):
        exact = had[:, c] * (np.sum(others == c) / had[:, c].sum())
        taken[:, c] = np.floor(exact + 1e-9)
        left = np.sum(others == c) - taken[:, c].sum()
        taken[np.argsort(taken[:, c] - exact, kind="stable")[:left], c] += 1
    for poor in np.flatnonzero(taken.sum(axis=1) == 0):
        for c in np.argsort(-had[poor], kind="stable"):
            rich = np.argmax(np.where(taken[:, c] > 0, taken.sum(axis=1), 0))
            if had[poor, c] and taken[rich, c] and taken[rich].sum() > 1:
                taken[[rich, poor], c] += [-1, 1]
                break
    dealt: list[list[np.ndarray]] = [[] for _ in parts]
    for c in range(classes):
        edges = np.cumsum(taken[:, c])
        for own, piece in zip(dealt, np.split(np.flatnonzero(others == c)[: edges[-1]], edges[:-1])):
            own.append(piece)
    return [np.concatenate(own) for own in dealt]


def class_counts(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many examples of each class every client has: (clients, classes) integers.

    Args:
      labels: the label of every example, 0, ..., classes - 1.
      parts: the indices of each client's examples, as `assign` returns them.
      classes: the number of classes.

    >>> class_counts(np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], classes=3).tolist()
    [[1, 1, 0], [0, 1, 1]]
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise InputError(f"labels: {labels.min()} to {labels.max()} were given; 0 to {classes - 1} are allowed")
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


@dataclass(frozen=True)
class Natural:
    """The data's own clients: hospitals, regions, people. Only data that knows whose an example is has them.

    Args:
      column: the column whose values are the clients; None: who the data says they are.
    """

    column: str | None = None

    def assign(self, labels, clients: int, seed: int) -> list[np.ndarray]:
        """It cannot be told from labels; `Dataset.partition` does it."""
        raise InputError("partition: natural was given for labels alone; it is for data with clients of its own")


# Name on the command line -> (constructor, one line about it).
PARTITIONS: Mapping[str, tuple[Callable[..., Partition], str]] = {
    "iid": (IID, "uniform shuffle, equal sizes"),
    "shards": (Shards, "K label-sorted shards per client, equal sizes (shards:K, K = 2 if left out)"),
    "dirichlet": (Dirichlet, "class proportions ~ Dirichlet(A) per client, equal sizes (dirichlet:A)"),
    "dirichlet-class": (
        partial(Dirichlet, by="class"),
        "each class split over clients ~ Dirichlet(A), unequal sizes (dirichlet-class:A)",
    ),
    "hetero": (ClassHeterogeneity, "a share Q of one class per group of clients, equal sizes (hetero:Q)"),
    "quantity": (QuantitySkew, "sizes ~ Dirichlet(A), labels as in the whole (quantity:A)"),
    "natural": (
        Natural,
        "the data's own clients, hospitals say, or the values of a column (natural, natural:COLUMN)",
    ),
    "longtail": (LongTail, "class sizes falling to a share R, then any partition (longtail:R, longtail:R+hetero:Q)"),
}


def _named(text: str) -> str:
    """A name that is not empty."""
    if not text.strip():
        raise ValueError
    return text.strip()


# Name -> (its full form, how the number behind the colon is read, whether it may be left out).
_FORMS: Mapping[str, tuple[str, Callable[[str], Any] | None, bool]] = {
    "iid": ("iid", None, True),
    "natural": ("natural:COLUMN with a column's name", _named, True),
    "shards": ("shards:K with an integer K", int, True),
    "dirichlet": ("dirichlet:A with a number A", float, False),
    "dirichlet-class": ("dirichlet-class:A with a number A", float, False),
    "hetero": ("hetero:Q with a number Q", float, False),
    "quantity": ("quantity:A with a number A", float, False),
    "longtail": ("longtail:R with a number R", float, False),
}

# Between two partitions; the plus of 1e+3 is none.
_THEN = re.compile(r"\+(?=\s*[a-z])", re.IGNORECASE)


def parse(text: str) -> Partition:
    """The partition a text stands for: `iid`, `shards:2`, `dirichlet:0.2`, `dirichlet-class:0.5`, `hetero:0.5`,
    `quantity:0.5`, `natural`, `natural:COLUMN` or `longtail:0.01`, the last also with what deals the kept examples,
    `longtail:0.01+hetero:0.5`.

    >>> parse("dirichlet:0.2")
    Dirichlet(alpha=0.2, by='client', minimum=1)
    >>> parse("longtail:0.01+shards:2")
    LongTail(ratio=0.01, then=Shards(per_client=2), largest=None)
    """
    first, *rest = _THEN.split(text, maxsplit=1)
    if not rest:
        return _parse_one(text)
    partition = _parse_one(first)
    if not isinstance(partition, LongTail):
        raise InputError(f"partition: {text!r} was given; only longtail:R can stand before a plus")
    return replace(partition, then=parse(rest[0]))


def as_text(partition: Partition | str) -> str:
    """The text that `parse` turns into this partition; a text stays as it is.

    >>> as_text(Dirichlet(0.2)), as_text(LongTail(0.01, Shards(3)))
    ('dirichlet:0.2', 'longtail:0.01+shards:3')
    """
    if isinstance(partition, str):
        return partition
    match partition:
        case IID():
            text = "iid"
        case Shards(per_client=number):
            text = f"shards:{number}"
        case Dirichlet(alpha=number, by="class"):
            text = f"dirichlet-class:{number}"
        case Dirichlet(alpha=number):
            text = f"dirichlet:{number}"
        case ClassHeterogeneity(q=number):
            text = f"hetero:{number}"
        case QuantitySkew(alpha=number):
            text = f"quantity:{number}"
        case Natural(column=column):
            text = "natural" if column is None else f"natural:{column}"
        case LongTail(ratio=number, then=then):
            text = f"longtail:{number}+{as_text(then)}"
        case _:
            text = ""
    if not text or parse(text) != partition:
        raise InputError(
            f"partition: {partition!r} has no text form, which a task's run folder needs; give one of "
            f"{', '.join(PARTITIONS)}, such as 'dirichlet:0.2', or divide the data with rk.federate and compare on a "
            "problem."
        )
    return text


def _parse_one(text: str) -> Partition:
    """The partition a text without a plus stands for."""
    name, colon, number = text.strip().partition(":")
    name = name.strip().lower()
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    constructor, _ = PARTITIONS[name]
    form, read, optional = _FORMS[name]
    if not colon and optional:
        return constructor()
    try:
        if read is None:
            raise ValueError
        argument = read(number)
    except ValueError:
        raise InputError(f"partition: {text!r} was given; allowed is {form}") from None
    try:
        return constructor(argument)
    except InputError as error:
        raise InputError(f"partition: {text!r} was given, and in it {error}") from None


def deal(partition: Partition, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
    """What a partition assigns, checked: one array of indices per client, not empty, and no example twice.

    The partitions of this module promise that. One of a user's own may not, and would count examples twice.
    """
    who, count = f"partition: {type(partition).__name__}.assign", len(labels)
    parts = partition.assign(labels, clients, seed)
    if not isinstance(parts, Sequence | np.ndarray):
        raise InputError(f"{who} must give a list with one array of indices per client; got {parts!r}")
    if len(parts) != clients:
        raise InputError(f"{who} must give one array of indices per client; got {len(parts)} for clients={clients}")
    checked = [np.asarray(part) for part in parts]
    owner = np.full(count, -1, np.int64)
    for client, part in enumerate(checked):
        if part.ndim != 1:
            raise InputError(f"{who}: client {client} has indices of shape {part.shape}; one dimension is needed")
        if not part.size:
            raise InputError(f"{who}: client {client} has no example; every client needs at least one")
        if part.dtype.kind not in "iu":
            raise InputError(f"{who}: client {client} has indices of type {part.dtype}; they must be integers")
        outside = part[(part < 0) | (part >= count)]
        if outside.size:
            raise InputError(f"{who}: client {client} has the index {outside[0]}; it must be from 0 to {count - 1}")
        unique, times = np.unique(part, return_counts=True)
        if unique.size < part.size:
            example = unique[times > 1][0]
            raise InputError(f"{who}: example {example} goes to client {client} twice; each example goes to one place")
        taken = unique[owner[unique] >= 0]
        if taken.size:
            raise InputError(
                f"{who}: example {taken[0]} goes to clients {owner[taken[0]]} and {client}; each example goes to one "
                "client"
            )
        owner[unique] = client
    return checked


def check_integer(name, value, at_least):
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name}: {value!r} was given; an integer of at least {at_least} is needed")


def _check_alpha(alpha):
    if not isinstance(alpha, Real) or not isfinite(alpha) or not float(alpha) > 0:
        raise InputError(f"alpha: {alpha!r} was given; a positive finite number is needed")


def _checked(labels, clients, seed, **each):
    """Labels as an array and the seeded generator, once there are enough examples for all clients.

    `each` is empty or one `name=number`: the examples every client needs, by the argument's name.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise InputError(f"labels: shape {labels.shape} was given; one label per example is needed")
    check_integer("clients", clients, at_least=1)
    check_integer("seed", seed, at_least=0)
    if clients > labels.size:
        raise InputError(f"clients: {clients} was given for {labels.size} examples; at most one per example is allowed")
    for name, number in each.items():
        if clients * number > labels.size:
            raise InputError(
                f"{name}: {number} was given for {labels.size} examples on {clients} clients; "
                f"at most {labels.size // clients} is allowed"
            )
    return labels, np.random.default_rng(seed)


def _sorted_by_label(labels, rng):
    """All example indices by label, in random order within a label."""
    shuffled = rng.permutation(labels.size)
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def _dirichlet(alpha, components, draws, rng):
    """(draws, components) samples of the symmetric Dirichlet distribution."""
    # Beyond 1e12 all components are equal to rounding, and far beyond it numpy overflows.
    return rng.dirichlet(np.full(components, min(alpha, 1e12)), size=draws)


def _take_turns(turns, proportions, stock, rng):
    """The class taken at every turn t, when client `turns[t]` draws by its proportions on the classes left.

    The law is that of one draw after another with a redraw whenever the class has run out, without the loop
    over examples: draw all turns at once, find the first turn at which some class is asked for once too
    often, and redraw that turn and every later one that drew the same class, now without it. Earlier turns
    are settled, the class never comes back, and so there are at most as many passes as classes.
    """
    is_open = np.ones(stock.size, bool)
    taken = _draw(turns, proportions, is_open, rng)
    while True:
        order = np.argsort(taken, kind="stable")
        asked = np.bincount(taken, minlength=stock.size)
        begin = np.cumsum(asked) - asked
        over = np.flatnonzero(asked > stock)
        if over.size == 0:
            return taken
        # The turn of a class's request number stock + 1, for each class that is asked for too often.
        first = order[begin[over] + stock[over]]
        turn, empty = first.min(), over[first.argmin()]
        is_open[empty] = False
        again = turn + np.flatnonzero(taken[turn:] == empty)
        taken[again] = _draw(turns[again], proportions, is_open, rng)


def _draw(turns, proportions, is_open, rng):
    """One class per turn from its client's proportions, renormalised over the open classes."""
    mass = proportions * is_open
    total = mass.sum(axis=1, keepdims=True)
    # A client whose mass lies on closed classes only, or underflows, takes any open class.
    mass = np.where(total > 1e-300, mass / np.maximum(total, 1e-300), is_open / is_open.sum())
    edges = np.cumsum(mass, axis=1)
    # u < 1 strictly, so the draw stays below the last edge, and the first edge above it belongs to a class
    # with mass.
    point = rng.random(turns.size) * edges[turns, -1]
    return np.argmax(edges[turns] > point[:, None], axis=1)


def _top_up(counts, minimum):
    """Moves examples, one at a time, from the largest client's commonest class to the smallest client."""
    counts, sizes = counts.copy(), counts.sum(axis=0)
    while sizes.min() < minimum:
        # There are enough examples for all, so while one client is short the largest has more than the
        # minimum.
        poor, rich = sizes.argmin(), sizes.argmax()
        common = counts[:, rich].argmax()
        counts[common, [rich, poor]] += [-1, 1]
        sizes[[rich, poor]] += [-1, 1]
    return counts
