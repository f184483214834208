"""Experiments: tasks run by methods, kept in folders, resumed, compared and tuned."""
