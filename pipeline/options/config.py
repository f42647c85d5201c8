"""Options of all commands in one place, and the TOML file that can hold them.

The file has one section per kind of option ([train], [cluster], ...), the same for every command; a command
reads the sections it has a use for.  Flags win over the file, the file over the defaults, and an unknown
section or key is an error.  Paths are relative to where the command runs.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.options.ingest import (
    ExportConfig,
    ExtractConfig,
    ImportConfig,
    InspectConfig,
    PredictConfig,
    SuggestConfig,
)
from topline.pipeline.options.jobs import JobOptions, PromotionRule, PruneConfig, RetrainOptions
from topline.pipeline.options.sweep import SweepConfig
from topline.pipeline.options.train import ClusterConfig, EvaluateConfig, SearchConfig, TrainConfig

SECTIONS: Mapping[str, type[BaseModel]] = {
    "run": JobOptions,
    "extract": ExtractConfig,
    "import": ImportConfig,
    "train": TrainConfig,
    "cluster": ClusterConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "export": ExportConfig,
    "inspect": InspectConfig,
    "suggest": SuggestConfig,
    "sweep": SweepConfig,
    "search": SearchConfig,
    "promote": PromotionRule,
    "retrain": RetrainOptions,
    "prune": PruneConfig,
}

Config = TypeVar("Config", bound=BaseModel)


def load_sections(path: Path) -> dict[str, dict[str, Any]]:
    """Return the options in a TOML file, by section; `ConfigError` names what is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} is not TOML: {error}") from error
    for section, values in content.items():
        if section not in SECTIONS:
            raise ConfigError(f"{path} has an unknown section [{section}]: {_near(section, SECTIONS)}")
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {section} must be a section, written as [{section}]")
        known = {field.alias or name for name, field in SECTIONS[section].model_fields.items()}
        for key in values:
            if key not in known:
                raise ConfigError(f"{path} has an unknown key {key} in [{section}]: {_near(key, known)}")
    return content


def build(model: type[Config], values: Mapping[str, Any], *, origin: str = "") -> Config:
    """Return the options of checked values from `origin`; raise `ConfigError` for what does not fit."""
    spelled = {name: field.alias or name for name, field in model.model_fields.items()}
    try:
        return model(**{spelled.get(name, name): value for name, value in values.items()})
    except ValidationError as error:
        raise ConfigError(origin + "; ".join(_sentence(dict(part)) for part in error.errors())) from error


def as_words(name: str, value: Any) -> tuple[str, ...]:
    """Return an option as words of the command line."""
    word = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return (word if value else word.replace("--", "--no-", 1),)
    if isinstance(value, tuple):
        return word, ",".join(map(str, value)) or "none"
    return word, f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(part: Mapping[str, Any]) -> str:
    message = str(part["msg"]).removeprefix("Value error, ")
    name = "--" + str(part["loc"][0]).replace("_", "-") if part["loc"] else ""
    if not name:
        return message
    given = str(part["input"]) if isinstance(part["input"], Path) else part["input"]
    return f"{name} {given!r} is not usable: {message[:1].lower()}{message[1:]}"


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
