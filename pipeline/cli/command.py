"""What every command shares: options checked before work, a progress display, one result at the end."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import typer
from pydantic import BaseModel

from topline.pipeline.cli.exits import SUCCESS, error_facts, exit_code, sentence
from topline.pipeline.cli.options import CONFIG, FLOW, JSON, flags, own_parameters, with_signature
from topline.pipeline.cli.table import visible
from topline.pipeline.errors import MissingExtraError, NotStoredError
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

    A flag sets its option in every section that has one of that name; `hidden` names get no flag.  `panel`
    is the group under which the help of `app` lists the command; `flow` adds --flow.
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
    sections: Sequence[str],
    file: Path | None,
    flag_values: Mapping[str, Any],
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
    """Write the result to standard output, warnings to standard error, and leave with the exit code.

    A result that is `unstored` is written as any other, and is a failure.
    """
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
