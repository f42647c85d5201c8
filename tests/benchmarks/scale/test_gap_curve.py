"""The benchmark of the gap's fall runs at a small size; what it measures is read by people."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.scale.gap_curve import features, main


def test_every_number_of_blocks_gets_a_curve_that_ends_certified(capsys) -> None:
    found = main(["--rows", "300", "--d", "64", "--m", "8", "--blocks", "1", "2", "--tol", "0.05"])
    assert all(result.relative_gap <= 0.05 for result in found)
    rounds = sum(len(result.history) for result in found)
    assert len(capsys.readouterr().out.splitlines()) == rounds + 2 * 4
    X, _ = features(300, 64, 8)
    assert np.allclose(np.linalg.norm(X, axis=1), 1.0, atol=1e-5)
