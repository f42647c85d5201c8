"""The ways of a row and of `--C` begin and end where they are said to, and pass what they must."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def test_the_ways_are_counted_from_end_to_end() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.path_of_a_row", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    ways = json.loads(ran.stdout)
    row, C = ways["row"], ways["--C"]
    assert row["stack"][-1] == "solve"
    assert row["stack"][0].startswith("wtopk")
    assert C["stack"][0] == "iterate"
    assert C["stack"][-1] == "main"
    # What nobody can do without, by hand; the loss is asked for its form long before the first update.
    assert {"topline.solvers.run.api.solve", "topline.solvers.losses.base.LossWithoutParameters.form"} <= set(
        row["functions"]
    )
    assert {"TopKHinge", "Problem", "SolverState"} <= set(row["records"])
    assert {"TrainConfig", "TrainingPlan", "Problem"} <= set(C["records"])
    assert not any("Certificate" in name for name in (*row["records"], *C["records"]))
    for way in ways.values():
        assert {name.rpartition(".")[2] for name in way["functions"]} >= {
            name.rpartition(".")[2] for name in way["stack"] if not name.endswith(">")
        }
