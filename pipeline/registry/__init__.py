"""The model registry of a store: which model is champion, and the decisions that change it.

`compare` and `measure` evaluate two models on rows that neither was trained on, and `decide` applies a
promotion rule.  `promote`, `promote_by_rule`, `rollback`, `mark` and `delete` are the guarded decisions.
Their log is in `topline.storage.models`.
"""

from __future__ import annotations

from topline.pipeline.registry.decisions import (
    IMAGES,
    LOUD,
    Weighing,
    champion_url,
    delete,
    mark,
    promote,
    promote_by_rule,
    registered,
    rollback,
)
from topline.pipeline.registry.drift import SHIFTED
from topline.pipeline.registry.promotion import (
    Comparison,
    Decision,
    Evidence,
    compare,
    measure,
    settings,
    summary,
)
