"""`agentos demo`"""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    "demo",
    help="""\b
Watch an agent being killed in mid-edit and resumed, in a throw-away repository.

\b
Examples:
  agentos demo
  agentos demo --keep        keep the folder, to look around in it
  agentos demo --ui          look at it on a page, and resume and approve there

Types the real commands and prints each: a run, a real SIGKILL that leaves a file half-edited, a resume that puts it
back and lets the agent go on in its session, a gate, and an approval. The agent is scripted: no key, no network. Takes
about ten seconds, needs git, and leaves nothing behind.

With --ui it stops after the kill, and opens a page with that run, one that waits for an answer, and one that is
complete. While you resume, Enter in the terminal kills again. Ctrl-C ends the page, and everything is removed.

\b
Exit codes:
  0 everything that was promised held (with --ui: ended by Ctrl-C), 1 something did not, 130 Ctrl-C
""",
)
@click.option("--keep", is_flag=True, help="Keep the folder of the demonstration.")
@click.option("--ui", "on_page", is_flag=True, help="Stop after the kill, and go on in a browser.")
def command(keep: bool, on_page: bool) -> int:
    from agentos.demo.story import main

    if on_page:
        from agentos.cli.commands.ui import require_libraries

        require_libraries()
    return main(keep=keep, then=_serve if on_page else None)


def _serve(shop: Path) -> None:
    from agentos.cli.commands.ui import has_display, serve_page
    from agentos.web.site import Site

    serve_page(Site(shop, everywhere=False), opens=has_display())
