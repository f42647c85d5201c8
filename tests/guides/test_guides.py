"""Every command and snippet of README and the guides runs as printed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guides.printed import printed_anew
from tests.guides.reader import GUIDES, ROOT, Block, Reader, blocks_of, on_free_ports

#: Pages about servers, containers, Kubernetes and Slurm: tests/e2e and tests/deploy follow them.
ELSEWHERE = {f"deploy/{page}README.md" for page in ("", "compose/", "kubernetes/", "slurm/", "systemd/")}
#: How to run the tests: .ci/run runs them, and tests/reproduce the commands of its own page.
ELSEWHERE |= {"tests/README.md", "tests/reproduce/README.md"}


@pytest.mark.guides
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide not in ELSEWHERE])
def test_a_reader_can_follow(guide: str, tmp_path: Path) -> None:
    blocks = blocks_of(on_free_ports((ROOT / guide).read_text(encoding="utf-8")))
    if guide == "README.md":
        # .ci/run installs from nothing and runs both first commands; here the installation is the one at
        # hand.
        blocks = [_after_the_installation(blocks[0]), *blocks[2:]]
    home, folder = tmp_path / "home", tmp_path / "checkout"
    home.mkdir()
    folder.mkdir()
    reader = Reader(guide, folder, home)
    try:
        for block in blocks:
            reader.run(block)
    finally:
        reader.close()


def _after_the_installation(block: Block) -> Block:
    *_, last = block.code.split(" && ")
    assert last.startswith(".venv/bin/topline run")
    return replace(block, code=last)


def test_readme_is_short_and_links_to_every_guide() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 220
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", text))
    assert linked >= {
        f"{room}/README.md" for room in ("solvers", "pipeline", "flows", "storage", "deploy", "tests")
    }


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide: str) -> None:
    text = (ROOT / guide).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", text):
        place = (ROOT / guide).parent / target if target else ROOT / guide
        assert place.exists(), f"{guide} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor[1:] in slugs, f"{guide} links to {target}{anchor}"


@pytest.mark.parametrize("guide", GUIDES)
def test_printed_code_is_that_of_the_sources(guide: str) -> None:
    text = (ROOT / guide).read_text(encoding="utf-8")
    assert printed_anew(text) == text, "print it anew by python -m tests.guides.printed"
    assert "<!-- printed:" in text or guide != "solvers/README.md"
