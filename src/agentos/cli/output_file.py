"""Files that commands write: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agentos.exceptions import RunRefusedError
from agentos.render.text import printable


def write_file(path: Path, lines: Iterable[bytes], *, force: bool) -> int:
    """Put the lines into the file, mode 0600; how many bytes that were. Killed half-way, the file is as it was."""
    if path.is_dir():
        raise RunRefusedError(f"{printable(str(path))} is a directory", next_step="Name a file in it.")
    if not path.parent.is_dir():
        raise RunRefusedError(
            f"{printable(str(path.parent))} is no directory", next_step="Make it, or name a file elsewhere."
        )
    if not force and os.path.lexists(path):
        raise _exists(path)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.", suffix=".partial")  # 0600
    try:
        with open(handle, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(handle)
            size = file.tell()
        if force:
            os.replace(partial, path)
        else:
            try:
                os.link(partial, path)  # unlike a rename, it fails where another file came in meanwhile
            except FileExistsError:
                raise _exists(path) from None
            except OSError:  # a file system without hard links
                os.replace(partial, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)
    return size


def _exists(path: Path) -> RunRefusedError:
    return RunRefusedError(
        f"{printable(str(path))} exists already", next_step="Name another file, or overwrite it with --force."
    )
