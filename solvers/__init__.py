"""The mathematics: losses, projections, kernels and methods, and the scikit-learn faces of them.

Everything here works on arrays in memory or on anything with a shape, a dtype and row slices; no file, no
cluster and no flow is known.  The public names are those of `topline`; the rooms below export what others
use.
"""
