"""FLamby's Fed-Heart-Disease and Fed-TCGA-BRCA: a public benchmark with real hospitals, and what nesting adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedprox import FedProx
from rookery.algorithms.presets import FedAdagrad, FedAdam, FedYogi
from rookery.algorithms.scaffold import Scaffold
from rookery.algorithms.simfbo import SimFBO
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.federation.server_optimiser import named_optimiser
from rookery.reproduce.flamby_task import CENTRES, Benchmark
from rookery.reproduce.study import Cell, Claim, Done, Last, Measure, Search, Study, summary

# Client's step, server's step and the rest, as the benchmark publishes them.
HUNDRED: dict[str, Any] = {"local_steps": 100}
REDDI: dict[str, Any] = {"b2": 0.999, "eps": 1e-8, **HUNDRED}
PUBLISHED: dict[str, dict[str, Callable[[], Any]]] = {
    "heart": {
        "FedAvg": lambda: FedAvg(lr=0.001, **HUNDRED),
        "FedProx": lambda: FedProx(lr=0.001, mu=0.01, **HUNDRED),
        "Scaffold": lambda: Scaffold(lr=0.001, **HUNDRED),
        "FedAdam": lambda: FedAdam(lr=0.01, server_lr=0.01, **REDDI),
        "FedYogi": lambda: FedYogi(lr=0.003162, server_lr=0.01, **REDDI),
        "FedAdagrad": lambda: FedAdagrad(lr=0.003162, server_lr=0.316, b1=0.9, eps=1e-8, **HUNDRED),
    },
    "brca": {
        "FedAvg": lambda: FedAvg(lr=0.1, **HUNDRED),
        "FedProx": lambda: FedProx(lr=0.1, mu=0.1, **HUNDRED),
        "Scaffold": lambda: Scaffold(lr=0.01, **HUNDRED),
        "FedAdam": lambda: FedAdam(lr=0.01, server_lr=0.1, **REDDI),
        "FedYogi": lambda: FedYogi(lr=0.01, server_lr=0.1, **REDDI),
        "FedAdagrad": lambda: FedAdagrad(lr=0.01, server_lr=1.0, b1=0.9, eps=1e-8, **HUNDRED),
    },
}
ROUNDS = {"heart": 15, "brca": 5}
# As many steps as 50 epochs are, or 30, the last minibatch of an epoch a short one.
STEPS = {"heart": {"pooled": 6100, "local 0": 2500, "local 3": 1100}, "brca": {"pooled": 3270, "local 1": 600}}

# Published results: mean and standard deviation, where there is one, of pooled and of the centres.
RESULTS: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "heart": {
        "pooled": {
            "pooled": (0.795, 0.002), "Cleveland": (0.783, 0.010), "Hungary": (0.764, 0.0), "Switzerland": (0.750, 0.0),
            "VA": (0.644, 0.0),
        },
        "local 0": {"pooled": (0.784, 0.0), "Cleveland": (0.746, 0.0), "Hungary": (0.760, 0.0)},
        "local 3": {"Switzerland": (0.800, 0.0), "VA": (0.702, 0.0)},
        "FedAvg": {
            "pooled": (0.748, 0.024), "Cleveland": (0.731, 0.019), "Hungary": (0.719, 0.029),
            "Switzerland": (0.650, 0.102), "VA": (0.640, 0.045),
        },
        "FedProx": {
            "pooled": (0.748, 0.024), "Cleveland": (0.731, 0.019), "Hungary": (0.719, 0.029),
            "Switzerland": (0.650, 0.102), "VA": (0.640, 0.045),
        },
        "Scaffold": {
            "pooled": (0.748, 0.024), "Cleveland": (0.727, 0.017), "Hungary": (0.719, 0.029),
            "Switzerland": (0.650, 0.102), "VA": (0.640, 0.045),
        },
        "FedAdam": {
            "pooled": (0.779, 0.013), "Cleveland": (0.752, 0.015), "Hungary": (0.746, 0.017),
            "Switzerland": (0.738, 0.025), "VA": (0.667, 0.040),
        },
        "FedYogi": {
            "pooled": (0.779, 0.014), "Cleveland": (0.760, 0.016), "Hungary": (0.753, 0.016),
            "Switzerland": (0.738, 0.025), "VA": (0.676, 0.036),
        },
        "FedAdagrad": {
            "pooled": (0.779, 0.014), "Cleveland": (0.760, 0.016), "Hungary": (0.753, 0.016),
            "Switzerland": (0.738, 0.025), "VA": (0.676, 0.036),
        },
    },
    "brca": {
        "pooled": {"pooled": (0.704, 0.102)},
        "local 1": {"pooled": (0.728, 0.0)},
        "FedAvg": {"pooled": (0.735, 0.157)},
        "FedProx": {"pooled": (0.717, 0.145)},
        "Scaffold": {"pooled": (0.699, 0.031)},
        "FedAdam": {"pooled": (0.842, 0.015)},
        "FedYogi": {"pooled": (0.842, 0.015)},
        "FedAdagrad": {"pooled": (0.834, 0.007)},
    },
}  # fmt: skip
COLUMNS = {"heart": "Fed-Heart-Disease", "brca": "Fed-TCGA-BRCA"}
NESTED_ROWS = ("penalties learnt (SimFBO)", "site weights learnt (SimFBO)")
MEASURES = tuple(
    Measure(name, Last(name), percent=True, tolerance=0.01) for name in ("pooled", *CENTRES["heart"], *CENTRES["brca"])
)  # fmt: skip


def adam(rate: float) -> Any:
    """Adam on minibatches of one client, as PyTorch has it."""
    return FedAvg(lr=1.0, server=named_optimiser("adam", learning_rate=rate, b1=0.9, b2=0.999, eps=1e-8))


def searched(data: str, quick: bool) -> dict[str, tuple[Benchmark, tuple[Any, ...], int]]:
    """What goes beyond the benchmark: the task, the settings that are tried on validation patients, and exchanges."""
    decays = (0.0, 0.1) if quick else (0.0, 0.01, 0.03, 0.1, 0.3)
    averaged = tuple(
        FedAvg(lr=Rates(lr), local_steps=5, weight_decay=decay)
        for lr in ((0.1,) if quick else (0.03, 0.1, 0.3))
        for decay in decays
    )
    nested = lambda *x: tuple(SimFBO(lr=Rates(x=rate, y=0.2, v=0.2, w=0.2)) for rate in (x[:1] if quick else x))
    task = lambda **options: Benchmark(data, scaling="pooled", **options)
    few, many = (10, 20) if quick else (200, 1000)
    rows = {
        "FedAvg, tuned": (task(), averaged, few),
        "own heads (FedAvg), tuned": (task(form="own heads", ridge=0.1), averaged, few),
        NESTED_ROWS[0]: (task(form="penalties", validation=0.5), nested(0.03, 0.1, 0.3, 1.0, 3.0), many),
        NESTED_ROWS[1]: (task(form="site weights", ridge=0.1), nested(0.01, 0.1, 1.0, 10.0), many),
    }
    return rows


def make_cell(
    data: str, row: str, task: Benchmark, method: Any, rounds: int, batch: int | None = None, search: Any = None
) -> Cell:
    """A cell of a row, with what is published of it."""
    every = max(1, rounds // 50)
    options = Options(
        rounds=rounds, clients=len(CENTRES[data]), cohort=0, partition="natural", batch_size=batch, every=every
    )
    known = RESULTS[data].get(row.removesuffix(" training"), {})
    paper, spread = ({name: pair[which] for name, pair in known.items()} for which in (0, 1))
    return Cell(row, COLUMNS[data], Experiment("flamby", task, row, method, options), paper, search, spread)


def cells(quick: bool) -> list[Cell]:
    found = []
    for data in ("heart",) if quick else ("heart", "brca"):
        scaling: Any = "centre" if data == "heart" else "none"
        for row, steps in list(STEPS[data].items())[: 1 if quick else None]:
            form, _, centre = row.partition(" ")
            task = Benchmark(data, form, int(centre or 0), scaling)  # type: ignore[arg-type]
            method = adam(0.001 if data == "heart" else 0.01)
            found.append(make_cell(data, f"{row} training", task, method, 20 if quick else steps))
        for row, make in PUBLISHED[data].items():
            if quick and row not in ("FedAvg", "FedAdam"):
                continue
            task = Benchmark(data, scaling=scaling)
            found.append(make_cell(data, row, task, make(), 2 if quick else ROUNDS[data]))
        for row, (task, methods, exchanges) in searched(data, quick).items():
            search = Search(methods, exchanges)
            found.append(make_cell(data, row, task, methods[0], exchanges, 0, search))
    return found


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """The best nested row is above pooled training on heart, and above the best published on BRCA."""
    found = []
    for data, level in (("heart", 0.795), ("brca", 0.842)):
        means = {
            row: summary(done[name], MEASURES[0]) for row in NESTED_ROWS if (name := f"{row}, {COLUMNS[data]}") in done
        }
        if means:
            best = max(means, key=lambda row: means[row].mean)
            what = "pooled training's" if data == "heart" else "the best published"
            found.append(
                Claim(
                    f"{COLUMNS[data]}: the best nested row is above {what} {100 * level:.1f} % (pooled)",
                    means[best].mean > level,
                    f"{best}: {means[best].show(MEASURES[0], ' %')}",
                )
            )
    return found


FLAMBY = Study(
    name="flamby",
    title="FLamby: Fed-Heart-Disease and Fed-TCGA-BRCA, and what nesting adds",
    source="Ogier du Terrail et al., FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic "
    "Healthcare Settings, NeurIPS 2022; settings and numbers are those of its public repository",
    settings="""
