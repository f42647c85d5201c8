"""Pages from templates, each complete in itself: style and script are inside, and nothing else may run.

The script sorts tables and asks for what is new; all that a page says is there without it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from topline.pipeline.pages import formatting
from topline.pipeline.pages.formatting import csv_url
from topline.solvers.counts import how_many
from topline.storage.stores import open_store

FILTERS = ("number", "percent", "duration", "count", "when", "gap", "harmless", "px", "tick")


@dataclass(frozen=True)
class Live:
    """What a page needs to follow its subject: the URL of its parts, and seconds until it asks again."""

    source: str
    again: int


@dataclass(frozen=True)
class Page:
    """A page's HTML and the content security policy under which a browser may show it."""

    html: str
    policy: str

    def write(self, path: Path) -> str:
        """Write the page to a file, which is replaced in one step; return its absolute path."""
        path = path.absolute()
        open_store(str(path.parent), create=True).write_bytes(path.name, self.html.encode())
        return str(path)


@dataclass(frozen=True)
class Tile:
    """A number with its name above it and a remark below; `tone` is "", "good", "fair" or "bad"."""

    label: str
    figure: str
    note: str = ""
    tone: str = ""


def make_page(
    template: str | Template,
    live: Live | None = None,
    *,
    style: str = "",
    scripts: Sequence[str] = (),
    **values: Any,
) -> Page:
    """Fill a template that extends page.html.j2; everything that came from a user is escaped.

    `live` says where the page asks for updates, `style` is further CSS and `scripts` names further
    JavaScript.  A missing value is an error.
    """
    style = _source("page.css") + style
    script = "".join(map(_source, ("tables.js", *scripts, *([] if live is None else ["page.js"]))))
    policy = {"default-src": "'none'", "style-src": _digest(style), "img-src": "data:"}
    policy["script-src"] = _digest(script)
    if live is not None:
        policy["connect-src"] = "'self'"
    policy |= {"base-uri": "'none'", "form-action": "'none'"}
    text = "; ".join(f"{name} {value}" for name, value in policy.items())
    filled = environment().get_template(template)
    return Page(filled.render(style=style, script=script, policy=text, live=live, **values), text)


def message_page(title: str, text: str, root: str | None, live: Live | None = None) -> Page:
    """Return a page that says one thing, such as that something is not there; `root` is a link's target."""
    return make_page("message.html.j2", live, title=title, text=text, root=root)


def macros(name: str = "parts") -> Any:
    """Return the macros of a template: those from which the parts of pages are made, or "charts"."""
    return environment().get_template(f"{name}.html.j2").module


@functools.cache
def environment() -> Environment:
    """Return what reads templates: it escapes, refuses missing values and has the filters of all pages."""
    made = Environment(
        loader=PackageLoader("topline.pipeline.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update((name, getattr(formatting, name)) for name in FILTERS)
    made.filters["how_many"] = how_many
    made.filters["pairs_csv"] = partial(csv_url, ("name", "value"))
    return made


@functools.cache
def _source(name: str) -> str:
    return (files("topline.pipeline.pages") / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _digest(text: str) -> str:
    """Name an inline style or script by its digest, which lets it and no other through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
