"""Ready-made tasks: a problem, data, initial values and metrics under one name."""

from rookery.tasks.classify import Classify
from rookery.tasks.cleaning import Cleaning
from rookery.tasks.clustering import Clustering
from rookery.tasks.fairness import Fairness
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.losstuning import LossTuning
from rookery.tasks.metalearn import MetaLearn
from rookery.tasks.personalised import Personalised
from rookery.tasks.regularisation import Regularisation
from rookery.tasks.riskaverse import RiskAverse
from rookery.tasks.semisupervised import SemiSupervised
from rookery.tasks.trust import Trust

__all__ = [
    "Classify",
    "Cleaning",
    "Clustering",
    "Fairness",
    "HyperRep",
    "LossTuning",
    "MetaLearn",
    "Personalised",
    "Regularisation",
    "RiskAverse",
    "SemiSupervised",
    "Trust",
]
