#!/usr/bin/env python3
"""Launcher of the issue workflow. For now it settles where state lives; the workflow comes with a later release.

Exit codes: 1 where that place cannot be settled, 2 where it can, since nothing was done of what was asked and no retry
will change that (0 would tell a script that the issue exists).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

if importlib.util.find_spec("agentos") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from agentos.exceptions import WorkflowConfigurationError
from agentos.workflow.location import VARIABLE, find_location, prepare, unused_old_database
from agentos.worktree.git import shown

EXAMPLE = """example:
  python tools/run_issue_workflow.py --repo ~/src/shop --brief ideas/dark-mode.md

"""


class Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        return EXAMPLE + super().format_help()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        description="Turn a brief into an issue. State lives in .agentos/ of the repository or worktree.",
        epilog="exit codes: 1 no place for the state, 2 usage, or not part of this release yet",
    )
    parser.add_argument("--brief", nargs="?", const="", metavar="FILE", help="the brief to start from")
    parser.add_argument("--repo", type=Path, metavar="PATH", help="work on this repository (default: the one here)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        # Before the brief is so much as looked at: a missing brief must not hide that there is no place for the state.
        location = prepare(find_location(options.repo))
    except WorkflowConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    old = unused_old_database(location)
    if old is not None:
        where = shown(old)
        print(f"The old global database {where} is not used; {VARIABLE}={where} goes on with it.", file=sys.stderr)
    print(f"Database: {location.shown}, because {location.why}.", file=sys.stderr)
    print("The issue workflow itself comes with a later release; nothing was read or run.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
