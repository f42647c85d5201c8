"""How many lines a room may have, and which modules may have a single importer.

Both lists only shrink.  Whoever needs more lines in one room says why in the commit and pays elsewhere;
whoever makes a room smaller lowers its number.
"""

from __future__ import annotations

from typing import Final

#: Lines of Python in each room; modules that lie beside the rooms count as the room of their folder.
LINES: Final = {
    "flows": 2_581,
    "pipeline": 1_451,
    "pipeline/backbones": 1_955,
    "pipeline/certification": 1_660,
    "pipeline/cli": 2_435,
    "pipeline/cluster": 3_087,
    "pipeline/dashboard": 2_138,
    "pipeline/doctor": 507,
    "pipeline/evaluation": 1_156,
    "pipeline/export": 1_152,
    "pipeline/images": 1_077,
    "pipeline/ingest": 2_065,
    "pipeline/inspection": 771,
    "pipeline/options": 1_220,
    "pipeline/pages": 600,
    "pipeline/prediction": 1_317,
    "pipeline/readers": 2_414,
    "pipeline/registry": 1_300,
    "pipeline/report": 888,
    "pipeline/rows": 1_212,
    "pipeline/sweep": 2_304,
    "pipeline/telemetry": 922,
    "pipeline/training": 2_095,
    "solvers": 30_706,
    "storage": 2_106,
    "storage/arrays": 845,
    "storage/datasets": 1_733,
    "storage/runs": 726,
    "storage/stores": 1_816,
}

#: Functions of a folder that take more than `MOST_PARAMETERS`, without self: public ones, and those that a
#: value could serve better.  No other folder has any.
MOST_PARAMETERS: Final = 8
MANY_PARAMETERS: Final = {
    "pipeline/dashboard": 1,
    "solvers/multitask": 2,
    "solvers/run": 2,
}

#: Modules that one other module imports, the face of their room aside, by why they stand alone.
ONE_IMPORTER: Final = {
    "One file for the commands of a kind.": {
        "topline.pipeline.cli.display",
        "topline.pipeline.cli.keeping",
        "topline.pipeline.cli.making",
        "topline.pipeline.cli.using",
    },
    "One file a backbone, a format or a kind of store.": {
        "topline.pipeline.backbones.fisher",
        "topline.pipeline.backbones.hog",
        "topline.pipeline.backbones.lite0",
        "topline.pipeline.backbones.onnx",
        "topline.pipeline.backbones.timm",
        "topline.pipeline.export.onnx",
        "topline.pipeline.images.tables",
        "topline.pipeline.readers.arrays",
    },
    "What an entry point or a command begins with: it is imported when it is asked for.": {
        "topline.flows.deploying",
        "topline.flows.serving",
        "topline.pipeline.export.writing",
        "topline.storage.verification",
    },
    "A subject of its own: a reader of foreign files, a server, pictures, a calculation.": {
        "topline.pipeline.backbones.torch_weights",
        "topline.pipeline.inspection.duplicates",
        "topline.pipeline.training.kernel_training",
    },
}

#: Modules of the solvers with a single importer; it falls as they are merged.
SOLVERS_WITH_ONE_IMPORTER: Final = 10
