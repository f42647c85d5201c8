"""Golden runs find what they stored: passes, P and D within the tolerance, on any machine."""

from __future__ import annotations

import pytest

from tests.benchmarks.solvers import golden

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
