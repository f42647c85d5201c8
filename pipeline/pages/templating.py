"""How pages are made from templates: what came from a user is escaped, and nothing may be missing."""

from __future__ import annotations

import functools

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from topline.pipeline.pages.formatting import count, duration, number, percent


def page_environment() -> Environment:
    """Give what makes templates, with the filters by which all pages write their numbers."""
    environment = Environment(
        loader=PackageLoader("topline.pipeline.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, duration=duration, count=count)
    return environment


@functools.cache
def template(name: str) -> Template:
    """Give a template of `pipeline/templates`."""
    return page_environment().get_template(name)
