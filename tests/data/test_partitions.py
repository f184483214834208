"""Partitions: promises that hold for all of them, then the law of each against theory or a plain loop."""

from itertools import pairwise

import numpy as np
import pytest

import rookery as rk
from rookery.data import partitions
from rookery.data.datasets import wine
from rookery.data.partitions import (
    IID,
    PARTITIONS,
    ClassHeterogeneity,
    Dirichlet,
    LongTail,
    Partition,
    QuantitySkew,
    Shards,
    class_counts,
    parse,
)

# One row per partition; each gets every test of a common promise.
TABLE = {
    "iid": IID(),
    "shards": Shards(2),
    "one shard": Shards(1),
    "dirichlet": Dirichlet(0.2),
    "dirichlet, tiny alpha": Dirichlet(1e-6),
    "dirichlet, huge alpha": Dirichlet(1e300),
    "by class": Dirichlet(0.5, by="class"),
    "by class, tiny alpha": Dirichlet(1e-6, by="class"),
    "by class, huge alpha": Dirichlet(1e300, by="class"),
    "by class, minimum": Dirichlet(0.1, by="class", minimum=20),
    "quantity": QuantitySkew(0.5),
    "quantity, tiny alpha": QuantitySkew(1e-6),
    "quantity, huge alpha": QuantitySkew(1e300),
    "quantity, minimum": QuantitySkew(0.1, minimum=20),
    "hetero, one group": ClassHeterogeneity(0.5, groups=1),
    "long tail that is none": LongTail(1.0, then=Shards(1), largest=10_000),
}

all_partitions = pytest.mark.parametrize("partition", TABLE.values(), ids=TABLE.keys())


def balanced(examples=2000, classes=10):
    return np.arange(examples) % classes


def unbalanced(examples=2003):
    """Classes of very different sizes, with gaps between the labels, in random order."""
    rng = np.random.default_rng(7)
    return rng.choice([2, 3, 5, 7, 11], size=examples, p=[0.5, 0.3, 0.15, 0.04, 0.01])


def proportions(parts, labels):
    """(clients, classes): the share of each class among a client's examples."""
    classes = np.unique(labels)
    counts = np.array([(labels[part][:, None] == classes).sum(axis=0) for part in parts])
    return counts / counts.sum(axis=1, keepdims=True)


def entropy(parts, labels):
    """Mean over clients of the entropy of their labels, in nats."""
    q = proportions(parts, labels)
    return -(q * np.log(np.maximum(q, 1e-300))).sum(axis=1).mean()


# Every partition


@all_partitions
@pytest.mark.parametrize("labels", [balanced(), unbalanced()], ids=["balanced", "unbalanced"])
@pytest.mark.parametrize("clients", [1, 7, 64])
def test_every_example_at_most_once_and_no_client_empty(partition, labels, clients):
    parts = partition.assign(labels, clients, seed=3)
    dealt = np.concatenate(parts)
    assert len(parts) == clients
    assert min(part.size for part in parts) >= 1
    assert np.unique(dealt).size == dealt.size
    assert dealt.min() >= 0 and dealt.max() < labels.size
    assert all(np.issubdtype(part.dtype, np.integer) for part in parts)
    equal_sizes_by_dirichlet = isinstance(partition, Dirichlet) and partition.by == "client"
    left_over = labels.size % clients if equal_sizes_by_dirichlet else 0
    assert labels.size - dealt.size == left_over


@all_partitions
def test_the_seed_decides(partition):
    labels = unbalanced()
    first, same, other = (partition.assign(labels, 10, seed=seed) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, same))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


@all_partitions
def test_the_global_generator_is_left_alone(partition):
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    partition.assign(balanced(), 10, seed=0)
    assert np.array_equal(before, np.random.get_state()[1])


@all_partitions
def test_a_clients_first_half_is_a_fair_draw_from_it(partition):
    labels = np.sort(balanced())
    gaps = []
    for seed in range(20):
        for part in partition.assign(labels, 10, seed):
            half = part.size // 2
            if half:
                gaps.append(labels[part[:half]].mean() - labels[part[half:]].mean())
    # Were indices sorted, the halves of a client with two labels or more would differ by one at least, always
    # in one direction. In random order the mean gap is zero; its standard error is measured from the gaps.
    error = np.std(gaps) / np.sqrt(len(gaps))
    assert abs(np.mean(gaps)) <= 4 * error + 1e-12


