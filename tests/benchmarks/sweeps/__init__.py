"""Whole sweeps: what they take beside one fit and beside exhaustive search, in memory and from a store."""
