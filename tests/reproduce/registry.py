"""All tables by name; a new one is a value of its own module and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.reproduce.average_top import causes, sinc_recipes, toys
from tests.reproduce.average_top import tables as average_top
from tests.reproduce.few_examples import multitask, privileged_experiments
from tests.reproduce.multiclass import (
    baselines,
    circle,
    convergence,
    frank_wolfe,
    letter_causes,
    newsgroup_causes,
    scaling,
    thesis,
    top_k_calibration,
    weighted,
)
from tests.reproduce.multilabel import bibtex_causes
from tests.reproduce.multilabel import tables as multilabel
from tests.reproduce.table import Reproduction, Setting, Table
from topline.pipeline.errors import InputError

_TABLES = (
    circle.TABLE, thesis.LETTER_TABLE, letter_causes.TABLE, convergence.TABLE, thesis.ALOI_TABLE,
    thesis.NEWS20_TABLE, thesis.SILHOUETTES_TABLE, *baselines.TABLES,
    *weighted.TABLES, newsgroup_causes.TABLE, *frank_wolfe.TABLES,
    top_k_calibration.TABLE, scaling.BIPARTITE_TABLE, scaling.SIMPLEX_TABLE, *average_top.TABLES,
    toys.TABLE, sinc_recipes.TABLE, causes.TABLE,
    *multilabel.TABLES, bibtex_causes.TABLE, multitask.TABLE, *privileged_experiments.TABLES,
)  # fmt: skip
#: Every table by its name.
TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _TABLES})


def table_named(name: str) -> Table:
    """Give the table of this name; InputError where there is none."""
    if name not in TABLES:
        raise InputError(f"there is no table named {name!r}; use one of {', '.join(TABLES)}")
    return TABLES[name]


def reproduce(table: Table, setting: Setting) -> Reproduction:
    """Run a table, once its data is known to be there."""
    setting.data.check()
    alone = len(table.needs) == 1
    missing: list[InputError] = []
    for name in table.needs:
        try:
            setting.data.find(name, alone=alone)
        except InputError as error:
            missing.append(error)
    if missing and (not table.any_of or len(missing) == len(table.needs)):
        raise missing[0]
    return table.run(setting)
