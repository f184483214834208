"""SimFBO's figure 3: hyper-representation on MNIST, exchanges and time to a test accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from rookery.algorithms.aggitd import AggITD
from rookery.algorithms.fednest import FedNest
from rookery.algorithms.lfednest import LFedNest
from rookery.algorithms.simfbo import SimFBO
from rookery.experiments.experiment import Experiment
from rookery.federation.rates import Rates
from rookery.reproduce.aggitd import epoch, options, task
from rookery.reproduce.study import Cell, Claim, Done, First, Last, Measure, Study, fewer

SOURCE = "*SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning*"
EXCHANGES = 1000
BATCH = 64
SETTINGS = ("iid", "non-iid")
OTHERS = ("FBO-AggITD", "FedNest", "LFedNest")
REACHED = Measure("exchanges to 85 %", First("exchanges", "accuracy", 0.85), rising=False)
TIME = Measure("seconds to 85 %", First("seconds", "accuracy", 0.85), rising=False)
FINAL = Measure("final accuracy", Last("accuracy", 5), percent=True)


def cells(quick: bool) -> list[Cell]:
    """Four methods, iid and with two label-sorted shards per client, 1,000 exchanges each."""
    found = []
    for setting in SETTINGS:
        rates = Rates(y=0.2, v=0.1, x=0.05)
        local = {"x": 0.01, "y": 0.003} if setting == "iid" else {"x": 0.005, "y": 0.001}
        two_loops = {"neumann_step": 0.01, "lower_steps": 5, "upper_steps": epoch(setting, BATCH)}
        for name, method, exchanges in (
            ("SimFBO", SimFBO(lr=rates, server_lr=rates), 1),
            ("FBO-AggITD", AggITD(lr=Rates(x=0.01, y=0.003), **two_loops), 5),
            ("FedNest", FedNest(lr=Rates(x=0.01, y=0.003), neumann_terms=5, **two_loops), 10),
            ("LFedNest", LFedNest(lr=Rates(**local), neumann_terms=5, **two_loops), 3),
        ):
            rounds = (30 if quick else EXCHANGES) // exchanges
            chosen = options(setting, rounds, quick, BATCH, every=max(1, 10 // exchanges))
            found.append(Cell(name, setting, Experiment("hyperrep", task(setting, quick), name, method, chosen)))
    return found


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """SimFBO needs fewer exchanges, and less time, than each of the others."""
    return [
        claim
        for setting in SETTINGS
        for measure in (REACHED, TIME)
        for claim in fewer(done, setting, "SimFBO", OTHERS, measure)
    ]


FIGURE3 = Study(
    name="simfbo-fig3",
    title="SimFBO, figure 3: hyper-representation on MNIST, test accuracy",
    source=f"{SOURCE}, figure 3",
    settings="""
The network, the clients and the data of aggitd-table2, minibatches of 64. SimFBO with one local step, local and
server steps 0.2, 0.1 and 0.05 for y, v and x; FBO-AggITD and FedNest with inner step 0.003, outer step 0.01, N = 1, T
= 5, 5 local lower steps and one epoch of local upper steps; LFedNest likewise, non-iid with 0.001 and 0.005. 1,000
exchanges each. The paper shows curves and gives no numbers: what is checked is their order. The seconds are those of
all seeds side by side. Other work ran on the machine beside some of the cells, so they are rough.
""",
    cells=cells,
    measures=(REACHED, TIME, FINAL),
    claims=claims,
)