**At the benchmark's settings.** Four hospitals (199, 172, 30 and 85 training patients, 104, 89, 16 and 45 for the
test; 13 features, standardised by each hospital's own; logistic regression; minibatches of 4; 15 rounds of 100 local
steps) and six regions (248, 156, 164, 129, 129 and 40; 63, 40, 42, 33, 33 and 11; 39 features as they are; a linear
Cox model, its likelihood within minibatches of 8; 5 rounds of 100). All centres in every round, weighed by their
patients; layers start as PyTorch's. The metric is accuracy, or the concordance index. "pooled" judges one model on
all test patients together, scaled as all training patients together would be; the other columns are each centre's own
test patients. Pooled and local training are Adam's (0.001 and, on BRCA, where the benchmark's step is not known to
us, 0.01) for as many steps as 50 or 30 epochs are. Minibatches are drawn with replacement here, and without in the
benchmark.

**Beyond it**, all tuned without the test patients, on a quarter of each centre's training patients: inputs are scaled
by the mean and deviation of *all* training patients, which a federation computes from sums that each centre sends
once; full batches. *FedAvg, tuned*: step and weight decay. *Own heads*: one model, to which each centre adds one of
its own, with a ridge of 0.1. *Penalties learnt*: x is the logarithm of a penalty per feature, the upper level is half
of the training patients. *Site weights learnt*: 2 sigmoid(x_i) times centre i's loss, x_i its own, ridge 0.1, upper
level 30 %. In both a further sequence w is fitted to the patients of both levels under the same x, and is the model
that is judged.
""",
    cells=cells,
    measures=MEASURES,
    claims=claims,
    claims_heading="Goals",
    causes={
        "Switzerland (better)": "It has 16 test patients, of whom one is 6.25 points.",
        "Cleveland (better)": "Above by one and a half published deviations, and by one of ours. No cause was found.",
        "Hungary (better)": "By a point and a half, with a published deviation of as much. No cause was found.",
        "training, Fed-TCGA-BRCA: pooled (better)": "The benchmark's step size of pooled and local training on BRCA is "
        "not known to us.",
        "Scaffold, Fed-TCGA-BRCA: pooled (better)": "75.2 +- 2.5 % where 69.9 +- 3.1 is published: the spreads nearly "
        "meet, and no cause was found.",
        "FedAdam, Fed-TCGA-BRCA": "Five rounds are a snapshot of an oscillation: ages in years are not scaled, and the "
        "server's first steps, without bias correction, are 0.3 in every weight. Over 20 seeds the mean is 66.4, 80.8 "
        "and 76.1 % after 4, 5 and 6 rounds; after 5, 13 of 20 seeds have 82 % or more and three have less than 70 %. "
        "Of the seeds 0 to 4 two are among those three; the published 84.2 +- 1.5 are five others.",
        "FedYogi, Fed-TCGA-BRCA": "As FedAdam, which it is to four digits in five rounds.",
        "local 3 training": "One of the 45 patients of the VA is 2.2 points, and the number of steps of the "
        "benchmark's local training is not known to us: as many as 50 epochs are were taken.",
        "local 0 training": "The number of steps of the benchmark's local training is not known to us: as many as 50 "
        "epochs are were taken.",
    },
    remarks="""
- Pooled training is 79.8 % here, where 79.5 % is published: the nested rows on heart are above the published number,
  and not above ours.
- **What helps most on heart is the scale.** Each hospital's own mean and deviation take away what tells hospitals
  apart, and with it who is ill more often (all 30 training patients in Switzerland, 38 % in Hungary). With the pooled
  ones the VA, where the best published is 70.2 %, is above 77 % without anything nested.
- Some of what tuning chose is at the end of its grid. For the penalties on heart the next step, 10, diverges with three
  seeds of five; below 0.03 on BRCA x hardly moves in 1,000 exchanges; FedAvg's 0.3 on heart was not gone beyond.
- On BRCA the test has 32 events; a point is about what one patient moves.
""",
    by_setting=True,
    axes=("exchanges",),
    metric="pooled",
    logarithmic=True,
    seeds=5,
)
