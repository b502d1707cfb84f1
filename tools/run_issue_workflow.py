"""`agentos issue`, started from a checkout: `python tools/run_issue_workflow.py --brief FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"


def main() -> None:
    if SOURCES.is_dir():
        sys.path.insert(0, str(SOURCES))
    from agentos.cli.main import main as program  # only now can it be found

    sys.argv[1:] = ["issue", *sys.argv[1:]]
    program()


if __name__ == "__main__":
    main()
