"""The flow `sweep` on a real Prefect server."""

from __future__ import annotations

import pytest

from tests.flows.conftest import IN_PROCESS
from tests.flows.test_flows import artifacts_of, newest_run
from topline.flows.runners import run_flow
from topline.pipeline.options.sweep import SweepConfig

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server", "_command_line")]


def test_a_sweep_is_a_completed_run_that_shows_its_best_cell_and_links_its_page(store: str) -> None:
    config = SweepConfig(store=store, C=(0.1, 1.0), k=(2,), topk=1, folds=2, train_best=True)
    result = run_flow("sweep", {"config": config, "cluster": IN_PROCESS})
    run = newest_run()
    assert (run.state_name, run.name) == ("Completed", f"sweep on {store}")
    assert SweepConfig.model_validate(run.parameters["config"]) == config
    posted = artifacts_of(run.id)
    assert posted["sweep-progress"].data == 100.0
    assert f"C = {result.best.C:g}" in str(posted["summary"].data)
    assert result.trained is not None
    assert result.trained.model in str(posted["summary"].data)
    assert result.page in str(posted["report"].data)
