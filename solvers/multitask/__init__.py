"""Multitask learning: one-vs-all support vector machines with a shared representation (thesis, 4 and B.1).

Tasks share the examples and have labels y_ti of 1 and -1, such as a class against all others.  Everything
here works on the kernel matrix of the examples without an intercept (add 1 to the kernel for a regularised
one); `topline.MultitaskClassifier` is the scikit-learn estimator.

Source: M. Lapin, B. Schiele, M. Hein, "Scalable multitask representation learning for scene classification",
CVPR 2014, which is chapter 4 of the thesis; S. Shalev-Shwartz, T. Zhang, "Stochastic dual coordinate ascent
methods for regularized loss minimization", 2013.
"""

from __future__ import annotations

from topline.solvers.multitask.strategies import (
    SharedProblem,
    ascend,
    solve_multi,
    solve_single,
    solve_stacked,
    trace_norm_bounds,
)
