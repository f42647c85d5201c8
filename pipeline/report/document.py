"""The report of a model: one HTML file that needs no network, no script and no server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation, measured
from topline.pipeline.images import SourceImages
from topline.pipeline.pages.charts import bar_chart
from topline.pipeline.pages.formatting import flat
from topline.pipeline.pages.templating import make_page
from topline.pipeline.report.data import ReportData, gather
from topline.pipeline.report.run_section import event_rows, run_charts, work_charts, work_facts
from topline.pipeline.rows import StoredModel
from topline.storage.stores import open_store
from topline.storage.stores.urls import join

TEMPLATE = "report.html.j2"


def write_report(model_url: str, path: Path | None = None) -> str:
    """Write the report of the model at `model_url` and give where it lies.

    Without a `path` it goes into the model's store, as reports/<model>.html.  A report that is there already
    is replaced in one step.
    """
    stored = StoredModel.open(model_url)
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    page = render(gather(stored, SourceImages(stored.model.record.features), created)).encode()
    if path is not None:
        path = path.absolute()
        open_store(str(path.parent), create=True).write_bytes(path.name, page)
        return str(path)
    store, name = stored.model.store, f"reports/{stored.model.record.id}.html"
    store.write_bytes(name, page)
    return str(store.local_path / name) if store.local_path is not None else join(store.url, name)


def render(data: ReportData) -> str:
    """Make the page; everything that came from a user (paths, class names) is escaped."""
    record = data.record
    stored = record.evaluation
    labels = MultilabelEvaluation.from_dict(stored) if stored and record.multilabel else None
    evaluation = Evaluation.from_dict(stored) if stored and not record.multilabel else None
    return make_page(
        TEMPLATE,
        data=data,
        record=record,
        result=record.result,
        certificate=record.certificate,
        measured=measured(stored),
        evaluation=evaluation,
        labels=labels,
        verdict=verdict(record.certificate, result=record.result),
        charts=run_charts(data.run.columns, _tolerance(record.config, record.certificate)),
        work_charts=work_charts(data.run),
        work_facts=work_facts(data.run),
        events=event_rows(data.run),
        accuracy_chart=accuracy_chart(evaluation),
        configuration=flat(record.config),
        features=flat(record.features),
    ).html


def verdict(
    certificate: Mapping[str, Any] | None, result: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, str]:
    """Give the style ("good", "fair" or "bad") and the words of the certificate's verdict."""
    if result.get("gap_kind") == "none":
        return "fair", "No certificate"
    if certificate is None:
        return "fair", "Not certified yet"
    if certificate["certified"]:
        return "good", "Certified"
    if certificate.get("valid", True):
        return "fair", "Gap above the tolerance"
    return "bad", "Certificate refused"


def accuracy_chart(evaluation: Evaluation | None) -> Markup:
    """Draw the top-k accuracies against always answering the largest class."""
    if evaluation is None:
        return Markup("")
    rows = [(f"top-{k}", share) for k, share in evaluation.topk.items()]
    return bar_chart(rows, mark=("always the largest class", evaluation.majority_baseline))


def _tolerance(config: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> float | None:
    tol = certificate["tol"] if certificate else config.get("tol")
    return None if tol is None else float(tol)
