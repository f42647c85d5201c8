"""Methods that the papers compare with: one-vs-all by LIBLINEAR, TopPush, and RankSVM.

They are functions of arrays, outside the common loop and its methods.  TopPush and RankSVM return a duality
gap of their own; LIBLINEAR says only whether it converged.
"""

from __future__ import annotations

from topline.solvers.baselines.one_vs_all import LinearScores, fit_one_vs_all
from topline.solvers.baselines.rank_svm import RankSVMResult, solve_rank_svm
from topline.solvers.baselines.top_push import TopPushResult, solve_top_push

__all__ = [
    "LinearScores",
    "RankSVMResult",
    "TopPushResult",
    "fit_one_vs_all",
    "solve_rank_svm",
    "solve_top_push",
]
