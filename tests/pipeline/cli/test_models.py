"""Commands on models: weighed, promoted, applied to images, files and datasets."""

from __future__ import annotations

import io
import logging
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TextColumn

from tests.pipeline.conftest import Topline
from tests.pipeline.pictures import write_classes
from tests.pipeline.small_data import small_dataset
from topline.pipeline import prediction
from topline.pipeline.cli import display
from topline.pipeline.cli.command import Outcome, finish
from topline.pipeline.cli.display import BarDisplay, LineDisplay, fact_text, show_progress
from topline.pipeline.cli.entry import _ToStderr
from topline.pipeline.cli.models import models_table
from topline.pipeline.cli.table import (
    BAD_INPUT,
    FAILURE,
    SHORT_OF_TOLERANCE,
    facts,
    metrics_line,
    table,
    visible,
)
from topline.pipeline.cli.using import _fitting, sets_table
from topline.pipeline.doctor import CheckResult
from topline.pipeline.evaluation import METRICS, placed
from topline.pipeline.evaluation.metrics import macro_top_k_accuracy
from topline.pipeline.evaluation.records import SetQuality
from topline.pipeline.prediction import Prediction, PredictResult
from topline.pipeline.rows import StoredModel
from topline.pipeline.telemetry import TimeLeft
from topline.solvers import jit_cache


def test_a_model_is_weighed_promoted_and_rolled_back(topline: Topline, store: str) -> None:
    options = ("train", "--store", store, "--k", "2", "--workers", "0", "--json")
    good = topline(*options, "--tol", "0.01").json["model"]
    better = topline(*options, "--tol", "0.01", "--C", "10").json["model"]
    poor = topline(*options, "--tol", "0.01", "--C", "1e-6").json["model"]
    assert "has no champion" in topline("models", "compare", good).err
    assert topline("models", "promote", good, "--reason", "the first").code == 0
    shown = topline("models", "compare", better)
    assert shown.code == 0, shown.err
    assert "95% interval" in shown.out
    assert "10 " in next(line for line in shown.out.splitlines() if line.startswith("C "))
    kept = topline("models", "promote", poor, "--k", "1", "--json")
    assert kept.code == SHORT_OF_TOLERANCE
    assert kept.json["promoted"] is False
    assert kept.json["evidence"]["accuracies"][0]["gain"] < 0
    assert (
        topline("models", "promote", better, "--by-rule", "--least-gain", "-1", "--confidence", "0.9999").code
        == 0
    )
    listed = topline("models", "list", "--store", store, "--json").json
    assert [model["stage"] for model in listed["models"]] == ["archived", "champion", "candidate"]
    assert [reign["model"] for reign in listed["champions"]] == ["m0001", "m0002"]
    assert topline("models", "show", f"{store}/models/champion", "--json").json["id"] == "m0002"
    refused = topline("models", "delete", good)
    assert refused.code == BAD_INPUT
    assert "a rollback of m0002 would need it" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert topline("models", "rollback", "--store", store, "--json").json["champion"] == "m0001"
    assert "champion m0001 since" in topline("models", "list", "--store", store).out
    assert topline("models", "archive", poor, "--reason", "poor").code == 0
    assert topline("models", "delete", poor, "--json").json["decision"]["action"] == "delete"
    assert "m0003 was deleted" in topline("models", "show", poor).err
    assert "write STORE/models/m0001" in topline("models", "delete", store).err
    both = topline("models", "promote", better, "--by-rule", "--force", "--reason", "x")
    assert (both.code, "leave out the rule" in both.err) == (BAD_INPUT, True)


def test_the_lines_of_a_run_are_kept_with_it(topline: Topline, store: str) -> None:
    topline("train", "--store", store, "--k", "4", "--loss", "topk_hinge", "--workers", "0", "--tol", "0.05")
    model = f"{store}/models/{topline('models', 'list', '--store', store, '--json').json['models'][-1]['id']}"
    shown = topline("models", "show", model, "--log", "--json").json
    assert any("chance alone reaches in 80%" in line for line in shown["log"])
    assert "\n".join(shown["log"]) in topline("models", "show", model, "--log").out


