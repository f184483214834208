"""Datasets, partitions over clients, and federated arrays."""

from rookery.data.catalogue import DATASETS, load
from rookery.data.datasets import Dataset, breast_cancer, digits, heart, synthetic, wine
from rookery.data.federated import Clients, Split, federate
from rookery.data.inputs import CropFlip, Scale
from rookery.data.partitions import (
    IID,
    PARTITIONS,
    ClassHeterogeneity,
    Dirichlet,
    LongTail,
    Natural,
    Partition,
    QuantitySkew,
    Shards,
    class_counts,
    parse,
)
from rookery.data.schema import Schema, SchemaError, read_schema, schema_of, write_schema
from rookery.data.sources import Loaded, Mapped, ShardFolder, Source, write_shards
from rookery.data.survival import tcga_brca

__all__ = [
    "DATASETS",
    "IID",
    "PARTITIONS",
    "ClassHeterogeneity",
    "Clients",
    "CropFlip",
    "Dataset",
    "Dirichlet",
    "Loaded",
    "LongTail",
    "Mapped",
    "Natural",
    "Partition",
    "QuantitySkew",
    "Scale",
    "Schema",
    "SchemaError",
    "ShardFolder",
    "Shards",
    "Source",
    "Split",
    "breast_cancer",
    "class_counts",
    "digits",
    "federate",
    "heart",
    "load",
    "parse",
    "read_schema",
    "schema_of",
    "synthetic",
    "tcga_brca",
    "wine",
    "write_schema",
    "write_shards",
]
