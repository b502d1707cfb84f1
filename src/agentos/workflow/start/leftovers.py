"""What dead drives leave behind on the machine: processes, and folders for temporary files. Ends no process."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agentos.store.holder import refuse_hidden_processes
from agentos.store.port import RunRecord, StorePort
from agentos.tasks.process.launch import PREFIX, abandoned_folders
from agentos.tasks.process.orphans import AttemptProcess, attempt_processes
from agentos.workflow.place.place import known_run

YOUNG_S = 60.0
"""A folder younger than this may belong to an attempt that is just being started."""


def leftover_processes(store: StorePort) -> list[tuple[AttemptProcess, RunRecord]]:
    """Living processes of attempts of runs of this store, where nobody drives the run any more."""
    return [
        (process, run)
        for process in attempt_processes()
        for run in _runs_of(store, process.attempt_id)
        if run.holder is None and process.root in ("", run.root)
    ]


def _runs_of(store: StorePort, attempt_id: str) -> Iterator[RunRecord]:
    """The run of an attempt (run/task/attempt): any part before a slash may be its id, which can have slashes, too."""
    parts = attempt_id.split("/")
    for length in range(1, len(parts)):
        run = known_run(store, "/".join(parts[:length]))
        if run is not None:
            yield run


def leftover_folders() -> list[Path]:
    """Our temporary folders that no living process of this user uses."""
    folders = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_old_and_ours(path)]
    if not folders:
        return []
    used = _used_places()
    return sorted(path for path in folders if not any(str(path) in place for place in used))


def remove_leftover_folders() -> list[Path]:
    """Remove the folders of attempts whose driver is dead and that nothing uses any more; gives them.

    Others of `leftover_folders` do not say whose they are, and are left to the user.
    """
    dead = {folder for folder, _, _ in abandoned_folders()}
    removed = [folder for folder in leftover_folders() if folder in dead]
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def _is_old_and_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and time.time() - found.st_mtime > YOUNG_S


def _used_places() -> set[str]:
    """Every path that a process of this user works in, was started with, or has in its environment."""
    import psutil

    places: set[str] = set()
    refuse_hidden_processes()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            places.add(process.cwd())
        with suppress(psutil.Error, OSError):
            places.update(process.cmdline())
        with suppress(psutil.Error, OSError):
            places.update(value for value in process.environ().values() if PREFIX in value)
        with suppress(psutil.Error, OSError):
            places.update(opened.path for opened in process.open_files())
    return places
