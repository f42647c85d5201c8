"""The benchmark of margins for rare classes and for unequal mistakes runs, on few rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.models import long_tail


@pytest.mark.benchmarks
def test_margins_help_rare_classes_and_both_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = long_tail.main(["--quick"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("|")[2].split("|")[0].strip() for line in lines if line.startswith("| ")] == [
        "digits, cut", *long_tail.RARE, "digits, halves", "usual margins", "tree", "tree, least 0"
    ]  # fmt: skip
    macro = {name: values[:, 0].mean() for name, values in found["rare"].items()}
    # Seen: 81 % with the usual margins and 86 % with those by class sizes, on two draws.
    assert macro["ldam"] > macro["usual margins"]
    assert macro["logit-adjusted"] > macro["usual margins"]
    assert all(np.isfinite(values).all() for part in found.values() for values in part.values())


def test_the_profile_falls_to_a_hundredth() -> None:
    y = np.repeat(np.arange(5), 400)
    sizes = np.sort(np.bincount(y[long_tail.long_tail(y, 0)]))
    assert sizes.tolist() == [4, 13, 40, 126, 400]
