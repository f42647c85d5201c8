"""Rows that look alike and have different labels, whose dual rows move together.

`rows` finds them in groups, `steps` moves the dual rows of one group, and `ascent` those of all groups of a
block.  A slow round of dual ascent asks for it (`topline.solvers.blocks.ascent`).
"""
