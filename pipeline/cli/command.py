"""What every command shares: options checked before work, a progress display, one result at the end.

Every field of an option class is a flag, with the field's own description as its help.  A flag that was not
given is None, so that the configuration file and then the class's default hold.
"""

from __future__ import annotations

import contextlib
import inspect
import json as jsonlib
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar, Union, cast, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from topline.pipeline.cli.table import SUCCESS, error_facts, exit_code, sentence, visible
from topline.pipeline.errors import InputError, MissingExtraError, NotStoredError
from topline.pipeline.options import SECTIONS, build, load_sections

if TYPE_CHECKING:
    from topline.pipeline.progress import Progress

Config = TypeVar("Config", bound=BaseModel)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """How a command ended: the object for --json, the lines for a person, warnings, the exit code."""

    payload: Mapping[str, Any]
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    code: int = SUCCESS


@dataclass(frozen=True)
class Call:
    """One call of a command: options by section, which of them somebody chose, the progress display.

    `out` is standard output, which a handler that goes on for long may write to; what it prints by `print`
    or through a library goes to standard error.  The command fails with what is `unstored`, after its result.
    """

    configs: Mapping[str, BaseModel]
    chosen: frozenset[tuple[str, str]]
    progress: Progress
    flow: bool = False
    json: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    unstored: list[NotStoredError] = field(default_factory=list)

    def config(self, model: type[Config]) -> Config:
        """Return the options of a class."""
        return next(config for config in self.configs.values() if isinstance(config, model))

    def chose(self, section: str, *names: str) -> bool:
        """Whether a flag or the file gave any of these options."""
        return any((section, name) in self.chosen for name in names)

    def run(self, name: str, function: Callable[..., Any], /, **parameters: Any) -> Any:
        """Run a pipeline function, as the Prefect flow `name` where that was asked for."""
        if self.flow:
            return flow_runner()(name, parameters, self.progress)
        return function(**parameters, progress=self.progress)

    def shown(self, compute: Callable[[], Result]) -> Result:
        """Return what a function computes, also where it could not be stored."""
        try:
            return compute()
        except NotStoredError as error:
            self.unstored.append(error)
            return cast("Result", error.result)


Handler = Callable[..., Outcome]


def add_command(
    app: typer.Typer,
    handler: Handler,
    example: str,
    sections: Sequence[str] = (),
    *,
    hidden: Collection[str] = (),
    flow: bool = False,
    panel: str | None = None,
) -> None:
    """Add `handler(call, ...)` to `app` by its name, with its own flags and those of `sections`.

    A flag sets its option in every section that has it; `hidden` names get no flag, and `flow` adds --flow.
    """
    models = [SECTIONS[section] for section in sections]
    own = own_parameters(handler)
    shared = [*([CONFIG] if sections else []), *([FLOW] if flow else []), JSON]

    def command(**values: Any) -> None:
        own_values = {parameter.name: values.pop(parameter.name) for parameter in own}
        json, as_flow = bool(values.pop("json")), bool(values.pop("flow", False))
        file = values.pop("config", None)
        given = {name: value for name, value in values.items() if value is not None}
        configs, chosen = resolve(sections, file, given)
        from topline.pipeline.cli.display import show_progress

        out = sys.stdout
        with show_progress() as progress, contextlib.redirect_stdout(sys.stderr):
            call = Call(configs, chosen, progress, as_flow, json, out=out)
            outcome = handler(call, **own_values)
        finish(outcome, call.unstored, json=json)

    # Typer wraps the first paragraph only, so that later ones would keep the line breaks of the source.
    command.__doc__ = "\n\n".join(" ".join(part.split()) for part in (handler.__doc__ or "").split("\n\n"))
    name = handler.__name__.rstrip("_")
    app.command(name=name, epilog=f"Example: {example}", rich_help_panel=panel)(
        with_signature(command, [*own, *flags(models, hidden), *shared])
    )


