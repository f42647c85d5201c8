"""The report of a model: one HTML file that needs no network, no script and no server."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.charts import Series, bar_chart, line_chart
from pipeline.evaluation import Evaluation
from pipeline.originals import Originals
from pipeline.report_data import ReportData, gather
from pipeline.stored_model import StoredModel
from storage.stores import open_store
from storage.urls import join

TEMPLATE = "report.html.j2"


def write_report(model_url: str, path: Path | None = None) -> str:
    """Write the report of the model at `model_url` and give where it lies.

    Without a `path` it goes into the model's store, as reports/<model>.html.  A report that is there already
    is replaced in one step.
    """
    stored = StoredModel.open(model_url)
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    page = render(gather(stored, Originals(stored.model.record.features), created)).encode()
    if path is not None:
        path = path.absolute()
        open_store(str(path.parent), create=True).write_bytes(path.name, page)
        return str(path)
    store, name = stored.model.store, f"reports/{stored.model.record.id}.html"
    store.write_bytes(name, page)
    return str(store.local_path / name) if store.local_path is not None else join(store.url, name)


def render(data: ReportData) -> str:
    """Make the page; everything that came from a user (paths, class names) is escaped."""
    environment = Environment(
        loader=PackageLoader("pipeline", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, duration=duration, count=count)
    record = data.record
    evaluation = None if record.evaluation is None else Evaluation.from_dict(record.evaluation)
    return environment.get_template(TEMPLATE).render(
        data=data,
        record=record,
        result=record.result,
        certificate=record.certificate,
        evaluation=evaluation,
        verdict=verdict(record.certificate, result=record.result),
        charts=charts(data.history, _tolerance(record.config, record.certificate)),
        accuracy_chart=accuracy_chart(evaluation),
        configuration=flat(record.config),
        features=flat(record.features),
    )


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


def charts(history: Sequence[Mapping[str, Any]], tol: float | None) -> list[tuple[str, str, Markup]]:
    """Draw the history over rounds and over seconds, as (title, axis, chart)."""
    axes = {"rounds": _column(history, "round"), "seconds": _column(history, "seconds")}
    gaps, steps = _column(history, "relative_gap"), _column(history, "step")
    objectives = (_column(history, "primal"), _column(history, "dual"))
    stationarity = _column(history, "stationarity")
    title, label = "Relative duality gap", "relative gap"
    if not np.isnan(stationarity).all():
        title, label, gaps = "Gradient beside the first one", "share", stationarity
    drawn = [(title, axis, gap_chart(axis, x, gaps, tol, label)) for axis, x in axes.items()]
    drawn += [
        ("Primal and dual objective", axis, objective_chart(axis, x, *objectives)) for axis, x in axes.items()
    ]
    step = Series.of("step", axes["rounds"], steps, 3, positive=True)
    active = Series.of("active share", axes["rounds"], _column(history, "active"), 4)
    return [
        *drawn,
        ("Step size", "rounds", line_chart([step], x_label="rounds", y_label="step", log=True)),
        ("Share of active examples", "rounds", line_chart([active], x_label="rounds", y_label="share")),
    ]


def gap_chart(
    axis: str, x: list[float], gaps: list[float], tol: float | None, label: str = "relative gap"
) -> Markup:
    """Draw the gap of every round, and the smallest so far."""
    best = np.fmin.accumulate(np.asarray(gaps, np.float64))
    lines = [
        Series.of("this round", x, gaps, 5, positive=True),
        Series.of("best so far", x, best, 1, positive=True),
    ]
    target = None if tol is None else (f"tolerance {number(tol)}", tol)
    return line_chart(lines, x_label=axis, y_label=label, log=True, target=target)


def objective_chart(axis: str, x: list[float], primal: list[float], dual: list[float]) -> Markup:
    """Draw both objectives; the dual begins at 0, so a logarithmic scale leaves out its first rounds."""
    lines = [Series.of("primal", x, primal, 2, positive=True), Series.of("dual", x, dual, 1, positive=True)]
    return line_chart(lines, x_label=axis, y_label="objective", log=True, decades=2)


def accuracy_chart(evaluation: Evaluation | None) -> Markup:
    """Draw the top-k accuracies against always answering the largest class."""
    if evaluation is None:
        return Markup("")
    rows = [(f"top-{k}", share) for k, share in evaluation.topk.items()]
    return bar_chart(rows, mark=("always the largest class", evaluation.majority_baseline))


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Give nested options as (dotted name, value) pairs, those without a value left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += flat(value, f"{prefix}{name}.")
        elif value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            pairs.append((f"{prefix}{name}", shown))
    return pairs


def number(value: float | None) -> str:
    """Six significant digits, or a dash."""
    return "\u2013" if value is None else f"{value:.6g}"


def percent(value: float | None) -> str:
    """One decimal, or a dash."""
    return "\u2013" if value is None else f"{value:.1%}"


def count(value: int | None) -> str:
    """Thousands apart, or a dash."""
    return "\u2013" if value is None else f"{value:,}"


def duration(value: float | None) -> str:
    """Seconds, or minutes and hours where they are many."""
    if value is None:
        return "\u2013"
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _column(history: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Values of one field of the rounds; NaN (stored as null) where there is none."""
    values = (record.get(name) for record in history if "round" in record)
    return [math.nan if value is None else float(value) for value in values]


def _tolerance(config: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> float | None:
    tol = certificate["tol"] if certificate else config.get("tol")
    return None if tol is None else float(tol)
