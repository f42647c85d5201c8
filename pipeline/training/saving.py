"""What a training leaves: its result as a stored model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.average_top_k import CUT_POINTS, CUT_SHARES, DUAL_W
from topline.pipeline.training.checkpointing import written_where_held
from topline.pipeline.training.plan import TrainingPlan
from topline.solvers.core.state import SolveResult
from topline.solvers.executors import Executor
from topline.solvers.methods.atoms import Atoms
from topline.storage.models import save_model


def store_model(plan: TrainingPlan, executor: Executor, result: SolveResult) -> str:
    """Store the model; with dual variables its certificate rests on them, otherwise on W, b and |A|^2/n.

    That of an average top-k risk rests on the points at which its vertices were found, where they are known.
    """
    arrays = ({} if plan.kernel is not None else {"W": result.W}) | dict(plan.transforms.arrays())
    if not plan.stores_duals:
        arrays |= _cuts(result) or _dual_sums(result)
    record = plan.model_record(
        {
            "status": result.status.value,
            "primal": result.primal,
            "dual": result.dual,
            "gap": result.gap,
            "relative_gap": result.relative_gap,
            "gap_kind": result.gap_kind,
            "lifted_gap": result.smoothed_gap,
            "stationarity": result.stationarity,
            "passes": result.passes,
            "seconds": result.seconds,
            "collapsed": result.collapsed,
        }
    )
    duals = written_where_held(executor, result.state.pending_step) if plan.stores_duals else None
    return save_model(plan.store, record, arrays, duals)


def _cuts(result: SolveResult) -> dict[str, NDArray[np.float64]]:
    """Give the points and shares that the dual point of an average top-k risk is made of again."""
    found = None if result.problem.mean_risk else Atoms.of(result.problem, result.state).cuts()
    return {} if found is None else dict(zip((CUT_POINTS, CUT_SHARES), found, strict=True))


def _dual_sums(result: SolveResult) -> dict[str, NDArray[np.float64]]:
    """Give b and |A|^2/n of the A that W was made from; nothing where it was made from none.

    Of the average top-k risk that A may have made another W, which comes along.
    """
    problem = result.problem
    if result.W_dual is not None and not problem.mean_risk:
        return {"dual_sums": np.asarray([result.conjugate_mean, 0.0]), DUAL_W: result.W_dual}
    for mean_sq_dual in (result.state.mean_sq_dual, 0.0) if result.W_dual is None else ():
        rounding = 1e-9 * (abs(result.conjugate_mean) + abs(result.primal))
        if abs(problem.dual(result.W, result.conjugate_mean, mean_sq_dual) - result.dual) <= rounding:
            return {"dual_sums": np.asarray([result.conjugate_mean, mean_sq_dual])}
    return {}
