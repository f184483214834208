"""The problems with known answers, E1 to E8 of the specification; imports only the modules beside it."""

from rookery.problems.exact.bilevel import QuadraticBilevel
from rookery.problems.exact.cleaning import DataCleaning
from rookery.problems.exact.composition import LinearComposition
from rookery.problems.exact.consensus import QuadraticConsensus
from rookery.problems.exact.joint import JointConsensus
from rookery.problems.exact.meta import QuadraticMeta
from rookery.problems.exact.midrange import Midrange
from rookery.problems.exact.minimax import QuadraticMinimax
from rookery.problems.exact.ridge import RidgePenalties
from rookery.problems.exact.tuning import LossTuning

__all__ = [
    "DataCleaning",
    "JointConsensus",
    "LinearComposition",
    "LossTuning",
    "Midrange",
    "QuadraticBilevel",
    "QuadraticConsensus",
    "QuadraticMeta",
    "QuadraticMinimax",
    "RidgePenalties",
]
