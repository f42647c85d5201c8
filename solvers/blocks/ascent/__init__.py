"""Dual ascent on one block: exact column updates of one row after the other.

`rounds` answers a request, `passes` holds what its sweeps share, and `sweeps` visits the rows that `row_feed`
hands out.  Weights that are not small are swept by `shared_tiles`, rows that look alike are moved together by
`alike_moves`, and `extrapolation` looks ahead.
"""
