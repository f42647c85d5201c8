"""Workers that are processes of their own, as large data get: everything that a problem holds goes there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.processes import run_program
from tests.solvers.problems import EVERY_LOSS, MULTILABEL_LOSSES, M, examples, loss_name, several_labels
from topline.pipeline.cluster import DaskExecutor
from topline.solvers.core.state import SolveResult, Status
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import Softmax, TopKHinge
from topline.solvers.run import solve

X, Y = examples(n=120, d=6)
TABLE, CODES = several_labels(Y)


def assert_the_same(client: Client, loss: Any, **options: Any) -> None:
    y, sets = (CODES, TABLE) if loss in MULTILABEL_LOSSES else (Y, None)
    serial = SerialExecutor(blocks=3)

    def solved(executor: Any, passes: int) -> SolveResult:
        return solve(
            X, y, loss, lam=1.0 / len(X), max_passes=passes, executor=executor, label_sets=sets, **options
        )

    with DaskExecutor(client, blocks=3) as workers:
        here, there = (solved(each, 6) for each in (serial, workers))
        assert there.method == here.method
        if here.method == "dual_ascent":
            # A round has as many parts as messages allow: iterates differ, and the answer does not.
            here, there = (solved(each, 200) for each in (serial, workers))
            assert there.status is here.status is Status.SOLVED
            assert max(here.dual, there.dual) <= min(here.primal, there.primal)
            return
    assert there.passes == here.passes
    # Last bits of a product depend on where its rows lie in memory.
    np.testing.assert_allclose(there.W, here.W, rtol=1e-6, atol=1e-8)
    assert there.primal == pytest.approx(here.primal, rel=1e-9)
    assert there.dual == pytest.approx(here.dual, rel=1e-9, nan_ok=True)


@pytest.mark.cluster
@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=loss_name)
def test_a_hinge_and_a_smooth_loss(processes: Client, loss: Any) -> None:
    assert_the_same(processes, loss)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("loss", EVERY_LOSS + MULTILABEL_LOSSES, ids=loss_name)
@pytest.mark.parametrize("method", ["auto", "lbfgs"])
def test_every_loss(processes: Client, loss: Any, method: str) -> None:
    form = loss.form(M)
    assert_the_same(
        processes, loss, method=method if form.convex else "lbfgs",
        smoothing=0.5 if method == "lbfgs" and not form.smooth else 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_without_a_guard_is_refused_in_a_sentence(tmp_path: Path, guarded: bool) -> None:
    """Its worker processes would run it again, and start workers of their own."""
    script = tmp_path / "job.py"
    lines = [
        "from topline.pipeline.cluster import open_cluster",
        "from topline.pipeline.options import ClusterConfig",
        "with open_cluster(ClusterConfig(workers=1)) as client:",
        "    print(client.submit(abs, -3).result())",
    ]
    if guarded:
        lines[2:] = ["if __name__ == '__main__':", *(f"    {line}" for line in lines[2:])]
    script.write_text("\n".join(lines), encoding="utf-8")
    ran = run_program([sys.executable, script])
    if guarded:
        assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr
    else:
        assert ran.stderr.splitlines()[-1].endswith(
            'put line 3 under if __name__ == "__main__":, or take workers=0'
        )
