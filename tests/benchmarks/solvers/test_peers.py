"""The benchmark beside peers runs, and both sides minimise the same objective."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.benchmarks.datasets import DataSet, relu_features
from tests.benchmarks.solvers import peers
from tests.benchmarks.solvers.peer_fits import PEERS, timed_fit
from tests.reference import losses as reference
from topline import MaxHinge


def small(*, as_sparse: bool) -> DataSet:
    X, y = relu_features(200, 12, 4)
    return DataSet("small", sparse.csr_matrix(X) if as_sparse else X, y.astype(np.int32))


def test_the_benchmark_runs(capsys) -> None:
    arguments = ["--quick", "--only", "digits", "--lam-n", "10", "--repeats", "2", "--data-dir", "nowhere"]
    assert peers.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "dual_ascent" in printed
    assert "liblinear" in printed
    assert "| max_hinge, lam n | 10 |" in printed
    assert "1 cases, 0 of them not solved" in printed
    assert "shorter or sparse rows: best peer's seconds / ours median" in printed


def test_standardised_sets_and_losses_with_and_without_a_peer(capsys) -> None:
    arguments = [
        "--quick",
        "--only",
        "digits/z",
        "--lam-n",
        "10",
        "--repeats",
        "1",
        "--loss",
        "topk_hinge,softmax",
    ]
    arguments += ["--methods", "auto", "--data-dir", "nowhere", "--clock", "cpu"]
    assert peers.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "digits/z: n 400" in printed
    assert "| topk_hinge, lam n | 10 |\n|---|---|\n| digits/z | (" in printed
    assert "| softmax, lam n | 10 |" in printed
    assert "sklearn newton-cg" in printed
    assert peers.main([*arguments, "--peers", "sklearn lbfgs"]) == 0
    printed = capsys.readouterr().out
    assert "sklearn lbfgs" in printed
    assert "sklearn newton-cg" not in printed
    with pytest.raises(SystemExit):
        peers.main([*arguments, "--peers", "nobody"])


def test_a_missing_file_is_said_and_skipped(tmp_path, capsys) -> None:
    assert peers.main(["--only", "usps", "--data-dir", str(tmp_path)]) == 0
    assert "usps: skipped" in capsys.readouterr().out


@pytest.mark.parametrize("as_sparse", [False, True])
def test_the_primal_value_is_that_of_the_definition(as_sparse) -> None:
    data = small(as_sparse=as_sparse)
    W = np.random.default_rng(0).standard_normal((12, 4))
    X = data.X.toarray() if as_sparse else data.X
    expected = reference.primal(X.astype(np.float64), data.y, MaxHinge(), 0.01, 0.0, W)
    assert peers.primal_value(data, "max_hinge", 0.01, W) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_minimises_our_objective(peer) -> None:
    """No small step away from its solution, towards nothing or at random, lowers our primal value."""
    data = small(as_sparse=False)
    loss = "max_hinge" if peer == "liblinear" else "softmax"
    lam = 2.0 / len(data.y)
    _, W = timed_fit(peer, data.X.astype(np.float64), data.y, 0.5, 1e-9)
    best = peers.primal_value(data, loss, lam, W)
    rng = np.random.default_rng(1)
    steps = [0.05 * W, -0.05 * W, *(0.01 * rng.standard_normal((20, *W.shape)))]
    assert all(peers.primal_value(data, loss, lam, W + step) > best for step in steps)
