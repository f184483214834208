"""Datasets, partitions over clients, and federated arrays."""

from rookery.data.datasets import Dataset, digits, synthetic
from rookery.data.federated import Clients, Split, federate
from rookery.data.inputs import CropFlip, Scale
from rookery.data.partitions import IID, PARTITIONS, Dirichlet, Partition, Shards, parse

__all__ = [
    "IID",
    "PARTITIONS",
    "Clients",
    "CropFlip",
    "Dataset",
    "Dirichlet",
    "Partition",
    "Scale",
    "Shards",
    "Split",
    "digits",
    "federate",
    "parse",
    "synthetic",
]