@all_partitions
def test_as_many_clients_as_examples_or_one_clear_error(partition):
    labels = balanced(40)
    per_client = getattr(partition, "per_client", getattr(partition, "minimum", 1))
    if per_client > 1:
        with pytest.raises(ValueError, match="for 40 examples on 40 clients; at most 1 is allowed"):
            partition.assign(labels, 40, seed=0)
    else:
        parts = partition.assign(labels, 40, seed=0)
        assert sorted(np.concatenate(parts).tolist()) == list(range(40))


@all_partitions
def test_a_single_class_and_a_list_of_labels(partition):
    parts = partition.assign([4] * 100, 5, seed=0)
    assert np.concatenate(parts).size == 100


@all_partitions
def test_text_labels_are_labels_too(partition):
    labels = balanced(500, 5)
    names = np.array(["ant", "bee", "cat", "dog", "emu"])[labels]
    for a, b in zip(partition.assign(labels, 8, seed=1), partition.assign(names, 8, seed=1)):
        assert np.array_equal(a, b)


@all_partitions
def test_it_is_a_partition(partition):
    assert isinstance(partition, Partition)


# IID


@pytest.mark.parametrize("examples, clients", [(2000, 10), (2003, 10), (2009, 10), (101, 100)])
def test_iid_sizes_differ_by_at_most_one(examples, clients):
    sizes = [part.size for part in IID().assign(balanced(examples), clients, seed=0)]
    assert sum(sizes) == examples
    assert max(sizes) - min(sizes) <= 1


def test_iid_clients_look_like_the_whole():
    labels = unbalanced(4000)
    whole = np.unique(labels, return_counts=True)[1] / labels.size
    shares = np.array([proportions(IID().assign(labels, 20, seed), labels) for seed in range(50)])
    # A client is a draw of m = 200 without replacement from N = 4000, so that the share of a class with
    # frequency f has mean f and the hypergeometric variance f (1 - f) / m * (N - m) / (N - 1).
    variance = whole * (1 - whole) / 200 * 3800 / 3999
    np.testing.assert_allclose(shares.mean(axis=(0, 1)), whole, atol=1e-12)
    np.testing.assert_allclose(shares.var(axis=(0, 1)), variance, rtol=0.2)


# Shards


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_shards_that_divide_the_classes_give_at_most_one_label_each(per_client):
    labels = np.random.default_rng(0).permutation(balanced(3000))  # 300 of each class
    clients = 100 // per_client  # 100 shards of 30: ten to a class, no cut inside one
    parts = Shards(per_client).assign(labels, clients, seed=0)
    assert {part.size for part in parts} == {30 * per_client}
    kinds = [np.unique(labels[part]).size for part in parts]
    assert max(kinds) <= per_client
    for part in parts:
        counts = np.bincount(labels[part])
        assert set(counts[counts > 0] % 30) == {0}


def test_shards_that_do_not_divide_the_classes():
    # 10 classes of 201 or 202 in 14 * 2 shards of 71 or 72: nine borders, each inside one shard or on a cut,
    # and a shard is shorter than a class, so that it has at most two labels.
    labels = balanced(2013)
    parts = Shards(2).assign(labels, 14, seed=1)
    sizes = [part.size for part in parts]
    assert sum(sizes) == 2013
    assert max(sizes) - min(sizes) <= 2
    kinds = np.array([np.unique(labels[part]).size for part in parts])
    assert kinds.max() <= 4
    assert (kinds - 2).clip(0).sum() <= 9


def test_shards_are_dealt_uniformly():
    # Four classes, four shards of one class each, two clients of two: all 6 hands of client 0 equally likely.
    labels = np.repeat([0, 1, 2, 3], 2)
    hands = {}
    for seed in range(1200):
        hand = tuple(np.unique(labels[Shards(2).assign(labels, 2, seed)[0]]).tolist())
        hands[hand] = hands.get(hand, 0) + 1
    assert len(hands) == 6
    # Chi-squared with 5 degrees of freedom; 20.5 is its 99.9 % point.
    assert sum((count - 200) ** 2 / 200 for count in hands.values()) < 20.5


def test_shards_shuffle_within_a_label():
    labels = np.zeros(100, int)
    part = Shards(1).assign(labels, 2, seed=0)[0]
    assert 10 < np.sum(part < 50) < 40


