"""Benchmarks of solvers run on few rows, and what they time is what they name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import issparse

from tests.benchmarks.datasets import DataSet, relu_features
from tests.benchmarks.solvers import (
    every_method,
    first_fit,
    golden,
    peers,
    random_problems,
    standardised_blocks,
)
from tests.benchmarks.solvers.average_top_blocks import BLOCKS
from tests.benchmarks.solvers.average_top_blocks import main as measure_average_top
from tests.benchmarks.solvers.pass_cost import main as measure_passes
from tests.benchmarks.solvers.pass_cost import measure
from tests.benchmarks.solvers.peer_fits import PEERS, timed_fit
from tests.benchmarks.solvers.random_problems import KINDS, drawn
from tests.benchmarks.solvers.regret import AUTO, Outcome
from tests.benchmarks.solvers.regret import drawn as drawn_in_regret
from tests.benchmarks.solvers.regret import main as measure_regret
from tests.reference import losses as reference
from topline import MaxHinge
from topline.solvers.methods import METHODS


@pytest.mark.benchmarks
def test_it_prints_a_row_for_every_set_and_C(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    standardised_blocks.main(
        ["--rows", "400", "--blocks", "1", "4", "--C", "1", "10", "--data", str(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| set, C | blocks 1 | blocks 4 |"
    assert len(lines) == 2 + 2 * len(standardised_blocks.DRAWN)
    assert ">" not in "".join(lines[2:])


@pytest.mark.benchmarks
def test_it_prints_a_row_a_problem_and_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    random_problems.main(["--problems", "2", "--tol", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| number | kind | n x d, m |")
    assert all(" SOLVED " in line and "!" not in line for line in lines[2:4])
    assert lines[-1].startswith("| all | 2 | 2 |")


@pytest.mark.benchmarks
def test_every_kind_and_loss_is_drawn_and_its_primal_value_is_that_of_the_reference() -> None:
    seen = set()
    for number in range(40):
        problem = drawn(0, number)
        seen |= {problem.kind, problem.loss.name}
        W = np.random.default_rng(number).standard_normal((problem.X.shape[1], problem.m))
        X = problem.X.toarray() if issparse(problem.X) else problem.X
        few = slice(0, max(problem.m, 20))
        some = random_problems.Drawn(problem.kind, problem.X[few], problem.y[few], problem.loss, problem.C)
        expected = reference.primal(X[few], some.y, some.loss, some.lam, 0.0, W)
        assert some.primal(W)[0] == pytest.approx(expected, rel=1e-9)
    assert seen >= {*KINDS, "max_hinge", "topk_hinge", "softmax", "structured_hinge", "one_vs_all_hinge"}
    assert drawn(0, 3).C == drawn(0, 3).C != drawn(1, 3).C


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
    _, W, _ = timed_fit(peer, data.X.astype(np.float64), data.y, 0.5, 1e-9)
    best = peers.primal_value(data, loss, lam, W)
    rng = np.random.default_rng(1)
    steps = [0.05 * W, -0.05 * W, *(0.01 * rng.standard_normal((20, *W.shape)))]
    assert all(peers.primal_value(data, loss, lam, W + step) > best for step in steps)


STORED = golden.stored_cases(golden.STORED)

#: Products of another CPU or BLAS round otherwise, and orders of visits that follow them take other passes.
OTHER_MACHINES = 0.2


@pytest.mark.parametrize(
    "name",
    [
        "topk_hinge/auto/dense/one",
        "softmax/lbfgs/csr/three",
        "max_hinge/fw_pairwise/tiles/three",
        "topk_hinge/fw_away_columns/dense/resumed",
        "softmax/dual_ascent/dense/heads",
        "softmax@10/fw_fully_corrective/csr/three",
        "structured_hinge/lbfgs/dense/one",
    ],
)
def test_a_case_comes_to_what_is_stored(name) -> None:
    figures = golden.figures_of(golden.Case(*name.split("/")))
    what = golden.difference(STORED[name], figures, OTHER_MACHINES)
    assert not what or what.startswith("close")


def test_every_case_has_stored_figures() -> None:
    assert {str(case) for case in golden.cases()} == set(STORED)


def test_differences_are_told_from_rounding() -> None:
    old = {"status": "solved", "passes": 100, "primal": [1.0], "dual": [0.999], "digest": "a"}
    assert golden.difference(old, old) == ""
    other = {**old, "digest": "b"}
    assert golden.difference(old, {**other, "passes": 102}).startswith("close")
    for change in ({"passes": 103}, {"primal": [1.01]}, {"dual": [None]}, {"status": "exhausted"}):
        what = golden.difference(old, {**other, **change})
        assert what
        assert not what.startswith("close")


def test_the_regret_of_auto_is_measured(capsys) -> None:
    regrets = measure_regret(
        ["--seed", "1", "--problems", "2", "--rows", "300", "--turns", "1", "--tol", "0.1"]
    )
    assert len(regrets) == 2
    assert min(regrets) > 0
    assert f"worst {max(regrets):.2f}" in capsys.readouterr().out


def test_a_problem_follows_from_its_seed_and_number() -> None:
    one, again, other = drawn_in_regret(3, 4, 500), drawn_in_regret(3, 4, 500), drawn_in_regret(4, 4, 500)
    np.testing.assert_array_equal(one.X, again.X)
    assert (one.C, one.loss) == (again.C, again.loss)
    assert one.C != other.C


@pytest.mark.parametrize(
    ("seconds", "regret"),
    [
        ({AUTO: 3.0, "lbfgs": 2.0, "dual_ascent": 4.0}, 1.5),
        ({AUTO: 1.0, "lbfgs": 2.0}, 0.5),
        ({"lbfgs": 2.0}, np.inf),
        ({AUTO: 1.0}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_regret_is_over_the_best_that_ended(seconds, regret) -> None:
    assert Outcome(seconds, "").regret == regret


def test_the_cost_of_a_pass_is_measured() -> None:
    for threads in (1, 2):
        found = measure(300, 16, 4, 1.0, rounds=2, threads=threads)
        assert sorted(found) == list(range(1, threads + 1))
        for figures in found.values():
            columns = (figures.ascent, figures.evaluate, figures.scores, figures.product)
            assert all(len(column) == 2 and min(column) > 0 for column in columns)


def test_it_says_whether_the_limit_holds(capsys) -> None:
    sizes = ["--n", "200", "--d", "8", "--m", "3", "--rounds", "1"]
    assert measure_passes([*sizes, "--limit", "1e9"]) == 0
    assert measure_passes([*sizes, "--limit", "0"]) == 1
    assert "a pass of ascent over" in capsys.readouterr().out


def test_the_small_problem_has_one_objective(capsys) -> None:
    results = measure_average_top(["--quick", "--C", "0.02", "--tol", "1e-3"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(BLOCKS) + 2
    for result in results:
        assert result.relative_gap <= 1e-3
        assert result.primal == pytest.approx(results[0].primal, rel=1e-3)


def test_a_fit_is_timed_with_nothing_compiled(capfd: pytest.CaptureFixture[str]) -> None:
    assert first_fit.main(["truncated_topk_entropy", "--limit", "1e9"]) == 0
    said = capfd.readouterr()
    assert said.out.startswith("truncated_topk_entropy   first fit ")
    assert said.err.count("compiling inner loops") == 1


def test_the_table_has_a_line_for_every_method(capsys) -> None:
    every_method.main(["--rows", "60", "--passes", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(METHODS)
    for method, line in zip(METHODS, lines[2:], strict=True):
        assert line.startswith(f"| `{method}` |")
        assert ("refused" in line) == (method == "lbfgs" or method.endswith("_columns"))
