"""Models and the decisions on them.

A model is a sealed record with revisions, and arrays written once; `save_model` publishes it and `load_model`
opens it.  The champion follows from an append-only log of decisions, which `read_standing` reads and
`record_decision` extends.
"""

from __future__ import annotations

from topline.storage.models.records import (
    DecisionRecord,
    Model,
    ModelRecord,
    Reign,
    Standing,
    calibration_array,
    calibration_files,
    delete_model,
    list_models,
    load_model,
    published_models,
    read_standing,
    readable_models,
    record_decision,
    remove_model,
    save_calibration,
    save_model,
    update_record,
)
