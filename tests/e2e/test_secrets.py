"""A secret in the environment, or by mistake in a URL, is written nowhere."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.pipeline.small_data import make_features, make_split, write_dataset
from tests.storage.conftest import s3_bucket  # noqa: F401  a fixture
from topline.pipeline.cli import main
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.stores import open_store

SECRET = "secret-that-must-not-appear"
MISTAKES = (f"s3://AKIA:{SECRET}@bucket/store", f"s3://bucket/store?secret={SECRET}")


def test_a_training_on_s3_writes_the_secret_nowhere(
    s3_bucket: str,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    monkeypatch.chdir(tmp_path)
    store = open_store(f"s3://{s3_bucket}/secrets")
    X, labels = make_features(300, 8, 4)
    write_dataset(store, X, labels, make_split(300))
    with caplog.at_level(logging.DEBUG):
        result = train(TrainConfig(store=store.url, tol=1e-2), ClusterConfig(workers=0))
    assert result.solved
    paths = store.walk()
    assert any(path.endswith("history.jsonl") for path in paths)
    assert [path for path in paths if SECRET.encode() in store.read_bytes(path)] == []
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in repr(store)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", MISTAKES)
@pytest.mark.parametrize("words", [["train", "--store"], ["fsck"], ["models", "list", "--store"]])
def test_a_secret_in_a_url_is_refused_and_not_repeated(
    url: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        main([*words, url, "--json"])
    assert ended.value.code == 2
    said = "".join(capsys.readouterr())
    assert "leave credentials and options out of" in said
    assert SECRET not in said
