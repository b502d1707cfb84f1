"""`agentos ui`"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import say
from agentos.extras import import_extra

if TYPE_CHECKING:
    from agentos.web.site import Site


class PageAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the page is, as `ui --json` prints it: at once, and anew each time that an address was used."""

    url: str
    """Lets one browser in, once."""


OUTPUT = PageAddress


@click.command(
    "ui",
    help="""\b
Open a page: see runs, answer them, go back in time.

\b
Examples:
  agentos ui                                  runs of this worktree, and of all others known
  agentos ui --here --no-open                 of this worktree alone; print the address, open nothing
  agentos ui --static 0198c2 -o run.html      a run as one file, to send or to keep

The page is on this machine alone. Its address lets one browser in, once; after each use a new one is printed. From
another machine: `ssh -L 7420:127.0.0.1:7420 HOST`, then open the address there. Ctrl-C ends the page. Runs go on, also
those that were started on it.

The file of --static needs nothing else to be looked at, and has no buttons. Secrets are masked in it as in the journal.

\b
Exit codes:
  0   ended by Ctrl-C or SIGTERM; with --static: written
  1   no worktree is known, or `agentos-workflow[ui]` is not installed
  2   there is no such run, or --host names another machine's address
  75  something else listens on the port
""",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Listen on this port (default: 7420, or a free one)."
)
@click.option("--host", default="127.0.0.1", metavar="NAME", help="127.0.0.1 or localhost: no other is listened on.")
@click.option("--here", is_flag=True, help="Only runs of this worktree, not of every one known on this machine.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--static", "run", metavar="RUN", help="Write this run into one HTML file, and serve nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --static: the file (default: stdout).",
)
@json_option
@repo_option
def command(
    port: int | None,
    host: str,
    here: bool,
    no_open: bool,
    run: str | None,
    output: Path | None,
    as_json: bool,
    repo: Path | None,
) -> int:
    if host not in ("127.0.0.1", "localhost"):
        raise click.UsageError(
            f"The page is on this machine alone, not on {host}. From another machine:\n"
            f"  ssh -L {port or 7420}:127.0.0.1:{port or 7420} {platform.node()}\nthen open the address there."
        )
    if output is not None and run is None:
        raise click.UsageError("-o says where --static RUN writes to.")
    require_libraries()
    if run is not None:
        _write(run, output, repo)
        return 0
    from agentos.web.site import Site

    site = Site(repo, everywhere=not here)
    site.places()  # told here where there are none, not on the page
    return serve_page(site, port, opens=not no_open and has_display(), as_json=as_json)


def require_libraries() -> None:
    """AttemptError, with the command that installs them, where pages cannot be made."""
    for library in ("jinja2", "starlette", "uvicorn"):
        import_extra(library, "pages", "ui")


def _write(run: str, output: Path | None, repo: Path | None) -> None:
    from agentos.client.places import find_run
    from agentos.web.static_page import static_page

    text = static_page(find_run(run, repo))
    if output is None or str(output) == "-":
        click.echo(text, nl=False)
    else:
        output.write_text(text)


def serve_page(site: Site, port: int | None = None, *, opens: bool, as_json: bool = False) -> int:
    """Serve until Ctrl-C or SIGTERM, and print each address that lets a browser in."""
    import threading
    import webbrowser

    from agentos.web.server import Server

    def show(link: str) -> None:
        with suppress(OSError):  # whoever read stdout has gone; who is in, is in
            click.echo(msgspec.json.encode(PageAddress(url=link)) if as_json else link)

    server = Server(site, port=port, entered=lambda: show(server.new_link()))
    say("A page for this machine alone; Ctrl-C ends it, and runs go on. This address lets one browser in, once:")
    link = server.new_link()
    show(link)
    if opens:  # a browser may take long, or be one that runs in this terminal
        threading.Thread(target=webbrowser.open, args=[link], daemon=True).start()
    elif "SSH_CONNECTION" in os.environ:
        say(f"From your machine: ssh -L {server.port}:127.0.0.1:{server.port} {platform.node()}")
    server.serve()
    return 0


def has_display() -> bool:
    """Whether a browser would be seen by who typed this."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
