"""The registry at the command line: one sentence, an exit code, one JSON object."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.cli.test_commands import store, topline  # noqa: F401 - fixtures
from tests.pipeline.small_data import small_dataset
from topline.pipeline.cli.exits import BAD_INPUT, SHORT_OF_TOLERANCE
from topline.pipeline.doctor import CheckResult


def test_a_model_is_weighed_promoted_and_rolled_back(topline: Any, store: str) -> None:  # noqa: F811
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


def test_a_dataset_is_predicted_or_images_are(topline: Any, store: str) -> None:  # noqa: F811
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


def test_what_comes_next_stands_behind_every_command(topline: Any, tmp_path: Path) -> None:  # noqa: F811
    store = str(tmp_path / "my store")  # noqa: F811
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
    topline: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    ok: bool,
    word: str,
) -> None:
    checks = [CheckResult("versions", ok, "those of today", "install it again", 0.1)]
    monkeypatch.setattr("topline.pipeline.doctor.run_checks", lambda **_: checks)
    assert topline("doctor").out.splitlines()[-1] == f"  next: topline {word}"
