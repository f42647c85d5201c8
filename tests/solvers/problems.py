"""Small problems that the tests of the solvers share."""

from __future__ import annotations

import json

import numpy as np

from topline import (
    LDRKL,
    LabelSets,
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    PolyhedralTopK,
    StructuredHinge,
    SumExponential,
    TopKHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    exponential,
    linear,
)
from topline.solvers.core.codec import decoded, encoded
from topline.solvers.core.problem import LabelledRows
from topline.solvers.core.state import StoppingCriteria
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import OneVsAll, Softmax, TopKEntropy, TopKOthersHinge, TruncatedTopKEntropy
from topline.solvers.run import Task, run_task

M = 5


def random_margins(m=M, seed=7):
    """Margins in [0, 3] with a zero diagonal: far from the usual 1 - e_y."""
    margins = np.random.default_rng(seed).uniform(0.0, 3.0, (m, m))
    np.fill_diagonal(margins, 0.0)
    return margins


LOSSES = [
    MaxHinge(),
    StructuredHinge(random_margins()),
    StructuredHinge(random_margins(), k=3),
    TopKHinge(3),
    UsunierHinge(2),
    WeightedTopKHinge(linear(4)),
    WeightedUsunierHinge(exponential(3)),
]
#: One of each loss for M classes, but for those of label sets.
EVERY_LOSS = [
    *LOSSES,
    TopKOthersHinge(2),
    OneVsAll("hinge"),
    OneVsAll("logistic"),
    Softmax(),
    LDRKL(0.5),
    SumExponential(),
    TopKEntropy(2),
    TruncatedTopKEntropy(2),
    PolyhedralTopK(2),
]
#: One of each loss that takes nothing but label sets.
MULTILABEL_LOSSES = [MultilabelHinge(), MultilabelSoftmax()]


def solved_on_blocks(spec, X, y, executor, *, tol, max_passes=2000, weights=None, m=M, **more):
    """Solve the problem of a kernel on the blocks of an executor; `more` are of `Task`."""
    examples = LabelledRows.of(spec.loss, X, y, m=m, sample_weight=weights)
    criteria = StoppingCriteria(tol, max_passes)
    return run_task(Task(spec, examples, criteria, executor=executor, kernel=spec.kernel, **more))


class Requests(SerialExecutor):
    """Keeps the requests that were run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def run(self, request):
        self.seen.append(request)
        return super().run(request)


class Forgetful(SerialExecutor):
    """Loses the last block once, at a request, as with a worker that dies, and says so or not.

    It begins at A = 0 again; the first block has run the request already.
    """

    def __init__(self, at, *, blocks, says=True) -> None:
        super().__init__(blocks=blocks, threads=1)
        self._fresh = SerialExecutor(blocks=blocks, threads=1)
        self.requests, self.at, self.says = 0, at, says

    def bind(self, *arguments, **options) -> None:
        super().bind(*arguments, **options)
        self._fresh.bind(*arguments, **options)

    def run(self, request):
        self.requests += 1
        if self.requests != self.at:
            return super().run(request)
        if self.says:
            self._held[0].run(request, 1)
            for block in self._held:
                block.finish_step(getattr(request, "pending_step", None))
        self._held[-1] = self._fresh._held[-1]
        if self.says:
            raise DualsReplacedError("the last block begins at 0 again")
        return super().run(request)


def stored(state):
    """Return a state as a checkpoint gives it back."""
    plain, arrays = encoded(state)
    arrays = {name: np.array(array, order="C") for name, array in arrays.items()}
    return decoded(json.loads(json.dumps(plain)), arrays)


def loss_name(loss):
    """Name a parametrised case."""
    structured = isinstance(loss, StructuredHinge) and loss.k > 1
    return f"{loss.name} of {loss.k}" if structured else loss.name


def examples(n=60, d=4, m=M, seed=0, spread=1.0):
    """Overlapping clouds: every loss stays active, no class is missing."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % m
    random.shuffle(y)
    centres = random.standard_normal((m, d))
    return centres[y] + spread * random.standard_normal((n, d)), y


def psd_root(K):
    """Features whose inner products are K, by eigenvalues instead of pivots."""
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def several_labels(y, m=M, seed=2):
    """Label sets of examples of the classes y (n,), which belong to them; gives the table and the codes.

    The sets have one to m labels; the first example has all.
    """
    Y = (np.random.default_rng(seed).random((len(y), m)) < 0.3) | (np.arange(m) == y[:, None])
    Y[0] = True
    return LabelSets.from_indicator(Y)
