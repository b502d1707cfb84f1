"""Many changed files in one pack, with the folders above them, before git updates the private index.

Git would write each into a file of its own, which is most of what such a snapshot costs. It still decides what the
snapshot holds: it reads the files itself, and what is in the pack already it need not write.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from agentos.exceptions import GitError
from agentos.worktree.snapshots.store import IndexSession

MANY = 32
"""So many changed files are worth a process more."""
_FILE_BYTES = 1 << 20
_TOTAL_BYTES = 64 << 20
_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]+')
"""Names that fast-import reads as they are."""

# The commit is for nothing but its trees, so that its branch is given up again.
_BEGIN = b"feature done\ncommit refs/none\ncommitter agentos <agentos@localhost> 0 +0000\ndata 0\n"
_END = b"\nreset refs/none\n\ndone\n"
_SETTINGS = ("-c", "fastimport.unpackLimit=0", "-c", "pack.compression=1")


def write_pack(opened: IndexSession, tree: str, *, changed: Collection[str], deleted: Collection[str]) -> None:
    """Write what is different from `tree` into one pack, as far as that is simple.

    What could not be done is done by git later, so nothing depends on it.
    """
    gone = b"".join(b"D %s\n" % os.fsencode(path) for path in deleted if _PLAIN.fullmatch(path))
    base = b'M 040000 %s ""\n' % tree.encode()
    try:
        # Deleted first: where a file was, a folder may be now.
        argv = (*_SETTINGS, "fast-import", "--quiet", "--depth=0")
        files = _read_files(opened.worktree.root, changed)
        opened.writing_git().ask(*argv, stdin=b"".join((_BEGIN, base, gone, *files, _END)))
    except GitError as error:
        for report in opened.worktree.store.glob("fast_import_crash_*"):
            report.unlink(missing_ok=True)
        if error.status is None:
            raise


def _read_files(root: Path, paths: Collection[str]) -> Iterator[bytes]:
    left = _TOTAL_BYTES
    for path in paths:
        if left <= 0:
            return
        try:
            file = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        with open(file, "rb") as opened:
            seen = os.fstat(file)
            if not stat.S_ISREG(seen.st_mode) or seen.st_size > _FILE_BYTES or not _PLAIN.fullmatch(path):
                continue
            content = opened.read(_FILE_BYTES)
        left -= len(content)
        mode = b"100755" if seen.st_mode & stat.S_IXUSR else b"100644"
        yield b"M %s inline %s\ndata %d\n%s\n" % (mode, os.fsencode(path), len(content), content)
