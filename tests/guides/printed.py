"""Code that a guide prints from the sources, after `<!-- printed: PATH NAME -->`, and its table of formats.

    python -m tests.guides.printed    # prints anew what has changed

NAME is that of a function, class or method of the file.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from tests.guides.reader import GUIDES, ROOT
from topline.pipeline.readers import FORMATS

_PRINTED = re.compile(
    r"(?P<head>^<!-- printed: (?P<path>\S+) (?P<name>\S+) -->\n```py\n).*?^```$", re.MULTILINE | re.DOTALL
)
_FORMATS = re.compile(r"(?P<head><!-- printed: the formats of features -->\n\n)(\|.*\n)*\n")


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

    return _FORMATS.sub(lambda match: match["head"] + formats() + "\n", _PRINTED.sub(block, text))


def formats() -> str:
    """Return a table of the files of features, from the list that their readers are chosen by."""
    lines = ["| format | files | features | labels inside |", "|---|---|---|---|"]
    for form in FORMATS:
        if form.open is not None:
            files = ", ".join(form.suffixes) or (".mat" if "MATLAB" in form.name else "any other text")
            lines.append(f"| {form.name} | {files} | {form.features} | {form.labels} |")
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    for guide in GUIDES:
        page = ROOT / guide
        page.write_text(printed_anew(page.read_text(encoding="utf-8")), encoding="utf-8")
