"""Flags made from the option classes: every field is a flag, with the field's own description as its help.

A flag that was not given is None, so that the configuration file and then the class's default hold.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

KEYWORD = inspect.Parameter.KEYWORD_ONLY
# The group of what every command has, after the groups of what it is about.
GENERAL = "General options"
# What most people set, in a group before all others, in this order.
COMMON = (
    "images", "features", "labels", "store", "dataset", "backbone", "goal", "auto", "loss", "k", "C",
    "metric", "topk", "top_k", "coverage", "output", "split", "tol", "resume", "workers",
)  # fmt: skip
COMMON_GROUP = "Common options"

CONFIG = inspect.Parameter(
    "config",
    KEYWORD,
    default=None,
    annotation=Annotated[
        Path | None, typer.Option(help="TOML file of options; flags win over it", rich_help_panel=GENERAL)
    ],
)
JSON = inspect.Parameter(
    "json",
    KEYWORD,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output", rich_help_panel=GENERAL)
    ],
)
FLOW = inspect.Parameter(
    "flow",
    KEYWORD,
    default=False,
    annotation=Annotated[bool, typer.Option("--flow", help="Run as a Prefect flow", rich_help_panel=GENERAL)],
)


def flags(models: Iterable[type[BaseModel]], hidden: Collection[str]) -> list[inspect.Parameter]:
    """Make a flag of each field of the option classes but those in `hidden`; the first of a name counts."""
    made: dict[str, inspect.Parameter] = {}
    for model in models:
        group = re.sub(
            r"(?<=[a-z])(?=[A-Z])", " ", model.__name__.removesuffix("Config").removesuffix("Options")
        )
        # What a class declares itself is what it is about; what it inherits comes after.
        names = sorted(model.model_fields, key=lambda name: name not in model.__annotations__)
        for name in names:
            field = model.model_fields[name]
            if name not in made and name not in hidden and field.json_schema_extra is None:
                made[name] = _flag(name, field, group)
    common = {name: place for place, name in enumerate(COMMON)}
    return sorted(made.values(), key=lambda flag: common.get(flag.name, len(common)))


def with_signature(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give `function` the signature that typer reads its options from."""
    ordered = sorted(parameters, key=lambda parameter: parameter.kind)
    function.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return function


def _flag(name: str, field: FieldInfo, group: str) -> inspect.Parameter:
    word = field.alias or name.replace("_", "-")
    kind = flag_type(field.annotation)
    spelling = f"--{word}/--no-{word}" if kind is bool else f"--{word}"
    default = _default(field)
    words = f"{field.description} (default {default})" if default else field.description
    panel = COMMON_GROUP if name in COMMON else f"{group} options".capitalize()
    option = typer.Option(spelling, help=words, show_default=False, rich_help_panel=panel)
    return inspect.Parameter(name, KEYWORD, default=None, annotation=Annotated[kind | None, option])


def flag_type(annotation: Any) -> Any:
    """Type that the command line reads for a field: a plain one, or text for the option class."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return flag_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        kinds = {flag_type(part) for part in get_args(annotation) if part is not type(None)}
        return kinds.pop() if len(kinds) == 1 else str
    if origin is Literal:
        return str
    if annotation in (int, float, bool, Path):
        return annotation
    return str


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True) if not field.is_required() else None
    if default is None or default is PydanticUndefined or default == ():
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, float) else str(default)


def own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters that a command declares itself, after the first, which is its call."""
    hints = typing.get_type_hints(function, include_extras=True)
    declared = list(inspect.signature(function).parameters.values())[1:]
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in declared]
