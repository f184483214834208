"""Rookery beside other frameworks for federated learning; see `__main__`."""
