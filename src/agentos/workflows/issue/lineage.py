"""The files that people read: `docs/lineage/active/NAME/002-draft.md`, in `done/NUMBER-NAME/` once the issue is filed.

They are made from what the journal holds, which also gives their numbers. Writing one again changes nothing: a file
that is there stays as it is, since somebody may have changed it.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentos.exceptions import AttemptError

LINEAGE = Path("docs/lineage")


def active_folder(name: str) -> Path:
    """Where the files of a run lie until its issue is filed, relative to the root."""
    return LINEAGE / "active" / name


def done_folder(name: str, number: str) -> Path:
    return LINEAGE / "done" / (f"{number}-{name}" if number else name)


def write_artefact(root: Path, name: str, number: int, kind: str, text: str) -> str:
    """Write an artefact, whole or not at all, unless it is there; its path from the root."""
    file = active_folder(name) / f"{number:03}-{kind}"
    _write(root, file, text)
    return str(file)


def read_artefact(root: Path, file: str, otherwise: str) -> str:
    """What the file holds now, hand-made changes included; where it is gone, what the journal holds."""
    path = _inside(root, Path(file))
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        _write(root, Path(file), otherwise)
        return otherwise


def move_to_done(root: Path, name: str, number: str, last: str, text: str) -> str:
    """Write the last artefact and move the folder to where filed ones lie. Safe to repeat wherever it was cut off."""
    active, done = active_folder(name), done_folder(name, number)
    where = done if (root / done).is_dir() and not (root / active).is_dir() else active
    _write(root, where / last, text)
    if where == active:
        _inside(root, done.parent).mkdir(parents=True, exist_ok=True)
        try:
            os.rename(root / active, root / done)
        except OSError as error:
            raise AttemptError(
                f"{active} cannot be moved to {done}: {error.strerror}",
                next_step="The issue is filed, and stays so. Make room there, then resume the run.",
            ) from error
    return str(done)


def _write(root: Path, file: Path, text: str) -> None:
    folder = _inside(root, file.parent)
    target, half = folder / file.name, folder / f".{file.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists() or target.is_symlink():
            return
        # In UTF-8 whatever the locale; half a character, which a model may give, is no reason to lose its answer.
        half.write_bytes((text if text.endswith("\n") else f"{text}\n").encode(errors="backslashreplace"))
        os.replace(half, target)
    except OSError as error:
        raise AttemptError(
            f"{file} cannot be written: {error.strerror}",
            next_step="Nothing is lost: make room for it, then resume the run.",
        ) from error


def _inside(root: Path, name: Path) -> Path:
    """The folder or file, where it really lies in the root: a repository may bring links that lead out of it."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise AttemptError(f"{name} leads out of {root}", next_step="Take the link away, then resume the run.")
    return path