# Dirichlet by client


@pytest.mark.parametrize("examples, clients", [(2000, 10), (2003, 10), (2009, 10), (199, 100)])
@pytest.mark.parametrize("alpha", [0.05, 1.0])
def test_dirichlet_sizes_are_exactly_equal(examples, clients, alpha):
    parts = Dirichlet(alpha).assign(balanced(examples), clients, seed=0)
    assert {part.size for part in parts} == {examples // clients}


def one_after_another(turns, shares, stock, rng):
    """FedDyn's loop, plainly: a class is drawn again while it has no examples left."""
    stock, taken = stock.copy(), []
    for client in turns:
        while True:
            c = rng.choice(stock.size, p=shares[client])
            if stock[c] > 0:
                break
        stock[c] -= 1
        taken.append(c)
    return np.array(taken)


def test_turns_have_the_law_of_the_plain_loop():
    # Stocks so uneven that classes run out early: most turns depend on the redistribution.
    shares = np.array([[0.7, 0.2, 0.1, 0.0], [0.1, 0.1, 0.4, 0.4], [0.25, 0.25, 0.25, 0.25]])
    stock = np.array([3, 8, 4, 2])
    turns = np.random.default_rng(0).permutation(np.repeat(np.arange(3), 5))
    repeats = 3000

    def frequencies(draw, seed):
        rng = np.random.default_rng(seed)
        taken = np.array([draw(turns, shares, stock, rng) for _ in range(repeats)])
        assert (np.array([np.bincount(row, minlength=4) for row in taken]) <= stock).all()
        at_turn = (taken[:, :, None] == np.arange(4)).mean(axis=0)
        # The last three turns together: the marginals alone would not see wrong dependence between turns.
        late = taken[:, -3:] @ [16, 4, 1]
        return at_turn, np.bincount(late, minlength=64) / repeats

    ours = frequencies(partitions._take_turns, 1)
    plain = frequencies(one_after_another, 2)
    for a, b in zip(ours, plain):
        # The difference of two such frequencies has a standard error of at most sqrt(2 p (1 - p) / repeats).
        p = (a + b) / 2
        error = np.sqrt(2 * p * (1 - p) / repeats) + 1e-9
        assert np.abs((a - b) / error).max() < 4.5


def test_turns_follow_the_proportions_while_stocks_last():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(6, 0.5), size=4)
    turns = np.repeat(np.arange(4), 5000)
    taken = partitions._take_turns(turns, shares, np.full(6, 20_000), rng)
    seen = np.array([np.bincount(taken[turns == i], minlength=6) for i in range(4)]) / 5000
    assert np.abs(seen - shares).max() < 4 * 0.5 / np.sqrt(5000)


def test_a_client_without_mass_on_what_is_left_takes_the_rest_uniformly():
    # All want class 0, which has 10 examples: the loop of the original code would never end.
    shares = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    taken = partitions._take_turns(np.tile([0, 1], 500), shares, np.array([10, 900, 900]), np.random.default_rng(0))
    assert np.array_equal(taken[:10], np.zeros(10))
    counts = np.bincount(taken)
    assert counts[0] == 10
    assert abs(counts[1] - 495) < 4 * np.sqrt(990 / 4)


def test_dirichlet_by_client_spreads_as_the_dirichlet_does():
    # Many clients, ten balanced classes: q has mean 1/10 and variance 1/10 * 9/10 / (10 alpha + 1); m = 40
    # draws of a class from q add (1/10 * 9/10 - variance) / m. Classes that run out pull clients towards the
    # whole: the realised variance must be below that, but not by much.
    labels = balanced(4000)
    for alpha in (0.2, 1.0, 5.0):
        variance = 0.09 / (10 * alpha + 1)
        expected = variance + (0.09 - variance) / 40
        shares = [proportions(Dirichlet(alpha).assign(labels, 100, seed), labels) for seed in range(10)]
        seen = np.mean((np.array(shares) - 0.1) ** 2)
        assert 0.8 * expected < seen < 1.03 * expected


