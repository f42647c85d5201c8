"""Methods that the papers compare with: one-vs-all by LIBLINEAR, TopPush, SVM^Perf, RankSVM and Wsabie++.

They are functions of arrays, outside the common loop and its methods.  TopPush, SVM^Perf and RankSVM return a
duality gap of their own; LIBLINEAR says only whether it converged, and Wsabie++ samples a problem that is not
convex.
"""

from __future__ import annotations

from tests.reproduce.baselines.one_vs_all import LinearScores, fit_one_vs_all
from tests.reproduce.baselines.rank_svm import RankSVMResult, solve_rank_svm
from tests.reproduce.baselines.svm_perf import SVMPerfResult, solve_svm_perf
from tests.reproduce.baselines.top_push import TopPushResult, solve_top_push
from tests.reproduce.baselines.wsabie import WsabieResult, fit_wsabie

__all__ = [
    "LinearScores",
    "RankSVMResult",
    "SVMPerfResult",
    "TopPushResult",
    "WsabieResult",
    "fit_one_vs_all",
    "fit_wsabie",
    "solve_rank_svm",
    "solve_svm_perf",
    "solve_top_push",
]
