"""Code that a guide prints from the sources, after a comment `<!-- printed: PATH NAME -->`.

    python -m tests.guides.printed    # prints anew what has changed

NAME is that of a function, class or method of the file.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from tests.guides.reader import GUIDES, ROOT

_PRINTED = re.compile(
    r"(?P<head>^<!-- printed: (?P<path>\S+) (?P<name>\S+) -->\n```py\n).*?^```$", re.MULTILINE | re.DOTALL
)


def source_of(path: Path, name: str) -> str:
    """Return the source of a function, class or method, from its first decorator on, without indentation."""
    text = path.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        (node,) = (one for one in ast.iter_child_nodes(node) if getattr(one, "name", None) == part)
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno])) + "\n"


def printed_anew(text: str) -> str:
    """Return a guide with all that it prints as the sources have it now."""

    def block(match: re.Match[str]) -> str:
        return match["head"] + source_of(ROOT / match["path"], match["name"]) + "```"

    return _PRINTED.sub(block, text)


if __name__ == "__main__":
    for guide in GUIDES:
        page = ROOT / guide
        page.write_text(printed_anew(page.read_text(encoding="utf-8")), encoding="utf-8")
