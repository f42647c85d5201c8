"""Decisions of a served store in MLflow's model registry, for those who look there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from topline.pipeline.errors import ConfigError
from topline.pipeline.notices.notice import Kind, Notice

CHAMPION = "champion"
#: Tags of a version: the model's URL, what was decided, and why.
MODEL, DECISION, REASON = "topline.model", "topline.decision", "topline.reason"

_DECISIONS = (Kind.PROMOTED, Kind.ROLLED_BACK, Kind.KEPT, Kind.KEPT_AGAIN)
_LONGEST_TAG = 5000


def mlflow_sender(name: str) -> Callable[[Notice], Sequence[str]]:
    """Return what notes a decision under the registered model `name`, as a sender of `Teller`.

    Each model of the store is a version; the alias "champion" is at the one that was promoted last, or that a
    rollback brought back.  The server is that of MLFLOW_TRACKING_URI.  `ConfigError` where that is not set
    or nothing that MLflow's client takes, or the client is missing.
    """
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise ConfigError("--mlflow: set MLFLOW_TRACKING_URI to the address of MLflow's server")
    if not name.strip() or "'" in name:
        raise ConfigError(f"--mlflow {name!r} is not a name for a registered model: use one without quotes")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise ConfigError("--mlflow needs MLflow's client: python -m pip install mlflow-skinny") from None
    try:
        client = MlflowClient()
    except Exception as error:  # noqa: BLE001 - each kind of address has its own client, with its own errors
        # Not what it says: that may hold the address with its password.
        raise ConfigError(
            "--mlflow: MLflow's client does not take the address in MLFLOW_TRACKING_URI"
            f" ({type(error).__name__}): give that of a server, http://HOST:PORT"
        ) from None

    def send(notice: Notice) -> Sequence[str]:
        if notice.kind not in _DECISIONS:
            return ()
        try:
            _note(client, name, notice)
        except (MlflowException, OSError):
            return (f"MLflow's model {name}",)
        return ()

    return send


def _note(client: Any, name: str, notice: Notice) -> None:
    url = f"{notice.store}/models/{notice.facts['model']}"
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name, description=f"Models of the Topline store {notice.store}")
    found = [one for one in client.search_model_versions(f"name = '{name}'") if one.tags.get(MODEL) == url]
    tags = {
        MODEL: url,
        DECISION: notice.kind.value,
        REASON: str(notice.facts.get("reason", ""))[:_LONGEST_TAG],
    }
    if found:
        version = found[0].version
        for key, value in tags.items():
            client.set_model_version_tag(name, version, key, value)
    else:
        # A server takes paths of its own disk alone for a source, and this one says where the model is.
        source = url if "://" in url else f"topline://{url.lstrip('/')}"
        version = client.create_model_version(name, source, tags=tags).version
    if notice.kind in (Kind.PROMOTED, Kind.ROLLED_BACK):
        client.set_registered_model_alias(name, CHAMPION, version)
