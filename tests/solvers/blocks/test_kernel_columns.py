"""Columns of K that a block keeps: what comes first, within the budget, and the same training for any."""

from __future__ import annotations

import numpy as np
import pytest

from tests.solvers.problems import examples, solved_on_blocks
from topline import MaxHinge, RBFKernel, SerialExecutor, Status
from topline.solvers.blocks import kernel
from topline.solvers.blocks.kernel import KeptColumns
from topline.solvers.run import ProblemSpec

X, Y = examples(n=240, spread=2.0)
X = X.astype(np.float32)


def test_columns_that_come_first_stay_and_the_others_find_no_room() -> None:
    # Two columns of 3 rows, beside the list of where 5 columns are.
    columns = KeptColumns(3, 5, 8 * 5 + 4 * 3 * 2)
    first = columns.places(np.array([1, 4, 3]))
    assert not first.known.any()
    assert first.slots.tolist() == [0, 1, -1]
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    first.write(np.arange(3), 0, values)
    # Not known before every row of the block was written.
    assert not columns.places(np.array([1])).known.any()
    columns.keep(np.array([1, 4, 3]), first)
    again = columns.places(np.array([0, 3, 4]))
    assert again.known.tolist() == [False, False, True]
    assert again.slots.tolist() == [-1, -1, 1]
    np.testing.assert_array_equal(again.read(np.array([2]), 1, 3), values[1:, 1][None])


@pytest.mark.parametrize("kept_bytes", [0, 8 * 240 * 2 - 1, 8 * 240 * 2])
def test_no_budget_is_no_column(kept_bytes) -> None:
    assert (KeptColumns(120, 240, kept_bytes // 2).places(np.arange(5)).slots == -1).all()


def test_blocks_share_what_nobody_has_limited(monkeypatch) -> None:
    n, most = 600, 200_000
    monkeypatch.setattr(kernel, "_KEPT_BYTES", most)
    blocks = [KeptColumns(rows, n, None) for rows in (300, 200, 100)]
    kept = [int((one.places(np.arange(n)).slots >= 0).sum()) for one in blocks]
    taken = sum(4 * rows * count for rows, count in zip((300, 200, 100), kept, strict=True))
    assert min(kept) > 0
    assert most - 3 * (8 * n + 4 * 300) <= taken + 3 * 8 * n <= most


class CountingKernel:
    """An RBF kernel that counts the values of float32 tiles."""

    def __init__(self) -> None:
        self._kernel, self.values = RBFKernel(0.3), 0
        self.name, self.matrix = self._kernel.name, self._kernel.matrix

    def tile(self, rows, others):
        """Return the values."""
        self.values += len(rows) * len(others)
        return self._kernel.tile(rows, others)


def solved(kept_bytes, method):
    kernel = CountingKernel()
    spec = ProblemSpec(MaxHinge(), C=4.0, method=method, kernel=kernel)
    with SerialExecutor(blocks=3, kept_bytes=kept_bytes) as executor:
        result = solved_on_blocks(spec, X, Y, executor, tol=1e-2)
    return result, kernel.values


@pytest.mark.parametrize("method", ["dual_ascent", "fw", "fw_fully_corrective"])
def test_any_budget_gives_the_same_optimum_and_room_saves_values(method) -> None:
    """The last digit of a value depends on the tile it is computed in, and with it which vertex is best."""
    whole = 4 * len(Y) ** 2 + 3 * 8 * len(Y)
    runs = [solved(kept_bytes, method) for kept_bytes in (0, whole // 3, whole)]
    for result, _ in runs:
        assert result.status is Status.SOLVED
        assert result.dual <= min(other.primal for other, _ in runs)
    values = [count for _, count in runs]
    assert values[0] > values[1] > values[2]