def resolve(
    sections: Sequence[str], file: Path | None, flag_values: Mapping[str, Any]
) -> tuple[dict[str, BaseModel], frozenset[tuple[str, str]]]:
    """Return the options by section, from defaults, file and flags, and (section, name) of those chosen."""
    content = load_sections(file) if file is not None else {}
    configs: dict[str, BaseModel] = {}
    chosen: set[tuple[str, str]] = set()
    for section in sections:
        model = SECTIONS[section]
        values = dict(content.get(section, {}))
        from_file = f"{file} [{section}]: " if values else ""
        values.update({name: value for name, value in flag_values.items() if name in model.model_fields})
        configs[section] = build(model, values, origin=from_file)
        chosen.update((section, name) for name in values)
    return configs, frozenset(chosen)


def finish(outcome: Outcome, unstored: Sequence[NotStoredError] = (), *, json: bool) -> None:
    """Write the result, or the error if it is `unstored`, and warnings; leave with the exit code."""
    from topline.storage.records import plain

    payload, code = plain(outcome.payload), outcome.code
    for warning in outcome.warnings:
        sys.stderr.write(f"warning: {visible(warning)}\n")
    for error in unstored:
        code = exit_code(error)
        payload |= error_facts(type(error).__name__, sentence(error), code)
        sys.stderr.write(f"error: {visible(sentence(error))}\n")
    if json:
        sys.stdout.write(jsonlib.dumps(payload, ensure_ascii=False, default=os.fspath) + "\n")
    else:
        sys.stdout.write("".join(f"{visible(line)}\n" for line in outcome.lines))
    if code:
        raise typer.Exit(code)


def flow_runner() -> Callable[[str, Mapping[str, Any], Progress | None], Any]:
    """Find the function that runs a pipeline function as a Prefect flow."""
    for entry in entry_points(group="topline.runners", name="prefect"):
        runner: Callable[[str, Mapping[str, Any], Progress | None], Any] = entry.load()
        return runner
    raise MissingExtraError("--flow needs topline as it is installed: run python -m pip install . again")


KEYWORD = inspect.Parameter.KEYWORD_ONLY
# The group of what every command has, after the groups of what it is about.
GENERAL = "General options"
# What most people set, in a group before all others, in this order.
COMMON = (
    "images", "features", "labels", "store", "dataset", "backbone", "goal", "auto", "loss", "k", "C",
    "metric", "topk", "top_k", "coverage", "output", "split", "tol", "resume", "workers",
)  # fmt: skip
COMMON_GROUP = "Common options"


def _general(name: str, kind: Any, default: Any, text: str) -> inspect.Parameter:
    """Return an option of every command of its kind."""
    option = typer.Option(f"--{name}", help=text, rich_help_panel=GENERAL)
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind, option])


CONFIG = _general("config", Path | None, None, "TOML file of options; flags win over it")
JSON = _general("json", bool, False, "One JSON object on standard output")
FLOW = _general("flow", bool, False, "Run as a Prefect flow")


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


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model URL such as STORE/models/m0001 or STORE/models/champion, or a store (its newest)",
    ),
]
StoreOption = Annotated[str, typer.Option("--store", help="Store of the models")]


def find_model(text: str) -> str:
    """Return the URL of a model; it may be called "champion", and a store stands for its newest."""
    from topline.storage.models import list_models
    from topline.storage.stores import open_store
    from topline.storage.stores.urls import join

    place, _, name = text.rstrip("/").rpartition("/")
    if place.endswith("models"):
        if name != "champion":
            return text.rstrip("/")
        from topline.pipeline.registry import champion_url

        if (found := champion_url(place.removesuffix("models"))) is None:
            raise InputError(f"{place} has no champion: topline models promote makes a model the champion")
        return found
    store = open_store(text)
    records = list_models(store)
    if not records:
        raise InputError(f"{text} holds no model: give STORE/models/m0001, or train one with topline train")
    return join(store.url, "models", records[-1].id)


def measuring(url: str) -> list[tuple[str, ...]]:
    """Return the command that measures a model on rows of its dataset, none where all of them train."""
    from topline.storage.datasets import list_datasets
    from topline.storage.models import load_model

    model = load_model(url)
    counts = {info.id: info.counts for info in list_datasets(model.store)}.get(model.record.dataset, {})
    splits = {"test": (), "val": ("--split", "val")}
    return [("evaluate", url, *words) for split, words in splits.items() if counts.get(split)][:1]