def test_a_dataset_is_predicted_or_images_are(topline: Topline, store: str) -> None:
    trained = topline("train", "--store", store, "--k", "2", "--workers", "0", "--tol", "0.01", "--json")
    options = ("predict", trained.json["model"], "--workers", "0")
    ran = topline(*options, "--dataset", "latest", "--top-k", "2", "--json")
    assert (ran.code, ran.json["rows"], ran.json["reused"]) == (0, 700, False), ran.err
    assert "stored already" in topline(*options, "--dataset", "latest", "--top-k", "2").out
    for words, said in [
        (("--images", "photos"), "belong to --dataset"),
        (("--dataset", "latest", "--images", "photos"), "give one of them"),
        (("--dataset", "d0009-00000000"), "has no dataset d0009-00000000"),
    ]:
        refused = topline(*options, *words)
        assert (refused.code, said in refused.err) == (BAD_INPUT, True), refused.err


def test_what_comes_next_stands_behind_every_command(topline: Topline, tmp_path: Path) -> None:
    store = str(tmp_path / "my store")
    small_dataset(Path(store))

    def following(*words: str, codes: tuple[int, ...] = (0, SHORT_OF_TOLERANCE)) -> str:
        ran = topline(*words)
        assert ran.code in codes, ran.err
        name, *after = shlex.split(ran.out.partition("  next: ")[2].partition("\n")[0])
        assert name == "topline"
        assert any(word.startswith(store) for word in after)
        return " ".join(after[:2] if after[0] == "models" else after[:1])

    first, second = f"{store}/models/m0001", f"{store}/models/m0002"
    assert following("models", "list", "--store", store) == "train"
    for C in ("1", "1e-6"):
        following("train", "--store", store, "--k", "2", "--workers", "0", "--tol", "0.05", "--C", C)
    assert following("models", "show", first) == "evaluate"
    following("evaluate", first)
    assert following("models", "show", first) == "models promote"
    assert following("models", "promote", first, "--reason", "the first") == "predict"
    assert following("models", "show", first) == "predict"
    assert following("models", "compare", second) == "models promote"
    assert following("models", "compare", first, second) == "predict"
    assert following("models", "promote", second, "--by-rule") == "models compare"
    assert following("models", "archive", second) == "models list"
    assert following("models", "pin", second) == "prune"
    assert following("models", "unpin", second) == "prune"
    assert following("models", "delete", second) == "prune"
    assert following("prune", store, "--keep", "1", "--dry-run") in ("prune", "status")
    assert following("prune", store, "--keep", "1") == "status"
    assert following("fsck", store) == "status"
    # A model learned the row, so this is not the end of it, as its verdict says.
    assert following("forget", store, "--rows", "row000003", codes=(1,)) == "status"
    assert following("dashboard", "--store", store, "--out", str(tmp_path / "page.html")) == "dashboard"


@pytest.mark.parametrize(("ok", "word"), [(True, "run"), (False, "doctor   once that is fixed")])
def test_what_comes_next_is_said_after_doctor(
    topline: Topline, monkeypatch: pytest.MonkeyPatch, ok: bool, word: str
) -> None:
    checks = [CheckResult("versions", ok, "those of today", "install it again", 0.1)]
    monkeypatch.setattr("topline.pipeline.doctor.run_checks", lambda **_: checks)
    assert topline("doctor").out.splitlines()[-1] == f"  next: topline {word}"


SURE = Prediction(
    "a.png", "ok", ("cat", "dog", "cow"), (2.0, 0.1, -1.0), probabilities=(0.9996, 0.0003, 0.0001)
)
TORN = replace(SURE, sample="b.png", probabilities=(0.6, 0.4, 0.0))
BAD = Prediction("c.png", "rejected", error="no image")


