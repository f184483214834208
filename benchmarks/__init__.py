"""Benchmarks: side by side with what users would use instead."""
