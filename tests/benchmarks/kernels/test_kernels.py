"""Benchmarks of kernels run at a small size; what they measure is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.kernels import low_rank_start, rbf_machines, wide_kernels


@pytest.mark.benchmarks
def test_low_rank_start_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = low_rank_start.main(["--sets", "synthetic", "--rows", "1200", "--C", "4", "--landmarks", "50"])
    assert min(found) > 0.0
    assert "from 50 landmarks" in capsys.readouterr().out


@pytest.mark.benchmarks
def test_rbf_machines_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (cost,) = rbf_machines.main(["--quick"])
    assert cost.certified
    assert (cost.n, cost.gap <= 1e-2) == (400, True)
    # Python and NumPy alone; rows of one block are trained on by the coordinator itself.
    assert 50e6 < cost.coordinator_bytes <= cost.all_bytes
    assert "synthetic, max hinge" in capsys.readouterr().out


@pytest.mark.benchmarks
def test_growth_is_the_power_of_n_and_needs_two_sizes() -> None:
    costs = [
        rbf_machines.Cost("a", n, 0.0, True, 3e-6 * n**1.5, 1.0, 7 * n, 1, int(1e3 * n**0.25))
        for n in (1_000, 2_000, 8_000)
    ]
    costs.append(rbf_machines.Cost("alone", 1_000, 0.0, True, 1.0, 1.0, 1, 1, 1))
    assert rbf_machines.growth(costs) == [
        "a: CPU time as n^1.50, all memory as n^1.00, the coordinator's RSS as n^0.25"
    ]


@pytest.mark.benchmarks
def test_wide_kernels_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = wide_kernels.main(["--sets", "digits", "--rows", "1200", "--C", "4", "--rank", "50"])
    assert max(gap for _, gap, _, _ in found) <= 1e-3
    assert len(found) == 4
    assert "from 50 columns" in capsys.readouterr().out
