"""What `auto` takes for a smooth loss on rows of many features in many classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from topline import SerialExecutor, Softmax, Status, solve
from topline.solvers.methods import auto
from topline.solvers.typing import FloatArray, IntArray

N, D, M = 800, 512, 16


def activations(d: int = D, m: int = M) -> tuple[FloatArray, IntArray]:
    """Return rows of unit norm like those behind a ReLU, and labels."""
    random = np.random.default_rng(0)
    y = np.arange(N) % m
    X = np.maximum(random.normal(size=(N, d)) + 0.15 * random.normal(size=(m, d))[y], 0.0)
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y


def test_wide_rows_take_dual_ascent() -> None:
    X, y = activations()
    found, plain = solve(X, y, Softmax(), 0.25 / N), solve(X, y, Softmax(), 0.25 / N, method="lbfgs")
    assert (found.method, found.status) == ("dual_ascent", Status.SOLVED)
    assert "wide" in found.why
    assert found.passes < plain.passes
    assert found.primal == pytest.approx(plain.primal, rel=1e-3)


def test_from_a_smaller_c_on_where_weights_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = activations()
    assert solve(X, y, Softmax(), 1.0 / N, max_passes=2).method == "lbfgs"
    monkeypatch.setattr(auto, "_MANY_NUMBERS", D * M)
    assert solve(X, y, Softmax(), 1.0 / N, max_passes=2).method == "dual_ascent"


@pytest.mark.parametrize("C", [0.1, 100.0])
def test_a_small_and_a_large_c_do_not(C: float) -> None:
    X, y = activations()
    assert solve(X, y, Softmax(), 1.0 / (C * N), max_passes=2).method == "lbfgs"


def test_few_features_few_classes_and_several_blocks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = activations(d=D - 1)
    assert solve(X, y, Softmax(), 0.25 / N, max_passes=2).method == "lbfgs"
    X, y = activations(m=M - 1)
    assert solve(X, y, Softmax(), 0.25 / N, max_passes=2).method == "lbfgs"
    X, y = activations()
    assert solve(X, y, Softmax(), 0.25 / N, executor=SerialExecutor(), max_passes=2).method == "lbfgs"
    monkeypatch.setattr(auto, "_MOST_WIDE", N * D - 1)
    assert solve(X, y, Softmax(), 0.25 / N, max_passes=2).method == "lbfgs"


def test_rows_with_little_in_common_do_not() -> None:
    """Of rows in all directions the Hessian is nearly lam I."""
    X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32) / np.float32(np.sqrt(D))
    y = np.arange(N) % M
    assert solve(X, y, Softmax(), 0.25 / N, max_passes=2).method == "lbfgs"


def test_rows_of_a_file_do_too(tmp_path: Path) -> None:
    X, y = activations()
    np.save(tmp_path / "X.npy", X)
    found = solve(np.load(tmp_path / "X.npy", mmap_mode="r"), y, Softmax(), 0.25 / N)
    assert (found.method, found.status) == ("dual_ascent", Status.SOLVED)
