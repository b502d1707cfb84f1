"""`agentos db`"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from agentos import typed
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client import upkeep
from agentos.client.places import Location, find_location
from agentos.client.upkeep import BackedUp, RestoredDatabase, RunSize
from agentos.render.text import count, printable


class DatabasePath(msgspec.Struct, frozen=True, kw_only=True):
    """Where state lives, as `db path --json` prints it."""

    path: str
    """Absolute path of the file, which need not exist yet, or a PostgreSQL URL without its password."""
    source: str
    """What decided it: variable, settings or repository."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The database in numbers, as `db stats --json` prints it."""

    path: str
    bytes: int
    """The file with its write-ahead log."""
    log_bytes: int
    """The write-ahead log alone."""
    free_bytes: int
    """Pages that hold nothing; given back when a run is deleted."""
    schema: int
    blobs: int
    """Large outputs, each stored once."""
    blob_bytes: int
    task_log_bytes: int
    """Log files of tasks, beside the database."""
    snapshots: int
    """Snapshots of files, of all worktrees of the repository."""
    snapshot_bytes: int
    """What they take, in git's own folder."""
    prunable: int
    """Checkpoints that `agentos prune --all` would delete."""
    retention: str
    """How long runs are kept, as the settings say; empty where they say nothing."""
    expired: int
    """Runs that a worker would delete now because of that."""
    tables: dict[str, int]
    """Bytes by table, with indexes; empty where this SQLite cannot tell."""
    runs: list[RunSize]
    """Largest first."""


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration did, or would do, as `db migrate --json` prints it."""

    path: str
    before: int
    """Schema that was found."""
    after: int
    """Schema after all steps."""
    steps: list[str]
    """Names of the steps."""
    backup: str
    """The copy that is made first; empty where there is nothing to do."""
    done: bool
    """False for a dry run."""


OUTPUT = {
    "path": DatabasePath,
    "stats": Stats,
    "migrate": Migrated,
    "backup": BackedUp,
    "restore": RestoredDatabase,
}


@click.group(
    "db",
    help="""\b
Where state lives, how much of it there is, and copies of it.

\b
Examples:
  agentos db path
  agentos db stats
  agentos db backup /backups/app.db
  agentos db restore /backups/app.db
  agentos db migrate --dry-run
""",
)
def command() -> None:
    pass


@command.command(
    "path",
    help="""\b
The database in use, and why it was chosen.

\b
Examples:
  agentos db path
  sqlite3 "$(agentos db path --json | jq -r .path)" 'SELECT * FROM runs'
""",
)
@json_option
@repo_option
def path(as_json: bool, repo: Path | None) -> None:
    location = find_location(repo)
    if as_json:
        print_json(DatabasePath(path=_path_without_password(location), source=str(location.source)))
    else:
        click.echo(f"{location.shown}\n  because {location.why}")


@command.command(
    "stats",
    help="""\b
How much room the database takes, and which runs take most of it.

\b
Examples:
  agentos db stats
  agentos db stats --json | jq '.runs[0]'

Reads only. `agentos delete RUN` gives space back; `agentos prune` deletes checkpoints, which are small, and
snapshots of files, which may not be; all worktrees of a repository share those.
""",
)
@json_option
@repo_option
def stats(as_json: bool, repo: Path | None) -> None:
    stored = upkeep.database_stats(repo)
    measured, taken = stored.database, stored.snapshots
    other = {
        "path": _path_without_password(stored.location),
        "bytes": measured.file_bytes + measured.log_bytes,
        "task_log_bytes": stored.log_files,
        "snapshots": taken.snapshots if taken is not None else 0,
        "snapshot_bytes": taken.total_bytes if taken is not None else 0,
        "prunable": sum(run.prunable for run in measured.runs),
        "retention": stored.retention,
        "expired": stored.expired,
    }
    found = typed.convert(msgspec.structs.asdict(measured) | other, Stats)
    if as_json:
        print_json(found)
        return
    click.echo(f"{printable(found.path)}")
    click.echo(f"  {found.bytes:>14,} bytes, {found.log_bytes:,} of them in the write-ahead log; schema {found.schema}")
    click.echo(f"  {found.free_bytes:>14,} bytes of it are free")
    click.echo(f"  {found.blob_bytes:>14,} bytes in {found.blobs} large outputs")
    click.echo(f"  {found.task_log_bytes:>14,} bytes in log files of tasks")
    click.echo(f"  {found.snapshot_bytes:>14,} bytes in {found.snapshots} snapshots of files, in git's folder")
    click.echo(f"  {found.prunable:>14,} checkpoints would go with `agentos prune --all`")
    if found.retention:
        click.echo(
            f"  {found.expired:>14,} runs are older than `retention` says ({found.retention}): a worker deletes them"
        )
    for name, size in found.tables.items():
        click.echo(f"  {size:>14,} bytes in table {printable(name)}")
    click.echo("")
    rows = [
        (run.workflow_id, run.name, run.status, str(run.events), str(run.checkpoints), f"{run.bytes:,}")
        for run in found.runs
    ]
    print_table(("RUN", "WORKFLOW", "STATUS", "EVENTS", "CHECKPOINTS", "BYTES"), rows, empty="No runs here yet.")


@command.command(
    "migrate",
    help="""\b
Bring the database to the schema of this version.

\b
Examples:
  agentos db migrate --dry-run
  agentos db migrate

