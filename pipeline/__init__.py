"""From images to a certified model; the only room that imports Dask."""

from __future__ import annotations