@pytest.mark.parametrize("file", [None, "output", "page"])
def test_a_table_that_holds_all_is_not_listed_whole(
    file: str | None, topline: Topline, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = topline("train", "--store", store, "--k", "2", "--workers", "0", "--tol", "0.05", "--json").json[
        "model"
    ]
    many = tuple(replace(SURE, sample=f"{number:03}.png") for number in range(30))
    (tmp_path / "photos").mkdir()
    place = str(tmp_path / "found.csv")
    found = PredictResult(
        model=model, predictions=(TORN, BAD, *many), ignored=0, probabilities="fitted",
        **({file: place} if file else {}),
    )  # fmt: skip
    monkeypatch.setattr(prediction, "predict", lambda *_: found)
    ran = topline(
        "predict", model, "--images", str(tmp_path / "photos"), *([f"--{file}", place] if file else [])
    )
    lines = ran.out.splitlines()
    assert lines[2].split("  ", 1)[1].strip() == "cat (60.0%)  dog (40.0%)"
    assert lines[3].endswith("rejected: no image")
    assert lines[4].split("  ", 1)[1].strip() == "cat (100.0%)"
    assert sum(line.startswith("0") for line in lines) == (18 if file == "output" else 30)
    assert ("and 12 more, each in " in ran.out) == (file == "output")
    assert "1 of 32 images could not be read" in ran.err


def test_as_many_best_classes_are_listed_as_the_window_has_room_for() -> None:
    head = ("image", "best classes")
    torn = replace(TORN, probabilities=(0.5, 0.3, 0.2))
    assert _fitting(head, [torn], None)[2] == "b.png  cat (50.0%)  dog (30.0%)  cow (20.0%)"
    cut = replace(BAD, error="the reason of it is a long one and widens no column")
    assert _fitting(head, [cut, torn], 40)[3] == "b.png  cat (50.0%)  dog (30.0%)  ..."
    assert _fitting(head, [torn], 5)[2] == "b.png  cat (50.0%)  ..."
    several = replace(SURE, labels=tuple("abcdefg"), scores=(1.0,) * 7, probabilities=None)
    assert _fitting(head, [several], None)[2].count("(1.000)") == 7
    assert _fitting(head, [replace(BAD, error="no\nimage\x1b[2J")], None)[2].endswith(r"no\nimage\x1b[2J")


def test_features_in_a_file_are_classified(topline: Topline, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(120, 3)) + 4.0 * np.eye(3)[np.arange(120) % 3]
    table = pd.DataFrame(X, columns=["w", "h", "z"])
    table.assign(label=np.arange(120) % 3).to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "new.csv", index=False)
    data = ("--store", str(tmp_path / "store"))
    imported = ("import", "--features", str(tmp_path / "t.csv"), *data, "--val-share", "0.3")
    assert "class sizes  40 rows each" in topline(*imported).out
    model = topline("train", *data, "--workers", "0", "--tol", "0.05", "--json").json["model"]
    told = topline("models", "promote", model, "--reason", "the first")
    assert "/models/champion --features FILE --output predictions.csv" in told.out
    given = ("predict", model, "--features", str(tmp_path / "new.csv"))
    ran = topline(*given)
    lines = ran.out.splitlines()
    assert lines[0].split() == ["row", "best", "classes"]
    assert lines[2].split()[:2] == ["row000000000", "0"]
    assert "and 100 more, each in the table that --output names" in ran.out
    assert f"--features {tmp_path / 'new.csv'} --output predictions.csv" in ran.out
    place = str(tmp_path / "p.csv")
    assert f"and 100 more, each in {place}" in topline(*given, "--output", place).out
    assert len(pd.read_csv(place)) == 120
    assert topline(*given, "--json").json["rows"] == 120
    told = []
    for rows in (given[2:], ("--dataset", "latest")):
        priced = ("predict", model, *rows, "--guess-price", "0.05", "--top-k", "2")
        ran = topline(*priced)
        told += [line for line in ran.out.splitlines() if line.startswith("  sets ")]
        found = topline(*priced, "--json").json["sets"]
        assert (found["guess_price"], 1.0 <= found["mean_size"] <= 3.0) == (0.05, True)
        if "--features" in rows:
            again = shlex.split(ran.out.partition("  next: ")[2])[1:]
            assert again[:2] == ["predict", model]
            assert {" ".join(pair) for pair in pairwise(again)} > {"--guess-price 0.05", "--top-k 2"}
    assert "hold as many guesses as pay at the price 0.05: " in told[0]
    assert told[0].split() == told[1].split()
    for more, sentence in {
        ("--dataset", "latest"): "--features and --dataset are two things to classify: give one of them",
        ("--images", str(tmp_path)): "--images and --features are two things to classify: give one of them",
        data: "--store and --workers belong to --dataset",
    }.items():
        refused = topline(*given, *more)
        assert (refused.code, sentence in refused.err) == (2, True)
    alone = topline("predict", model, "--dataset", "latest", "--labels-name", "label")
    assert "--labels-name names what is inside the file of --features" in alone.err


