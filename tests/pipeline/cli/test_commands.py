from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.conftest import Topline
from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from tests.processes import run_program
from topline.pipeline.cli import main
from topline.pipeline.cli.entry import app
from topline.pipeline.cli.table import BAD_INPUT, SHORT_OF_TOLERANCE, following
from topline.pipeline.export import FORMATS
from topline.pipeline.options import SECTIONS
from topline.pipeline.report import write_report
from topline.storage.stores import open_store

TOPLINE = Path(sys.executable).with_name("topline")


def commands() -> list[tuple[str, ...]]:
    found = [(command.name,) for command in app.registered_commands]
    for group in app.registered_groups:
        found += [("models", command.name) for command in group.typer_instance.registered_commands]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(topline: Topline, command: tuple[str, ...]) -> None:
    ran = topline(*command, "--help")
    assert ran.code == 0
    assert f"Example: topline {' '.join(command)}" in " ".join(ran.out.split())
    assert "--json" in ran.out


def test_help_wraps_every_paragraph_anew(topline: Topline, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a wide terminal a paragraph is a line, however the docstring is broken.
    monkeypatch.setenv("COLUMNS", "400")
    shown = topline("evaluate", "--help").out
    assert any(
        "Ties count against the model." in line and "with the model." in line for line in shown.splitlines()
    )


def test_a_store_that_is_empty_or_absent_says_how_to_get_one(topline: Topline, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        ran = topline("train", "--store", str(tmp_path / name))
        assert ran.code == BAD_INPUT
        assert "topline import" in ran.err


def test_what_most_people_set_comes_before_what_few_do(topline: Topline) -> None:
    shown = topline("train", "--help").out
    places = [shown.index(word) for word in ("Common options", "--store", "--loss", "--C ", "--workers")]
    assert places == sorted(places)
    assert places[-1] < shown.index("Train options") < shown.index("--checkpoint-seconds")
    assert shown.count("--workers ") == 1


def test_no_command_at_all_shows_the_help(topline: Topline) -> None:
    ran = topline()
    assert ran.code == 2
    assert "certify" in ran.out


def test_train_prints_one_json_object_with_the_promised_fields(topline: Topline, store: str) -> None:
    ran = topline("train", "--store", store, "--k", "2", "--workers", "0", "--tol", "0.05", "--json")
    assert ran.code == 0, ran.err
    promised = "model primal dual gap relative_gap status passes seconds n d m run dataset certificate"
    assert set(promised.split()) <= ran.json.keys()
    assert ran.json["status"] == "solved"
    assert 0 <= ran.json["relative_gap"] <= 0.05
    assert ran.json["certificate"]["certified"] is True
    assert len(ran.out.strip().splitlines()) == 1


def test_what_comes_next_runs_as_printed_where_a_path_has_spaces(
    topline: Topline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small_dataset(tmp_path / "my store")
    words = ["train", "--store", str(tmp_path / "my store"), "--k", "2", "--workers", "0", "--tol", "0.05"]
    for expected in ("evaluate", "predict", "report", "inspect", "inspect"):
        ran = topline(*words)
        assert ran.code == 0, ran.err
        name, *words = shlex.split(ran.out.partition("  next: ")[2].partition("\n")[0])
        assert (name, words[0], words[1]) == ("topline", expected, str(tmp_path / "my store/models/m0001"))
    words = ["models", "list", "--store", str(tmp_path / "my store")]
    for expected in ("models promote", "predict"):
        ran = topline(*words)
        assert ran.code == 0, ran.err
        name, *words = shlex.split(ran.out.partition("  next: ")[2].partition("\n")[0])
        assert " ".join(words).startswith(expected)
    assert words[1] == str(tmp_path / "my store/models/champion")
    ran = topline("inspect", str(tmp_path / "my store/models/m0001"), "--max-passes", "0")
    assert re.search(r" [1-9]\d* open \(--max-passes settles them one at a time", ran.out)
    assert re.search(r"held-out rows +[1-9]\d*, which the model has not seen", ran.out)


@pytest.mark.parametrize(("split", "words"), [(1, ["--split", "val"]), (0, None)])
def test_a_model_without_test_rows_is_measured_on_what_is_there(
    topline: Topline, tmp_path: Path, split: int, words: list[str] | None
) -> None:
    X, labels = make_features(60, 4, 3)
    write_dataset(open_store(str(tmp_path), create=True), X, labels, np.where(np.arange(60) % 3, 0, split))
    train = ("train", "--store", str(tmp_path), "--loss", "softmax", "--workers", "0", "--tol", "0.05")
    model = str(tmp_path / "models" / "m0001")
    for command in (train, ("certify", model), ("models", "show", model)):
        said = topline(*command).out
        found = [line.split("topline ")[1].split() for line in said.splitlines() if " evaluate " in line]
        assert found == ([["evaluate", model, *words]] if words else [])
    if words:
        assert topline(*found[0]).code == 0


def test_an_export_says_how_it_is_loaded_and_the_line_runs(topline: Topline, tmp_path: Path) -> None:
    store = str(tmp_path / "it's a store")
    small_dataset(Path(store))
    words = ("--k", "2", "--workers", "0", "--tol", "0.05")
    assert topline("train", "--store", store, *words).code == 0
    for form in FORMATS.values():
        ran = topline("export", store, "--format", form.name, "--output", f"{store}/model{form.suffix}")
        assert ran.code == 0, ran.err
        (line,) = re.findall(r"^  in Python +(.+)$", ran.out, re.MULTILINE)
        found: dict[str, Any] = {}
        exec(line, found)
        assert {"W", "session", "model"} & found.keys()


def test_values_with_spaces_between_them_are_told_of_commas(topline: Topline, tmp_path: Path) -> None:
    ran = topline("sweep", "--store", str(tmp_path), "--C", "0.1", "1")
    assert ran.code == 2
    assert "values of a list have commas between them, as in --C 0.1,1" in ran.err


def test_a_store_in_another_command_s_place_is_told_where_it_goes(topline: Topline, store: str) -> None:
    assert "the store is named by --store here" in topline("train", store).err
    ran = topline("status", "--store", store)
    assert (ran.code, "here the store stands by itself, as in topline status STORE" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --features x.npy", "--features: it belongs to topline import, evaluate, predict, suggest"),
        ("evaluate m --no-certify", "--no-certify: it belongs to topline train"),
        ("train --los softmax", "--los: did you mean --loss?"),
        ("train --no-certfy", "--no-certfy: did you mean --no-certify?"),
        ("predict s --label-name kind", "--label-name: did you mean --labels-name?"),
        ("train --nonsense 3", "--nonsense: topline train --help lists all"),
    ],
)
def test_an_option_that_is_not_there_is_told_what_it_may_be(topline: Topline, words: str, said: str) -> None:
    ran = topline(*words.split())
    assert (ran.code, ran.err) == (2, f"error: No such option: {said}\n")


@pytest.mark.parametrize("command", ["run", "retrain"])
def test_no_store_is_made_for_images_that_are_not_there(
    topline: Topline, tmp_path: Path, command: str
) -> None:
    ran = topline(command, "--images", str(tmp_path / "phtos"), "--store", str(tmp_path / "shop"))
    assert ran.code == BAD_INPUT
    assert "phtos is not there" in ran.err
    assert not (tmp_path / "shop").exists()


def test_an_empty_model_to_start_from_is_no_start_from_zero(topline: Topline, tmp_path: Path) -> None:
    """A variable of a script that nothing has set."""
    small_dataset(tmp_path)
    ran = topline("train", "--store", str(tmp_path), "--from", "")
    assert ran.code == BAD_INPUT
    assert "a store needs a path" in ran.err


def test_a_loss_that_is_not_there_is_told_before_a_store_that_is_not(
    topline: Topline, tmp_path: Path
) -> None:
    for command in ("train", "retrain"):
        ran = topline(command, "--store", str(tmp_path / "shop"), "--loss", "sofmax")
        assert ran.code == BAD_INPUT
        assert "there is no loss named 'sofmax': did you mean 'softmax'?" in ran.err


def test_a_dashboard_s_word_that_names_no_run_is_a_store(topline: Topline, tmp_path: Path) -> None:
    ran = topline("dashboard", str(tmp_path / "shop"))
    assert f"there is no store at {tmp_path / 'shop'}" in ran.err


def test_the_ending_of_an_export_says_its_format(topline: Topline, tmp_path: Path) -> None:
    small_dataset(tmp_path / "store")
    topline("train", "--store", str(tmp_path / "store"))
    exported = ("export", str(tmp_path / "store"), "--output")
    assert topline(*exported, str(tmp_path / "model.onnx"), "--json").json["format"] == "onnx"
    assert topline(*exported, str(tmp_path / "model"), "--json").json["format"] == "npz"
    ran = topline(*exported, str(tmp_path / "model.onnx"), "--format", "npz")
    assert (ran.code, "ends like onnx, and --format is npz" in ran.err) == (2, True)


def test_a_word_in_capitals_is_the_readers_and_other_words_are_quoted() -> None:
    assert following(("predict", "a b", "--images", "FOLDER"), ("ls", "c"), hint="at last") == [
        "",
        "  next: topline predict 'a b' --images FOLDER   at last",
        "        topline ls c   at last",
    ]


def test_a_loss_that_is_not_convex_says_so_everywhere(topline: Topline, store: str, tmp_path: Path) -> None:
    """null in JSON, a sentence for a person, and no certificate to be had."""
    options = ("train", "--store", store, "--loss", "truncated_topk_entropy", "--k", "2", "--method", "lbfgs")
    ran = topline(*options, "--workers", "0", "--json")
    assert ran.code == 0, ran.err
    assert [ran.json[name] for name in ("dual", "gap", "relative_gap", "certificate")] == [None] * 4
    assert ran.json["gap_kind"] == "none"
    assert 0.0 <= ran.json["stationarity"] <= 1e-3
    model = ran.json["model"]
    assert "none: the loss is not convex; the gradient fell to" in topline(*options, "--workers", "0").out
    refused = topline("certify", model)
    assert refused.code == BAD_INPUT
    assert "k = 2 is not convex: it has no dual problem" in refused.err
    page = Path(write_report(model, tmp_path / "report.html")).read_text()
    assert "No certificate: the loss is not convex" in page
    assert topline("models", "list", "--store", store).code == 0
    short = topline(*options, "--workers", "0", "--max-passes", "2", "--json")
    assert "the gradient fell to" in short.err


def test_class_weights_and_smoothing_kinds_reach_the_certificate(topline: Topline, store: str) -> None:
    weights = ("--class-weight", "balanced", "--smoothing", "0.5", "--smoothing-kind", "others")
    ran = topline("train", "--store", store, "--k", "2", *weights, "--workers", "0", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["certificate"]["certified"] is True
    record = topline("models", "show", ran.json["model"], "--json").json
    assert record["smoothing_kind"] == "others"
    assert len(record["class_weights"]) == 5
    refused = topline("train", "--store", store, "--loss", "softmax", "--smoothing", "1", "--workers", "0")
    assert refused.code == BAD_INPUT
    assert "the loss softmax is smooth as it is" in refused.err


def test_models_can_be_certified_evaluated_listed_and_shown(topline: Topline, store: str) -> None:
    model = topline("train", "--store", store, "--k", "2", "--workers", "0", "--tol", "0.1", "--json").json[
        "model"
    ]
    assert topline("certify", model, "--json").json["certified"] is True
    # A store stands for its newest model.
    evaluation = topline("evaluate", store, "--json").json
    assert evaluation["topk"]["5"] == 1.0
    assert 0 < evaluation["topk"]["1"] <= evaluation["topk"]["2"]
    assert (
        f"the 2 of {len(evaluation['per_class'])} classes that do worst"
        in topline("evaluate", store, "--worst", "2").out
    )
    listed = topline("models", "list", "--store", store, "--json").json["models"]
    assert listed[-1]["id"] == Path(model).name
    assert listed[-1]["accuracy"] == evaluation["topk"]
    assert topline("models", "show", model, "--json").json["id"] == Path(model).name
    assert f"{listed[-1]['relative_gap']:.2e}" in topline("models", "list", "--store", store).out


def test_stopping_at_a_chosen_budget_is_a_success_and_at_the_default_one_is_not(
    topline: Topline, store: str, tmp_path: Path
) -> None:
    slow = ("--workers", "0", "--no-certify", "--tol", "1e-9", "--method", "fw")
    short = ("train", "--store", store, "--k", "2", *slow)
    chosen = topline(*short, "--max-passes", "3", "--json")
    assert chosen.code == 0
    assert chosen.json["status"] == "max_passes"
    assert "above the tolerance" in chosen.err
    default = topline(*short, "--json")
    assert default.code == SHORT_OF_TOLERANCE
    assert default.json["passes"] >= 1000
    assert "--resume" in default.err


def test_train_and_certify_agree_on_weights_of_0(topline: Topline, tmp_path: Path) -> None:
    """The best weights for labels without a pattern are 0 to the tolerance: a sound gap, and no model."""
    rng = np.random.default_rng(0)
    write_dataset(
        open_store(tmp_path, create=True),
        rng.normal(size=(100, 5)).astype(np.float32),
        rng.integers(3, size=100),
        np.zeros(100, dtype=np.int8),
    )
    ran = topline("train", "--store", tmp_path, "--k", "1", "--workers", "0", "--json")
    assert ran.code == SHORT_OF_TOLERANCE
    assert "is not certified: W is 0, which is no better than no model; use a larger --C" in ran.err
    certificate = ran.json["certificate"]
    assert (certificate["valid"], certificate["w_difference"]) == (True, None)
    assert certificate["relative_gap"] <= 1e-3
    unproven = topline("train", "--store", tmp_path, "--k", "1", "--workers", "0", "--no-certify", "--json")
    assert (unproven.code, unproven.json["certificate"], unproven.json["no_weights"]) == (0, None, True)
    assert unproven.json["collapsed"]
    assert "W of m0002 is 0, which is no better than no model; use a larger --C" in unproven.err
    short = topline(
        "train", "--store", tmp_path, "--k", "1", "--workers", "0", "--no-certify", "--max-passes", "1",
        "--method", "fw", "--transforms", "standardize", "--C", "1e-9", "--tol", "1e-14",
    )  # fmt: skip
    assert "W of m0003 is 0, which is no better than no model, and the relative gap is" in short.err
    again = topline("certify", f"{tmp_path}/models/m0001")
    assert again.code == SHORT_OF_TOLERANCE
    assert "is not certified: W is 0, which is no better than no model" in again.err


def test_a_chosen_loose_tolerance_is_a_success_that_is_not_certified(topline: Topline, store: str) -> None:
    words = ("--workers", "0", "--no-keep-duals", "--method", "fw", "--tol", "0.4", "--json")
    loose = topline("train", "--store", store, "--k", "2", *words)
    assert 0.05 < loose.json["relative_gap"] <= 0.4
    assert loose.code == 0, "what was asked for"
    assert "is not certified: a gap above 0.05 is not called certified" in loose.err


def test_a_resumed_run_is_judged_by_its_own_tolerance(topline: Topline, store: str) -> None:
    slow = ("--workers", "0", "--no-certify", "--method", "fw", "--tol", "1e-9", "--max-passes")
    first = topline("train", "--store", store, "--k", "2", *slow, "3", "--json").json
    words = ("--resume", first["run"], "--max-passes", "5")
    again = topline("train", "--store", store, "--workers", "0", *words)
    assert "above the tolerance 1e-09" in again.err


def test_a_solved_run_is_resumed_only_for_more_than_it_reached(topline: Topline, tmp_path: Path) -> None:
    small_dataset(tmp_path)
    first = topline("train", "--store", tmp_path, "--k", "2", "--workers", "0", "--tol", "0.05", "--json")
    resume = ("train", "--store", tmp_path, "--workers", "0", "--resume", "r0001", "--json")
    again = topline(*resume)
    assert (again.code, again.json) == (0, first.json)
    assert f"nothing is left to do: run r0001 reached the tolerance before, and {tmp_path}" in again.err
    assert topline(*resume, "--C", "3").code == BAD_INPUT
    further = topline(*resume, "--tol", "1e-4").json
    assert Path(further["model"]).name == "m0002"
    assert further["relative_gap"] <= 1e-4
    assert topline(*resume, "--tol", "0.1").json["model"] == further["model"]


def test_flags_win_over_the_file_and_the_file_over_defaults(
    topline: Topline, store: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'[train]\nstore = "{store}"\nk = 3\ntol = 0.2\nC = 0.5\n[cluster]\nworkers = 0\n')
    model = topline("train", "--config", str(file), "--k", "2", "--json").json["model"]
    config = topline("models", "show", model, "--json").json["config"]
    assert (config["k"], config["C"], config["method"]) == (2, 0.5, "auto")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[train]\nkk = 3\n", "unknown key kk in [train]: did you mean k?"),
        ("[trian]\nk = 3\n", "unknown section [trian]: did you mean train?"),
        ("k = \n", "is not TOML"),
        ("train = 3\n", "must be a section"),
        ("[train]\nC = -1.0\n", "--C -1.0 is not usable"),
    ],
)
def test_mistakes_in_the_file_are_named(topline: Topline, tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)
    ran = topline("train", "--config", str(file))
    assert ran.code == BAD_INPUT
    assert expected in ran.err
    assert str(file) in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--k", "many"),
        ("train", "--colour", "red"),
        ("train", "--C", "-1"),
        ("train", "--store", "{missing}"),
        ("train", "--store", "{store}", "--k", "99"),
        ("train", "--store", "{store}", "--loss", "hinge"),
        ("train", "--store", "{store}", "--dataset", "d0099-00000000"),
        ("train", "--store", "{store}", "--loss", "max_hinge", "--k", "3"),
        ("train", "--store", "{store}", "--method", "simplex"),
        ("train", "--store", "ftp://somewhere/x"),
        ("certify", "{store}/models/m0099"),
        ("certify", "{missing}"),
        ("evaluate",),
        ("evaluate", "{store}/models/m0099", "--split", "training"),
        ("fsck", "{missing}"),
        ("traim",),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    topline: Topline, store: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    filled = [word.format(store=store, missing=tmp_path / "nothing") for word in words]
    ran = topline(*filled)
    assert ran.code == BAD_INPUT, ran.err
    lines = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in ran.err
    again = topline(*filled, "--json")
    assert again.code == BAD_INPUT
    assert again.json["error"]["message"] == lines[0].removeprefix("error: ")


def test_fsck_finds_damage(topline: Topline, tmp_path: Path) -> None:
    small_dataset(tmp_path / "store")
    assert topline("fsck", tmp_path / "store").code == 0
    shard = max((tmp_path / "store").rglob("c/*/0"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.write_bytes(bytes(data))
    ran = topline("fsck", tmp_path / "store", "--json")
    assert ran.code == 1
    assert ran.json["ok"] is False
    assert [finding["path"] for finding in ran.json["findings"]] == [
        str(shard.relative_to(tmp_path / "store"))
    ]


def test_every_option_says_what_it_is() -> None:
    for section, model in SECTIONS.items():
        for name, field in model.model_fields.items():
            assert field.description, f"{section}.{name}"


def test_faults_show_their_place_only_when_asked(
    topline: Topline, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nothing to divide")

    monkeypatch.setattr("topline.pipeline.certification.certify", broken)
    ran = topline("certify", f"{store}/models/m0001")
    assert ran.code == 1
    assert "a fault in topline: ZeroDivisionError" in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv("TOPLINE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["certify", f"{store}/models/m0001"])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left on device", "/data/x"), 1, "no space is left on the disk at /data/x"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
    ],
)
def test_the_machine_s_own_limits_are_sentences_too(
    topline: Topline, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def limited(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("topline.pipeline.certification.certify", limited)
    ran = topline("certify", "anywhere/models/m0001")
    assert ran.code == code
    assert words in ran.err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom topline.pipeline.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'dask', 'distributed', 'zarr', 'numba', 'pyarrow', 'prefect', 'sklearn', 'numpy', 'scipy',"
        " 'bokeh', 'starlette', 'uvicorn', 'jinja2', 'PIL', 'onnxruntime', 'torch'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = run_program([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert "certify" in done.stdout


@pytest.mark.parametrize("words", ["models list", "models show m0999 --json"])
def test_a_reader_that_leaves_early_is_no_error(store: str, words: str) -> None:
    """Neither for an answer nor for an error that scripts read."""
    done = run_program(
        ["bash", "-c", f"{TOPLINE} {words} --store {store} | true"],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (">/dev/full", 1, "error: no space is left"),
        (">&-", 0, ""),
        ("| cat", 0, '"class_names": ["b", "\u00e9"]'),
    ],
)
def test_outputs_that_take_nothing_or_ascii_alone_end_in_no_traceback(
    tmp_path: Path, where: str, code: int, said: str
) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(4), y=np.array(["b", "\u00e9", "b", "\u00e9"]))
    words = f"{TOPLINE} import --features a.npz --store s --json {where}"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = ["bash", "-c", f"set -o pipefail; {words}"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | locale, capture_output=True, check=False)
    text = (done.stdout + done.stderr).decode()
    assert (done.returncode, "Traceback" in text, "a fault" in text) == (code, False, False), text
    assert said in text