@pytest.mark.parametrize("by", ["client", "class"])
def test_label_entropy_grows_with_alpha(by):
    labels = balanced(3000)
    entropies = [
        np.mean([entropy(Dirichlet(alpha, by=by).assign(labels, 30, seed), labels) for seed in range(5)])
        for alpha in (0.01, 0.1, 0.5, 2.0, 100.0)
    ]
    assert all(a + 0.05 < b for a, b in pairwise(entropies))
    # Nearly one-hot draws have entropy 0.1; that of equal sizes is larger, since classes wanted by too many
    # run out and their clients must take others, but still far from the log 10 of all labels alike.
    assert entropies[0] < 0.5 * np.log(10)
    # 100 examples a client: the entropy of their labels falls short of log 10 by about 9 / 200 on average.
    assert entropies[-1] > np.log(10) - 0.1


def test_dirichlet_is_quick_on_a_dataset_of_the_size_of_mnist():
    from time import perf_counter

    labels = balanced(60_000)
    start = perf_counter()
    Dirichlet(0.2).assign(labels, 100, seed=0)
    assert perf_counter() - start < 2  # measured: 0.03 s


# Dirichlet by class


@pytest.mark.parametrize("alpha", [0.5, 1.0, 5.0])
def test_dirichlet_by_class_has_the_moments_of_the_dirichlet(alpha):
    # 10 classes of 400 on n = 5 clients: a client's part of a class has mean 1/n and variance (1/n)(1 - 1/n)
    # / (n alpha + 1), two clients' parts of it covariance -(1/n^2) / (n alpha + 1); rounding to 1/400 adds
    # less than 1e-5. A client below the minimum of 1 is next to impossible here, so nothing is redrawn.
    n, labels, parts = 5, balanced(4000), []
    for seed in range(300):
        owner = np.empty(labels.size, int)
        for client, part in enumerate(Dirichlet(alpha, by="class").assign(labels, n, seed)):
            owner[part] = client
        parts.append([np.bincount(owner[labels == c], minlength=n) / 400 for c in range(10)])
    parts = np.array(parts).reshape(-1, n)
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    error = np.sqrt(variance / len(parts))
    assert np.abs(parts.mean(axis=0) - 1 / n).max() < 4 * error
    np.testing.assert_allclose(parts.var(axis=0), variance, rtol=0.12)
    covariance = np.cov(parts.T)[np.triu_indices(n, 1)]
    np.testing.assert_allclose(covariance.mean(), -1 / n**2 / (n * alpha + 1), rtol=0.1)


def test_dirichlet_by_class_favours_no_client_when_rounding():
    # 3000 classes of 7 examples, so that rounding matters: by exchangeability a client expects 7 / 5 of each
    # class. (Cutting at the floor would take half an example per class from the first client and give it to
    # the last.)
    counts = Dirichlet(1.0, by="class")._split_by_classes(np.full(3000, 7), 5, np.random.default_rng(0))
    error = counts.std(axis=1).mean() / np.sqrt(3000)
    assert np.abs(counts.mean(axis=0) - 7 / 5).max() < 5 * error


def test_dirichlet_by_class_draws_classes_independently():
    labels, n = balanced(4000, 2), 4
    first = []
    for seed in range(400):
        part = Dirichlet(1.0, by="class").assign(labels, n, seed)[0]
        first.append([np.sum(labels[part] == c) for c in (0, 1)])
    assert abs(np.corrcoef(np.array(first).T)[0, 1]) < 4 / np.sqrt(400)


def test_dirichlet_by_class_has_unequal_sizes():
    sizes = np.array([part.size for part in Dirichlet(0.5, by="class").assign(balanced(4000), 20, seed=0)])
    assert sizes.sum() == 4000
    assert sizes.std() > 40


def test_minimum_by_redrawing_is_a_draw_that_happens_to_satisfy_it():
    # At alpha = 1 three draws in ten leave each of 5 clients 300 of 2000 examples: a hundred tries suffice.
    labels = balanced()
    smallest = [
        min(part.size for part in Dirichlet(1.0, by="class", minimum=300).assign(labels, 5, seed)) for seed in range(30)
    ]
    assert min(smallest) >= 300
    # Moving examples by hand stops exactly at the minimum; a draw lies above it.
    assert np.mean(np.array(smallest) == 300) < 0.3


@pytest.mark.parametrize("minimum", [1, 10, 20])
def test_minimum_by_moving_when_no_draw_can_satisfy_it(minimum):
    # Nearly one-hot draws give ten classes to ten clients at most; the other ninety can only be topped up.
    labels = balanced()
    parts = Dirichlet(1e-4, by="class", minimum=minimum).assign(labels, 100, seed=0)
    sizes = np.array([part.size for part in parts])
    assert sizes.min() == minimum
    assert sizes.sum() == 2000
    assert sizes.max() <= 2000 - 99 * minimum


