from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TextColumn

from topline.pipeline.cli import display
from topline.pipeline.cli.display import BarDisplay, LineDisplay, fact_text, show_progress
from topline.pipeline.telemetry import TimeLeft


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
