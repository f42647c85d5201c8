"""What `auto` takes for a smooth loss on sparse rows, and on how many blocks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.preprocessing import normalize

from topline import MaxHinge, OneVsAll, Softmax, Status, solve
from topline.solvers.core.problem import Problem
from topline.solvers.executors import SerialExecutor
from topline.solvers.methods import METHODS, auto, chosen_method
from topline.solvers.run.task import default_executor

N, D, M = 600, 400, 4


def texts(seed=0):
    """Return rows of unit norm with words of their class, and labels."""
    random = np.random.default_rng(seed)
    y = random.integers(0, M, N)
    words = (random.exponential(size=(N, 12)) * D / 8 + y[:, None] * D / 8).astype(int) % D
    X = sparse.csr_matrix(
        (np.ones(words.size), words.ravel(), np.arange(0, words.size + 1, 12)), shape=(N, D)
    )
    X.sum_duplicates()
    return normalize(X).astype(np.float32), y


@pytest.mark.parametrize("loss", [Softmax(), OneVsAll("logistic")], ids=lambda loss: loss.name)
def test_sparse_rows_take_dual_ascent(loss) -> None:
    X, y = texts()
    found = solve(X, y, loss, 0.1 / N)
    assert (found.method, found.status) == ("dual_ascent", Status.SOLVED)
    assert "sparse" in found.why
    plain = solve(X, y, loss, 0.1 / N, method="lbfgs")
    # One-vs-all logistic has the Hessian of each class where rows are as short as these.
    assert found.passes <= plain.passes + 1
    assert found.primal == pytest.approx(plain.primal, rel=1e-3)
    assert solve(X.toarray(), y, loss, 0.1 / N).method == "lbfgs"


def test_long_rows_and_many_dual_variables_do_not(monkeypatch) -> None:
    X, y = texts()
    last = sparse.vstack([X[:-1], 40.0 * X[-1:]], format="csr")
    assert solve(X, y, Softmax(), 1.0 / N).method == "dual_ascent"
    assert solve(last, y, Softmax(), 1.0 / N).method == "lbfgs", "a row of norm 40 has |x|^2 = 1600"
    assert solve(X, y, Softmax(), 1e-3 / N, tol=1.0).method == "lbfgs", "C |x|^2 = 1000"
    monkeypatch.setattr(auto, "_MOST_DUALS", N * M - 1)
    assert solve(X, y, Softmax(), 1.0 / N).method == "lbfgs"


def test_a_heavy_row_counts_as_a_long_one() -> None:
    X, y = texts()
    weights = np.ones(N)
    assert solve(X, y, Softmax(), 1.0 / N, sample_weight=weights).method == "dual_ascent"
    weights[N // 2] = 1000.0
    assert solve(X, y, Softmax(), 1.0 / N, sample_weight=weights).method == "lbfgs"


def test_whole_numbers_are_squared_as_numbers() -> None:
    """240^2 is 0 in eight bits."""
    X, y = texts()
    counts = sparse.csr_matrix((np.full(X.nnz, 240, dtype=np.uint8), X.indices, X.indptr), shape=X.shape)
    assert solve(counts, y, Softmax(), 1.0 / N).method == "lbfgs"


def test_weights_alone_and_blocks_are_no_start_for_it() -> None:
    X, y = texts()
    cut = solve(X, y, Softmax(), 0.1 / N, method="lbfgs", max_passes=3)
    rest = solve(X, y, Softmax(), 0.1 / N, state=cut.state)
    assert (rest.method, rest.status) == ("lbfgs", Status.SOLVED)
    assert solve(X, y, Softmax(), 0.1 / N, executor=SerialExecutor(blocks=8)).method == "lbfgs"


def test_hinges_and_unknown_rows_are_chosen_for_as_before() -> None:
    X, y = texts()
    assert solve(X, y, MaxHinge(), 1.0 / N).method == "dual_ascent"
    problem = Problem(Softmax(), N, D, M, 1.0 / N)
    assert chosen_method("auto", problem)[1].method == "lbfgs"
    assert chosen_method("auto", problem, rows=X)[1].method == "dual_ascent"


@pytest.mark.parametrize(("per_column", "blocks"), [(8, 1), (40, 2), (1000, 16)])
def test_blocks_of_sparse_rows_have_entries_for_each_column(per_column, blocks) -> None:
    n, d, m = 20_000, 1_000, 20
    X = sparse.random_array((n, d), density=per_column / n, format="csr", dtype=np.float32, rng=0)
    problem = Problem(Softmax(), n, d, m, 1.0 / n)
    with default_executor(problem, METHODS["lbfgs"], X) as executor:
        executor.bind(problem, X, np.zeros(n, dtype=np.int32), keep_duals=False)
        assert executor.blocks == blocks
        assert isinstance(executor, SerialExecutor)
    with default_executor(problem, METHODS["lbfgs"], np.empty((0, d))) as executor:
        executor.bind(problem, X, np.zeros(n, dtype=np.int32), keep_duals=False)
        assert executor.blocks == 16
