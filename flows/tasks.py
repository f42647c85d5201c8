"""Pipeline functions as Prefect tasks: one line each, no logic.

A task is a whole step: its work is spread over Dask inside the pipeline.  A round of training is never a
task, for an empty one costs as much as a round.  Results are references to what is stored and stay in
memory: nothing is pickled, and nothing is taken from a cache that the store's own ids do not prove.
"""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from topline.flows.retrying import retry_if_transient
from topline.pipeline.evaluation.accuracy import evaluate_model as evaluate
from topline.pipeline.ingest.extraction import extract
from topline.pipeline.jobs.retraining import retrain
from topline.pipeline.jobs.run import run
from topline.pipeline.sweep.search import sweep
from topline.pipeline.training.session import train

RETRY_DELAYS = [10.0, 60.0]

plain = task(cache_policy=NO_CACHE, persist_result=False, tags={"topline"})

# Repeating these is safe: what is stored already is found and not made again.
repeatable = task(
    cache_policy=NO_CACHE,
    persist_result=False,
    tags={"topline"},
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=retry_if_transient,
)

extract_images = repeatable(extract)
train_model = plain(train)
sweep_grid = plain(sweep)
evaluate_model = repeatable(evaluate)
run_job = repeatable(run)
retrain_store = repeatable(retrain)
