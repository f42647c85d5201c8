"""What Prefect's server would record in clear is refused before it hears of it."""

from __future__ import annotations

import pytest

from topline.flows.launching import launch, refuse_credentials
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ClusterConfig, TrainConfig

SECRET = "secret-that-must-not-appear"


@pytest.mark.parametrize("url", [f"s3://AKIA:{SECRET}@bucket/store", f"s3://bucket/store?secret={SECRET}"])
def test_no_flow_is_started_with_a_secret_among_its_parameters(url: str) -> None:
    # There is no server in this test: asking for one would take minutes, and end in another error.
    parameters = {"config": TrainConfig(store=url), "cluster": ClusterConfig()}
    with pytest.raises(
        ConfigError, match=r"s3://(\*\*\*@bucket/store|bucket/store\?\*\*\*): leave"
    ) as caught:
        launch("train", parameters, None)
    assert SECRET not in str(caught.value)


def test_secrets_are_found_anywhere_and_plain_urls_pass() -> None:
    refuse_credentials({"config": TrainConfig(store="s3://bucket/store"), "cluster": ClusterConfig()})
    with pytest.raises(ConfigError):
        refuse_credentials({"config": {"steps": ["memory://a", (f"gs://{SECRET}@bucket/store",)]}})
