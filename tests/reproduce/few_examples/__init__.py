"""The tables of learning from few examples: privileged information and weights, related tasks.

Paper: Lapin's thesis, chapters 3 and 4.
"""
