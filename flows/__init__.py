"""Prefect flows over the pipeline's functions; the only room that imports Prefect."""

from __future__ import annotations

import os

from topline.flows import environment

environment.prepare(os.environ)
