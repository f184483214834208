"""Bytes to 90 %: nested methods with and without channels, on the setting of the frontier, each tuned alike."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from rookery.algorithms.aggitd import AggITD
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.simfbo import SimFBO
from rookery.experiments.experiment import Experiment
from rookery.federation.rates import Rates
from rookery.reproduce.aggitd import CHOSEN, options
from rookery.reproduce.frontier import BATCH
from rookery.reproduce.study import Cell, Claim, Done, First, Measure, Search, Study, final, reached, summary

LEVEL = 0.9
EXCHANGES = {"SimFBO": 150, "FedBiOAcc": 200, "FBO-AggITD": 500}  # of the runs that are reported
TRIED = {"SimFBO": 60, "FedBiOAcc": 80, "FBO-AggITD": 200}  # of each setting that is tried
PER_ROUND = {"SimFBO": 1, "FedBiOAcc": 2, "FBO-AggITD": 5}
PLAIN = "as they are"
CHANNELS = {  # what is done to replies, and to what the server sends
    PLAIN: ("none", "none"),
    "8 bits": ("quantise:8", "quantise:8"),
    "top 5 %, error feedback": ("error-feedback:topk:0.05+quantise:4", "quantise:4:256"),
    "rank 8": ("lowrank:8+quantise:8", "quantise:4:256"),
}
FEWER, LONGER = 20.0, 1.5  # what is aimed at: so many times fewer bytes, at no more than so many times the exchanges
SETTINGS = ("iid", "non-iid")
STEPS = (10, 40, 120)


def _make(name: str, x: float, y: float, steps: int) -> Any:
    if name == "SimFBO":
        return SimFBO(lr=Rates(x=x, y=y, v=y), local_steps=steps)
    if name == "FedBiOAcc":
        return FedBiOAcc(lr=Rates(x=x, y=y, v=y), local_steps=steps, delta=4.6, offset=100.0)
    return AggITD(lr=Rates(x=x, y=y), neumann_step=y, lower_steps=steps, upper_steps=steps)


def choices(name: str) -> tuple[Any, ...]:
    """The twelve settings that a method chooses from, whatever its channels."""
    upper, lower = ((0.03, 0.1), (0.003, 0.01)) if name == "FBO-AggITD" else ((0.1, 0.3), (0.03, 0.1))
    return tuple(_make(name, x, y, steps) for steps, x, y in itertools.product(STEPS, upper, lower))


def cells(quick: bool) -> list[Cell]:
    """Every method with every channel, iid and with two label-sorted shards per client; in the small version SimFBO
    alone, iid."""
    found = []
    for setting, name, channel in itertools.product(SETTINGS, EXCHANGES, CHANNELS):
        if quick and (setting != "iid" or name != "SimFBO"):
            continue
        rounds = 20 if quick else EXCHANGES[name] // PER_ROUND[name]
        up, down = CHANNELS[channel]
        chosen = dataclasses.replace(options(setting, rounds, quick, BATCH), up=up, down=down)
        settings = choices(name)
        search = Search(settings[:2], 10) if quick else Search(settings, TRIED[name])
        place = CHOSEN.task(setting, quick)
        experiment = Experiment("hyperrep", place, name, settings[0], chosen)
        found.append(Cell(f"{name}, {channel}", setting, experiment, search=search))
    return found


REACHED = reached(LEVEL)
MEGABYTES = reached(LEVEL, "megabytes")
UPWARD = Measure(f"megabytes up to {100 * LEVEL:g} %", First("megabytes up", "accuracy", LEVEL), rising=False)


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """What is aimed at: of each setting's frontier, so many times fewer bytes at not many more exchanges."""
    found = []
    for setting in SETTINGS:
        here = {name: each for name, each in done.items() if each.cell.column == setting}
        plain = _whole({name: each for name, each in here.items() if PLAIN in each.cell.row})
        packed = _whole({name: each for name, each in here.items() if PLAIN not in each.cell.row})
        if not plain or not packed:
            continue
        for measure in (MEGABYTES, UPWARD):
            fewest = min(summary(each, measure).mean for each in plain.values())
            exchanges = min(summary(each, REACHED).mean for each in plain.values())
            ratios = {
                each.cell.row: (fewest / summary(each, measure).mean, summary(each, REACHED).mean / exchanges)
                for each in packed.values()
            }
            near = {row: both for row, both in ratios.items() if both[1] <= LONGER} or ratios
            row, (fewer, longer) = max(near.items(), key=lambda item: item[1][0])
            found.append(
                Claim(
                    f"{setting}: {FEWER:g} times fewer {measure.name.removesuffix(f' to {100 * LEVEL:g} %')} than the "
                    f"frontier without channels, at no more than {LONGER:g} times the exchanges",
                    fewer >= FEWER and longer <= LONGER,
                    f"{row}: {fewer:.1f} times fewer, {longer:.2f} times the exchanges",
                )
            )
    return found