def test_new_images_are_scored_and_those_of_training_are_told_apart(topline: Topline, tmp_path: Path) -> None:
    """Copies of what was trained on do not count; a folder that is no class is named, and counts as wrong."""
    root = write_classes(tmp_path / "photos", 3, 10)
    place = str(tmp_path / "store")
    run = ("run", "--images", str(root), "--store", place, "--loss", "softmax", "--tol", "0.05")
    topline(*run, "--backbone", "hog:size=24,cells=8", "--test-share", "0.3", "--no-training-sizes")
    found = topline("evaluate", place, "--images", str(root), "--json").json
    counts = StoredModel.open(f"{place}/models/m0001").dataset().info.counts
    assert (found["in_training"], found["rows"]) == (counts["train"], 30 - counts["train"])
    rows = topline("predict", place, "--images", str(root), "--json").json["predictions"]
    right = [one["labels"][0] == one["label"] for one in rows if one["split"] != "train"]
    assert found["topk"]["1"] == pytest.approx(np.mean(right))
    assert found["intervals"]["1"][0] < found["topk"]["1"] <= found["intervals"]["1"][1]
    table = tmp_path / "table.csv"
    pictures = sorted(root.rglob("*.png"))
    lines = [f"{one.relative_to(tmp_path)},{one.parent.name}" for one in pictures]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    assert topline("evaluate", place, "--images", str(table), "--json").json == found
    said = topline("predict", place, "--images", str(root))
    assert f"({found['rows']} labelled rows, {counts['train']} more were in training)" in said.out

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no picture")
    assert topline("predict", place, "--images", str(tmp_path / "broken")).code == FAILURE
    refused = topline("evaluate", place, "--images", str(tmp_path / "broken"))
    assert "no row has a label" in refused.err


def test_a_file_with_labels_is_scored_and_unknown_ones_are_named(topline: Topline, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.array(["low", "high"])[np.arange(80) % 2]
    table = pd.DataFrame(random.normal(size=(80, 3)) + (labels == "high")[:, None] * 3.0, columns=list("abc"))
    table.assign(kind=labels).to_csv(tmp_path / "old.csv", index=False)
    new = (table + 0.01).assign(kind=np.where(np.arange(80) < 8, "other", labels))
    new.to_csv(tmp_path / "new.csv", index=False)
    place = str(tmp_path / "store")
    old = ("--features", str(tmp_path / "old.csv"), "--labels-name", "kind")
    imported = topline("import", *old, "--store", place, "--json").json
    assert (imported["smallest_class"], imported["largest_class"]) == (["high", 40], ["high", 40])
    topline("train", "--store", place, "--workers", "0")
    asked = ("evaluate", place, "--features", str(tmp_path / "new.csv"), "--labels-name", "kind")
    found = topline(*asked, "--json").json
    assert (found["rows"], found["unknown"]) == (80, {"other": 8})
    again = topline("evaluate", place, *old, "--json").json
    counts = StoredModel.open(f"{place}/models/m0001").dataset().info.counts
    assert (again["rows"], again["in_training"]) == (80 - counts["train"], counts["train"])
    for words, said in (
        (("--labels-name", "kind"), "--labels-name is about --features"),
        ((*old, "--split", "val"), "leave them out with --images and --features"),
    ):
        refused = topline("evaluate", place, *words)
        assert (refused.code, said in refused.err) == (BAD_INPUT, True), refused.err
    output = str(tmp_path / "out.csv")
    topline(
        "predict", place, "--features", str(tmp_path / "new.csv"), "--labels-name", "kind", "--output", output
    )
    told = pd.read_csv(output)
    assert found["topk"]["1"] == pytest.approx((told["prediction"] == told["label"]).mean())
    assert told["probability"].between(0.5, 1.0).all()
    assert "counted as wrong of unknown classes: other 8" in topline(*asked).out


def test_numbers_of_classes_in_a_file_mean_the_names_of_training(topline: Topline, tmp_path: Path) -> None:
    codes = np.arange(80) % 2
    X = np.random.default_rng(0).normal(size=(80, 3)) + codes[:, None] * 9.0
    np.savez(tmp_path / "a.npz", features=X, labels=codes)
    np.savez(tmp_path / "b.npz", features=X, labels=codes)
    (tmp_path / "names.txt").write_text("low\nhigh\n")
    place, names = str(tmp_path / "store"), ("--class-names", str(tmp_path / "names.txt"))
    topline(
        "import", "--features", str(tmp_path / "a.npz"), "--labels-name", "labels", *names, "--store", place
    )
    topline("train", "--store", place, "--workers", "0")
    asked = ("evaluate", place, "--features", str(tmp_path / "b.npz"), "--labels-name", "labels")
    found = topline(*asked, "--json").json
    assert (found["unknown"], found["topk"]["1"] > 0.7) == ({}, True)


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