def test_topping_up_takes_from_the_largest_clients_commonest_class():
    counts = np.array([[6, 1, 0], [2, 2, 0]])
    topped = partitions._top_up(counts, 2)
    assert topped.tolist() == [[4, 1, 2], [2, 2, 0]]
    assert counts.tolist() == [[6, 1, 0], [2, 2, 0]]


# Class heterogeneity


@pytest.mark.parametrize("clients", [5, 10, 40])
@pytest.mark.parametrize("q", [0, 0.3, 1])
@pytest.mark.parametrize("labels", [balanced(2000, 5), unbalanced()], ids=["balanced", "unbalanced"])
def test_heterogeneity_deals_all_examples_evenly(labels, q, clients):
    parts = ClassHeterogeneity(q).assign(labels, clients, seed=3)
    dealt = np.concatenate(parts)
    assert len(parts) == clients and sorted(dealt.tolist()) == list(range(labels.size))
    sizes = [part.size for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("q", [0, 0.1, 0.5, 1])
def test_heterogeneity_is_the_share_of_the_own_class_and_the_rest_is_uniform(q):
    labels, runs = balanced(), 100
    counts = np.mean(
        [class_counts(labels, ClassHeterogeneity(q).assign(labels, 10, seed), 10) for seed in range(runs)], 0
    )
    # Of 200 examples, 200 q are of the own class and the others a uniform draw from what is left of all ten classes.
    rest = 200 * (1 - q) / 10
    expected = np.full((10, 10), rest) + 200 * q * np.eye(10)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(rest / runs) + 1e-9


def test_heterogeneity_takes_a_class_as_far_as_it_goes():
    labels = np.repeat([0, 1, 2], [80, 15, 5])
    counts = class_counts(labels, ClassHeterogeneity(1.0).assign(labels, 3, seed=0), 3)
    assert counts.sum(axis=1).tolist() == [33, 33, 34]
    assert counts.tolist() == [[33, 0, 0], [18, 15, 0], [29, 0, 5]]


def test_heterogeneity_gives_a_group_to_neighbouring_clients():
    labels = balanced(400, 4)
    counts = class_counts(labels, ClassHeterogeneity(1.0).assign(labels, 8, seed=0), 4)
    assert counts.argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and (counts.max(axis=1) == 50).all()


def test_heterogeneity_with_more_or_fewer_groups_than_classes():
    labels = balanced(400, 2)
    counts = class_counts(labels, ClassHeterogeneity(1.0, groups=4).assign(labels, 4, seed=0), 2)
    assert counts.tolist() == [[100, 0], [0, 100], [100, 0], [0, 100]]
    one = class_counts(labels, ClassHeterogeneity(1.0, groups=1).assign(labels, 1, seed=0), 2)
    assert one.tolist() == [[200, 200]]


def test_heterogeneity_needs_a_multiple_of_the_groups():
    with pytest.raises(ValueError, match="clients: 25 was given for 10 groups of clients; a multiple is needed"):
        ClassHeterogeneity(0.5).assign(balanced(), 25, seed=0)


# Quantity skew


def test_quantity_skew_sizes_have_the_dirichlets_moments():
    alpha, n, labels = 2.0, 5, balanced(4000)
    shares = np.array([[p.size / 4000 for p in QuantitySkew(alpha).assign(labels, n, seed)] for seed in range(2000)])
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert np.abs(shares.mean(axis=0) - 1 / n).max() < 4 * np.sqrt(variance / 2000)
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.15)


def test_quantity_skew_leaves_labels_alone():
    labels = np.sort(unbalanced(4000))
    whole = np.unique(labels, return_counts=True)[1] / labels.size
    parts = [part for seed in range(20) for part in QuantitySkew(5.0, minimum=100).assign(labels, 10, seed)]
    share = proportions(parts, labels)
    np.testing.assert_allclose(share.mean(axis=0), whole, atol=4 * np.sqrt(0.25 / 100 / len(parts)))


def test_quantity_skew_keeps_the_minimum():
    sizes = [part.size for part in QuantitySkew(0.01, minimum=15).assign(balanced(), 100, seed=0)]
    assert min(sizes) == 15 and sum(sizes) == 2000


