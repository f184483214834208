"""Rookery: federated nested optimisation.

Many clients, who keep their data, jointly solve a bilevel, multi-level compositional, minimax or plain learning
problem. `import rookery as rk` gives everything on this page; the command line is in `rookery.cli`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from rookery import data
from rookery.accelerators import has_gpu, record_loops
from rookery.algorithms.aggitd import AggITD
from rookery.algorithms.commfedbio import CommFedBiO
from rookery.algorithms.drift import ControlVariates, Duals
from rookery.algorithms.estimators import ConjugateGradient, Neumann, Tracked
from rookery.algorithms.fedadmm import FedADMM
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.fedbio_local import FedBiOLocal
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.fedbioacc_local import FedBiOAccLocal
from rookery.algorithms.feddyn import FedDyn
from rookery.algorithms.fedmsa import FedMSA
from rookery.algorithms.fednest import FedNest
from rookery.algorithms.fednova import FedNova
from rookery.algorithms.fedpd import FedPD
from rookery.algorithms.fedprox import FedProx
from rookery.algorithms.fedvra import FedVRA
from rookery.algorithms.fedvrau import FedVRAU
from rookery.algorithms.gbdsbo import GBDSBO
from rookery.algorithms.gossip import Gossip, GossipTracking
from rookery.algorithms.lfednest import LFedNest
from rookery.algorithms.local_steps import descend
from rookery.algorithms.presets import MRBO, SOBA, FedAdagrad, FedAdam, FedAvgM, FedYogi, StocBiO
from rookery.algorithms.scaffold import Scaffold
from rookery.algorithms.shrofbo import ShroFBO
from rookery.algorithms.simfbo import SimFBO
from rookery.algorithms.vrlsgd import VRLSGD
from rookery.data.federated import Clients, Split, federate
from rookery.data.partitions import IID, ClassHeterogeneity, Dirichlet, LongTail, QuantitySkew, Shards
from rookery.engines import Eager, Engine, Local, Mesh, Streamed
from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.errors import AdviceWarning, DivergenceWarning, InputError, StorageError
from rookery.federation.channels import Per
from rookery.federation.client import Client
from rookery.federation.codec import part
from rookery.federation.cohort import Cohort
from rookery.federation.feedback import EF21, Diana, ErrorFeedback
from rookery.federation.fields import amount, choice, component, count, number, rates, steps
from rookery.federation.graphs import Complete, Graph, Mixing, RandomGraph, Ring, Torus
from rookery.federation.ledger import Ledger
from rookery.federation.method import State, first_round, method, static, struct
from rookery.federation.protocols import Drift, Estimator, Method, ServerStep
from rookery.federation.rates import Decay, PerClient, Rates
from rookery.federation.sampling import All, Bernoulli, Uniform, Weighted, WithReplacement
from rookery.federation.scaled import Scaled
from rookery.federation.server import EachSequence
from rookery.federation.server_optimiser import ServerOptimiser
from rookery.federation.stages import CountSketch, LowRank, Quantise, RandK, Sign, Stage, TopK
from rookery.federation.steps import Epochs, FixedSteps, RandomSteps, Steps, StepsBy
from rookery.federation.untuned import adagrad_norm, mechanic
from rookery.metric import Metric
from rookery.problems import exact
from rookery.problems.base import OfBatch
from rookery.problems.kinds import Bilevel, Compositional, Field, Joint, Minimax, Single
from rookery.problems.penalty import Penalty
from rookery.problems.sets import Ball, Box, Projection, Simplex
from rookery.runs.analysis import FixedPoint, fixed_point
from rookery.runs.check import check
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.events import read_events
from rookery.runs.result import Result
from rookery.runs.run import Interrupted, run
from rookery.runs.sweep import sweep
from rookery.runs.table import Table
from rookery.vectors import Sequences, Vector
from rookery.version import __version__

record_loops(os.environ, gpu=has_gpu())

if TYPE_CHECKING:
    from rookery import tasks
    from rookery.experiments.api import compare, tune
    from rookery.experiments.compare import Comparison
    from rookery.experiments.experiment import resume
    from rookery.experiments.federated import federated
    from rookery.experiments.newcomers import newcomers
    from rookery.experiments.tune import Tuning
    from rookery.tasks import adapters

__all__ = [
    "EF21",
    "GBDSBO",
    "IID",
    "MRBO",
    "SOBA",
    "VRLSGD",
    "AdviceWarning",
    "AggITD",
    "All",
    "Ball",
    "Bernoulli",
    "Bilevel",
    "Box",
    "Checkpoints",
    "ClassHeterogeneity",
    "Client",
    "Clients",
    "ClientsFailed",
    "Cohort",
    "CommFedBiO",
    "Comparison",
    "Complete",
    "Compositional",
    "ConjugateGradient",
    "ControlVariates",
    "CountSketch",
    "Decay",
    "Diana",
    "Dirichlet",
    "DivergenceWarning",
    "Drift",
    "Duals",
    "EachSequence",
    "Eager",
    "Engine",
    "Epochs",
    "ErrorFeedback",
    "Estimator",
    "FedADMM",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBiO",
    "FedBiOAcc",
    "FedBiOAccLocal",
    "FedBiOLocal",
    "FedDyn",
    "FedMSA",
    "FedNest",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedVRA",
    "FedVRAU",
    "FedYogi",
    "Field",
    "FixedPoint",
    "FixedSteps",
    "Gossip",
    "GossipTracking",
    "Graph",
    "InputError",
    "Interrupted",
    "Joint",
    "LFedNest",
    "Ledger",
    "Local",
    "LongTail",
    "LowRank",
    "Mesh",
    "Method",
    "Metric",
    "Minimax",
    "Mixing",
    "Neumann",
    "OfBatch",
    "OnFailure",
    "Penalty",
    "Per",
    "PerClient",
    "Projection",
    "Quantise",
    "QuantitySkew",
    "RandK",
    "RandomGraph",
    "RandomSteps",
    "Rates",
    "Result",
    "Ring",
    "Scaffold",
    "Scaled",
    "Sequences",
    "ServerOptimiser",
    "ServerStep",
    "Shards",
    "ShroFBO",
    "Sign",
    "SimFBO",
    "Simplex",
    "Single",
    "Split",
    "Stage",
    "State",
    "Steps",
    "StepsBy",
    "StocBiO",
    "StorageError",
    "Streamed",
    "Table",
    "TopK",
    "Torus",
    "Tracked",
    "Tuning",
    "Uniform",
    "Vector",
    "Weighted",
    "WithReplacement",
    "__version__",
    "adagrad_norm",
    "adapters",
    "amount",
    "check",
    "choice",
    "compare",
    "component",
    "count",
    "data",
    "descend",
    "exact",
    "federate",
    "federated",
    "first_round",
    "fixed_point",
    "mechanic",
    "method",
    "newcomers",
    "number",
    "part",
    "rates",
    "read_events",
    "resume",
    "run",
    "static",
    "steps",
    "struct",
    "sweep",
    "tasks",
    "tune",
]


# What knows tasks, which are loaded when it is asked for: name -> module.
_LATER = {
    "Comparison": "rookery.experiments.compare",
    "Tuning": "rookery.experiments.tune",
    "compare": "rookery.experiments.api",
    "federated": "rookery.experiments.federated",
    "newcomers": "rookery.experiments.newcomers",
    "resume": "rookery.experiments.experiment",
    "adapters": "rookery.tasks.adapters",
    "tasks": "rookery.tasks",
    "tune": "rookery.experiments.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'rookery' has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    return module if name in ("adapters", "tasks") else getattr(module, name)
