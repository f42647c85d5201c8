"""The tables of multiclass losses and their solvers: top-k, weighted top-k, Frank-Wolfe, baselines.

Papers: Lapin's thesis, chapters 5 and 6; Hirohashi and Kato; Tajima et al.
"""
