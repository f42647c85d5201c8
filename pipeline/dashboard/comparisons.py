"""Two models, or two runs, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topline.pipeline.dashboard.models import ModelSeen, differences
from topline.pipeline.dashboard.run_status import bound, verdict
from topline.pipeline.evaluation import Evaluation, measured
from topline.pipeline.pages import Column, Series, Table, count, duration, gap, line_chart, number, percent
from topline.pipeline.registry import Evidence, measure
from topline.pipeline.report.run_section import Titled
from topline.pipeline.telemetry import RunView
from topline.storage.models import ModelRecord
from topline.storage.runs import RunRecord

#: Numbers in the rows that a page may read while somebody waits for it.
MOST_NUMBERS = 50_000_000


@dataclass(frozen=True, eq=False)
class Paired:
    """Two models, the settings in which they differ, and what was measured on the same rows."""

    first: ModelSeen
    second: ModelSeen
    evidence: Evidence

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of both."""
        return self.first.record.id, self.second.record.id


def paired(first: ModelSeen, second: ModelSeen) -> Paired:
    """Compare two models of one store, on the same held-out rows where these are not too many to wait for."""
    evaluation = first.record.evaluation or {}
    numbers = int(evaluation.get("rows", 0)) * first.record.d
    if first.record.multilabel or second.record.multilabel:
        evidence = Evidence(unmeasured="models of several labels per row have no paired test yet")
    elif numbers > MOST_NUMBERS:
        command = f"topline models compare {first.url} {second.url}"
        evidence = Evidence(unmeasured=f"there are too many rows to wait for: {command}")
    else:
        split = str(evaluation.get("split") or "test")
        evidence = measure(first.url, second.url, split=split, drift=False)
    return Paired(first, second, evidence)


def evidence_table(found: Paired) -> Table:
    """Return the metrics of both on the same rows, with the gain of the first, its interval and its test."""
    first, second = found.ids
    texts = ("n", str)
    columns = (
        Column("metric"), Column(first, *texts), Column(second, *texts), Column(f"gain of {first}", *texts),
        Column("from", *texts), Column("to", *texts), Column("p", "n", "{:.2g}".format),
        Column(f"only {first} right", "n", count), Column(f"only {second} right", "n", count),
    )  # fmt: skip
    rows = []
    for pair in found.evidence.compared:
        text = pair.metric.text
        values = text(pair.challenger, 2), text(pair.champion, 2)
        gains = (text(value, 2, "+") for value in (pair.gain, pair.low, pair.high))
        only = pair.only_challenger, pair.only_champion
        rows.append((pair.metric.column, *values, *gains, pair.p_value, *only))
    return Table.of("same-rows", columns, rows, empty=f"Not measured: {found.evidence.unmeasured}.")


def recorded_table(found: Paired) -> Table:
    """Return what was recorded of both, each on its own rows."""
    sides = [_recorded(seen.record) for seen in (found.first, found.second)]
    names = list(dict.fromkeys(name for side in sides for name in side))
    rows = [(name, *(side.get(name) for side in sides)) for name in names]
    columns = (Column(title, "words") for title in ("figure", *found.ids))
    return Table.of("recorded", tuple(columns), rows)


def _recorded(record: ModelRecord) -> dict[str, str]:
    evaluation, certificate = record.evaluation or {}, record.certificate or {}
    shown = {metric.label: metric.text(value, 2) for metric, value in measured(evaluation)}
    rows = f"{count(evaluation.get('rows'))} {evaluation.get('split')} rows of {record.dataset}"
    return {
        **shown,
        "measured on": rows if evaluation else "not evaluated yet",
        "relative gap": gap(certificate.get("relative_gap")),
        "certified": "yes" if certificate.get("certified") else "no",
        "training rows": count(record.n),
        "passes": number(record.result.get("passes")),
        "training time": duration(record.result.get("seconds")),
    }


def class_gains(found: Paired) -> Table:
    """Return the top-1 accuracy of each class under both models, the largest loss of the first one first."""
    first, second = found.ids
    shares = [_by_class(seen.record) for seen in (found.first, found.second)]
    waiting = [seen.record.id for seen in (found.first, found.second) if seen.record.evaluation is None]
    empty = f"Not evaluated yet: {' and '.join(waiting)}." if waiting else "No class is in both."
    common = [name for name in shares[0] if name in shares[1]]
    rows = [(name, shares[0][name], shares[1][name], shares[0][name] - shares[1][name]) for name in common]
    columns = (
        Column("class"), Column(first, "n", percent), Column(second, "n", percent),
        Column(f"gain of {first}", "n", "{:+.1%}".format),
    )  # fmt: skip
    return Table.of("classes", columns, sorted(rows, key=lambda row: row[3]), empty=empty)


def _by_class(record: ModelRecord) -> dict[str, float]:
    if record.multilabel or record.evaluation is None:
        return {}
    return {part.name: part.topk[1] for part in Evaluation.from_dict(record.evaluation).per_class}


def setting_table(ids: Sequence[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> Table:
    """Return the settings in which two models or runs differ."""
    columns = (Column("setting"), *map(Column, ids))
    pairs = differences(first, second)
    return Table.of("settings", columns, pairs, empty="Every setting is the same.")


def run_facts(runs: Sequence[tuple[RunRecord, RunView]], now: float) -> Table:
    """Return what two runs reached and took."""
    sides = [_facts(run, now) for _, run in runs]
    rows = [(name, *(side[name] for side in sides)) for name in sides[0]]
    return Table.of("runs", (Column("figure"), *(Column(record.id) for record, _ in runs)), rows)


def _facts(run: RunView, now: float) -> dict[str, str]:
    last = {name: float(values[-1]) for name, values in run.columns.items()} if run.rounds else {}
    known: dict[str, Any] = {name: value if np.isfinite(value) else None for name, value in last.items()}
    return {
        "state": verdict(run, now)[1],
        "smallest relative gap": gap(bound(run)[1]),
        "primal objective": number(known.get("primal")),
        "dual objective": number(known.get("dual")),
        "passes": number(known.get("passes")),
        "rounds": count(run.rounds),
        "solving time": duration(known.get("seconds")),
        "workers seen": count(len(run.workers)),
    }


def run_comparison_charts(runs: Sequence[tuple[RunRecord, RunView]]) -> list[Titled]:
    """Draw the smallest gaps of two runs so far over passes and over seconds, and their objectives."""
    gaps = ("Relative gap, best so far", "best_gap", "relative gap", {"log": True})
    drawn: list[Titled] = [_together(runs, axis, *gaps) for axis in ("passes", "seconds")]
    return [*drawn, _together(runs, "passes", "Primal objective", "primal", "objective", {"log": True})]


def _together(
    runs: Sequence[tuple[RunRecord, RunView]], axis: str, title: str, name: str, label: str, options: Any
) -> Titled:
    lines = [
        Series.of(record.id, run.columns[axis], run.columns[name], style, positive=True)
        for style, (record, run) in enumerate(runs, start=1)
    ]
    return title, axis, line_chart(lines, x_label=axis, y_label=label, **options)
