"""The version, in one place. Imports nothing."""

__version__ = "0.1.0"
