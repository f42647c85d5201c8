"""From images and files of features to a certified model that is promoted, exported and watched.

Each room has plain functions from options to a result, which the command line, the flows and Python call
alike: `ingest`, `training`, `certification`, `evaluation`, `registry`, `jobs` and so on.  This is the only
room that imports Dask; it reads and writes through `topline.storage` and solves with `topline.solvers`.
"""

from __future__ import annotations
