"""Progress on a terminal and in a log, tables and numbers in plain text."""

from __future__ import annotations

import io
import logging
from dataclasses import replace

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TextColumn

from topline.pipeline.cli import display
from topline.pipeline.cli.command import Outcome, finish
from topline.pipeline.cli.display import BarDisplay, LineDisplay, fact_text, show_progress
from topline.pipeline.cli.entry import _ToStderr
from topline.pipeline.cli.models import models_table
from topline.pipeline.cli.table import facts, metrics_line, table, visible
from topline.pipeline.cli.using import sets_table
from topline.pipeline.evaluation import METRICS, placed
from topline.pipeline.evaluation.metrics import macro_top_k_accuracy
from topline.pipeline.evaluation.records import SetQuality
from topline.pipeline.telemetry import TimeLeft
from topline.solvers import jit_cache


def test_a_log_gets_a_line_a_stage() -> None:
    stream = io.StringIO()
    lines = LineDisplay(stream)
    lines.begin("extract", 300, "images")
    lines.advance(200)
    lines.advance(100)
    lines.begin("train", 1000, "passes")
    lines.advance()
    lines.note({"relative_gap": 0.000873, "primal": 1.0})
    lines.end()
    lines.end()
    first, second = stream.getvalue().splitlines()
    assert first.startswith("extract: 300 images, done (")
    assert second.startswith("train: 1 pass, relative gap 8.73e-04, done (")


def test_long_stages_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "LOG_SECONDS", 0.0)
    stream = io.StringIO()
    lines = LineDisplay(stream)
    lines.begin("extract", 300, "images")
    lines.advance(7)
    assert stream.getvalue().startswith("extract: 7/300 images (")


def test_one_of_many_keeps_the_plural_and_one_alone_does_not() -> None:
    with RichProgress(TextColumn("{task.description}"), console=Console(file=io.StringIO())) as bars:
        shown = BarDisplay(bars)
        shown.begin("train", 1000, "passes")
        shown.note({"relative_gap": 5e-4})
        shown.advance()
        assert bars.tasks[0].fields["detail"] == "1/1,000 passes, relative gap 5.00e-04"
        shown.end()
        assert bars.tasks[0].fields["detail"] == "1 pass, relative gap 5.00e-04"


def test_stages_that_were_only_announced_stay_silent() -> None:
    stream = io.StringIO()
    lines = LineDisplay(stream)
    lines.begin("train", unit="rounds")
    lines.begin("train", 1000, "passes")
    lines.end()
    assert stream.getvalue() == ""


def test_bars_end_where_the_work_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display.time, "monotonic", lambda: 0.0)
    with RichProgress(TextColumn("{task.description}"), console=Console(file=io.StringIO())) as bars:
        shown = BarDisplay(bars)
        shown.advance()
        shown.begin("train", 1000, "passes")
        shown.note({"relative_gap": 5e-4, "left": TimeLeft(40.0, 39.0, 41.0)})
        shown.advance(40)
        shown.begin("certify")
        shown.begin("certify", 10, "rows")
        shown.advance(3)
        shown.end()
        trained, certified = bars.tasks
    assert (trained.completed, trained.total, trained.finished) == (40, 40, True)
    assert trained.fields["detail"] == "40 passes, relative gap 5.00e-04"
    assert (certified.completed, certified.finished) == (3, True)


def test_all_of_a_training_fits_a_window_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    facts = {"relative_gap": 6.87e-3, "held_out": 0.406, "held_out_rows": 2000, "held_out_split": "test"}
    for columns, said in (
        ("80", "141 passes, gap 6.87e-03, 12 s to 2 min left, top-1 40.6%"),
        (
            "160",
            "141/1,000 passes, relative gap 6.87e-03, 12 s to 2 min left, top-1 40.6% of 2,000 test rows",
        ),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        with show_progress() as shown:
            shown.begin("train", 1000, "passes")
            shown.note({**facts, "left": TimeLeft(40.0, 12.0, 120.0)})
            shown.advance(141)
            assert isinstance(shown, BarDisplay)
            shown._bars.refresh()
            assert said in capsys.readouterr().err


def test_facts_are_short() -> None:
    assert fact_text({"relative_gap": None}) == ""
    assert fact_text({"rejected": 3, "speed": 1.5}) == "rejected 3"


@pytest.mark.parametrize(
    ("low", "seconds", "high", "text"),
    [
        (39.0, 40.2, 41.0, ", about 40 s left"),
        (60.0, 100.0, 300.0, ", 60 s to 5 min left"),
        (7000.0, 7200.0, 7300.0, ", about 2 h left"),
        (50_000.0, 2e5, 4e5, ", 14 h to 5 days left"),
        (0.0, 0.2, 0.4, ""),
    ],
)
def test_time_left_is_said_as_far_as_it_is_known(low: float, seconds: float, high: float, text: str) -> None:
    facts = {"relative_gap": 5e-4, "left": TimeLeft(seconds, low, high)}
    assert fact_text(facts) == "relative gap 5.00e-04" + text
    assert fact_text({**facts, "left": None}) == fact_text(facts, ended=True) == "relative gap 5.00e-04"


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
