"""Pages of runs and models: served while somebody looks, or written to a file.

The pages read a store's run histories, registry and models, and never write to it.  `serve_dashboard` shows
them at a local address, `write_page` puts one into a file, `store_status` says the overview in a few lines,
and `dashboard.dask_page` adds a page to Dask's own.
"""

from __future__ import annotations

from topline.pipeline.dashboard.pages import write_page
from topline.pipeline.dashboard.server import serve_dashboard
from topline.pipeline.dashboard.store_follower import store_status
