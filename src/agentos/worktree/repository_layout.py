"""What git's answers about a repository depend on, read from its files: as long as that is the same, they are, too.

Asking git takes milliseconds and a process, looking at these a tenth of one. Where they do not say enough (settings
that include others, links, a folder that may be a repository itself) there is no layout, and git is asked each time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

Layout = tuple[object, ...]
_MOST_BYTES = 1 << 16
_SYSTEM = "/etc/gitconfig"


def read_layout(directory: Path, environ: Mapping[str, str]) -> Layout | None:
    """Where the repository of a directory lies, who owns the way to it, its settings and the user's.

    `environ` is what git is started with. None where that does not tell all that git would go by.
    """
    seen: list[object] = [os.geteuid(), *sorted(environ.items() if environ else ())]
    try:
        for folder in (directory, *directory.parents):
            found = os.stat(folder)
            seen.append((found.st_dev, found.st_ino, found.st_uid, found.st_mode))
            if os.path.lexists(folder / "HEAD"):  # a folder of git's own, perhaps
                return None
            if os.path.lexists(folder / ".git"):
                return _read_below(folder, environ, seen)
    except (OSError, ValueError):
        return None
    return None


def _read_below(root: Path, environ: Mapping[str, str], seen: list[object]) -> Layout | None:
    git_dir = root / ".git"
    entry = os.lstat(git_dir)
    seen.append((entry.st_dev, entry.st_ino, entry.st_uid))
    if stat.S_ISREG(entry.st_mode):  # of a linked worktree, or a submodule
        pointer = _contents(git_dir)
        git_dir = root / os.fsdecode(pointer.removeprefix(b"gitdir:").strip())
        seen.append(pointer)
    elif not stat.S_ISDIR(entry.st_mode):
        return None
    common = git_dir
    if (named := _contents(git_dir / "commondir")) != b"":
        common = git_dir / os.fsdecode(named.strip())
    for folder in (git_dir, common):
        found = os.stat(folder)
        seen.append((found.st_dev, found.st_ino, found.st_uid, found.st_mode))
    seen += [os.path.exists(git_dir / "HEAD"), os.path.exists(common / "objects"), os.path.exists(common / "refs")]
    home = environ.get("HOME", "")
    own = Path(environ.get("XDG_CONFIG_HOME") or f"{home}/.config") / "git/config"
    settings = [
        _contents(path)
        for path in (common / "config", git_dir / "config.worktree", Path(f"{home}/.gitconfig"), own, Path(_SYSTEM))
    ]
    if any(b"include" in one.lower() or len(one) > _MOST_BYTES for one in settings):
        return None
    return (*seen, named, *settings)


def _contents(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return b""
