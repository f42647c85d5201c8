"""The flow `extract`: images become a stored dataset of features."""

from __future__ import annotations

from prefect import flow

from topline.flows.reporting import watched
from topline.flows.summaries import extraction_summary
from topline.flows.tasks import extract_images
from topline.pipeline.ingest import ExtractResult
from topline.pipeline.options import ClusterConfig, ExtractConfig


@flow(name="extract", flow_run_name="extract {config.images}", persist_result=False, result_serializer="json")
def extract(config: ExtractConfig, cluster: ClusterConfig = ClusterConfig()) -> ExtractResult:  # noqa: B008
    """Turn images into a dataset of features; an interrupted extraction continues where it stopped.

    Args:
        config: The images, the store and the backbone
        cluster: Where it runs: workers, memory, a scheduler that is running
    """
    with watched() as watch:
        result = extract_images(config, cluster, watch.progress)
        return watch.finish(result, extraction_summary(result))
