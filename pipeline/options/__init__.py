"""Options of every command: pydantic models that are checked before any work starts, and their TOML file.

Each model's fields are flags of the command line and keys of a section (`SECTIONS`).  `problem` turns those
of a training run into its loss and risk.  Importing the room compiles nothing, so that `--help` is quick.
"""

from __future__ import annotations

from topline.pipeline.options.config import (
    SECTIONS,
    JobOptions,
    PromotionRule,
    PruneConfig,
    RetrainConfig,
    RetrainOptions,
    RunConfig,
    as_words,
    build,
    load_sections,
    refuse_label_sets,
)
from topline.pipeline.options.ingest import (
    BackboneConfig,
    ExportConfig,
    ExportOptions,
    ExtractConfig,
    ImageLimits,
    ImportConfig,
    InspectConfig,
    NewRowsConfig,
    PredictConfig,
    SplitConfig,
    SuggestConfig,
)
from topline.pipeline.options.sweep import Cell, KernelChoice, Rule, SweepConfig, Variant
from topline.pipeline.options.train import (
    BLOCKS_AT_MOST,
    DASHBOARD_PORT,
    RUN_STORE,
    ClusterConfig,
    EvaluateConfig,
    SearchConfig,
    TrainConfig,
)
