"""Exact kernels where sweeps are slow: what helps, and what does not."""
