"""The benchmark of exact kernels runs at a small size; what it measures is read by people."""

from __future__ import annotations

import pytest

from tests.benchmarks.kernels.machines_page import write_page
from tests.benchmarks.kernels.rbf_machines import Cost, growth, main

pytestmark = pytest.mark.benchmarks


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (cost,) = main(["--quick"])
    assert cost.certified
    assert (cost.n, cost.gap <= 1e-2) == (400, True)
    # Python and NumPy alone; rows of one block are trained on by the coordinator itself.
    assert 50e6 < cost.coordinator_bytes <= cost.all_bytes
    assert "synthetic, max hinge" in capsys.readouterr().out


def test_growth_is_drawn_with_a_line_a_problem_and_a_row_a_training(tmp_path) -> None:
    costs = [
        Cost(name, n, 1e-3, True, factor * n, 1.0, 700 << 20, 1, 300 << 20)
        for name, factor in (("letter", 1e-3), ("synthetic", 2e-3))
        for n in (5_000, 10_000)
    ]
    write_page(tmp_path / "page.html", costs, growth(costs))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert page.count("<polyline") == 6
    assert page.count("<tr><td>") == len(costs)
    assert "letter: CPU time as n^1.00" in page


def test_growth_is_the_power_of_n_and_needs_two_sizes() -> None:
    costs = [
        Cost("a", n, 0.0, True, 3e-6 * n**1.5, 1.0, 7 * n, 1, int(1e3 * n**0.25))
        for n in (1_000, 2_000, 8_000)
    ]
    costs.append(Cost("alone", 1_000, 0.0, True, 1.0, 1.0, 1, 1, 1))
    assert growth(costs) == ["a: CPU time as n^1.50, all memory as n^1.00, the coordinator's RSS as n^0.25"]
