"""What the processes of the suite need, imported once for all of them; none of it starts a thread."""

from __future__ import annotations

import distributed.cli.dask_scheduler
import distributed.cli.dask_worker  # noqa: F401

import topline.pipeline.cli
import topline.pipeline.training.session  # noqa: F401
