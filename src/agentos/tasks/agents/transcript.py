"""The agent's own account of its session, copied beside the attempt's log: the agent's is neither masked nor kept."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from glob import escape, glob
from typing import BinaryIO

import msgspec

from agentos.machine.events import Usage
from agentos.secrets import Masker
from agentos.tasks.agents.adapters.adapter import Traits, TranscriptLocation
from agentos.tasks.attempt import AttemptLog

SUFFIX = ".transcript.jsonl"
_ID = re.compile(r"[\w-]{8,100}", re.ASCII)
"""Of a session: an agent tells its own, and it must not lead to another file."""
_AT_ONCE = 1 << 20
_SHORT = 8
_HEAD_BYTES = 1 << 16


class CopiedTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """A transcript that was copied."""

    file: str
    """Its name, in the folder of the log."""
    source: str
    left_out: int = 0
    """Bytes of its beginning that were too much."""


def transcript_of(kept: TranscriptLocation | None, session: str, env: Mapping[str, str]) -> str:
    """The path of the session's transcript, the newest where there are several; empty where there is none."""
    if kept is None or not _ID.fullmatch(session):
        return ""
    home = env.get("HOME") or os.path.expanduser("~")
    folder = env.get(kept.variable) or os.path.join(home, kept.folder)
    pattern = kept.pattern.format(id=session, short=session[:_SHORT])
    newest, changed = "", -1.0
    for path in glob(os.path.join(escape(folder), pattern)):
        try:
            at = os.stat(path).st_mtime
            if session not in path:  # not every agent has all of the id in its name
                with _open_file(path) as file:
                    if session.encode() not in file.read(_HEAD_BYTES):
                        continue
        except OSError:
            continue
        if at > changed:
            newest, changed = path, at
    return newest


class SessionTokens:
    """What the session of an attempt has used, read from its transcript as that grows."""

    def __init__(self, traits: Traits, env: Mapping[str, str]) -> None:
        self._traits, self._env = traits, env
        self._path, self._read = "", 0
        self._found: Usage | None = None

    def read(self, session: str) -> Usage | None:
        """Tokens of the whole session, calls of this attempt's; None: it does not say. Blocks."""
        tokens_of = self._traits.tokens_of
        if tokens_of is None:
            return None
        try:
            self._path = self._path or transcript_of(self._traits.transcript, session, self._env)
            if not self._path:
                return None
            with _open_file(self._path) as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._read += len(line)
                    if (told := tokens_of(line.decode(errors="replace"))) is not None:
                        self._note(told)
        except OSError:
            pass
        return self._found

    def _note(self, told: Usage) -> None:
        known = self._found
        if known is None or (told.input_tokens, told.output_tokens) != (known.input_tokens, known.output_tokens):
            self._found = msgspec.structs.replace(told, calls=(known.calls if known is not None else 0) + 1)


def copy_transcript(source: str, log: AttemptLog, masker: Masker) -> CopiedTranscript | None:
    """Copies it, masked; of one that is too long the end. None where it cannot be read or written. Blocks."""
    try:
        with _open_file(source) as file:
            size = os.fstat(file.fileno()).st_size
            left_out = 0
            if size > log.limit:  # from the first line that begins after what is too much, or right behind that
                file.seek(size - log.limit - 1)
                while (piece := file.readline(_AT_ONCE)) and not piece.endswith(b"\n"):
                    pass
                left_out = file.tell()
            name = log.keep(SUFFIX, _mask_chunks(file, left_out, size - left_out, masker))
    except OSError:
        return None
    return CopiedTranscript(file=name, source=masker.text(source), left_out=left_out) if name else None


def _open_file(path: str) -> BinaryIO:
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{path} is no file")
    return os.fdopen(opened, "rb")


def _mask_chunks(file: BinaryIO, left_out: int, size: int, masker: Masker) -> Iterator[bytes]:
    if left_out:
        note = f"{left_out} bytes were left out: of a transcript as much is kept as of a log, from its end"
        yield json.dumps({"agentos_note": note}).encode() + b"\n"
    stream = masker.stream()
    while data := file.read(min(size, _AT_ONCE)):  # and no further, should something still write to it
        size -= len(data)
        yield stream.feed(data)
    yield stream.finish()
