"""What is ignored, by the rules of the moment a snapshot was taken: a task may have written others since."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from agentos.worktree.git import Git, join_names, split_names
from agentos.worktree.restore.safe_names import Protection, unsafe_path
from agentos.worktree.snapshots.index import IndexSession
from agentos.worktree.snapshots.manifest import Manifest
from agentos.worktree.snapshots.store import Worktree, blank_repository
from agentos.worktree.snapshots.survey import survey

_RULES = ".gitignore"
_TRACKED = ("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
_LONGEST = 64 * 1024


def read_rules(worktree: Worktree) -> tuple[str, str]:
    """What `info/exclude` and the file of `core.excludesFile` say now, without their comments."""
    return _read(worktree.common_dir / "info/exclude"), _read(worktree.excludes_file)


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            text = os.fsdecode(file.read(_LONGEST))
    except OSError:
        return ""
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip() and not line.startswith("#"))


def find_unignored(opened: IndexSession, tree: str, then: Manifest, paths: Iterable[str]) -> list[str]:
    """The files that are ignored now, and were not by the rules when the snapshot was taken.

    `paths` are those of its `tree`, its own ignore files among them.
    """
    root = opened.worktree.root
    kept, known = Protection(then.ignored), set(paths)
    # An earlier look may have put such files into the private index, where nothing counts as ignored to `git status`.
    now = (*survey(opened, refresh=False).ignored, *opened.git().names(*_TRACKED))
    # What was there and ignored is nothing of the snapshot's, whatever the rules say.
    new = [path for path in now if path not in known and not kept.covers(path.rstrip("/"))]
    if not new:
        return []
    exclude, excludes = then.rules or read_rules(opened.worktree)
    with (
        tempfile.TemporaryDirectory(prefix="rules-", dir=opened.worktree.folder) as folder,
        blank_repository(opened.worktree, exclude=exclude) as own,
    ):
        scratch = Path(folder)
        (own / "excludes").write_bytes(os.fsencode(excludes))
        git = opened.git(index=own / "index")
        env = {**git.env, "GIT_DIR": str(own), "GIT_WORK_TREE": str(scratch)}
        git = msgspec.structs.replace(git, cwd=scratch, env=env, config=(f"core.excludesFile={own / 'excludes'}",))
        for path in (*known, *then.ignored):
            if path.rpartition("/")[2] == _RULES and unsafe_path((path,)) is None:
                (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                if path in then.ignored:  # it is in no snapshot, and stays as it is
                    (scratch / path).write_bytes(os.fsencode(_read(root / path)))
                else:
                    (scratch / path).write_bytes(opened.git().ask("cat-file", "-p", f"{tree}:{path}"))
        whole = _drop_ignored(git, scratch, new)
        files = [path for path in whole if not path.endswith("/")]
        inside = [path for name in whole if name.endswith("/") for path in _files_below(root, name, kept)]
        return [*files, *_drop_ignored(git, scratch, inside)]


def _drop_ignored(git: Git, scratch: Path, paths: list[str]) -> list[str]:
    """Those of `paths` (folders end in `/`) that the rules in `scratch` do not ignore."""
    for path in paths:
        if path.endswith("/") and unsafe_path((path[:-1],)) is None:
            (scratch / path).mkdir(parents=True, exist_ok=True)  # some rules are about folders alone
    if not paths:
        return []
    argv = ("check-ignore", "--no-index", "-z", "--stdin")
    ignored = set(split_names(git.run(*argv, stdin=join_names(path.rstrip("/") for path in paths), ok=(0, 1)).stdout))
    return [path for path in paths if path.rstrip("/") not in ignored]


def _files_below(root: Path, folder: str, kept: Protection) -> Iterator[str]:
    """Files and links below a folder; repositories, and what was ignored already, are not entered."""
    for top, folders, files in os.walk(root / folder):
        here = os.path.relpath(top, root)
        if ".git" in folders or ".git" in files:
            folders.clear()
            continue
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        folders[:] = [name for name in folders if not kept.covers(f"{here}/{name}")]
        yield from (f"{here}/{name}" for name in (*files, *links) if not kept.covers(f"{here}/{name}"))
