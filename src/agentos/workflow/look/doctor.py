"""A look at everything a run depends on here, with a way to mend each thing that is wrong. Changes nothing.

What cannot be looked at is itself a finding: a check-up never fails half-way.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from agentos.exceptions import AgentosError, CheckpointCorruptedError, IntegrityError, NotFoundError
from agentos.excerpts import list_some
from agentos.ids import short_id
from agentos.store.port import UNDER_WAY, RunRecord, StorePort
from agentos.store.sqlite.database import OLDEST_SQLITE
from agentos.store.stats import DatabaseSize
from agentos.tasks.agents.adapters.known import InstalledAgent, installed_agents
from agentos.tasks.process.sandbox import SandboxAbility, sandbox_ability
from agentos.workflow.expiry.deletion_note import has_note
from agentos.workflow.expiry.expired_runs import find_expired
from agentos.workflow.place.inspection import damage, held_leases, size_up
from agentos.workflow.place.location import (
    Location,
    LocationSource,
    asked_directory,
    find_location,
    unused_old_database,
)
from agentos.workflow.place.place import Place, find_place, was_begun_here
from agentos.workflow.place.settings import (
    DATABASE_VARIABLE,
    Setting,
    Settings,
    explain_settings,
    from_variable,
    load_settings,
    wrong_settings,
)
from agentos.workflow.place.trust import find_reaching, trusted_since, untrusted_error
from agentos.workflow.place.worktree_index import interrupted_runs
from agentos.workflow.start.leftovers import leftover_folders, leftover_processes
from agentos.worktree import git
from agentos.worktree.git import one_line

LOW_SPACE = 200 * 1024 * 1024
"""Less free space than this on the disk is worth a word before a run fails for it."""

MOST_FAILED = 1_000
"""Of so many failed runs, the newest, it is looked whether their worktree is still there."""
NEWEST = 50
"""Failed runs of a whole server that are looked at."""

Severity = Literal["note", "wrong", "damage"]


class CheckupFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth saying."""

    severity: Severity
    """`note`: good to know. `wrong`: to be mended. `damage`: records that cannot be trusted."""
    what: str
    mend: str
    """What to type or do about it."""


