"""Training with an exact kernel: settings, the factor in the place of features, values on the matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client

from topline.pipeline.errors import ConfigError, InterruptedRunError
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.options.train import TrainConfig
from topline.pipeline.progress import Progress
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.training.kernel_factor import FactorDataset, MatrixRows
from topline.pipeline.training.kernel_matrix import StopAskedError, kernel_of_rows, refuse_size
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import as_rows
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import Status
from topline.solvers.executors import Executor
from topline.solvers.kernels.functions import ChiSquaredKernel, Kernel
from topline.solvers.kernels.problem import values_on_matrix
from topline.solvers.kernels.registry import make_kernel
from topline.solvers.methods.registry import method_named

if TYPE_CHECKING:
    from topline.pipeline.training.plan import TrainingPlan


def planned_kernel(config: TrainConfig, rows: TrainingRows) -> Kernel | None:
    """Give the kernel with its parameters settled by the training rows, None where there is none.

    Raises `ConfigError` for what a stored model with a kernel cannot be made of, and for a matrix that would
    not fit the budget.
    """
    if config.kernel is None:
        return None
    method = method_named(config.method)
    if not (method.keeps_duals or method.smooths_through_duals) or config.keep_duals is False:
        without = (
            "keep_duals is off" if config.keep_duals is False else f"the method {method.name} knows none"
        )
        raise ConfigError(
            f"a model with a kernel is made of its dual variables, and {without}: take dual_ascent, sdca or"
            " fw, and leave keep_duals out"
        )
    refuse_size(len(rows), config.kernel_bytes)
    kernel = make_kernel(
        config.kernel, gamma=config.kernel_gamma, degree=config.kernel_degree, coef0=config.kernel_coef0
    )
    if isinstance(kernel, ChiSquaredKernel) and rows.dataset.info.layout == "csr":
        raise ConfigError("the kernel chi2 takes no sparse features: take linear, rbf or polynomial")
    return kernel.resolved(as_rows(rows[0 : len(rows)], np.dtype(np.float32)))


def with_factor(
    plan: TrainingPlan, client: Client | None, progress: Progress | None, flag: StopFlag
) -> TrainingPlan:
    """Give the plan with the factor of its kernel matrix, found or made, to train on."""
    if plan.kernel is None:
        return plan
    try:
        stored = kernel_of_rows(plan.rows, plan.transforms, plan.kernel, client, progress, lambda: bool(flag))
    except StopAskedError:
        raise InterruptedRunError(
            f"stopped by {flag.reason} while the kernel was computed; {plan.how_to_resume}"
        ) from None
    return replace(plan, stored_kernel=stored, factor=TrainingRows(FactorDataset(plan.rows.dataset, stored)))


def on_kernel(plan: TrainingPlan, executor: Executor, result: SolveResult) -> SolveResult:
    """Give the result with P, D and the gap recomputed on the kernel matrix itself, in float64."""
    if plan.stored_kernel is None or result.status in {Status.INTERRUPTED, Status.NONFINITE}:
        return result
    A = np.concatenate([rows for _, _, rows in executor.duals(result.state.pending_step)])
    config, n = plan.config, len(plan.rows)
    problem = Problem(
        plan.loss, n, n, plan.m, plan.lam, config.smoothing, config.smoothing_kind, label_sets=plan.label_sets
    )
    K = MatrixRows(plan.stored_kernel.matrix)
    values: dict[str, Any] = dict(values_on_matrix(K, problem, plan.rows.labels(), plan.sample_weight, A))
    status = result.status
    if status is Status.SOLVED and values["relative_gap"] > config.tol:
        # What the factor leaves out of the matrix is more than the tolerance allows for.
        status = Status.NO_PROGRESS
    return replace(result, status=status, **values)
