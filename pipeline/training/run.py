"""A training run on disk: beginning or resuming it, its identity, its model and its result."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification import CUT_POINTS, CUT_SHARES, DUAL_W, Certificate
from topline.pipeline.options.train import TrainConfig
from topline.pipeline.rows import LEARNED, LEARNED_LABELS, class_weights, learned_labels, learned_rows
from topline.pipeline.training.checkpointing import RunPlace, written_where_held
from topline.pipeline.training.plan import (
    MAY_CHANGE,
    TrainingPlan,
    resolve_options,
    resume_options,
    run_identity,
)
from topline.solvers.core.state import HasObjective, Objective, SolveResult, Status
from topline.solvers.executors import Executor
from topline.solvers.methods.frank_wolfe import atoms_of
from topline.solvers.operations import PutInside
from topline.storage.cache import StoredKernel
from topline.storage.datasets import Dataset
from topline.storage.models import ModelRecord, list_models, save_model
from topline.storage.runs import RunRecord, create_run, list_runs, read_run
from topline.storage.stores import Store, open_store
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class TrainResult(HasObjective):
    """Result of a finished run; `to_dict` is the object that `topline train --json` prints.

    Without a convex loss, dual and gaps are NaN (null in JSON), `gap_kind` is "none" and `stationarity` says
    how far the gradient fell.  `average_top` is the number of largest losses that count, None for all;
    `no_weights` says that W is 0.  `notes` are sentences about the run; `chosen` is what a preceding search
    compared.
    """

    model: str
    run: str
    dataset: str
    status: str
    objective: Objective
    passes: int
    seconds: float
    n: int
    d: int
    m: int
    certificate: Certificate | None
    average_top: float | None = None
    collapsed: bool = False
    no_weights: bool = False
    notes: tuple[str, ...] = ()
    method: str = ""
    why: str = ""
    chosen: Mapping[str, Any] | None = None

    @property
    def solved(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status == Status.SOLVED.value

    @property
    def relative_gap_text(self) -> str:
        """The relative gap as printed, with its kind if it is only a bound."""
        kind = "" if self.gap_kind == "true" else f" ({self.gap_kind}: an upper bound)"
        return f"{self.relative_gap:.2e}{kind}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {**asdict(self), **self.objective.to_dict()}
        del values["objective"]
        return {**values, "certificate": self.certificate.to_dict() if self.certificate else None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainResult:
        """Read the result of `to_dict` from a run's record, which may hold more."""
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        known["objective"] = Objective.from_dict(values)
        known |= {name: bool(known[name]) for name in ("collapsed", "no_weights")}
        known["notes"] = tuple(known["notes"] or ())
        known |= {name: known[name] or "" for name in ("method", "why")}
        certificate = values["certificate"]
        return cls(**{**known, "certificate": Certificate.from_dict(certificate) if certificate else None})


@dataclass(frozen=True, eq=False)
class Run:
    """A run in the store: `resumes` if there may be checkpoints, `notes` are sentences for its records."""

    plan: TrainingPlan
    id: str
    resumes: bool
    notes: tuple[str, ...] = ()

    @property
    def how_to_resume(self) -> str:
        """The sentence that ends every message about a run that stopped early."""
        return f"continue with: topline train --store {self.plan.store.url} --resume {self.id}"

    def place(self, kernel: StoredKernel | None) -> RunPlace:
        """Return where the run keeps checkpoints and history, given its factored kernel matrix, if any."""
        plan = self.plan
        identity = run_identity(plan.config, plan.rows.dataset)
        if kernel is not None:
            # Another factor of the same matrix is another basis of the weights.
            identity["factor"] = kernel.folder
        return RunPlace(plan.store, self.id, identity, plan.transforms.arrays(), plan.keep_duals)


def begin_run(plan: TrainingPlan) -> Run:
    """Record a new run of a plan in its store, or return the run that the plan resumes."""
    if plan.config.resume is not None:
        return Run(plan, plan.config.resume, resumes=True)
    options, identity = plan.config.model_dump(mode="json"), run_identity(plan.config, plan.rows.dataset)
    run_id = create_run(plan.store, options, dataset=plan.config.dataset, fingerprint=identity)
    return Run(plan, run_id, resumes=False)


def runs_of(store: Store, config: TrainConfig, dataset: Dataset) -> list[RunRecord]:
    """Return the runs of these options on this dataset, oldest first, however they ended."""
    identity = run_identity(resolve_options(config, dataset), dataset)
    return [run for run in list_runs(store) if dict(run.fingerprint) == identity]


