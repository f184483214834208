"""FedMSA: the risk-averse problem of figure 2, and loss tuning on a long tail (figures 1, 3 and 4)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from rookery.algorithms.fedmsa import FedMSA
from rookery.algorithms.fednest import FedNest
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.reproduce.published import PublishedFedMSA, PublishedFedNest
from rookery.reproduce.study import (
    Cell,
    Claim,
    Done,
    First,
    Last,
    Measure,
    Search,
    Study,
    fewer,
    higher,
    reached,
    summary,
)
from rookery.tasks.losstuning import LossTuning
from rookery.tasks.riskaverse import RiskAverse

SOURCE = "*Federated Multi-Sequence Stochastic Approximation with Local Hypergradient Estimation*"

# Risk-averse learning.

# Of x, the same for all rows of a setting.
STEPS = {
    "Gaussian truth": (0.00001, 0.00002, 0.00003, 0.00004, 0.00005, 0.00007, 0.0001),
    "unit truth": (0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004),
}
TASKS = {
    "Gaussian truth": RiskAverse(noise=0.001**0.5, truth="gaussian", adjoint="local"),
    "unit truth": RiskAverse(adjoint="local"),
}
PAPERS, OURS, CENTRE = "FedMSA, K = 5", "FedMSA, K = 5, tracked adjoints", "centralised, K = 1"
DISTANCE = Measure("distance to the nearer minimiser", Last("distance"), rising=False)
NEAR = Measure("exchanges to a distance of 0.1", First("exchanges", "distance", 0.1, falling=True), rising=False)


def risk_averse(quick: bool) -> list[Cell]:
    """1,000 updates each: 200 rounds of 5 local steps, and 1,000 rounds of one on one client that holds everything;
    quickly, two rows of one setting."""
    found, rounds = [], 20 if quick else 200
    clients = Options(rounds=rounds, clients=10, cohort=0, batch_size=0, every=2)
    alone = Options(rounds=5 * rounds, clients=1, cohort=0, batch_size=0, every=10)
    for setting, steps in list(STEPS.items())[1 if quick else 0 :]:
        local = TASKS[setting]
        tracked = dataclasses.replace(local, adjoint="tracked")
        for step in steps[1:3] if quick else steps:
            rates = Rates(0.2, x=step)
            for row, task, steps_of, options in (
                (PAPERS, local, 5, clients),
                (OURS, tracked, 5, clients),
                (CENTRE, local, 1, alone),
            ):
                if quick and row == OURS:
                    continue
                method = FedMSA(lr=rates, local_steps=steps_of)
                experiment = Experiment("riskaverse", task, row, method, options)
                found.append(Cell(row, f"{setting}, step {step:g}", experiment))
    return found


def risk_averse_claims(done: Mapping[str, Done]) -> list[Claim]:
    """At its best step of the grid FedMSA is at least as close after as many updates, and needs a fifth as much."""

    def best(row: str, setting: str) -> tuple[float, str]:
        """The least distance of the steps at which no run diverges, and how it is shown."""
        here = [each for each in done.values() if each.cell.row == row and each.cell.column.startswith(setting)]
        found = [(summary(each, DISTANCE), each.cell.column) for each in here if not any(each.diverged)]
        shown = [(each.mean, f"{each.show(DISTANCE)} ({column.rpartition(', ')[2]})") for each, column in found]
        return min(shown, default=(math.inf, "some run diverges at every step"))

    claims = []
    for setting in [each for each in STEPS if any(of.cell.column.startswith(each) for of in done.values())]:
        (near, ours), (far, centre) = best(PAPERS, setting), best(CENTRE, setting)
        text = "after 1,000 updates, each at its best step, FedMSA is at least as close to a minimiser (to 10 %)"
        claims.append(Claim(f"{setting}: {text}", near < math.inf and near <= 1.1 * far, f"{ours} against {centre}"))
    for column in dict.fromkeys(each.cell.column for each in done.values()):
        mine, theirs = (summary(done[f"{row}, {column}"], NEAR) for row in (PAPERS, CENTRE))
        if mine.reached == mine.seeds and theirs.reached == theirs.seeds:
            claims.append(
                Claim(
                    f"{column}: FedMSA needs a fifth of the exchanges to a distance of 0.1 (to 10 %)",
                    mine.mean <= 1.1 * theirs.mean / 5,
                    f"{mine.show(NEAR)} against {theirs.show(NEAR)}",
                )
            )
    return claims


MCO = Study(
    name="fedmsa-mco",
    title="FedMSA, figure 2: a risk-averse problem of three levels",
    source=f"{SOURCE}, figure 2",
    settings="""
