"""Pages from templates: parts that a live page replaces one by one, and whole pages around them."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from pipeline.dashboard.figures import lanes_figure
from pipeline.dashboard.views import (
    EVENTS_SHOWN,
    clock,
    event_words,
    last_rounds,
    tiles,
    verdict,
)
from pipeline.report import flat
from pipeline.report_charts import charts, work_charts
from pipeline.report_numbers import amount, count, duration, number, percent
from pipeline.report_run import KINDS, work_facts
from pipeline.run_view import RunView
from storage.runs import RunRecord

# Seconds between two looks of a live page, by how soon something may change.
SOON, LATER = 2, 10


@dataclass(frozen=True)
class Live:
    """What a page needs to follow its subject: the address of its parts, and seconds until it asks again."""

    source: str
    again: int


@dataclass(frozen=True)
class Page:
    """A page's document and the policy under which a browser may show it."""

    html: str
    policy: str


def run_parts(run: RunView, now: float) -> dict[str, Markup]:
    """Make the parts of a run's page; everything that came from a user is escaped."""
    make: Any = _template("dashboard_parts.html.j2").module
    tone, words = verdict(run, now)
    drawn = charts(run.columns, run.tol) if run.rounds else []
    parts: dict[str, Markup] = {
        "verdict": make.badge(tone, words),
        "tiles": make.tiles(tiles(run, now)),
        "charts": make.figures(drawn),
        "work": make.figures(work_charts(run)) if run.rounds else Markup(""),
        "costs": make.facts(work_facts(run)),
        "workers": lanes_figure(run),
        "events": make.events(happened(run)),
        "rounds": make.rounds(last_rounds(run)),
    }
    return parts


def happened(run: RunView) -> list[tuple[str, str, str, str]]:
    """Give the latest events as (time, after which round, what, more), the newest first."""
    return [
        (
            clock(event.at),
            f"after {event.after + 1:,} rounds",
            KINDS.get(event.kind, event.kind),
            event_words(event),
        )
        for event in reversed(run.events[-EVENTS_SHOWN:])
    ]


def run_page(
    record: RunRecord, run: RunView, now: float, *, live: Live | None = None, root: str | None = None
) -> Page:
    """Make the page of a run; `root` leads to the page of runs and models, None where there is none."""
    return _page(
        "dashboard_run.html.j2",
        live,
        title=f"Run {record.id}",
        root=root,
        record=record,
        problem=problem_words(record.config),
        configuration=flat(record.config),
        written=clock(now),
        parts=run_parts(run, now),
        tone=verdict(run, now)[0],
    )


def message_page(title: str, text: str, root: str) -> Page:
    """Make a page that says one thing, such as that something is not there."""
    return _page("dashboard_message.html.j2", None, title=title, text=text, root=root, written="")


def problem_words(config: Mapping[str, Any]) -> str:
    """Give what a run solves, and how, in a line."""
    loss = str(config.get("loss", "unknown loss"))
    named = f"{loss}, k = {config['k']}" if config.get("k") else loss
    said = [named, *(f"{name} {config[name]:g}" for name in ("C", "smoothing") if config.get(name))]
    if config.get("method"):
        said.append(f"method {config['method']}")
    return ", ".join(said)


def _page(template: str, live: Live | None, **values: Any) -> Page:
    style = _asset("report.css") + _asset("dashboard.css")
    script = "" if live is None else _asset("dashboard.js")
    policy = {"default-src": "'none'", "style-src": _digest(style), "img-src": "data:"}
    if live is not None:
        policy |= {"script-src": _digest(script), "connect-src": "'self'"}
    policy |= {"base-uri": "'none'", "form-action": "'none'"}
    text = "; ".join(f"{name} {value}" for name, value in policy.items())
    html = _template(template).render(style=style, script=script, policy=text, live=live, **values)
    return Page(html, text)


@functools.cache
def _asset(name: str) -> str:
    return (files("pipeline") / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _digest(text: str) -> str:
    """Name an inline style or script by its digest, which lets it and no other through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _template(name: str) -> Template:
    return _environment().get_template(name)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipeline", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = {"number": number, "percent": percent, "duration": duration, "count": count, "amount": amount}
    environment.filters.update(MappingProxyType(shown))
    return environment
