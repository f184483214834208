"""One file per method, and their registry. Methods import contracts, never an engine."""
