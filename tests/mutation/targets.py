"""What is changed, and the tests that must notice it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Modules by name below `topline`, packages with all that is in them, and the paths of their tests.

    `compiled` targets run as plain Python, so that a change needs no compiling; what is slow so is left out
    by `without`, an expression of pytest's -k.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    compiled: bool = False
    without: str = ""


#: Without one test of the solvers that takes ten times what any other takes.
QUICK = "not several_blocks_of_standardised_rows"

TARGETS: Mapping[str, Target] = {
    "certification": Target(
        ("pipeline.certification",),
        ("tests/pipeline/certification",),
        without="not test_every_method and not test_every_loss and not penalised_maximum",
    ),
    "commits": Target(
        ("storage.stores.commit_log",),
        ("tests/storage/stores/test_commit_log.py", "tests/simulation/test_simulation.py"),
        without="not s3 and not racing",
    ),
    "lease": Target(("storage.stores.lease",), ("tests/storage/stores/test_lease.py",), without="not s3"),
    "promotion": Target(("pipeline.registry.promotion",), ("tests/pipeline/registry/test_promotion.py",)),
    "partition": Target(("pipeline.rows.partition",), ("tests/pipeline/rows/test_partition.py",)),
    "line_search": Target(("solvers.methods.step_rules",), ("tests/solvers/methods/test_line_search.py",)),
    "dual_rows": Target(
        ("solvers.core.codec", "solvers.core.dual_rows"),
        ("tests/solvers/core/test_codec.py", "tests/solvers/core/test_dual_rows.py"),
        without="not same_bits and not another_process and not bitwise and not Packed and not certified",
    ),
    "run": Target(
        ("solvers.run",),
        (
            "tests/solvers/core/test_refusals.py",
            "tests/solvers/run",
            "tests/solvers/core/test_risks.py",
            "tests/solvers/methods/test_certificate.py",
            "tests/solvers/methods/test_frank_wolfe.py",
            "tests/solvers/methods/test_auto.py",
            "tests/pipeline/training/test_kernel_training.py",
        ),
    ),
    "methods": Target(
        ("solvers.methods",),
        (
            "tests/solvers/run/test_loop.py",
            "tests/solvers/methods",
            "tests/solvers/operations",
            "tests/solvers/blocks/test_column_atoms.py",
            "tests/solvers/run/test_kernel_blocks.py",
        ),
        without=f"(not test_honest_numbers or TestEveryMethod) and {QUICK}",
    ),
    "operations": Target(
        ("solvers.operations",),
        (
            "tests/solvers/operations",
            "tests/solvers/executors",
            "tests/solvers/blocks/test_column_atoms.py",
            "tests/solvers/blocks/test_second_order_kept.py",
            "tests/solvers/blocks/test_shared_heads.py",
            "tests/solvers/core/test_risks.py",
            "tests/solvers/methods/test_newton.py",
            "tests/solvers/methods/test_metrics.py",
            "tests/solvers/run/test_kernel_blocks.py",
            "tests/solvers/run/test_mapped.py",
            "tests/solvers/run/test_shared.py",
        ),
        without=QUICK,
    ),
    "blocks": Target(
        ("solvers.blocks",),
        (
            "tests/solvers/operations",
            "tests/solvers/blocks",
            "tests/solvers/methods/test_newton.py",
            "tests/solvers/methods/test_dual_ascent.py",
            "tests/solvers/run/test_kernel_blocks.py",
            "tests/solvers/test_crew.py",
        ),
        without=QUICK,
    ),
    "projections": Target(("solvers.projections",), ("tests/solvers/projections",), compiled=True),
}
