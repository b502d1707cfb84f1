"""The place a run is kept in: which store, and which worktree it works on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from agentos.dag.checks import MAX_ID
from agentos.exceptions import RunNotFoundError, RunRefusedError, WorkflowConfigurationError
from agentos.store.port import RunRecord, StorePort
from agentos.workflow.location import Source, asked_directory, find_location, prepare
from agentos.worktree.git import find_repository


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A settled location. Opening a store in it is cheap: each thread that needs one opens its own."""

    database: str
    root: Path
    named: bool = False
    """The user named this root: a run that was begun elsewhere has moved here."""
    durability: Literal["full", "process"] = "full"

    def exists(self) -> bool:
        """Whether anything was ever kept here."""
        return "://" in self.database or Path(self.database).exists()

    def open(self, *, create: bool = False, readonly: bool = False) -> StorePort:
        """A store of this place. WorkflowConfigurationError where there is none and `create` is False."""
        if "://" in self.database:
            raise WorkflowConfigurationError(
                "PostgreSQL is not available yet", next_step="Unset AGENTOS_WORKFLOW_DB to use SQLite in this worktree."
            )
        # sqlite3 is loaded only by those who keep something.
        from agentos.store.sqlite_open import open_store

        return open_store(self.database, durability=self.durability, create=create, readonly=readonly)


def find_place(
    repo: str | Path | None = None, *, durability: Literal["full", "process"] = "full", make: bool = True
) -> Place:
    """Where runs of this worktree (default: the current directory's) are kept.

    The folder is made, unless `make` is False: who only looks writes nothing, and may look at a read-only tree.
    """
    location = find_location(Path(repo) if repo is not None else None)
    if make:
        prepare(location)
    root = location.root
    if location.source is Source.VARIABLE:
        # The variable says where state lives and git was not asked; tasks still work on the worktree they are in.
        with suppress(WorkflowConfigurationError):
            root = find_repository(root).root
    return Place(database=location.database, root=root, named=repo is not None, durability=durability)


def find_root(repo: str | Path | None = None) -> Path:
    """The root to look for workflows in: that of the repository or worktree, else the directory. Writes nothing."""
    directory = asked_directory(Path(repo) if repo is not None else None)
    with suppress(WorkflowConfigurationError):
        return find_repository(directory).root
    return directory


def refuse_bad_id(workflow_id: str | None) -> None:
    """RunRefusedError where no run can be called that: nothing, an endless text, or what is no text at all."""
    if workflow_id is None:
        return
    problem = ""
    if not workflow_id.strip():
        problem = "it is empty"
    elif len(workflow_id) > MAX_ID:
        problem = f"it has {len(workflow_id):,} characters, {MAX_ID} are allowed"
    elif any("\ud800" <= character <= "\udfff" for character in workflow_id):
        problem = "it is not UTF-8"
    if problem:
        raise RunRefusedError(
            f"no run can have the id {workflow_id[:20]!r}: {problem}", next_step="Choose another id, or give none."
        )


def known_run(store: StorePort, workflow_id: str) -> RunRecord | None:
    """The run of exactly this id, if there is one; a prefix of others names none."""
    try:
        record = store.find_run(workflow_id)
    except (RunNotFoundError, RunRefusedError):  # none, or several that only begin with it
        return None
    return record if record.workflow_id == workflow_id else None
