"""What a snapshot says about itself, beside its tree: the JSON that is the message of its commit."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from agentos import typed
from agentos.worktree.restore.safe_names import refuse_no_branch, refuse_no_oid, refuse_outside, refuse_unsafe

FORMAT = 1
_YOUNG_S = 2.0
PERMISSIONS = 0o777
"""The bits that are kept and put back: none that lets a program run as somebody else."""


class SkippedPath(msgspec.Struct, frozen=True, order=True):
    """A path that is there and is not in the tree, and why."""

    path: str
    why: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where the user's HEAD stood."""

    ref: str | None = None
    """The branch, in full; None: detached."""
    oid: str | None = None
    """None: a branch without a commit yet."""


class Modes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Permission bits: the usual ones of each kind, and every path that differs. Git itself keeps one bit of them."""

    file: int = 0o644
    executable: int = 0o755
    folder: int = 0o755
    odd: Mapping[str, int] = {}
    odd_folders: tuple[str, ...] = ()
    """Those of `odd` that are folders."""

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
    partial: tuple[SkippedPath, ...] = ()
    """What was there, is not ignored, and is not in the tree."""
    repositories: Mapping[str, str | None] = {}
    """Submodules and other repositories inside, with their HEAD. What is in them is never captured or touched."""
    purged: tuple[str, ...] = ()
    """Taken out afterwards, on request."""
    worktree: str = ""
    """Which worktree of the repository it is of, by the name that git has for it; empty: the main one."""
    place: str = ""
    """The identity of that worktree: one of the same name in another clone is another."""
    replaced_by: str = ""
    """Of what a restore replaced: the tree that came in its place. It is kept as long as the snapshot is."""
    replaced_modes: tuple[str, ...] = ()
    """The paths whose permission bits that restore set."""
    rules: tuple[str, str] | None = None
    """What was ignored by `info/exclude` and by the file that `core.excludesFile` names. None: not known."""


def encode(manifest: Manifest) -> bytes:
    import json  # msgspec refuses lone surrogates, and names of files are full of surprises

    return json.dumps(msgspec.to_builtins(manifest), ensure_ascii=True, separators=(",", ":")).encode("ascii")


def decode(message: bytes) -> Manifest:
    """ValueError for a message that is no manifest of a format we know, or names a path outside the worktree."""
    import json

    manifest = typed.convert(json.loads(message), Manifest, strict=False)
    if manifest.format != FORMAT:
        raise ValueError(f"its format is {manifest.format}, and this release knows {FORMAT}")
    datetime.fromisoformat(manifest.at)
    refuse_no_oid(manifest.index, manifest.replaced_by, manifest.head.oid, *manifest.repositories.values())
    refuse_no_branch(manifest.head.ref)
    named = (*manifest.ignored, *manifest.repositories, *manifest.purged, *(left.path for left in manifest.partial))
    refuse_outside(path.removesuffix("/") for path in named)
    refuse_unsafe((*manifest.empty, *manifest.replaced_modes))
    return msgspec.structs.replace(manifest, modes=check_modes(manifest.modes))


def check_modes(modes: Modes) -> Modes:
    """The modes with permission bits alone. ValueError where they name a path outside the worktree."""
    refuse_unsafe((*modes.odd, *modes.odd_folders))
    return msgspec.structs.replace(
        modes,
        file=modes.file & PERMISSIONS,
        executable=modes.executable & PERMISSIONS,
        folder=modes.folder & PERMISSIONS,
        odd={path: bits & PERMISSIONS for path, bits in modes.odd.items()},
    )


def read_modes(root: Path, paths: Iterable[str]) -> tuple[Modes, list[str]]:
    """The permission bits of `paths` below `root` and of the folders they lie in; and which files are very young."""
    paths = list(paths)
    found, young = _bits(root, paths)
    return _with_folders(root, paths, _summarise_modes(found, Modes(), folders=False)), young


def renew_modes(
    root: Path, paths: Iterable[str], known: Modes, *, changed: Iterable[str], gone: Collection[str]
) -> tuple[Modes, list[str]]:
    """The same where the bits of files are known: only folders, and the files that changed, are looked at."""
    changed = set(changed)
    found, young = _bits(root, changed)
    odd = {path: bits for path, bits in known.odd.items() if path not in known.odd_folders and path not in gone}
    for path in changed:
        odd.pop(path, None)
    usual = msgspec.structs.replace(known, odd={}, odd_folders=())
    odd |= {path: bits for path, bits in found.items() if bits != usual.of(path, executable=bool(bits & 0o100))}
    return _with_folders(root, paths, msgspec.structs.replace(usual, odd=odd)), young


def _bits(root: Path, paths: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """Of regular files, links have none; and those that changed within the last seconds, as git counts time."""
    top, lstat, is_file = f"{root}/", os.lstat, stat.S_ISREG
    settled = time.time() - _YOUNG_S
    found: dict[str, int] = {}
    young: list[str] = []
    for path in paths:
        try:
            seen = lstat(top + path)
        except OSError:
            continue  # it went away meanwhile; the next snapshot says so
        if is_file(seen.st_mode):
            found[path] = seen.st_mode & PERMISSIONS
            if seen.st_ctime >= settled:
                young.append(path)
    return found, young


def _with_folders(root: Path, paths: Iterable[str], files: Modes) -> Modes:
    found: dict[str, int] = {}
    looked_at: set[str] = set()
    for folder in {path.rpartition("/")[0] for path in paths}:
        while folder and folder not in looked_at:
            looked_at.add(folder)
            inner, folder = folder, folder.rpartition("/")[0]
            try:
                found[inner] = os.lstat(f"{root}/{inner}").st_mode & PERMISSIONS
            except OSError:
                continue  # it went away meanwhile
    return _summarise_modes(found, files, folders=True)


def _summarise_modes(found: Mapping[str, int], known: Modes, *, folders: bool) -> Modes:
    """`known` with the bits of some files, or of some folders."""
    plain, executable = Counter[int](), Counter[int]()
    for bits in found.values():
        (executable if bits & 0o100 and not folders else plain)[bits] += 1
    if folders:
        usual = msgspec.structs.replace(known, folder=_first(plain, 0o755))
    else:
        usual = msgspec.structs.replace(known, file=_first(plain, 0o644), executable=_first(executable, 0o755))
    odd = {
        path: bits
        for path, bits in found.items()
        if bits != usual.of(path, executable=bool(bits & 0o100), folder=folders)
    }
    return msgspec.structs.replace(
        usual, odd=dict(sorted({**known.odd, **odd}.items())), odd_folders=tuple(sorted(odd)) if folders else ()
    )


def _first(counted: Counter[int], otherwise: int) -> int:
    return counted.most_common(1)[0][0] if counted else otherwise
