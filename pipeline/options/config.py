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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
from topline.pipeline.options.sweep import SweepConfig
from topline.pipeline.options.train import (
    RUN_STORE,
    ClusterConfig,
    EvaluateConfig,
    NonEmpty,
    Options,
    SearchConfig,
    TrainConfig,
    option,
)

if TYPE_CHECKING:
    from topline.storage.models import ModelRecord


class JobOptions(Options):
    """Where everything goes; the section [run] of a configuration file."""

    store: NonEmpty = option("Store for features, models and reports", RUN_STORE)
    report: Path | None = option("Report to write (default: in the store)")
    training_sizes: bool | None = option(
        "Say in the report whether more images would help, by training on parts of them"
        " (default: if that is cheap)"
    )


class RunConfig(JobOptions):
    """The whole job: its own options, and those of its steps, whose `store` it replaces.

    Without images it takes the digits that come with scikit-learn.
    """

    extract: ExtractConfig = option("How images become features", ExtractConfig())
    search: SearchConfig = option("What is searched before it is trained", SearchConfig())
    train: TrainConfig = option("How the classifier is trained", TrainConfig())
    evaluate: EvaluateConfig = option("What is measured of it", EvaluateConfig())


class PromotionRule(Options):
    """When a challenger becomes champion: every condition must hold; an empty limit is no condition."""

    k: int | None = option("k of the top-k accuracy that decides (default: the loss's k)", ge=1)
    metric: str | None = option("Metric that decides instead, by its name in evaluation records")
    least_gain: float = option(
        "Required gain in accuracy; a negative one allows a loss", 0.0, ge=-1.0, le=1.0
    )
    confidence: float = option("Confidence level of the gain's interval", 0.95, gt=0.0, lt=1.0)
    prove_gain: bool = option("The interval's lower end must reach the gain, not the estimate alone", False)
    need_certificate: bool = option("Only a certified model is promoted", True)
    basis: Literal["A", "W", "any"] = option(
        "What its certificate must come from: A, dual variables that are stored; W, those or the"
        " weights alone; any, also sums that the training run stored",
        "any",
    )
    most_feature_drift: float | None = option(
        "Largest mean population stability index of the features", 0.25, ge=0.0
    )
    most_balance_change: float | None = option(
        "Largest total variation of the class shares", 0.2, ge=0.0, le=1.0
    )

    most_domain_auc: float | None = option(
        "Largest ROC area of a classifier that tells new rows from the champion's", ge=0.5, le=1.0
    )
    on_class_changes: Literal["compare-common", "count-misses", "refuse"] = option(
        "If a class was added, removed, renamed or merged: compare on the classes that both"
        " models know, count rows of a class that one does not know as its misses, or refuse a challenger"
        " that lacks a class of the champion",
        "compare-common",
    )
    least_rows: float = option(
        "Training and held-out rows needed, as a share of the champion's", 0.5, ge=0.0, le=1.0
    )
    widest_interval: float | None = option(
        "Widest interval of the gain, from end to end, to decide by", gt=0.0
    )
    least_common: float = option(
        "Share of the champion's classes that must still be there", 0.5, ge=0.0, le=1.0
    )

    def metric_for(self, record: ModelRecord) -> str:
        """Return the name of the deciding metric: by default top-k of the loss's k, if below m."""
        if self.metric is not None:
            return self.metric
        k = self.k or max(1, min(int(record.loss.get("k") or 1), record.m - 1))
        return f"top-{k}"


class PruneConfig(Options):
    """What stays in a store; the section [prune] of a configuration file."""

    keep: int = option("Newest models, runs, sweeps and datasets to keep, of each kind", 10, ge=1)
    days: float = option("Keep everything younger than this many days", 30.0, ge=0.0)


class RetrainOptions(Options):
    """Where it happens and what it starts from; the section [retrain] of a configuration file."""

    store: NonEmpty = option("Store for features, models and decisions", RUN_STORE)
    start: Literal["last", "champion", "zero"] = option(
        "Model that training starts from: the last one, the champion or none", "last"
    )
    keep_edits: bool = option(
        "Correct labels and leave rows out as the newest edited version of the dataset does, or"
        " take labels from the images alone",
        True,
    )
    overlap: Literal["refuse", "wait"] = option(
        "What to do while another retraining works on the store", "refuse"
    )
    wait_seconds: float = option(
        "Longest wait for the other one in seconds, with --overlap wait", 3600.0, ge=0.0
    )
    prune: bool = option("Prune the store after each retraining, by the rule of topline prune", False)


class RetrainConfig(RetrainOptions):
    """A retraining: its own options, and those of its steps, whose `store` it replaces."""

    extract: ExtractConfig = option("How images become features", ExtractConfig())
    train: TrainConfig = option("How the challenger is trained", TrainConfig())
    promote: PromotionRule = option("When it becomes champion", PromotionRule())
    retention: PruneConfig = option("What is kept in the store", PruneConfig())
    split: Literal["val", "test"] = option("Held-out rows that decide", "test")


def refuse_label_sets(images: ExtractConfig) -> None:
    """Raise `ConfigError` where images have several labels: no rule compares their models yet."""
    if images.label_separator is not None:
        raise ConfigError(
            "--label-separator gives images several labels, and a champion is chosen by top-k accuracy, which"
            " is for one each: use topline run"
        )


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