class NeedsTrust(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of this repository that connect somewhere or run something."""

    settings: tuple[str, ...]
    """Each as `name = value`, passwords left out."""
    since: str
    """When the user accepted them (`agentos trust`); empty where they did not."""


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    """What `agentos doctor` found."""

    sound: bool
    """Nothing is wrong; notes do not count."""
    agentos: str
    python: str
    sqlite: str
    git: str
    """Its version; empty where there is none."""
    agents: tuple[InstalledAgent, ...]
    """Those that agent tasks can name, with path and version; both empty where one is not installed."""
    sandbox: SandboxAbility
    """Whether tasks can have a `sandbox` here; with `problem` and `remedy` where not."""
    root: str
    """The repository or worktree; empty where none was found."""
    database: str
    """Where state lives, a URL without its password; empty where that cannot be settled."""
    because: str
    """Why there."""
    settings: tuple[Setting, ...]
    """Each setting in force with its source; none where something is wrong with them."""
    trust: NeedsTrust | None
    """What of them needs the user's trust; null where nothing does."""
    free_disk: int
    """Bytes free where the database is."""
    database_bytes: int
    """The database with its log; 0 where there is none yet."""
    runs: int
    """How many are kept."""
    findings: tuple[CheckupFinding, ...]
    """What is worth saying."""
    moved: dict[str, str] = {}
    """Files that `--set-aside` moved, from each path to the one it has now."""
    removed: tuple[str, ...] = ()
    """Temporary folders that `--tidy` removed."""

    @property
    def severity(self) -> Severity | None:
        """The worst of the findings."""
        order: tuple[Severity, ...] = ("damage", "wrong", "note")
        return next((one for one in order if any(found.severity == one for found in self.findings)), None)


def examine(repo: Path | None = None, *, version: str, deep: bool = False) -> Checkup:
    """Look at everything; `deep` also reads every record of every run and checks its digests.

    `version` is that of the program.
    """
    findings: list[CheckupFinding] = [*_versions()]
    location: Location | None = None
    settings: tuple[Setting, ...] = ()
    size: DatabaseSize | None = None
    needs_trust: NeedsTrust | None = None
    free = 0
    try:
        location = find_location(repo)
    except AgentosError as error:
        findings += [_finding_from("wrong", error), *_settings_besides(repo, error)]
    if location is not None:
        findings += _old_database(location)
        in_force, root = Settings(), location.root
        if location.source is LocationSource.VARIABLE:  # git was not asked yet for the root whose settings count
            with suppress(AgentosError):
                root = git.find_repository(root).root
        needs_trust, refused = _trust(root)
        if wrong := wrong_settings(root):
            findings += [_finding_from("wrong", error) for error in wrong]
        else:
            settings, in_force = explain_settings(root), load_settings(root)
            findings += refused
        path = location.root if location.backend.is_shared else Path(location.database)
        free = shutil.disk_usage(_existing(path)).free
        if not refused or location.source is not LocationSource.SETTINGS or not location.backend.is_shared:
            size, found = _database(_place(location), in_force, deep=deep)
            findings += [*found, *_snapshots(_place(location))]
        # The disk after that: looking in makes a log beside the database, with the same mode.
        findings += [*_unfinished_restore(location.root), *_on_disk(location, path, free)]
    findings += _on_this_machine(location)
    return Checkup(
        sound=not any(found.severity != "note" for found in findings),
        agentos=version,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        sqlite=sqlite3.sqlite_version,
        git=_git_version(),
        agents=tuple(installed_agents()),
        sandbox=sandbox_ability(),
        root="" if location is None else str(location.root),
        database="" if location is None else location.shown,
        because="" if location is None else location.why,
        settings=settings,
        trust=needs_trust,
        free_disk=free,
        database_bytes=0 if size is None else size.bytes,
        runs=0 if size is None else size.runs,
        findings=tuple(findings),
    )


def _finding_from(severity: Severity, error: AgentosError) -> CheckupFinding:
    return CheckupFinding(severity=severity, what=error.message, mend=error.next_step)


# --- the programs -------------------------------------------------------------------------------------------------


def _git_version() -> str:
    try:
        done = git.run(Path("/"), "--version")
    except AgentosError:
        return ""
    return os.fsdecode(done.stdout).strip().removeprefix("git version ")


def _versions() -> Iterator[CheckupFinding]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield CheckupFinding(
            severity="wrong",
            what=f"this Python is built with SQLite {sqlite3.sqlite_version}",
            mend=f"Use a Python with SQLite {oldest} or newer.",
        )
    if not _git_version():
        variable = from_variable("database")
        yield CheckupFinding(
            severity="note" if variable else "wrong",
            what="git is not installed, or not on PATH",
            mend=f"Install git; without it runs need {DATABASE_VARIABLE}.",
        )


# --- the place ----------------------------------------------------------------------------------------------------


def _old_database(location: Location) -> Iterator[CheckupFinding]:
    old = unused_old_database(location.database)
    if old is not None:
        yield CheckupFinding(
            severity="note",
            what=f"the old global database {one_line(old)} is there, and not in use",
            mend=f"Go on with it by {DATABASE_VARIABLE}={one_line(old)}, or leave it; docs/workflow.md says more.",
        )


def _settings_besides(repo: Path | None, error: AgentosError) -> Iterator[CheckupFinding]:
    """What is wrong with the settings, where already the place could not be settled, beside what that says."""
    try:
        root = git.find_repository(asked_directory(repo)).root
    except AgentosError:
        return
    for wrong in wrong_settings(root):
        if wrong.message not in error.message and not wrong.message.startswith("`database`"):
            yield _finding_from("wrong", wrong)


def _trust(root: Path) -> tuple[NeedsTrust | None, list[CheckupFinding]]:
    """What needs to be trusted here, and what to say where it is not. Settings that are wrong were told already."""
    try:
        reaching = find_reaching(root)
    except AgentosError:
        return None, []
    if reaching is None:
        return None, []
    since = trusted_since(reaching)
    findings = [_finding_from("wrong", untrusted_error(reaching))] if since is None and reaching.in_force else []
    return NeedsTrust(settings=tuple(reaching.lines()), since=since or ""), findings


def _existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next(folder for folder in path.parents if folder.is_dir())


def _on_disk(location: Location, path: Path, free: int) -> Iterator[CheckupFinding]:
    if free < LOW_SPACE:
        yield CheckupFinding(
            severity="wrong",
            what=f"only {free // 1_000_000} MB are free where {one_line(path)} is",
            mend="Free some space: a run stops when its journal cannot be written.",
        )
    if location.backend.is_shared:
        return
    # The variable may name a place in a folder that is shared on purpose; the file in it is private all the same.
    folders = [] if location.source is LocationSource.VARIABLE else [path.parent]
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    for entry in (*folders, *files):
        try:
            mode = stat.S_IMODE(entry.stat().st_mode)
        except OSError:
            continue
        if mode & 0o077:
            wanted = "700" if entry.is_dir() else "600"
            yield CheckupFinding(
                severity="wrong",
                what=f"{one_line(entry)} can be read by others (mode {mode:o}); prompts and outputs are in it",
                mend=f"chmod {wanted} {one_line(entry)}",
            )
    folder = _existing(path)
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        yield CheckupFinding(
            severity="wrong",
            what=f"{one_line(folder)} cannot be written by you, so no run can begin here",
            mend="Make it writable (chmod u+w), or choose another place with AGENTOS_WORKFLOW_DB.",
        )


# --- the database -------------------------------------------------------------------------------------------------


def _place(location: Location) -> Place:
    if not location.backend.is_shared:
        return Place(database=location.database, root=location.root)
    return find_place(location.root, make=False)


def _database(place: Place, settings: Settings, *, deep: bool) -> tuple[DatabaseSize | None, list[CheckupFinding]]:
    findings: list[CheckupFinding] = []
    try:
        if broken := damage(place, thorough=deep):
            findings.append(
                CheckupFinding(
                    severity="damage",
                    what=f"the database {one_line(Path(place.database))} is damaged: {'; '.join(broken[:3])}",
                    mend="Export what can still be read (`agentos export RUN`), then `agentos doctor --set-aside`.",
                )
            )
        size = size_up(place)
        findings += _size_findings(size, settings)
        store = place.open(readonly=True)
        try:
            for run in store.list_runs() if deep else ():
                findings += _verify_run(store, run)
            runs = store.list_runs(statuses=UNDER_WAY)
            failed = store.list_runs(statuses={"failed"}, limit=MOST_FAILED)
            findings += [*_runs([*runs, *failed], shared=place.is_shared), *_left_behind(place, store, runs)]
            findings += _check_retention(place, store, settings)
        finally:
            store.close()
        return size, [*findings, *(_under_another_name(place) if place.is_shared else ())]
    except NotFoundError:  # no run yet
        return None, findings
    except IntegrityError as error:
        return None, [*findings, _finding_from("damage", error)]
    except AgentosError as error:
        return None, [*findings, _finding_from("wrong", error)]


def _check_retention(place: Place, store: StorePort, settings: Settings) -> Iterator[CheckupFinding]:
    """What the setting `retention` means, and what a deletion that was killed has left."""
    if has_note(place.kept_beside):
        yield CheckupFinding(
            severity="note",
            what="runs are being deleted, or whoever did was killed before all their logs and snapshots were gone",
            mend="agentos prune --all   brings it to its end",
        )
    expiry = settings.retention.expiry
    if expiry and (runs := find_expired(place, store, expiry, datetime.now(UTC))):
        yield CheckupFinding(
            severity="note",
            what=f"{len(runs):,} runs are older than the setting `retention` says ({expiry})",
            mend="agentos worker --once   deletes them; a worker that runs all the time does so by itself",
        )


def _snapshots(place: Place) -> Iterator[CheckupFinding]:
    """Snapshots outlive their database: they lie in git's own folder."""
    from agentos.workflow.files.retention import snapshot_sizes, unknown_snapshots

    try:
        unknown, sizes = unknown_snapshots(place), snapshot_sizes(place.root)
    except AgentosError:  # what the database knows cannot be told; that is said already
        return
    if not unknown or sizes is None:
        return
    named = list_some(map(one_line, sorted(unknown)))
    yield CheckupFinding(
        severity="note",
        what=f"{sum(unknown.values())} snapshots of files are kept in git's folder of runs that this database does not "
        f"know ({named}): theirs is gone, or another one. All snapshots take {sizes.total_bytes:,} bytes",
        mend="agentos delete RUN   forgets those of one of them; agentos delete --all   every run and snapshot here",
    )


def _unfinished_restore(root: Path) -> Iterator[CheckupFinding]:
    """A restore that was interrupted: the next run here finishes it, if it can."""
    from agentos.worktree.restore.intent import find_interrupted
    from agentos.worktree.snapshots.store import known_worktree

    worktree = known_worktree(root)
    try:
        begun = find_interrupted(worktree) if worktree is not None else None
    except AgentosError as error:
        yield _finding_from("wrong", error)
        return
    if begun is not None:
        yield CheckupFinding(
            severity="wrong",
            what=f"files of run {one_line(begun.workflow_id)} are half put back: this was interrupted",
            mend=f"The next run here finishes it; agentos restore {begun.undo[:12]} brings back what was there before, "
            f"agentos resume {one_line(short_id(begun.workflow_id))} --files keep leaves the files as they are.",
        )


def _verify_run(store: StorePort, run: RunRecord) -> Iterator[CheckupFinding]:
    try:
        store.verify(run.workflow_id)
    except CheckpointCorruptedError as error:
        sound = store.newest_sound_checkpoint(run.workflow_id)
        mend = "No checkpoint of it is sound: run its workflow anew, under another id."
        if sound is not None:
            mend = f"agentos fork {sound.id}   goes on from its newest sound checkpoint"
        yield CheckupFinding(severity="damage", what=error.message, mend=mend)
    except IntegrityError as error:
        yield _finding_from("damage", error)


def _size_findings(size: DatabaseSize, settings: Settings) -> Iterator[CheckupFinding]:
    if size.schema < size.known_schema:
        yield CheckupFinding(
            severity="note",
            what=f"the database has schema {size.schema}; this AgentOS writes {size.known_schema}",
            mend="agentos db migrate   (the next run does it, too)",
        )
    if size.bytes > settings.space_warning:
        yield CheckupFinding(
            severity="note",
            what=f"the database holds {size.bytes:,} bytes; space_warning is {settings.space_warning:,}",
            mend="`agentos db stats` shows the largest runs, `agentos delete RUN` gives their space back.",
        )
    if size.pooled:
        yield CheckupFinding(
            severity="note",
            what="the database is reached through a pooler: changes by others are looked for every 0.2 seconds",
            mend="Nothing to do; the URL of the server itself would be a little quicker.",
        )


def _runs(runs: list[RunRecord], *, shared: bool) -> Iterator[CheckupFinding]:
    for run in runs:
        gone = bool(run.root) and not os.path.isdir(run.root) and not shared  # else it may well be on another host
        if gone:
            yield CheckupFinding(
                severity="wrong",
                what=f"run {one_line(run.workflow_id)} ({run.status}) belongs to {one_line(run.root)}, which is gone",
                mend=f"agentos resume {one_line(run.workflow_id)} --repo WHERE-IT-MOVED, or agentos delete it",
            )
        elif run.status == "interrupted" and run.kind == "workflow":
            yield CheckupFinding(
                severity="wrong",
                what=f"run {one_line(run.workflow_id)} ({one_line(run.name)}) was interrupted; nobody drives it",
                mend=f"agentos resume {one_line(short_id(run.workflow_id))}",
            )


def _under_another_name(place: Place) -> Iterator[CheckupFinding]:
    """Runs that were begun here before the repository was called what it is now: nothing lists them here any more."""
    everywhere = msgspec.structs.replace(place, everywhere=True).open(readonly=True)
    try:
        runs = [*everywhere.list_runs(statuses=UNDER_WAY), *everywhere.list_runs(statuses={"failed"}, limit=NEWEST)]
    finally:
        everywhere.close()
    for run in runs:
        if run.scope != place.scope and was_begun_here(run) and Path(run.root) == place.root:
            yield CheckupFinding(
                severity="wrong",
                what=f"run {one_line(run.workflow_id)} ({run.status}) was begun here when the repository was called "
                f"{one_line(run.scope.repository)}, and is not listed under the name it has now",
                mend=f"agentos resume {one_line(run.workflow_id)} --repo {one_line(place.root)}   takes it along",
            )


def _left_behind(place: Place, store: StorePort, runs: list[RunRecord]) -> Iterator[CheckupFinding]:
    """Processes and leases of drivers that are dead."""
    for process, run in leftover_processes(store):
        yield CheckupFinding(
            severity="wrong",
            what=f"process {process.pid} ({one_line(process.command)}) is left over from run "
            f"{one_line(run.workflow_id)}",
            mend=f"agentos resume {one_line(short_id(run.workflow_id))} ends it first; or kill {process.pid}",
        )
    interrupted = {run.workflow_id for run in runs if run.status == "interrupted"}
    for lease in held_leases(place):
        if not lease.live and lease.workflow_id not in interrupted:
            yield CheckupFinding(
                severity="note",
                what=f"the lease of run {one_line(lease.workflow_id)} was not released by {lease.holder}, now dead",
                mend="Nothing to do: the next resume takes the run over at once.",
            )


# --- the machine --------------------------------------------------------------------------------------------------


def _on_this_machine(location: Location | None) -> Iterator[CheckupFinding]:
    here = None if location is None else location.database
    others = [one for one in interrupted_runs().runs if one.worktree.database != here]
    if others:
        yield CheckupFinding(
            severity="note",
            what=f"{len(others)} interrupted runs in other worktrees, the oldest in "
            f"{one_line(others[0].worktree.root)}",
            mend="agentos resume --all",
        )
    folders = leftover_folders()
    if folders:
        listed = " ".join(map(one_line, folders[:5])) + (" …" if len(folders) > 5 else "")
        yield CheckupFinding(
            severity="note",
            what=f"{len(folders)} temporary folders were left by processes that are gone: {listed}",
            mend="`agentos doctor --tidy` removes those of attempts, and so does resuming their run. Others are yours: "
            + (f"rm -r {listed}" if len(folders) <= 5 else "delete them when you like."),
        )
