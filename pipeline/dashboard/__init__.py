"""Pages of runs and models: served while somebody looks, or written to a file.

The pages read a store's run histories, registry and models, and never write to it.  `serve_dashboard` shows
them at a local address and `write_page` puts one into a file; `dashboard.dask_page` adds one to Dask's own.
"""

from __future__ import annotations

from topline.pipeline.dashboard.pages import write_page
from topline.pipeline.dashboard.server import serve_dashboard

__all__ = ["serve_dashboard", "write_page"]
