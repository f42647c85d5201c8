"""The cells of a CSV: nothing that a spreadsheet runs, and numbers as they are."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import PredictConfig, build
from topline.pipeline.options.ingest import InspectConfig
from topline.pipeline.prediction.files import table_of, table_schema, table_writer
from topline.pipeline.readers import harmless, read_labels
from topline.pipeline.readers.words import as_given
from topline.storage.errors import IntegrityError


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1", "+1", "-1.5e-3", "cat", "a=b", "", "007"])
def test_other_text_stays(text: str) -> None:
    assert harmless(text) == text


def test_no_byte_that_a_terminal_obeys_is_written(tmp_path: Path) -> None:
    names = ["a\x1b]0;title\x07", "b\x9b31m", "c\x7f\x08\x00"]
    rows = {"path": names, "classes": [[name] for name in names]}
    schema = pa.schema([("path", pa.string()), ("classes", pa.list_(pa.string()))])
    with table_writer(tmp_path / "rows.csv", schema) as write:
        write(pa.table(rows, schema))
    text = (tmp_path / "rows.csv").read_text(encoding="utf-8")
    assert all(unicodedata.category(one) != "Cc" or one in "\r\n" for one in text)
    cells = list(csv.DictReader(io.StringIO(text)))
    assert [json.loads(cell["classes"]) for cell in cells] == rows["classes"]
    assert [as_given(cell["path"]) for cell in cells] == names


def test_a_table_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path, schema = tmp_path / "new" / "a.csv", table_schema("path", sets=True)
    row = {"path": "@x", "label": "-b", "split": None, "classes": ["=1", 'say "no"'], "scores": [0.1, -2.0],
           "probabilities": None, "set": [], "error": "+bad"}  # fmt: skip

    def broken() -> None:
        with table_writer(path, schema) as write:
            write(pa.Table.from_pylist([row], schema=schema))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert list(path.parent.iterdir()) == []
    with table_writer(path, schema) as write:
        write(table_of(schema, {name: [value] for name, value in row.items()}, several=False))
    # Lists begin with a bracket, so that nothing in them is run.
    assert path.read_bytes().decode() == (
        "path,label,split,classes,scores,probabilities,set,set_size,prediction,probability,error\r\n"
        '\'@x,\'-b,,"[""=1"", ""say \\""no\\""""]","[0.1, -2.0]",,[],0,\'=1,,\'+bad\r\n'
    )


def test_labels_that_a_spreadsheet_would_run_are_read_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("sample_id,label\r\n'-2,'=two\r\n'@1,one\r\n", encoding="utf-8")
    assert read_labels(tmp_path / "labels.csv", 2, None, ["@1", "-2"]).tolist() == ["one", "=two"]


def test_damage_to_what_is_written_is_no_fault_of_the_file(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.csv", table_schema("path", sets=False)

    def damaged() -> None:
        with table_writer(path, schema):
            raise IntegrityError("scores/c/0/0 is damaged")

    with pytest.raises(IntegrityError, match=r"^scores/c/0/0 is damaged$"):
        damaged()
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"--output '.*rows\.xlsx' is not usable: .*\.parquet or \.csv"):
        build(PredictConfig, {"output": "rows.xlsx"})


@pytest.mark.parametrize("config", [PredictConfig, InspectConfig])
def test_a_page_takes_no_place_of_the_table(config: type[PredictConfig | InspectConfig]) -> None:
    with pytest.raises(ConfigError, match=r"--output and --page are both rows\.csv: name two files"):
        build(config, {"output": "rows.csv", "page": "rows.csv"})