min_x E[U] + 0.5 sqrt(E[max(0, U - E U)^2] + 0.01) with U = (b - (a'x)^2)^2, d = 10, 1,000 measurements. **As in the
paper**: the local form (11b) of the hypergradient, by products of a client's own Jacobians; one client takes the local
steps (Algorithm 1, line 9); noise of variance 0.001; a truth that is standard normal. Its covariance (of normal
entries) is none; here it is R'R with R = I + 0.3 N / sqrt(d). It does not say how many clients there are (two in its
notebook): here ten with 100 measurements each, 200 rounds of K = 5 local steps. Centralised: one client with all of
them, 1,000 iterations. Full batches (the paper names none), rate 0.2 for the inner sequences, the same seven steps of x
for all rows. **Beside it**: tracked adjoints, which are exact when clients differ; and a truth of length 1 with noise
0.1, on which steps may be 20 to 40 times as long. The distance is that to the nearer of the two minimisers, which are
found by Newton's method in float64.
""",
    cells=risk_averse,
    measures=(DISTANCE, NEAR),
    claims=risk_averse_claims,
    causes={
        "Gaussian truth: after": "At equal steps both are equally close, where neither diverges. But of five problems "
        "one lets FedMSA diverge at a step that the centralised run still stands, so that the longest step at which "
        "all five converge is shorter. What FedMSA saves is exchanges.",
        "unit truth: after": "The local form is biased where clients differ, and stops at a distance of 2.5e-5; "
        "tracked adjoints go on to 1.8e-6, as the centralised run does, in four of five problems.",
    },
    remarks="With a Gaussian truth losses are a hundred times as large, and tracked adjoints diverge at every step of "
    "the grid, in four of five problems at the shortest: probably since they start at zero, and remember for long what "
    "the square root's derivative was there.",
    metric="distance",
    log_metric=True,
    axes=("round",),
)

# Loss tuning.

TARGET = reached(0.9)
TOP1 = Measure("final top-1 accuracy", Last("accuracy", 5), percent=True)
BALANCED = Measure("final class-balanced accuracy", Last("balanced", 5), percent=True)


def loss_tuning(quick: bool) -> list[Cell]:
    """FedMSA and FedNest as published with several K, at several levels of heterogeneity; and both tuned."""
    columns, published = (0.1,) if quick else (0.1, 0.3, 0.5, 1.0), (4,) if quick else (12, 8, 4)
    found = []
    for q in columns:
        for steps in published:
            # The paper's sentence is about K = 12.
            paper = {TARGET.name: 250.0} if steps == 12 else {}
            found.append(_cell(f"FedMSA, K = {steps}", q, [_published_fedmsa(steps)], quick, paper=paper))
    for steps in published:
        found += [_cell(f"FedNest, K = {steps}", q, [_published_fednest(steps)], quick) for q in columns]
    for q in columns:
        if q in (0.1, 1.0):
            found.append(_cell("FedNest, the paper's adjoint", q, [PAPERS_FEDNEST], quick, cohort=10))
    for q in columns:
        rates = itertools.product((0.05, 0.3), (0.05, 0.1, 0.2, 0.4), (0.01, 0.03, 0.1))
        tuned = [_fedmsa(*each) for each in rates][: 2 if quick else None]
        found.append(_cell("FedMSA, K = 12, tuned", q, tuned, quick, paper={TARGET.name: 250.0}))
        if q in (0.3, 0.5):
            continue
        if not quick:
            found.append(_cell("FedMSA, K = 12, tuned, cohort 10", q, tuned, quick, cohort=10))
        rates = itertools.product((0.05, 0.3), (0.05, 0.1, 0.2, 0.4), (0.03, 0.1, 0.3))
        tuned = [_fednest(*each) for each in rates][: 2 if quick else None]
        found.append(_cell("FedNest, tuned", q, tuned, quick, cohort=10))
    return found


def _published_fedmsa(steps: int) -> PublishedFedMSA:
    return PublishedFedMSA(lr=Rates(x=0.05, y=0.1, v=0.1), local_steps=steps, momentum=0.5, local_clients=10)


def _published_fednest(steps: int) -> PublishedFedNest:
    """The authors' script: K lower rounds of an epoch of minibatches, K upper steps; 2 K + 6 exchanges a round."""
    return PublishedFedNest(
        lr=Rates(x=0.02, y=0.01),
        neumann_step=0.02,
        neumann_terms=3,
        lower_rounds=steps,
        lower_steps=12,
        upper_steps=steps,
    )


# The same with the adjoint of the paper, which is shorter by a factor of about 50, and full batches below as well.
PAPERS_FEDNEST = FedNest(
    lr=Rates(x=0.02, y=0.01), neumann_step=0.02, neumann_terms=3, lower_rounds=12, lower_steps=12, upper_steps=12
)


def _fedmsa(x: float, y: float, v: float) -> FedMSA:
    return FedMSA(lr=Rates(x=x, y=y, v=v), local_steps=12, momentum=0.5, local_clients=10)


def _fednest(x: float, y: float, neumann_step: float) -> FedNest:
    return FedNest(lr=Rates(x=x, y=y), neumann_step=neumann_step, neumann_terms=5, lower_steps=12, upper_steps=12)


def _cell(
    row: str,
    q: float,
    methods: Sequence[FedMSA | FedNest],
    quick: bool,
    cohort: int = 0,
    paper: Mapping[str, float] | None = None,
) -> Cell:
    """A setting, or several of which the best is chosen on validation data."""
    mnist = LossTuning("mnist", widths=(200,), ridge=0.0, validation=0.2, init="pytorch")
    task = LossTuning(widths=(16,), ridge=0.0, init="pytorch") if quick else mnist
    method = methods[0]
    name, full, small, every = ("FedMSA", 250, 10, 2) if isinstance(method, FedMSA) else ("FedNest", 200, 5, 2)
    if isinstance(method, FedNest) and method.neumann_terms == 3:  # 3,000 exchanges
        full, small, every = 3000 // (2 * method.lower_rounds + 6), 2, 1
    options = Options(
        rounds=small if quick else full,
        clients=20 if quick else 100,
        cohort=cohort,
        partition=f"hetero:{q:g}",
        batch_size=0,
        every=every,
    )
    search = Search(tuple(methods), 10 if quick else 250) if len(methods) > 1 else None
    return Cell(row, f"q = {q:g}", Experiment("losstuning", task, name, method, options), paper or {}, search)


def loss_tuning_claims(done: Mapping[str, Done]) -> list[Claim]:
    """More local steps need fewer exchanges and end higher; FedNest needs many more, and more steps do not help it."""
    pairs = (
        ("FedMSA, K = 8", "FedMSA, K = 4"),
        ("FedMSA, K = 12", "FedMSA, K = 8"),
        ("FedMSA, K = 12", "FedNest, K = 12"),
        ("FedMSA, K = 12, tuned", "FedNest, tuned"),
        ("FedMSA, K = 12, tuned, cohort 10", "FedNest, tuned"),
    )
    columns = dict.fromkeys(each.cell.column for each in done.values())
    claims = [claim for c in columns for row, other in pairs for claim in fewer(done, c, row, (other,), TARGET)]
    for column in columns:
        for row, other in pairs[:2]:
            claims += higher(done, column, row, (other,), TOP1, verb="ends above")
        flat = [done.get(f"FedNest, K = {steps}, {column}") for steps in (4, 12)]
        if None not in flat:
            few, many = (summary(each, TOP1) for each in flat if each is not None)
            text = f"{column}: FedNest stays flat: with K = 4 and K = 12 it ends within a point ({TOP1.name})"
            claims.append(Claim(text, abs(many.mean - few.mean) < 0.01, f"{few.show(TOP1)} and {many.show(TOP1)} %"))
    return claims


LOSS_TUNING = Study(
    name="fedmsa-losstuning",
    title="FedMSA, figures 1, 3 and 4: loss tuning on long-tail MNIST",
    source=f"{SOURCE}, figures 1, 3 and 4",
    settings="""
Class c keeps the first ceil(6000 * 0.01^(c/9)) training images, 14,817 in all; 100 clients in ten groups that lean to
one class with share q. The lower level fits all weights of a network 784-200-10, with PyTorch's initial values, to
CE(sigmoid(dy) * logits + ly). The upper level is the class-balanced loss of the fifth of each client's examples that
is kept for validation. There is no ridge.

**FedMSA, K = 4, 8, 12** follows the authors' script: alpha 0.05, beta 0.1 for weights and adjoint, rho 0.5. All
clients give the direction, on all of their examples, and ten clients take the local steps. The `local_bs 10` of the
script only splits that sum. Before the first round come five warm-up exchanges, in which ten clients take 60 steps of
0.01 on minibatches of 10 (five epochs), and six exchanges that start the adjoint at the script's Neumann product
(lambda 0.02, five terms with weights 1/j, powers of each client's own Hessian). All of them are counted. 250 rounds of
two exchanges.

**FedNest, K = 4, 8, 12** follows the authors' script as well: ten clients in every exchange, drawn anew for each lower
round and for the upper part. K lower rounds of an epoch of minibatches of 10 with step 0.01, T = 3, K upper steps of
0.02. The anchor q, the Hessian products and the hypergradient use all examples. The adjoint is the script's, as
above, with lambda 0.02. 3,000 exchanges, 2 K + 6 in a round. The script's network has dropout, which is left out.
**FedNest, the paper's adjoint** has that of the paper's algorithm, lambda T times one product, which is shorter by a
factor of about 50 at equal settings; its lower steps use all examples as well.

**Tuned**: FedMSA without warm-up, from a zero adjoint. The best of 24 combinations of step sizes (x 0.05, 0.3; y 0.05,
0.1, 0.2, 0.4; and FedMSA's v 0.01, 0.03, 0.1, FedNest's lambda 0.03, 0.1, 0.3), each tried for 250 exchanges with a
sixth of the training examples held out, on which the mean class-balanced accuracy counts. FedNest then has N = 1, T =
5, 12 lower and 12 upper steps, and 200 rounds of ten exchanges. **Cohort 10**: the direction, too, comes from ten
clients alone.

The paper gives one number: about 250 exchanges to 90 % test accuracy for FedMSA with K = 12, and more than 2,000 for
FedNest. Its figures 1b and 3 show that the final accuracy rises with K at equal rounds, and that FedNest's does not.
""",
    cells=loss_tuning,
    measures=(TARGET, TOP1, BALANCED),
    claims=loss_tuning_claims,
    claims_of_parts=True,
    causes={
        "FedMSA, K = 12, tuned": "Its step sizes are tuned; the paper's number is of its own. Rows at these are above.",
    },
    logarithmic=True,
    seeds=5,
)
