"""The flow `extract`: images become a stored dataset of features."""

from __future__ import annotations

from prefect import flow

from flows.reporting import watched
from flows.summaries import extraction_summary
from flows.tasks import extract_images
from pipeline.config import ClusterConfig, ExtractConfig
from pipeline.extraction import ExtractResult


@flow(name="extract", flow_run_name="extract {config.images}", persist_result=False, result_serializer="json")
def extract(config: ExtractConfig, cluster: ClusterConfig = ClusterConfig()) -> ExtractResult:  # noqa: B008
    """Turn images into a dataset of features; an interrupted extraction goes on where it stopped."""
    with watched() as watch:
        result = extract_images(config, cluster, watch.progress)
        return watch.finish(result, extraction_summary(result))
