"""The steps of a job as a value, so that a flow can put a task around each and the job stays one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topline.pipeline.certification import Certificate, certify
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import ExtractResult, extract
from topline.pipeline.registry import Weighing, promote_by_rule
from topline.pipeline.report import write_report
from topline.pipeline.training import Fitted, fit


@dataclass(frozen=True)
class Steps:
    """What a job calls for each step, with the signatures of the functions that are the defaults."""

    extract: Callable[..., ExtractResult] = extract
    fit: Callable[..., Fitted] = fit
    certify: Callable[..., Certificate] = certify
    evaluate: Callable[..., Any] = evaluate
    decide: Callable[..., Weighing] = promote_by_rule
    report: Callable[..., str] = write_report


STEPS = Steps()
