"""Pages from templates, each complete in itself: style and script are inside, and nothing else may run."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, Template

from topline.pipeline.pages.templating import page_environment

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


def make_page(template: str, live: Live | None = None, **values: Any) -> Page:
    """Fill a template; everything that came from a user is escaped.  Only a live page has a script."""
    style = _asset("report.css") + _asset("dashboard.css")
    script = "" if live is None else _asset("dashboard.js")
    policy = {"default-src": "'none'", "style-src": _digest(style), "img-src": "data:"}
    if live is not None:
        policy |= {"script-src": _digest(script), "connect-src": "'self'"}
    policy |= {"base-uri": "'none'", "form-action": "'none'"}
    text = "; ".join(f"{name} {value}" for name, value in policy.items())
    html = _template(template).render(style=style, script=script, policy=text, live=live, **values)
    return Page(html, text)


def message_page(title: str, text: str, root: str) -> Page:
    """Make a page that says one thing, such as that something is not there."""
    return make_page("dashboard_message.html.j2", title=title, text=text, root=root)


def macros() -> Any:
    """Give the macros of which parts of pages are made."""
    return _template("dashboard_parts.html.j2").module


def when(text: str) -> str:
    """Give a recorded time, which is in UTC, as a person reads it."""
    return text.replace("T", " ").removesuffix("+00:00")


def gap_text(gap: float | None) -> str:
    """Give a gap to three digits, or a dash."""
    return "\u2013" if gap is None else f"{gap:.2e}"


@functools.cache
def _asset(name: str) -> str:
    return (files("topline.pipeline.pages") / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _digest(text: str) -> str:
    """Name an inline style or script by its digest, which lets it and no other through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _template(name: str) -> Template:
    return _environment().get_template(name)


@functools.cache
def _environment() -> Environment:
    environment = page_environment()
    environment.filters.update(when=when, gap=gap_text)
    return environment
