"""Credentials are refused in the parameters of a flow: Prefect's server keeps them in clear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from topline.pipeline.errors import ConfigError
from topline.storage.stores import masked


def refuse_credentials(parameters: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a URL among the parameters holds credentials, before anybody records it."""
    for text in _texts(parameters):
        if masked(text) != text:
            raise ConfigError(
                f"{masked(text)}: leave credentials and options out of URLs, which Prefect's server would"
                " keep in clear; set them in the environment"
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        yield from _texts(dict(value))
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
