"""The benchmark of rounds runs and counts what it says."""

from __future__ import annotations

from tests.benchmarks.solvers.block_rounds import BLOCKS, main


def test_the_small_problem_is_counted_for_every_number_of_blocks(capsys) -> None:
    found = main(["--quick", "--C", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert set(found) == set(BLOCKS)
    assert len(lines) == len(BLOCKS) + 2
    assert not any(">" in line for line in lines[1:-1])
    # Several blocks measure P at a mean of W, and may end a pass before one block.
    assert max(found.values()) <= 2 * found[BLOCKS[0]]
