from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reproduce import (
    SOURCES,
    TABLES,
    DataFiles,
    Effort,
    Figure,
    Reproduction,
    Setting,
    Table,
    registry,
    table_named,
)
from tests.reproduce.__main__ import main
from tests.reproduce.kept import Kept
from tests.reproduce.table import run_all
from topline.pipeline.errors import InputError

FOUND = Reproduction(
    (
        Figure("ours & theirs", "top-1", 71.0, 0.5, 70.4, note="a"),
        Figure("ours & theirs", "top-3", 80.0, 0.1, 75.0, 0.2, "a"),
        Figure("checked", "top-1", 69.0),
    ),
    {"data": "two divisions"},
    {"a": "the divisions differ"},
)


@pytest.fixture
def reproduce(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    settings: list[Setting] = []

    def run(setting: Setting) -> Reproduction:
        settings.append(setting)
        setting.begin("train", 1, "splits")
        setting.advance()
        return FOUND

    tables = {
        "small": Table("small", "Accuracy (%) of a test", "Lapin's thesis, table 0", run),
        "fed": Table("fed", "Accuracy (%) with data", "Lapin's thesis, table 0", run, ("letter",)),
    }
    monkeypatch.setattr(registry, "TABLES", tables)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    call.settings = settings  # type: ignore[attr-defined]
    return call


def test_figures_stand_beside_the_papers_with_difference_and_reason(reproduce: Any) -> None:
    code, out, err = reproduce("small", "--quick", "--seed", "3")
    assert code == 0, err
    rows = {line.split("  ")[0]: line for line in out.splitlines() if "top-" in line}
    assert [" ".join(line.split()) for line in out.splitlines() if "ours & theirs" in line] == [
        "ours & theirs top-1 70.4 71.0 +- 0.5 +0.6 +0.8 within",
        "ours & theirs top-3 75.0 +- 0.2 80.0 +- 0.1 +5.0 +22.1 note a",
    ]
    assert " ".join(rows["checked"].split()) == "checked top-1 69.0"
    assert "(a) the divisions differ" in out
    assert "data      two divisions" in out
    assert reproduce.settings[0].effort is Effort.QUICK
    assert reproduce.settings[0].seed == 3
    assert reproduce("small")[0] == 0
    assert reproduce.settings[1].effort is Effort.FULL


def test_json_has_the_same(reproduce: Any) -> None:
    code, out, _ = reproduce("small", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["table"] == "small"
    assert found["figures"][1] == {
        "row": "ours & theirs", "column": "top-3", "paper": 75.0, "paper_spread": 0.2, "ours": 80.0,
        "spread": 0.1, "difference": 5.0, "within": False, "note": "a",
        "standard_errors": pytest.approx(4.95 / 0.05**0.5), "better": "higher", "counts": True,
    }  # fmt: skip
    assert found["notes"] == {"a": "the divisions differ"}


def test_a_page_is_written_and_escaped(reproduce: Any, tmp_path: Path) -> None:
    page = tmp_path / "small.html"
    assert reproduce("small", "--plot", str(page))[0] == 0
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "ours &amp; theirs" in text
    assert "ours & theirs" not in text
    assert "1 of 2 differences are within" in text
    code, _, err = reproduce("small", "--plot", str(tmp_path / "small.svg"))
    assert code == 2
    assert "let it end in .html" in err
    code, _, err = reproduce("small", "--plot", str(tmp_path / "no" / "small.html"))
    assert code == 2
    assert "cannot be written" in err


def test_all_tables_come_on_one_page(reproduce: Any, tmp_path: Path) -> None:
    page = tmp_path / "all.html"
    code, out, err = reproduce("--all", "--quick", "--plot", str(page), "--data", str(tmp_path))
    assert code == 0, err
    summary = [" ".join(line.split()) for line in out.splitlines() if line.startswith("small ")]
    assert len(summary) == 1
    assert summary[0].startswith("small 2 2 0 1 0 1 of 2 ")
    assert "not run: letter needs letter/letter_libsvm_20000.txt.gz" in " ".join(out.split())
    text = page.read_text()
    assert '<section id="small">' in text
    assert "not run: letter needs" in text
    assert "1 of 2 run" in text
    code, out, _ = reproduce("--all", "--json", "--data", str(tmp_path))
    found = json.loads(out)
    assert [part["table"] for part in found["tables"]] == ["small"]
    assert found["tables"][0]["score"]["clear_wins"] == 1
    assert list(found["left_out"]) == ["fed"]
    code, _, err = reproduce("small", "--all")
    assert code == 2
    assert "give one of both" in err


def test_what_cannot_be_run_is_said_in_one_sentence(reproduce: Any, tmp_path: Path) -> None:
    for words, reason in (
        ((), "say which table to run"),
        (("large",), "there is no table named 'large'; use one of small, fed"),
        (("fed",), "letter needs letter/letter_libsvm_20000.txt.gz"),
        (("fed", "--data", str(tmp_path)), f"looked for under {tmp_path}; copies come from LIBSVM"),
        (("small", "--data", str(tmp_path / "none")), "does not exist"),
        (("small", "--seed", "-1"), "--seed"),
    ):
        code, out, err = reproduce(*words)
        assert code == 2, words
        assert reason in " ".join(err.split()), err
        assert not out
        assert "Traceback" not in err


def test_the_list_names_every_table_and_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--list", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for table in TABLES.values():
        assert f"{table.name} " in out
        assert table.source in out
    for source in SOURCES.values():
        assert all(file in out for file in source.files)
        assert source.origin in out
    assert main(["--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tables"]) == len(TABLES)


def test_the_commands_of_the_guide_run_as_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python -m tests\.reproduce (.*)$", guide, re.MULTILINE)
    assert len(commands) == 2
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main(command.split()) == 0
    assert "within" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")


_DONE: list[float] = []


def _sum(setting: Setting, values: np.ndarray, fails_at: float) -> float:
    total = float(values.sum()) + setting.seed
    if total == fails_at:
        raise RuntimeError("interrupted")
    _DONE.append(total)
    return total


class _Counts:
    """Somebody who watches, and changes while watching."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.stage = stage, total, unit

    def advance(self, amount: int = 1) -> None:
        self.count += amount

    def note(self, facts: object) -> None:
        self.facts = facts


def _run(folder: Path, seed: int, fails_at: float, values: float = 1.0) -> tuple[list[float], float]:
    _DONE.clear()
    setting = Setting(DataFiles(()), Effort.TINY, seed, _Counts(), Kept(folder))
    jobs = [partial(_sum, setting, np.full(3, values * place), fails_at) for place in range(4)]
    found = run_all(setting, "add", jobs, cores=1)
    assert setting.kept is not None
    return found, setting.kept.seconds


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="interrupted"):
        _run(tmp_path, 0, fails_at=6.0)
    before = list(_DONE)
    assert 0.0 in before
    assert 3.0 in before
    assert not list(tmp_path.glob("*.part"))
    # What fails is part of what a piece is computed from: here it is only looked at after the sum.
    for path in tmp_path.glob("*.json"):
        piece = json.loads(path.read_text())
        path.write_text(json.dumps({**piece, "seconds": piece["seconds"] + 7.0}))
    with pytest.raises(RuntimeError, match="interrupted"):
        _run(tmp_path, 0, fails_at=6.0)
    assert not set(_DONE) & set(before)


def test_a_piece_is_known_by_what_it_is_computed_from(tmp_path: Path) -> None:
    first, earlier = _run(tmp_path, 0, fails_at=-1.0)
    assert (first, earlier, sorted(_DONE)) == ([0.0, 3.0, 6.0, 9.0], 0.0, first)
    for path in tmp_path.glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 7.0}))
    again, earlier = _run(tmp_path, 0, fails_at=-1.0)
    assert (again, earlier, _DONE) == (first, 28.0, [])
    for change in ({"seed": 1}, {"seed": 0, "values": 2.5}):
        other, earlier = _run(tmp_path, fails_at=-1.0, **change)  # type: ignore[arg-type]
        assert other != first
        assert len(_DONE) >= 3


def test_a_file_that_is_no_piece_is_named(tmp_path: Path) -> None:
    _run(tmp_path, 0, fails_at=-1.0)
    torn = next(tmp_path.glob("*.json"))
    torn.write_text(torn.read_text()[:-3])
    with pytest.raises(InputError, match=torn.name):
        _run(tmp_path, 0, fails_at=-1.0)


def _squares(count: int) -> np.ndarray:
    _DONE.append(count)
    return np.arange(count) ** 2


def test_arrays_are_computed_every_time(tmp_path: Path) -> None:
    _DONE.clear()
    kept = Kept(tmp_path)
    assert [kept.done(partial(_squares, 3)).tolist() for _ in range(2)] == [[0, 1, 4]] * 2
    assert (_DONE, list(tmp_path.iterdir())) == ([3, 3], [])


@pytest.mark.parametrize("table", ["at-k-classification", "letter", "multitask", "top-k-calibration"])
def test_a_table_from_kept_pieces_is_the_same(table: str, stand_ins: Path, tmp_path: Path) -> None:
    def figures() -> tuple[Figure, ...]:
        return (
            table_named(table).run(Setting(DataFiles((stand_ins,)), Effort.TINY, kept=Kept(tmp_path))).figures
        )

    first = figures()
    assert list(tmp_path.glob("*.json"))
    assert figures() == first
