"""The peers of the benchmark, in a process of their own: one that takes too long can be ended."""

from __future__ import annotations

import importlib
import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from tests.benchmarks.datasets import load

#: Tolerances from loose to tight; peers certify nothing, so the loosest one that serves is looked for.
TOLERANCES = tuple(float(tol) for tol in 10.0 ** np.arange(1.0, -8.01, -0.5))
_MANY = 10_000_000
#: Seconds on the wall, or those of all threads: where others use the machine the latter tell more.
CLOCKS: Mapping[str, Callable[[], float]] = MappingProxyType(
    {"wall": time.perf_counter, "cpu": time.process_time}
)


def _liblinear(C: float, tol: float) -> Any:
    return LinearSVC(
        multi_class="crammer_singer", fit_intercept=False, C=C, tol=tol, max_iter=_MANY, random_state=0
    )


def _logistic(solver: str) -> Callable[[float, float], Any]:
    def make(C: float, tol: float) -> Any:
        return LogisticRegression(solver=solver, fit_intercept=False, C=C, tol=tol, max_iter=_MANY)

    return make


def _cyanure(C: float, tol: float) -> Any:
    return _Cyanure(C, tol)


class _Cyanure:
    """cyanure's multinomial logistic regression, whose lam is 1 / (n C)."""

    def __init__(self, C: float, tol: float) -> None:
        self._C, self._tol = C, tol
        self.coef_: Any = None

    def fit(self, X: Any, y: Any) -> None:
        """Fit with the solver that it chooses itself."""
        classifier = importlib.import_module("cyanure.estimators").Classifier
        model = classifier(
            loss="multiclass-logistic", penalty="l2", lambda_1=1.0 / (X.shape[0] * self._C), tol=self._tol,
            fit_intercept=False, max_iter=100_000, verbose=False,
        )  # fmt: skip
        model.fit(X, y)
        self.coef_ = np.asarray(model.coef_).T


#: Each minimises |W|^2 / 2 + C sum_i loss_i: our objective over lam, where C = 1 / (lam n).
PEERS: Mapping[str, Callable[[float, float], Any]] = MappingProxyType(
    {
        "liblinear": _liblinear,
        "sklearn lbfgs": _logistic("lbfgs"),
        "sklearn newton-cg": _logistic("newton-cg"),
        "sklearn newton-cholesky": _logistic("newton-cholesky"),
        # No dependency: it takes part where it is installed.
        **({"cyanure": _cyanure} if find_spec("cyanure") else {}),
    }
)


def timed_fit(
    peer: str, X: Any, y: Any, C: float, tol: float, clock: str = "wall"
) -> tuple[float, np.ndarray[Any, Any], int]:
    """Fit once; gives seconds, W (d, m) and iterations."""
    now = CLOCKS[clock]
    model = PEERS[peer](C, tol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = now()
        model.fit(X, y)
        seconds = now() - started
    return seconds, np.asarray(model.coef_, dtype=np.float64).T, int(np.max(getattr(model, "n_iter_", 0)))


def serve(pipe: Connection, name: str, folder: Path, quick: bool, threads: int, clock: str) -> None:
    """Fit what is asked for until None comes."""
    data = load(name, folder, quick=quick)
    # LIBLINEAR computes in float64 alone: it need not convert within its time.
    wide = data.X.astype(np.float64)
    with threadpool_limits(threads):
        for peer in PEERS:  # what is set up in a first call is not timed either
            timed_fit(peer, sparse.csr_matrix(np.eye(6)), np.arange(6) % 3, 1.0, 1.0)
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            peer, C, tol = asked
            try:
                pipe.send(timed_fit(peer, wide if peer == "liblinear" else data.X, data.y, C, tol, clock))
            except MemoryError:
                # newton-cholesky asks for (m d)^2 numbers, whatever m and d are.
                pipe.send(None)


class PeerProcess:
    """Fits peers on one data set; a fit that lasts longer than `cap` seconds ends the process."""

    def __init__(self, name: str, folder: Path, *, quick: bool, threads: int, clock: str = "wall") -> None:
        self._what = (name, folder, quick, threads, clock)
        self._process: Any = None
        self._pipe: Any = None

    def fit(
        self, peer: str, C: float, tol: float, cap: float
    ) -> tuple[float, np.ndarray[Any, Any], int] | None:
        """Give seconds, W and iterations; None past the cap, or if the peer asks for too much memory."""
        if self._process is None:
            self._start()
        self._pipe.send((peer, C, tol))
        if self._pipe.poll(cap):
            answer: tuple[float, np.ndarray[Any, Any], int] | None = self._pipe.recv()
            return answer
        self._process.kill()
        self._forget()
        return None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *self._what), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def _forget(self) -> None:
        self._process.join()
        self._pipe.close()
        self._process = self._pipe = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._pipe.send(None)
            self._forget()
