"""Decisions in MLflow's registry: a stand-in for its client that keeps what it is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from topline.pipeline.errors import ConfigError
from topline.pipeline.notices import Kind, Notice, told
from topline.pipeline.notices.notice import CHAMPION, DECISION, MODEL, mlflow_sender


class MlflowException(Exception):
    """What the client raises where its server is gone."""


@dataclass
class Version:
    """A version of a registered model."""

    version: str
    source: str
    tags: dict[str, str]


@dataclass
class Registry:
    """The methods of MlflowClient that are called, by their names there."""

    models: dict[str, list[Version]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    gone: bool = False
    #: What the next request raises.
    broken: Exception | None = None

    def search_registered_models(self, filter_string: str) -> list[str]:
        if self.gone:
            raise MlflowException("no answer")
        error, self.broken = self.broken, None
        if error is not None:
            raise error
        return [name for name in self.models if filter_string == f"name = '{name}'"]

    def create_registered_model(self, name: str, description: str) -> None:
        assert name not in self.models, "MLflow refuses a name that is taken"
        self.models[name] = []

    def search_model_versions(self, filter_string: str) -> list[Version]:
        return self.models[filter_string.split("'")[1]]

    def create_model_version(self, name: str, source: str, tags: dict[str, str]) -> Version:
        self.models[name].append(Version(str(len(self.models[name]) + 1), source, dict(tags)))
        return self.models[name][-1]

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self.models[name][int(version) - 1].tags[key] = value

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.aliases[alias] = version


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """MLflow's client, as far as it is needed, where it would be imported from."""
    made = Registry()
    client: Any = ModuleType("mlflow")

    def connected() -> Registry:
        if made.broken is not None:
            raise made.broken
        return made

    client.MlflowClient = connected
    errors: Any = ModuleType("mlflow.exceptions")
    errors.MlflowException = MlflowException
    monkeypatch.setitem(sys.modules, "mlflow", client)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", errors)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5001")
    return made


def decided(kind: Kind, model: str, store: str = "/data/store") -> Notice:
    return Notice(kind, store, f"{model}: {kind}", {"model": model, "reason": "the gain"})


def test_the_champion_has_the_alias_and_each_model_one_version(registry: Registry) -> None:
    with told((), "digits") as tell:
        for kind, model in [
            (Kind.PROMOTED, "m0001"),
            (Kind.PROMOTED, "m0002"),
            (Kind.KEPT, "m0003"),
            (Kind.FAILED, ""),
            (Kind.ROLLED_BACK, "m0001"),
        ]:
            tell(decided(kind, model))
    versions = registry.models["digits"]
    assert [one.tags[MODEL].rpartition("/")[2] for one in versions] == ["m0001", "m0002", "m0003"]
    assert [one.tags[DECISION] for one in versions] == ["rolled back", "promoted", "kept"]
    assert versions[0].source == "topline://data/store/models/m0001"
    assert registry.aliases == {CHAMPION: "1"}


def test_a_bucket_is_the_source_itself(registry: Registry) -> None:
    mlflow_sender("digits")(decided(Kind.PROMOTED, "m0001", "s3://bucket/store"))
    assert registry.models["digits"][0].source == "s3://bucket/store/models/m0001"


def test_a_registry_that_is_gone_is_named_and_stops_nobody(registry: Registry) -> None:
    send = mlflow_sender("digits")
    registry.gone = True
    assert send(decided(Kind.PROMOTED, "m0001")) == ("MLflow's model digits",)
    registry.gone = False
    assert send(decided(Kind.PROMOTED, "m0001")) == ()


@pytest.mark.parametrize("error", [KeyError("tags"), RuntimeError("http://me:word@host"), RecursionError()])
def test_whatever_the_client_raises_costs_one_line_and_one_notice(
    registry: Registry, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    with told((), "digits") as tell:
        registry.broken = error
        tell(decided(Kind.PROMOTED, "m0001"))
        tell(decided(Kind.PROMOTED, "m0002"))
    (line,) = caplog.messages
    assert type(error).__name__ in line
    assert "m0001" in line
    assert "word" not in line
    assert [one.source for one in registry.models["digits"]] == ["topline://data/store/models/m0002"]


def test_an_address_that_the_client_does_not_take_is_refused_without_its_password(registry: Registry) -> None:
    registry.broken = ValueError("unsupported: nosuch://me:word@host")
    with (
        pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI \(ValueError\)") as refused,
        told((), "digits"),
    ):
        pass
    assert "word" not in str(refused.value)


def test_what_is_missing_is_said_before_anything_is_served(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match="pip install mlflow-skinny"), told((), "digits"):
        pass
    with pytest.raises(ConfigError, match="without quotes"), told((), "dad's digits"):
        pass
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"), told((), "digits"):
        pass
