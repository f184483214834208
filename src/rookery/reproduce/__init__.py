"""The papers' tables and figures, made again: one file per study, and the command that runs them."""

from rookery.reproduce.registry import STUDIES, reproduce

__all__ = ["STUDIES", "reproduce"]
