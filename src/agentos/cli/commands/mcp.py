"""`agentos mcp`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli.options import repo_option
from agentos.extras import import_extra


@click.command(
    "mcp",
    help="""\b
Let a coding agent start runs and look at them, over the Model Context Protocol.

\b
Examples:
  claude mcp add agentos -- agentos mcp          have Claude Code start it
  codex mcp add agentos -- agentos mcp           have Codex start it
  agentos mcp --skill > SKILL.md                 what teaches an agent to use it

It speaks on stdin and stdout, serves the runs of one repository, and ends with its input; runs that were started go
on. It answers no gate: what comes back is the command for a human, and an answer from below the server is refused.
docs/mcp.md has the line for each client, and what the tools are.

\b
Exit codes:
  0  its input ended
  1  `agentos-workflow[mcp]` is not installed
""",
)
@click.option("--skill", is_flag=True, help="Print a skill file, which teaches an agent to use AgentOS, and end.")
@repo_option
def command(skill: bool, repo: Path | None) -> None:
    import_extra("mcp", "tools for other agents", "mcp")
    from agentos.mcp import server

    if skill:
        click.echo(server.skill(), nl=False)
    else:
        server.serve((repo or Path.cwd()).absolute())
