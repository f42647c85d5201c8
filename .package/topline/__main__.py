"""`python -m topline`: the command line."""

from __future__ import annotations

from topline.pipeline.cli import main

if __name__ == "__main__":
    main()
