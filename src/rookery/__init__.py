"""Rookery: federated nested optimisation.

Many clients, who keep their data, jointly solve a bilevel, multi-level compositional, minimax or plain learning
problem. `import rookery as rk` gives everything on this page; the command line is in `rookery.cli`.
"""

from rookery import data
from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.shrofbo import ShroFBO
from rookery.algorithms.simfbo import SimFBO
from rookery.data.federated import Clients, Split, federate
from rookery.data.partitions import IID, Dirichlet, Shards
from rookery.engines import Eager, Local
from rookery.errors import DivergenceWarning, InputError
from rookery.federation.client import Client
from rookery.federation.cohort import Cohort
from rookery.federation.ledger import Ledger
from rookery.federation.method import State, component, method, static
from rookery.federation.rates import Rates
from rookery.federation.sampling import All, Bernoulli, Uniform, Weighted, WithReplacement
from rookery.federation.steps import FixedSteps, RandomSteps
from rookery.problems import exact
from rookery.problems.kinds import Bilevel, Compositional, Field, Joint, Minimax, Single
from rookery.problems.sets import Ball, Box, Projection, Simplex
from rookery.runs.analysis import FixedPoint, fixed_point
from rookery.runs.result import Result
from rookery.runs.run import Interrupted, run
from rookery.runs.sweep import sweep
from rookery.runs.table import Table
from rookery.vectors import Sequences, Vector
from rookery.version import __version__

__all__ = [
    "IID",
    "All",
    "Ball",
    "Bernoulli",
    "Bilevel",
    "Box",
    "Client",
    "Clients",
    "Cohort",
    "Compositional",
    "Dirichlet",
    "DivergenceWarning",
    "Eager",
    "FedAvg",
    "FedBiO",
    "FedBiOAcc",
    "Field",
    "FixedPoint",
    "FixedSteps",
    "InputError",
    "Interrupted",
    "Joint",
    "Ledger",
    "Local",
    "Minimax",
    "Projection",
    "RandomSteps",
    "Rates",
    "Result",
    "Sequences",
    "Shards",
    "ShroFBO",
    "SimFBO",
    "Simplex",
    "Single",
    "Split",
    "State",
    "Table",
    "Uniform",
    "Vector",
    "Weighted",
    "WithReplacement",
    "__version__",
    "component",
    "data",
    "exact",
    "federate",
    "fixed_point",
    "method",
    "run",
    "static",
    "sweep",
]