# Long tail


def test_long_tail_keeps_the_first_of_every_class():
    labels = np.random.default_rng(0).permutation(balanced(1000, 5))
    kept = np.sort(np.concatenate(LongTail(0.01).assign(labels, 4, seed=0)))
    expected = [np.flatnonzero(labels == c)[:size] for c, size in enumerate([200, 64, 20, 7, 2])]
    assert kept.tolist() == sorted(np.concatenate(expected).tolist())


def test_long_tail_sizes_are_rounded_up_and_whole_ones_stay():
    # 1000 * 0.001^(c/3) is 1000, 100, 10, 1, but not all of them are in floating point.
    labels = np.repeat(np.arange(4), 1000)
    assert np.bincount(labels[LongTail(0.001)._kept(labels)]).tolist() == [1000, 100, 10, 1]
    assert np.bincount(labels[LongTail(0.5, largest=3)._kept(labels)]).tolist() == [3, 3, 2, 2]


def test_long_tail_keeps_at_most_what_there_is():
    labels = np.repeat([2, 5, 9], [10, 500, 30])
    # By default the first class is to have the mean number of examples, 180.
    assert [np.sum(labels[LongTail(0.25)._kept(labels)] == c) for c in (2, 5, 9)] == [10, 90, 30]
    assert [np.sum(labels[LongTail(0.25, largest=40)._kept(labels)] == c) for c in (2, 5, 9)] == [10, 20, 10]


def test_long_tail_deals_what_it_keeps_by_the_other_partition():
    labels = balanced(1000, 10)
    kept = LongTail(0.1)._kept(labels)
    for then in (IID(), Shards(2), Dirichlet(0.3), ClassHeterogeneity(0.5), QuantitySkew(1.0)):
        parts = LongTail(0.1, then=then).assign(labels, 10, seed=5)
        expected = [kept[part] for part in then.assign(labels[kept], 10, seed=5)]
        assert all(np.array_equal(a, b) for a, b in zip(parts, expected))


def test_long_tail_is_the_same_for_all_seeds_and_is_a_partition():
    labels = unbalanced()
    first, other = (np.concatenate(LongTail(0.1).assign(labels, 10, seed)) for seed in (0, 1))
    assert set(first.tolist()) == set(other.tolist()) and first.tolist() != other.tolist()
    assert isinstance(LongTail(0.1), Partition) and np.unique(first).size == first.size


def test_long_tail_of_one_class_and_of_too_few_examples():
    assert np.concatenate(LongTail(0.01).assign([4] * 100, 5, seed=0)).size == 100
    with pytest.raises(ValueError, match="clients: 30 was given for the 23 examples of a long tail; at most one"):
        LongTail(0.01, largest=20).assign(balanced(100, 3), 30, seed=0)


# Counts of classes


