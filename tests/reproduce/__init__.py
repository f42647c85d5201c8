"""The papers' tables and figures, run again on public data: the paper's figures beside ours."""

from __future__ import annotations

from tests.reproduce.registry import TABLES, reproduce, table_named
from tests.reproduce.sources import SOURCES, DataFiles
from tests.reproduce.table import Effort, Figure, Reproduction, Setting, Table

__all__ = [
    "SOURCES",
    "TABLES",
    "DataFiles",
    "Effort",
    "Figure",
    "Reproduction",
    "Setting",
    "Table",
    "reproduce",
    "table_named",
]
