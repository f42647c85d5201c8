"""The top of a report as a picture: python -m tests.e2e.report_picture REPORT.html PICTURE.png.

The picture of the README is that of `topline run`, 1,280 by 960 pixels, in a light window of Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.e2e.browser import browsing, find_browser


def main(arguments: list[str] | None = None) -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    if not options.report.is_file():
        parser.error(f"{options.report} is not there: topline run writes a report")
    binary = find_browser()
    if binary is None:
        parser.error("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile, browsing(binary, Path(profile)) as tab:
        tab.open(options.report.resolve().as_uri(), height=960)
        tab.shoot(options.picture)


if __name__ == "__main__":
    main()