def _whole(done: Mapping[str, Done]) -> dict[str, Done]:
    """Those that reach the level with every seed."""
    whole = {}
    for name, each in done.items():
        found = summary(each, REACHED)
        if found.reached == found.seeds and math.isfinite(found.mean):
            whole[name] = each
    return whole


def _listed(values: Iterable[Any]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}"


BYTES = Study(
    name="bytes",
    title="Bytes to 90 %: channels on nested methods",
    source="Our own comparison, on the setting of the frontier",
    settings=f"""
Hyper-representation on MNIST as in [frontier](frontier.md): 100 clients, 10 a round, a network 784-200-10 whose hidden
layer is x and whose head is y, iid and with two label-sorted shards per client, minibatches of {BATCH}, PyTorch's
initial values. Each method runs with its messages as they are and with three [channels](../docs/compression.md):

| | up, at the client | down, at the server |
|---|---|---|
{chr(10).join(f"| {name} | `{up}` | `{down}` |" for name, (up, down) in CHANNELS.items())}

**Tuning** is the same for every row: twelve settings, the combinations of two rates of x, two of the other sequences
(SimFBO and FedBiOAcc 0.1 and 0.3, 0.03 and 0.1; FBO-AggITD 0.03 and 0.1, 0.003 and 0.01) and {_listed(STEPS)} local
steps, each tried with seed 0 for {_listed(TRIED.values())} exchanges ({_listed(TRIED)}); the highest mean accuracy on
held-out training examples is taken. Reported are new runs on all training examples, {_listed(EXCHANGES.values())}
exchanges, on the test set. Megabytes are those of all clients, up and down together and up alone, as the ledger counts
packed arrays.
""",
    cells=cells,
    measures=(REACHED, MEGABYTES, UPWARD, final()),
    claims=claims,
    claims_heading="What was aimed at",
    misses_heading="Missed",
    remarks="""
- Replies of a nested method are nearly of low rank: eight directions of 8 bits do what 156,800 numbers do, at a
  fiftieth of the bytes, in about as many exchanges non-iid and a third more iid, where there are two to begin with.
- FedBiOAcc sends momenta, which it goes on from: with error feedback all three seeds diverge after 90 % iid, and one of
  three without any channel does at its 120 local steps. FBO-AggITD with error feedback collapses with one seed. What
  was chosen over the tried exchanges does not last.
- The cells ran six at a time on the GPU.
""",
    causes={
        "times fewer megabytes than": (
            "The way down. A point goes there, and its stages keep nothing between messages: at 4 bits in blocks of "
            "256 it is 7.8 times smaller, so that no channel of replies takes the sum beyond 15.6 times. At 3 bits "
            "SimFBO took half as many exchanges again in a first try, and at 2 bits it did not reach 90 %."
        ),
    },
    axes=("exchanges", "megabytes"),
    logarithmic=True,
    lowest=0.6,
    by_setting=True,
    seeds=3,
)
