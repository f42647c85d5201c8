"""Dual ascent on one block: exact column updates, row by row.

`rounds` answers a request, `passes` holds what its sweeps share, and `sweeps` visits the rows that `rows`
feeds.  `shared_tiles` sweeps large weights, `alike_rows` moves rows that look alike together, and
`extrapolation` looks ahead.
"""
