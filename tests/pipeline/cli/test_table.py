"""What a line of metrics has room for, and what names may hold."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from topline.pipeline.cli.command import Outcome, finish
from topline.pipeline.cli.entry import _ToStderr
from topline.pipeline.cli.models import models_table
from topline.pipeline.cli.table import facts, metrics_line, table, visible
from topline.pipeline.cli.using import sets_table
from topline.pipeline.evaluation import METRICS, placed
from topline.pipeline.evaluation.metrics import macro_top_k_accuracy
from topline.pipeline.evaluation.records import SetQuality
from topline.solvers import jit_cache


def test_a_short_line_leaves_means_over_classes_to_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("top-1", "top-2", "macro-top-1", "tail-top-1", "log_loss")
    record = {**placed(dict.fromkeys(names, 0.5)), "rows": 100}
    # Wilson's interval of 50 of 100.
    assert metrics_line(record) == "top-1 50.0%, 40.4 to 59.6   top-2 50.0%   log loss 0.5000"
    own = replace(macro_top_k_accuracy(1), headline=True)
    monkeypatch.setitem(METRICS, "macro-top-1", own)
    assert "macro top-1 50.0%" in metrics_line(record)


def test_a_list_of_models_and_a_table_of_sets_fit_a_window_of_80_columns() -> None:
    model = {
        "id": "m0001", "dataset": "d0001-2b76a348", "loss": {"name": "truncated_topk_entropy", "k": 5},
        "C": 0.123, "method": "dual_ascent", "relative_gap": 5.71e-4, "certified": True,
        "metrics": {"top-1": 0.992, "top-5": 1.0}, "stage": "candidate",
    }  # fmt: skip
    metrics = [METRICS["top-1"], METRICS["top-5"]]
    narrow = models_table([model], metrics)
    assert max(map(len, narrow)) <= 80
    assert "method" not in narrow[0]
    assert "  5.71e-04   " in narrow[2]
    assert "  no 5.71e-04  " in models_table([{**model, "certified": False}], metrics)[2]
    assert "  -  " in models_table([{**model, "certified": None, "relative_gap": None}], metrics)[2]
    wide = models_table([{**model, "loss": {"name": "softmax"}}], metrics)
    assert max(map(len, wide)) <= 80
    assert "d0001 " in wide[2]
    sets = [SetQuality(0.95, True, "probability", 100, 0.912, 12.34, 0.101, 0.851, 17)]
    assert max(map(len, sets_table(sets))) <= 80


# A line end, a colour, a byte that is not UTF-8, and a mark that turns what follows around.
NAMES = {
    "a\nb": "a\\nb",
    "\x1b[31mred": "\\x1b[31mred",
    "\udcff": "\\udcff",
    "\u2028": "\\u2028",
    "\u202eabc": "\\u202eabc",
}


def test_names_cannot_break_a_table_nor_speak_to_the_terminal() -> None:
    lines = table(("class", "rows"), [(name, "1") for name in NAMES])
    assert [line.split("  ")[0] for line in lines[2:]] == list(NAMES.values())
    assert {line.rindex("1") for line in lines[2:]} == {lines[0].index("rows")}, "as wide as what is shown"
    for name in ("Müller", "犬", "a b", "\u00a0", "👩\u200d🔬", "\u0645\u06cc\u200c\u0622"):
        assert visible(name) == name


def test_what_a_command_prints_has_a_line_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    finish(Outcome({}, facts({"classes": ", ".join(NAMES)}), ["\x1b]0;title\x07 is odd"]), json=False)
    seen = capsys.readouterr()
    assert seen.out == f"  classes  {', '.join(NAMES.values())}\n"
    assert seen.err == "warning: \\x1b]0;title\\x07 is odd\n"
    record = logging.LogRecord("topline.pipeline.ingest", logging.INFO, "", 0, "classes: %s", ("a\nb",), None)
    assert _ToStderr().format(record) == "classes: a\\nb"


def test_that_functions_are_compiled_is_no_warning_at_a_command_line() -> None:
    record = logging.LogRecord(jit_cache.logger.name, logging.WARNING, "", 0, "compiling", (), None)
    shown = _ToStderr()
    shown.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    assert shown.format(record).lower() == "info: compiling"