def test_class_counts():
    labels = np.array([0, 2, 2, 0, 3])
    counts = class_counts(labels, [np.array([0, 1, 2]), np.array([4]), np.array([], int)], classes=5)
    assert counts.tolist() == [[1, 0, 2, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert np.issubdtype(counts.dtype, np.integer)
    parts = Dirichlet(0.3).assign(balanced(), 7, seed=0)
    assert class_counts(balanced(), parts, 10).sum(axis=1).tolist() == [part.size for part in parts]


@pytest.mark.parametrize("labels", [[0, 1, 5], [-1, 0, 1]])
def test_class_counts_refuse_labels_beyond_the_classes(labels):
    with pytest.raises(ValueError, match=f"labels: {min(labels)} to {max(labels)} were given; 0 to 4 are allowed"):
        class_counts(np.array(labels), [np.array([0])], classes=5)


# Texts


@pytest.mark.parametrize(
    "text, partition",
    [
        ("iid", IID()),
        ("IID", IID()),
        ("shards", Shards(2)),
        ("shards:2", Shards(2)),
        (" shards: 5 ", Shards(5)),
        ("dirichlet:0.2", Dirichlet(0.2)),
        ("dirichlet:1e-1", Dirichlet(0.1)),
        ("dirichlet-class:0.5", Dirichlet(0.5, by="class")),
        ("dirichlet:1e+3", Dirichlet(1000.0)),
        ("hetero:0.5", ClassHeterogeneity(0.5)),
        ("quantity:0.5", QuantitySkew(0.5)),
        ("longtail:0.01", LongTail(0.01)),
        ("longtail:0.01+hetero:0.5", LongTail(0.01, then=ClassHeterogeneity(0.5))),
        (" LongTail: 1e-2 + Shards ", LongTail(0.01, then=Shards(2))),
        ("longtail:0.1+dirichlet:1e+3", LongTail(0.1, then=Dirichlet(1000.0))),
        ("longtail:0.1+longtail:0.5+iid", LongTail(0.1, then=LongTail(0.5))),
    ],
)
def test_parse(text, partition):
    assert parse(text) == partition


def test_every_listed_partition_can_be_made_and_parsed():
    for name, (constructor, description) in PARTITIONS.items():
        plain = name in ("iid", "natural")
        made = constructor() if plain else constructor(1)
        assert parse(name if plain else f"{name}:1") == made
        assert description and "\n" not in description


@pytest.mark.parametrize(
    "text, message",
    [
        ("dirchlet:0.2", r"partition: 'dirchlet' is not known \(did you mean 'dirichlet'\?\)"),
        ("shard:2", r"partition: 'shard' is not known \(did you mean 'shards'\?\)"),
        ("banana", "partition: 'banana' is not known; allowed are iid, shards, dirichlet, dirichlet-class"),
        ("", "partition: '' is not known; allowed are iid"),
        ("iid:3", "partition: 'iid:3' was given; allowed is iid$"),
        ("iid:", "partition: 'iid:' was given; allowed is iid$"),
        ("shards:", "partition: 'shards:' was given; allowed is shards:K with an integer K"),
        ("shards:2.5", "partition: 'shards:2.5' was given; allowed is shards:K with an integer K"),
        (
            "shards:0",
            "partition: 'shards:0' was given, and in it per_client: 0 was given; an integer of at least 1",
        ),
        ("dirichlet", "partition: 'dirichlet' was given; allowed is dirichlet:A with a number A"),
        ("dirichlet:much", "partition: 'dirichlet:much' was given; allowed is dirichlet:A with a number A"),
        ("dirichlet:-1", "partition: 'dirichlet:-1' was given, and in it alpha: -1.0 was given; a positive"),
        ("dirichlet-class:nan", "partition: 'dirichlet-class:nan' was given, and in it alpha: nan was given"),
        ("hetero", "partition: 'hetero' was given; allowed is hetero:Q with a number Q"),
        ("hetero:2", "partition: 'hetero:2' was given, and in it q: 2.0 was given; a number from 0 to 1"),
        ("quantity:", "partition: 'quantity:' was given; allowed is quantity:A with a number A"),
        ("longtail", "partition: 'longtail' was given; allowed is longtail:R with a number R"),
        ("longtail:0", "partition: 'longtail:0' was given, and in it ratio: 0.0 was given; a number above 0"),
        ("longtail:0.1+", r"partition: 'longtail:0.1\+' was given; allowed is longtail:R"),
        ("longtail:0.1+hetro:1", r"partition: 'hetro' is not known \(did you mean 'hetero'\?\)"),
        ("iid+shards:2", r"partition: 'iid\+shards:2' was given; only longtail:R can stand before a plus"),
    ],
)
def test_parse_refuses(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


# Bad input


@pytest.mark.parametrize("alpha", [0, 0.0, -1, float("nan"), float("inf"), "0.2", None])
def test_alpha_is_positive_and_finite(alpha):
    for partition in (Dirichlet, QuantitySkew):
        with pytest.raises(ValueError, match=f"alpha: {alpha!r} was given; a positive finite number is needed"):
            partition(alpha)


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan"), "0.5", None])
def test_q_is_from_zero_to_one(q):
    with pytest.raises(ValueError, match=f"q: {q!r} was given; a number from 0 to 1 is needed"):
        ClassHeterogeneity(q)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.1, float("nan"), "0.5", None])
def test_ratio_is_above_zero_and_at_most_one(ratio):
    with pytest.raises(ValueError, match=f"ratio: {ratio!r} was given; a number above 0 and at most 1 is needed"):
        LongTail(ratio)


@pytest.mark.parametrize("then", [IID, None, "iid"])
def test_then_is_a_partition(then):
    with pytest.raises(ValueError, match=r"then: .* was given; a partition such as IID\(\) is needed"):
        LongTail(0.1, then=then)


@pytest.mark.parametrize(
    "by, message",
    [
        ("clients", r"by: 'clients' is not known \(did you mean 'client'\?\); allowed are client, class"),
        (None, "by: 'None' is not known; allowed are client, class"),
    ],
)
def test_by_is_client_or_class(by, message):
    with pytest.raises(ValueError, match=message):
        Dirichlet(0.2, by=by)


@pytest.mark.parametrize("number", [0, -2, 1.0, True, "2"])
def test_counts_are_positive_integers(number):
    with pytest.raises(ValueError, match=r"per_client: .* was given; an integer of at least 1 is needed"):
        Shards(number)
    with pytest.raises(ValueError, match=r"minimum: .* was given; an integer of at least 1 is needed"):
        Dirichlet(0.2, by="class", minimum=number)
    with pytest.raises(ValueError, match=r"minimum: .* was given; an integer of at least 1 is needed"):
        QuantitySkew(0.2, minimum=number)
    with pytest.raises(ValueError, match=r"groups: .* was given; an integer of at least 1 is needed"):
        ClassHeterogeneity(0.2, groups=number)
    with pytest.raises(ValueError, match=r"largest: .* was given; an integer of at least 1 is needed"):
        LongTail(0.2, largest=number)


@all_partitions
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"clients": 0}, "clients: 0 was given; an integer of at least 1 is needed"),
        ({"clients": -1}, "clients: -1 was given; an integer of at least 1 is needed"),
        ({"clients": 2.0}, "clients: 2.0 was given; an integer of at least 1 is needed"),
        ({"clients": 101}, "clients: 101 was given for 100 examples; at most one per example is allowed"),
        ({"seed": -1}, "seed: -1 was given; an integer of at least 0 is needed"),
        ({"seed": None}, "seed: None was given; an integer of at least 0 is needed"),
        (
            {"labels": np.zeros((50, 2))},
            r"labels: shape \(50, 2\) was given; one label per example is needed",
        ),
        ({"labels": []}, "clients: 2 was given for 0 examples"),
    ],
)
def test_assign_refuses(partition, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        partition.assign(**{"labels": balanced(100), "clients": 2, "seed": 0, **arguments})
    assert "\n" not in str(caught.value)


def test_numpy_integers_are_integers():
    parts = Shards(np.int64(2)).assign(balanced(100), np.int32(5), np.uint8(3))
    assert [part.size for part in parts] == [20] * 5


def test_more_shards_than_examples():
    with pytest.raises(ValueError, match="per_client: 3 was given for 100 examples on 50 clients; at most 2"):
        Shards(3).assign(balanced(100), 50, seed=0)


def test_minimum_beyond_what_there_is():
    with pytest.raises(ValueError, match="minimum: 30 was given for 100 examples on 4 clients; at most 25"):
        Dirichlet(0.2, by="class", minimum=30).assign(balanced(100), 4, seed=0)


# A partition of the user's own.


class Own:
    """Gives what it was made with."""

    def __init__(self, parts):
        self.parts = parts

    def assign(self, labels, clients, seed):
        return self.parts


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([[0, 1], [1, 2]], "example 1 goes to clients 0 and 1"),
        ([[0, 1, 0], [2]], "example 0 goes to client 0 twice"),
        ([[0, 1]], "got 1 for clients=2"),
        ([[0], [1], [2]], "got 3 for clients=2"),
        ([[0, 1], []], "client 1 has no example"),
        ([[0, 1], [142]], "client 1 has the index 142; it must be from 0 to 141"),
        ([[0, 1], [-1]], "client 1 has the index -1; it must be from 0 to 141"),
        ([[0.5], [1.0]], "client 0 has indices of type float64"),
        ([[True], [False]], "client 0 has indices of type bool"),
        ([[[0, 1]], [2]], "client 0 has indices of shape (1, 2)"),
        (None, "must give a list with one array of indices per client; got None"),
        (5, "must give a list with one array of indices per client; got 5"),
    ],
)
def test_a_broken_partition_of_ones_own_is_refused(parts, sentence):
    with pytest.raises(rk.InputError) as raised:
        wine().partition(Own(parts), clients=2)
    assert str(raised.value).startswith("partition: Own.assign") and sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_partition_of_ones_own_may_leave_examples_over():
    clients = wine().partition(Own([np.array([3, 5]), [7]]), clients=2)
    assert clients.sizes.tolist() == [2, 1]
