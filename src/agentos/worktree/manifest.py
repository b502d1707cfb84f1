"""What a snapshot says about itself, beside its tree: the JSON that is the message of its commit."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

FORMAT = 1


class Left(msgspec.Struct, frozen=True, order=True):
    """A path that is there and is not in the tree, and why."""

    path: str
    why: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where the user's HEAD stood."""

    ref: str | None = None
    """The branch, in full; None: detached."""
    oid: str | None = None
    """None: a branch without a commit yet."""


class Modes(msgspec.Struct, frozen=True, kw_only=True):
    """Permission bits: the usual ones of each kind, and every path that differs. Git itself keeps one bit of them."""

    file: int = 0o644
    executable: int = 0o755
    folder: int = 0o755
    odd: Mapping[str, int] = {}

    def of(self, path: str, *, executable: bool = False, folder: bool = False) -> int:
        usual = self.folder if folder else self.executable if executable else self.file
        return self.odd.get(path, usual)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Paths are relative to the root; bytes that are no UTF-8 stand in them as lone surrogates (os.fsdecode)."""

    format: int
    workflow_id: str
    name: str
    at: str
    git: str
    head: Head = Head()
    index: str | None = None
    """A commit: the user's index as a tree, or its listing where it holds conflicts. It is a parent of the snapshot."""
    ignored: tuple[str, ...] = ()
    """What was there and ignored; folders end in `/`. A restore never deletes it."""
    empty: tuple[str, ...] = ()
    """Empty folders."""
    modes: Modes = Modes()
    partial: tuple[Left, ...] = ()
    """What was there, is not ignored, and is not in the tree."""
    repositories: Mapping[str, str | None] = {}
    """Submodules and other repositories inside, with their HEAD. What is in them is never captured or touched."""
    purged: tuple[str, ...] = ()
    """Taken out afterwards, on request."""


def encode(manifest: Manifest) -> bytes:
    import json  # msgspec refuses lone surrogates, and names of files are full of surprises

    return json.dumps(msgspec.to_builtins(manifest), ensure_ascii=True, separators=(",", ":")).encode("ascii")


def decode(message: bytes) -> Manifest:
    """ValueError for a message that is no manifest of a format we know."""
    import json

    manifest = msgspec.convert(json.loads(message), Manifest, strict=False)
    if manifest.format != FORMAT:
        raise ValueError(f"its format is {manifest.format}, and this release knows {FORMAT}")
    return manifest


def read_modes(root: Path, paths: Iterable[str]) -> Modes:
    """The permission bits of `paths` below `root` and of the folders they lie in. Links have none."""
    top, lstat = f"{root}/", os.lstat
    found: dict[str, int] = {}
    folders: set[str] = set()
    for path in paths:
        try:
            mode = lstat(top + path).st_mode
        except OSError:
            continue  # it went away meanwhile; the next snapshot says so
        if stat.S_ISREG(mode):
            found[path] = mode
        folders.add(path.rpartition("/")[0])
    for folder in _with_parents(folders):
        try:
            found[folder] = lstat(top + folder).st_mode
        except OSError:
            continue
    return _summed(found)


def _with_parents(folders: set[str]) -> set[str]:
    known: set[str] = set()
    for folder in folders:
        while folder and folder not in known:
            known.add(folder)
            folder = folder.rpartition("/")[0]
    return known


def _summed(found: Mapping[str, int]) -> Modes:
    files, executables, folders = Counter[int](), Counter[int](), Counter[int]()
    for mode in found.values():
        kind = folders if stat.S_ISDIR(mode) else executables if mode & 0o100 else files
        kind[stat.S_IMODE(mode)] += 1
    usual = Modes(file=_first(files, 0o644), executable=_first(executables, 0o755), folder=_first(folders, 0o755))
    odd = {
        path: stat.S_IMODE(mode)
        for path, mode in found.items()
        if stat.S_IMODE(mode) != usual.of(path, executable=bool(mode & 0o100), folder=stat.S_ISDIR(mode))
    }
    return msgspec.structs.replace(usual, odd=dict(sorted(odd.items())))


def _first(counted: Counter[int], otherwise: int) -> int:
    return counted.most_common(1)[0][0] if counted else otherwise