def unfinished_run(store: Store, config: TrainConfig, dataset: Dataset) -> RunRecord | None:
    """Return the newest run of these options on this dataset if it was killed or interrupted."""
    runs = runs_of(store, config, dataset)
    return runs[-1] if runs and runs[-1].outcome is None else None


def resuming(config: TrainConfig) -> TrainConfig:
    """Return options that resume the newest run of `config` if it stopped early, otherwise `config`."""
    if config.resume is not None:
        return config
    store = open_store(config.store)
    dataset = Dataset.open(store, config.dataset)
    run = unfinished_run(store, config, dataset)
    return config if run is None else TrainConfig(store=config.store, resume=run.id, tol=config.tol)


def already_solved(config: TrainConfig) -> TrainResult | None:
    """Return the result of a finished run that `config` resumes, or None; raise `MismatchError`."""
    if config.resume is None:
        return None
    store = open_store(config.store)
    run = read_run(store, config.resume)
    tol = resume_options(config, run.config, f"run {run.id}", MAY_CHANGE).tol
    made = [model.id for model in list_models(store) if model.run == run.id]
    if run.outcome is None or run.outcome.get("status") != Status.SOLVED.value or not made:
        return None
    result = TrainResult.from_dict({**run.outcome, "model": join(store.url, "models", made[-1])})
    return result if result.objective.left <= tol else None


def store_model(run: Run, executor: Executor, result: SolveResult) -> str:
    """Store the model and return its URL.

    Its certificate is based on A if stored, otherwise on W, b and |A|^2/n, or on the points of the vertices
    or gradients that make up the dual point, if known.
    """
    plan = run.plan
    arrays = ({} if plan.spec.kernel is not None else {"W": result.W}) | dict(plan.transforms.arrays())
    arrays[LEARNED] = learned_rows(plan.rows.dataset)
    arrays[LEARNED_LABELS] = learned_labels(plan.rows.dataset)
    if not plan.stores_duals:
        arrays |= _dual_point(result)
    record = _model_record(
        run,
        {
            "status": result.status.value,
            **result.objective.to_dict(),
            "lifted_gap": result.smoothed_gap,
            "passes": result.passes,
            "seconds": result.seconds,
            "collapsed": result.collapsed,
            "notes": list(run.notes),
            "method": result.method,
            "why": plan.why(result),
        },
    )
    duals = None
    if plan.stores_duals:
        pending_step = result.state.pending_step
        executor.run(PutInside(pending_step))
        duals = written_where_held(executor, pending_step, result.dual_share)
    return save_model(plan.store, record, arrays, duals)


def _model_record(run: Run, result: Mapping[str, Any]) -> ModelRecord:
    plan, info, rows = run.plan, run.plan.rows.dataset.info, run.plan.rows
    weights = class_weights(plan.config.class_weight, rows.labels(), info.class_names, rows.own_weights)
    return ModelRecord(
        dataset=info.id,
        dataset_digest=info.digest,
        config=plan.config.model_dump(mode="json"),
        loss=plan.spec.loss.to_dict(),
        lam=plan.problem.lam,
        C=plan.config.C,
        smoothing=plan.config.smoothing,
        smoothing_kind=plan.config.smoothing_kind,
        class_weights=None if weights is None else tuple(weights.tolist()),
        method=plan.config.method,
        n=len(plan.rows),
        d=plan.rows.shape[1],
        m=plan.problem.m,
        class_names=info.class_names,
        multilabel=info.label_sets is not None,
        features=info.features,
        transforms=plan.transforms.record(),
        kernel=None if plan.spec.kernel is None else plan.spec.kernel.to_dict(),
        result=result if plan.start is None else {**result, "start": plan.start.to_dict()},
        parents=(plan.start.model,) if plan.start is not None and plan.start.how != "zero" else (),
        run=run.id,
        code_version=importlib.metadata.version("topline"),
    )


def _dual_point(result: SolveResult) -> dict[str, NDArray[np.float64]]:
    """Return what rebuilds a result's dual point; empty if W alone does.

    That is the points and shares of cuts, including minus the gradients at a W other than the model's, or b
    and |A|^2/n with their W(A), if that is another.
    """
    cuts = None if result.problem.mean_risk else atoms_of(result.problem, result.state).cuts()
    found = result.found_at
    if cuts is not None:
        return dict(zip((CUT_POINTS, CUT_SHARES), cuts, strict=True))
    if result.stationarity is not None:
        return {}
    if found is not None:
        here = found.share == 1.0 and np.array_equal(found.W, result.W)
        return {} if here else {CUT_POINTS: found.W[None], CUT_SHARES: np.array([found.share])}
    sums = {"dual_sums": np.asarray([result.conjugate_mean, result.mean_sq_dual])}
    return sums if result.W_dual is None else {**sums, DUAL_W: result.W_dual}
