"""The mathematics: losses, projections, kernels, methods, and scikit-learn estimators.

Everything here works on arrays in memory or anything with a shape, a dtype and row slices, without files,
cluster or flows.  `topline` exports the public names; the rooms below export what other rooms use.
"""
