"""Contracts between server programs and clients: cohort, client, sampling, steps, rates, ledger, wire."""
