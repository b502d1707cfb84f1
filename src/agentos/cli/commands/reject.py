"""`agentos reject`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentos.cli.answer_signature import read_signature, signing_options
from agentos.cli.options import (
    author_option,
    gate_argument,
    read_reason,
    reason_file_option,
    reason_option,
    repo_option,
    run_argument,
)
from agentos.cli.output import say_outcome
from agentos.client import answers
from agentos.client.answers import find_gate
from agentos.client.places import find_run
from agentos.render.text import printable


@click.command(
    "reject",
    help="""\b
Say no at a gate: what it guards does not run.

\b
Examples:
  agentos reject nightly
  agentos reject nightly approve:ship --reason "the tests are flaky"

The task behind the gate fails, what depends on it is skipped, and no resume runs it: a fork asks anew. GATE may be left
out if exactly one is open. A no needs no signature; with --sign it has one, at a gate with `by: signed`.

\b
Exit codes:
  0   answered
  2   no such gate is open, several are, or the answer was refused
  75  try again later: the database cannot be written now
""",
)
@run_argument
@gate_argument
@reason_option
@reason_file_option
@author_option
@signing_options
@repo_option
def command(
    run: str,
    gate: str | None,
    reason: str,
    reason_file: Path | None,
    author: str | None,
    repo: Path | None,
    **signing: Any,
) -> None:
    reason = read_reason(reason, reason_file)
    found = find_run(run, repo)
    gate_id = find_gate(found, gate)
    signature = read_signature(found, gate_id, approved=False, reason=reason, **signing)
    if signature is None:
        return
    became = answers.reject(found, gate_id, reason=reason, signature=signature, author=author)
    say_outcome(found, f"{printable(gate_id)} rejected", became)