Every command that writes does this by itself. A copy is made first, beside the database; each step is one transaction.
While a run is driven nothing is done (exit code 75). A database of a newer version is refused (exit code 6).
""",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
@repo_option
def migrate(dry_run: bool, as_json: bool, repo: Path | None) -> None:
    location = find_location(repo)
    pending = upkeep.migrate(repo, dry_run=dry_run)
    result = Migrated(
        path=_path_without_password(location),
        before=pending.found,
        after=pending.known,
        steps=list(pending.steps),
        backup=pending.backup if pending.steps else "",
        done=not dry_run,
    )
    if as_json:
        print_json(result)
    elif not pending.steps:
        click.echo(f"schema {pending.found}: nothing to do")
    else:
        would = "would be migrated" if dry_run else "was migrated"
        click.echo(
            f"{printable(_path_without_password(location))} {would} from schema {pending.found} to {pending.known}: "
            f"{', '.join(pending.steps)}"
        )
        if pending.backup:
            say(f"{'The copy would be' if dry_run else 'A copy of it as it was is'} {printable(pending.backup)}")


@command.command(
    "backup",
    help="""\b
Copy the database into one file, while runs go on.

\b
Examples:
  agentos db backup /backups/app.db
  agentos db backup "/backups/app-$(date +%F).db" --json
  agentos db backup /backups/app.db --force         over the one of yesterday

The copy is made aside and gets its name once its file and every record in it were checked. Only you may read it:
prompts, answers and outputs are in it. Snapshots of files and logs of tasks are not; `agentos export --files` has
those of a run. A database on PostgreSQL is copied by pg_dump: the command to type is named.

\b
Exit codes:
  2   something has that name already, or the database is PostgreSQL's
  6   a record is damaged, or of a newer AgentOS: nothing was written
  75  no room, or the database cannot be read now
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@json_option
@repo_option
def backup(file: Path, force: bool, as_json: bool, repo: Path | None) -> None:
    with _shown_progress() as progress:
        made = upkeep.back_up_database(file, repo, force=force, progress=progress)
    if as_json:
        print_json(made)
        return
    click.echo(f"{printable(made.file)}: {count(made.runs, 'run')}, {made.bytes:,} bytes, every record checked")
    say(f"To put it back: agentos db restore {shlex.quote(printable(made.file))}")


@command.command(
    "restore",
    help="""\b
Put a copy that `db backup` made in the place of the database.

\b
Examples:
  agentos db restore /backups/app.db
  agentos db restore /backups/app.db --moved        of a worktree that is here now

Every record of the copy is checked first; nothing is repaired. The database that was there keeps a dated name beside
it, which is said. While a run is driven, or a process has the database open, nothing is done (exit code 75).

Files of the worktree are not touched. Snapshots of files are not in the copy: it is said which ones the runs need and
are not here, and which are left over from runs that the copy does not know. Nothing of that is deleted.

A database on PostgreSQL is put back by pg_restore: the commands to type are named.

\b
Exit codes:
  1   the copy, or what is in its place, is not a database of AgentOS
  2   the copy is of another worktree, or the database is PostgreSQL's
  6   the copy is damaged, or of a newer AgentOS
  75  a process drives a run or has the database open, or there is no room
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--moved", is_flag=True, help="The copy is of another worktree or host, which has moved here.")
@json_option
@repo_option
def restore(file: Path, moved: bool, as_json: bool, repo: Path | None) -> None:
    with _shown_progress() as progress:
        done = upkeep.restore_database(file, repo, moved=moved, progress=progress)
    if as_json:
        print_json(done)
        return
    click.echo(f"{printable(done.path)} is now what {printable(done.file)} has: {count(done.runs, 'run')}")
    for before, now in done.kept.items():
        say(f"Kept: what was {printable(before)} is {printable(now)}")
    if moved:
        say("Its runs say that they belong elsewhere. To go on with one: agentos resume RUN --repo .")
    for run in done.lacking:
        cuts = f", of {count(len(run.checkpoints), 'checkpoint')}" if run.checkpoints else ""
        what = f"{count(len(run.snapshots), 'snapshot')} of files of run {printable(run.workflow_id)}{cuts}"
        say(f"Not here: {what}. Its files cannot be put back to them.")
    if done.elsewhere:
        say(f"Not looked for: snapshots of {count(len(done.elsewhere), 'run')} whose worktree is not here.")
    for name, number in done.left_over.items():
        say(
            f"Left over: {count(number, 'snapshot')} of run {printable(name)}, which the copy does not know. "
            f"To delete: agentos delete {shlex.quote(printable(name))}"
        )


@contextmanager
def _shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """At a terminal, one line on stderr that says how far it is; it goes at the end."""
    shown = sys.stderr is not None and sys.stderr.isatty()
    told = ""

    def tell(what: str, done: int, total: int) -> None:
        nonlocal told
        text = f"{100 * done // max(total, 1)} % {what}"
        if shown and text != told:
            print(f"\r{text:<20}", end="", file=sys.stderr, flush=True)
            told = text

    try:
        yield tell
    finally:
        if told:
            print(f"\r{'':<20}\r", end="", file=sys.stderr, flush=True)


def _path_without_password(location: Location) -> str:
    """The path as it is; a URL without its password."""
    return location.shown if location.backend.is_shared else location.database
