"""The registry at the command line: one sentence, an exit code, one JSON object."""

from __future__ import annotations

from typing import Any

from tests.pipeline.cli.test_commands import store, topline  # noqa: F401 - fixtures
from topline.pipeline.cli.exits import BAD_INPUT, SHORT_OF_TOLERANCE


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
    options = ("predict", f"{store}/models/m0001", "--workers", "0")
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
